//! The sixteen lanes of each of many chains, added in the tree of `sum_lanes`: all of a tile together.

use std::arch::x86_64::*;

use super::Target;
use crate::cpu::unroll::unroll;

/// Lanes 4 apart: the first vector's sums in the first half, the second one's in the other.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_halves(a: __m256, b: __m256) -> __m256 {
    _mm256_add_ps(_mm256_blend_ps::<0xf0>(a, b), _mm256_permute2f128_ps::<0x21>(a, b))
}

/// Lanes 2 apart: in each half, the first vector's two sums, then the second one's.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_pairs(a: __m256, b: __m256) -> __m256 {
    _mm256_add_ps(_mm256_blend_ps::<0b1100_1100>(a, b), _mm256_shuffle_ps::<0b01_00_11_10>(a, b))
}

/// Neighbours: in each half, the first vector's two sums, then the second one's.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_neighbours(a: __m256, b: __m256) -> __m256 {
    _mm256_add_ps(_mm256_shuffle_ps::<0b10_00_10_00>(a, b), _mm256_shuffle_ps::<0b11_01_11_01>(a, b))
}

/// Writes the products of `R` rows and `T` tokens, at most sixteen.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C; `target` is valid for writes there.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn put<const R: usize, const T: usize>(
    low: [[__m256; T]; R],
    high: [[__m256; T]; R],
    first_row: usize,
    first_token: usize,
    target: Target,
) {
    const { assert!(R * T <= 16, "more chains than two vectors have lanes") };
    // Lanes 8 apart.
    let mut chains = [_mm256_setzero_ps(); 16];
    unroll!(ROW < R => {
        unroll!(TOKEN < T => {
            if ROW * T + TOKEN < 16 {
                chains[ROW * T + TOKEN] = _mm256_add_ps(low[ROW][TOKEN], high[ROW][TOKEN]);
            }
        });
    });
    let mut values = [0f32; 16];
    let scale = _mm256_set1_ps(target.scale);
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = chains;
    // SAFETY: eight floats each; places of these rows and tokens, as the caller promises.
    unsafe {
        _mm256_storeu_ps(values.as_mut_ptr(), _mm256_mul_ps(sum_8([a, b, c, d, e, f, g, h], R * T), scale));
        if R * T > 8 {
            let last = sum_8([i, j, k, l, m, n, o, p], R * T - 8);
            _mm256_storeu_ps(values.as_mut_ptr().add(8), _mm256_mul_ps(last, scale));
        }
        unroll!(ROW < R => {
            unroll!(TOKEN < T => {
                let chain = ROW * T + TOKEN;
                let at = target.at.add((first_token + TOKEN) * target.stride + first_row + ROW);
                at.write(values[chain / 8 * 8 + PLACES[chain % 8]]);
            });
        });
    }
}

/// Where [`sum_8`] has the sum of each chain.
const PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The sums of the first `count` of eight chains.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_8([a, b, c, d, e, f, g, h]: [__m256; 8], count: usize) -> __m256 {
    let first = add_pairs(add_halves(a, b), add_halves(c, d));
    let last = if count > 4 { add_pairs(add_halves(e, f), add_halves(g, h)) } else { first };
    add_neighbours(first, last)
}
