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

/// Writes the products of `R` rows and `T` tokens, four rows of two tokens at a time.
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
    const { assert!(R <= 8 && T <= 8, "`unroll` goes no further") };
    let scale = _mm256_set1_ps(target.scale);
    // Lanes 8 apart.
    let mut chains = [[_mm256_setzero_ps(); T]; R];
    unroll!(ROW < R => {
        unroll!(TOKEN < T => { chains[ROW][TOKEN] = _mm256_add_ps(low[ROW][TOKEN], high[ROW][TOKEN]); });
    });
    // SAFETY: these rows and tokens are the caller's.
    unsafe {
        unroll!(FOUR < R.div_ceil(4) => {
            unroll!(PAIR < T.div_ceil(2) => {
                let (row, token, rows) = (4 * FOUR, 2 * PAIR, if R - 4 * FOUR < 4 { R - 4 * FOUR } else { 4 });
                let at = target.at.add((first_token + token) * target.stride + first_row + row);
                if token + 1 < T {
                    // Rows that there are not are others' again, and not written.
                    let [a, b, c, d] = up_to_four(row, rows);
                    let (next, chains) = (token + 1, &chains);
                    let sums = sum_8(
                        [
                            chains[a][token], chains[a][next], chains[b][token], chains[b][next],
                            chains[c][token], chains[c][next], chains[d][token], chains[d][next],
                        ],
                        2 * rows,
                    );
                    let sums = _mm256_mul_ps(sums, scale);
                    write(rows, _mm256_castps256_ps128(sums), at);
                    write(rows, _mm256_extractf128_ps::<1>(sums), at.add(target.stride));
                } else {
                    let [a, b, c, d] = up_to_four(row, rows);
                    let sums = sum_4([chains[a][token], chains[c][token], chains[b][token], chains[d][token]]);
                    write(rows, _mm_mul_ps(sums, _mm256_castps256_ps128(scale)), at);
                }
            });
        });
    }
}

/// The numbers of `rows` rows from `row` on, the last one again where there are fewer than four.
#[inline(always)]
fn up_to_four(row: usize, rows: usize) -> [usize; 4] {
    [row, row + 1.min(rows - 1), row + 2.min(rows - 1), row + 3.min(rows - 1)]
}

/// The first `count` of four sums.
///
/// # Safety
/// `at` is valid for `count` writes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn write(count: usize, sums: __m128, at: *mut f32) {
    // SAFETY: promised by the caller.
    unsafe {
        match count {
            4 => _mm_storeu_ps(at, sums),
            3 => {
                _mm_storel_epi64(at.cast(), _mm_castps_si128(sums));
                at.add(2).write(f32::from_bits(_mm_extract_ps::<2>(sums).cast_unsigned()));
            }
            2 => _mm_storel_epi64(at.cast(), _mm_castps_si128(sums)),
            _ => _mm_store_ss(at, sums),
        }
    }
}

/// The sums of the first `count` of eight chains: those of chains 0, 2, 4 and 6, then those of the others.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_8([a, b, c, d, e, f, g, h]: [__m256; 8], count: usize) -> __m256 {
    let first = add_pairs(add_halves(a, b), add_halves(c, d));
    let last = if count > 4 { add_pairs(add_halves(e, f), add_halves(g, h)) } else { first };
    add_neighbours(first, last)
}

/// The sums of four chains: those of chains 0 and 2, then those of 1 and 3.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_4([a, b, c, d]: [__m256; 4]) -> __m128 {
    let pairs = add_pairs(add_halves(a, b), add_halves(c, d));
    let sums = add_neighbours(pairs, pairs);
    _mm_movelh_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums))
}
