//! AVX2: six queries by sixteen columns a tile, twelve running sums in registers while the entries pass.

use std::arch::x86_64::*;

use super::tiles::tiles;

tiles! {
    features: "avx2,fma",
    lanes: 8,
    zero: _mm256_setzero_ps, load: _mm256_loadu_ps, store: _mm256_storeu_ps, broadcast: _mm256_set1_ps, multiply_add: _mm256_fmadd_ps,
    queries: { 1 2 3 4 5 6 },
}

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
    sizes: Sizes<'_>,
    weights: &[f32],
    values: &[V],
    sums: &mut [f32],
) {
    let mut next = Next::of(sizes, values, sizes.cols / 16 * sizes.queries.div_ceil(6));
    for column in (0..sizes.cols).step_by(16) {
        // SAFETY: these columns exist; features as promised by the caller.
        unsafe { columns::<V, 2>(6, column, sizes, weights, values, sums, &mut next) };
    }
}
