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
    sizes: Sizes<'_>,
    weights: &[f32],
    values: &[V],
    sums: &mut [f32],
) {
    let mut column = 0;
    let wide = sizes.queries <= 6 || !V::WIDENS;
    let tiles = if wide {
        sizes.cols.div_ceil(64) * sizes.queries.div_ceil(6)
    } else {
        sizes.cols.div_ceil(32) * sizes.queries.div_ceil(12)
    };
    let mut next = Next::of(sizes, values, tiles);
    // Tiles stay within a block of columns.
    let fits = |column: usize, width: usize| {
        column + width <= sizes.cols && (sizes.block >= sizes.cols || sizes.block.is_multiple_of(width))
    };
    // SAFETY: these columns exist; features as promised by the caller.
    unsafe {
        if wide {
            while fits(column, 64) {
                columns::<V, 4>(6, column, sizes, weights, values, sums, &mut next);
                column += 64;
            }
        } else {
            while fits(column, 32) {
                columns::<V, 2>(12, column, sizes, weights, values, sums, &mut next);
                column += 32;
            }
        }
        while column < sizes.cols {
            columns::<V, 1>(12, column, sizes, weights, values, sums, &mut next);
            column += 16;
        }
    }
}
