//! AVX-512: six queries by 64 columns a tile, or twelve by 32, 24 running sums in registers; what is left of the columns goes by sixteen.

use std::arch::x86_64::*;

use super::tiles::tiles;

tiles! {
    features: "avx512f,avx512bw,avx512vl,avx512dq",
    lanes: 16,
    zero: _mm512_setzero_ps, load: _mm512_loadu_ps, store: _mm512_storeu_ps, broadcast: _mm512_set1_ps, multiply_add: _mm512_fmadd_ps,
    queries: { 1 2 3 4 5 6 7 8 9 10 11 12 },
}

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
                columns::<V, 4>(6, column, shape, weights, values, stride, sums);
                column += 64;
            }
        } else {
            while column + 32 <= shape.2 {
                columns::<V, 2>(12, column, shape, weights, values, stride, sums);
                column += 32;
            }
        }
        while column < shape.2 {
            columns::<V, 1>(12, column, shape, weights, values, stride, sums);
            column += 16;
        }
    }
}
