//! AVX2: six queries by sixteen columns a tile, twelve running sums in registers while the entries pass.

use std::arch::x86_64::*;

use super::{PAGE_TOKENS, Shape};
use crate::cpu::unroll::unroll;

/// Values that AVX2 reads.
pub(super) trait Load: Sized {
    /// Eight values.
    ///
    /// # Safety
    /// They are there; the CPU has AVX2.
    unsafe fn load(at: *const Self) -> __m256;
}

impl Load for f32 {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn load(at: *const f32) -> __m256 {
        // SAFETY: promised by the caller.
        unsafe { _mm256_loadu_ps(at) }
    }
}

/// bf16
impl Load for u16 {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn load(at: *const u16) -> __m256 {
        // SAFETY: promised by the caller.
        let halves = unsafe { _mm_loadu_si128(at.cast()) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
    }
}

/// See [`super::weighted_sum`].
///
/// # Safety
/// The CPU has AVX2 and FMA; `cols` is a multiple of 16; lengths as checked there.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn weighted_sum<V: Load>(
    (queries, entries, cols): Shape,
    weights: &[f32],
    values: &[V],
    stride: usize,
    sums: &mut [f32],
) {
    for column in (0..cols).step_by(16) {
        for q in (0..queries).step_by(6) {
            // SAFETY: queries `q..` and sixteen columns from `column` exist; features as promised by the caller.
            unsafe {
                let weights = weights.as_ptr().add(q * PAGE_TOKENS);
                let values = values.as_ptr().add(column);
                let sums = sums.as_mut_ptr().add(q * cols + column);
                match queries - q {
                    1 => tile::<V, 1>(weights, values, stride, entries, sums, cols),
                    2 => tile::<V, 2>(weights, values, stride, entries, sums, cols),
                    3 => tile::<V, 3>(weights, values, stride, entries, sums, cols),
                    4 => tile::<V, 4>(weights, values, stride, entries, sums, cols),
                    5 => tile::<V, 5>(weights, values, stride, entries, sums, cols),
                    _ => tile::<V, 6>(weights, values, stride, entries, sums, cols),
                }
            }
        }
    }
}

/// `Q` queries by sixteen columns.
///
/// # Safety
/// The CPU has AVX2 and FMA; all of it is inside the buffers.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<V: Load, const Q: usize>(
    weights: *const f32,
    values: *const V,
    stride: usize,
    entries: usize,
    sums: *mut f32,
    cols: usize,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); 2]; Q];
        unroll!(I < Q => {
            acc[I] = [_mm256_loadu_ps(sums.add(I * cols)), _mm256_loadu_ps(sums.add(I * cols + 8))];
        });
        for j in 0..entries {
            let value = values.add(j * stride);
            let value = [V::load(value), V::load(value.add(8))];
            unroll!(I < Q => {
                let weight = _mm256_broadcast_ss(&*weights.add(I * PAGE_TOKENS + j));
                acc[I][0] = _mm256_fmadd_ps(weight, value[0], acc[I][0]);
                acc[I][1] = _mm256_fmadd_ps(weight, value[1], acc[I][1]);
            });
        }
        unroll!(I < Q => {
            _mm256_storeu_ps(sums.add(I * cols), acc[I][0]);
            _mm256_storeu_ps(sums.add(I * cols + 8), acc[I][1]);
        });
    }
}
