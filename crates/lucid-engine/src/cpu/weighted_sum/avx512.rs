//! AVX-512: six queries by 64 columns a tile, or twelve by 32, 24 running sums in registers; what is left of the columns goes by sixteen.

use std::arch::x86_64::*;

use super::{PAGE_TOKENS, Shape};
use crate::cpu::unroll::unroll;

/// Values that AVX-512 reads.
pub(super) trait Load: Sized {
    /// Whether a vector takes arithmetic to load: then many queries should share it. Otherwise few broadcasts should.
    const WIDENS: bool;

    /// Sixteen values.
    ///
    /// # Safety
    /// They are there; the CPU has AVX-512 F.
    unsafe fn load(at: *const Self) -> __m512;
}

impl Load for f32 {
    const WIDENS: bool = false;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn load(at: *const f32) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { _mm512_loadu_ps(at) }
    }
}

/// bf16
impl Load for u16 {
    const WIDENS: bool = true;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn load(at: *const u16) -> __m512 {
        // SAFETY: promised by the caller.
        let halves = unsafe { _mm256_loadu_si256(at.cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
    }
}

/// See [`super::weighted_sum`].
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and DQ; `cols` is a multiple of 16; lengths as checked there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn weighted_sum<V: Load>(
    shape: Shape,
    weights: &[f32],
    values: &[V],
    stride: usize,
    sums: &mut [f32],
) {
    let mut column = 0;
    // SAFETY: these columns exist; features as promised by the caller.
    unsafe {
        if shape.0 <= 6 || !V::WIDENS {
            while column + 64 <= shape.2 {
                columns::<V, 4>(column, shape, weights, values, stride, sums);
                column += 64;
            }
        } else {
            while column + 32 <= shape.2 {
                columns::<V, 2>(column, shape, weights, values, stride, sums);
                column += 32;
            }
        }
        while column < shape.2 {
            columns::<V, 1>(column, shape, weights, values, stride, sums);
            column += 16;
        }
    }
}

/// All queries by `16 C` columns, in groups of about equal size.
///
/// # Safety
/// As [`weighted_sum`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn columns<V: Load, const C: usize>(
    column: usize,
    (queries, entries, cols): Shape,
    weights: &[f32],
    values: &[V],
    stride: usize,
    sums: &mut [f32],
) {
    let mut q = 0;
    let most = if C > 2 { 6 } else { 12 };
    for group in (1..=queries.div_ceil(most)).rev() {
        let width = (queries - q).div_ceil(group);
        // SAFETY: queries `q..` and `16 C` columns from `column` exist; features as promised by the caller.
        unsafe {
            let weights = weights.as_ptr().add(q * PAGE_TOKENS);
            let values = values.as_ptr().add(column);
            let sums = sums.as_mut_ptr().add(q * cols + column);
            match width {
                1 => tile::<V, 1, C>(weights, values, stride, entries, sums, cols),
                2 => tile::<V, 2, C>(weights, values, stride, entries, sums, cols),
                3 => tile::<V, 3, C>(weights, values, stride, entries, sums, cols),
                4 => tile::<V, 4, C>(weights, values, stride, entries, sums, cols),
                5 => tile::<V, 5, C>(weights, values, stride, entries, sums, cols),
                6 => tile::<V, 6, C>(weights, values, stride, entries, sums, cols),
                // With four vectors a tile has at most six queries.
                _ if C > 2 => {}
                7 => tile::<V, 7, C>(weights, values, stride, entries, sums, cols),
                8 => tile::<V, 8, C>(weights, values, stride, entries, sums, cols),
                9 => tile::<V, 9, C>(weights, values, stride, entries, sums, cols),
                10 => tile::<V, 10, C>(weights, values, stride, entries, sums, cols),
                11 => tile::<V, 11, C>(weights, values, stride, entries, sums, cols),
                _ => tile::<V, 12, C>(weights, values, stride, entries, sums, cols),
            }
        }
        q += width;
    }
}

/// `Q` queries by `16 C` columns.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and DQ; all of it is inside the buffers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn tile<V: Load, const Q: usize, const C: usize>(
    weights: *const f32,
    values: *const V,
    stride: usize,
    entries: usize,
    sums: *mut f32,
    cols: usize,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); C]; Q];
        unroll!(I < Q, at most 12 => {
            unroll!(J < C => { acc[I][J] = _mm512_loadu_ps(sums.add(I * cols + 16 * J)); });
        });
        for j in 0..entries {
            let mut value = [_mm512_setzero_ps(); C];
            unroll!(J < C => { value[J] = V::load(values.add(j * stride + 16 * J)); });
            unroll!(I < Q, at most 12 => {
                let weight = _mm512_set1_ps(*weights.add(I * PAGE_TOKENS + j));
                unroll!(J < C => { acc[I][J] = _mm512_fmadd_ps(weight, value[J], acc[I][J]); });
            });
        }
        unroll!(I < Q, at most 12 => {
            unroll!(J < C => { _mm512_storeu_ps(sums.add(I * cols + 16 * J), acc[I][J]); });
        });
    }
}
