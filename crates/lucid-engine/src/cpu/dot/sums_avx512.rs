//! The sixteen lanes of each of many chains, added in the tree of `sum_lanes`: four rows and four tokens together.

use std::arch::x86_64::*;

use super::Target;
use crate::cpu::unroll::unroll;

/// The sums of sixteen chains, in order.
///
/// Each step adds the lanes of two vectors that lie some places apart, and leaves the first one's sums where the place's bit is 0, the
/// second one's where it is 1. One vector for it is a blend, which runs beside the shuffle that makes the other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn sum_16(c: [__m512; 16]) -> __m512 {
    let fours = [
        add_quarters(add_halves(c[0], c[8]), add_halves(c[4], c[12])),
        add_quarters(add_halves(c[1], c[9]), add_halves(c[5], c[13])),
        add_quarters(add_halves(c[2], c[10]), add_halves(c[6], c[14])),
        add_quarters(add_halves(c[3], c[11]), add_halves(c[7], c[15])),
    ];
    add_neighbours(add_pairs(fours[0], fours[2]), add_pairs(fours[1], fours[3]))
}

/// The sums of eight chains, in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn sum_8(c: [__m512; 8]) -> __m256 {
    let fours = [
        add_quarters(add_halves(c[0], c[4]), add_halves(c[2], c[6])),
        add_quarters(add_halves(c[1], c[5]), add_halves(c[3], c[7])),
    ];
    let pairs = add_pairs(fours[0], fours[1]);
    let twice = _mm512_add_ps(pairs, _mm512_movehdup_ps(pairs));
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_castps512_ps256(_mm512_permutexvar_ps(even, twice))
}

/// Lanes 8 apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn add_halves(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4::<0b01_00_11_10>(a, b))
}

/// Lanes 4 apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn add_quarters(a: __m512, b: __m512) -> __m512 {
    let other = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
    _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, a, b), _mm512_permutex2var_ps(a, other, b))
}

/// Lanes 2 apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn add_pairs(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps::<0b01_00_11_10>(a, b))
}

/// Neighbours.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn add_neighbours(a: __m512, b: __m512) -> __m512 {
    let other = _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);
    _mm512_add_ps(_mm512_mask_blend_ps(0xaaaa, a, b), _mm512_permutex2var_ps(a, other, b))
}

/// The sum of one chain.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn sum_1(c: __m512) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps::<1>(c));
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// Writes the products of `R` rows and `T` tokens.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and DQ; `target` is valid for writes there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn put<const R: usize, const T: usize>(
    sums: [[__m512; T]; R],
    first_row: usize,
    first_token: usize,
    target: Target,
) {
    let scale = _mm512_set1_ps(target.scale);
    // SAFETY: places of these rows and tokens, as the caller promises.
    unsafe {
        if R == 8 {
            // Two tokens at a time.
            unroll!(HALF < T.div_ceil(2) => {
                let mut chains = [_mm512_setzero_ps(); 16];
                unroll!(I < 8 => {
                    if I < R {
                        chains[I] = sums[I][2 * HALF];
                        if 2 * HALF + 1 < T {
                            chains[8 + I] = sums[I][2 * HALF + 1];
                        }
                    }
                });
                let products = _mm512_mul_ps(sum_16(chains), scale);
                let at = target.at.add((first_token + 2 * HALF) * target.stride + first_row);
                _mm256_storeu_ps(at, _mm512_castps512_ps256(products));
                if 2 * HALF + 1 < T {
                    _mm256_storeu_ps(at.add(target.stride), _mm512_extractf32x8_ps::<1>(products));
                }
            });
        } else if R == 4 {
            // Four tokens at a time, in the end one or two.
            unroll!(FOUR < T.div_ceil(4) => {
                let mut chains = [_mm512_setzero_ps(); 16];
                unroll!(TOKEN < 4, at most 4 => {
                    if 4 * FOUR + TOKEN < T {
                        unroll!(ROW < 4, at most 4 => {
                            if ROW < R {
                                chains[4 * TOKEN + ROW] = sums[ROW][4 * FOUR + TOKEN];
                            }
                        });
                    }
                });
                let at = target.at.add((first_token + 4 * FOUR) * target.stride + first_row);
                if T - 4 * FOUR <= 2 {
                    let [c @ .., _, _, _, _, _, _, _, _] = chains;
                    let products = _mm256_mul_ps(sum_8(c), _mm512_castps512_ps256(scale));
                    _mm_storeu_ps(at, _mm256_castps256_ps128(products));
                    if 4 * FOUR + 1 < T {
                        _mm_storeu_ps(at.add(target.stride), _mm256_extractf128_ps::<1>(products));
                    }
                } else {
                    let products = _mm512_mul_ps(sum_16(chains), scale);
                    _mm_storeu_ps(at, _mm512_castps512_ps128(products));
                    _mm_storeu_ps(at.add(target.stride), _mm512_extractf32x4_ps::<1>(products));
                    _mm_storeu_ps(at.add(2 * target.stride), _mm512_extractf32x4_ps::<2>(products));
                    if 4 * FOUR + 3 < T {
                        _mm_storeu_ps(at.add(3 * target.stride), _mm512_extractf32x4_ps::<3>(products));
                    }
                }
            });
        } else {
            unroll!(ROW < R => {
                unroll!(TOKEN < T => {
                    target.put(first_row + ROW, first_token + TOKEN, sum_1(sums[ROW][TOKEN]));
                });
            });
        }
    }
}
