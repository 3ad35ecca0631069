//! The codes of layouts with scales for groups of columns, sixteen at a time.

use std::arch::x86_64::*;

use super::layouts_avx2::{self, nibbles, whole};
use super::layouts_avx512;

/// How sixteen columns' codes stand in a row.
pub(super) trait Codes: Copy {
    /// Whether a minimum is taken off.
    const MINIMA: bool = false;
    /// See [`Layout::STEPS`](super::layouts::Layout::STEPS).
    const STEPS: usize = 1;
    /// About how many bytes sixteen columns take.
    const BYTES: usize;

    /// The codes' values for columns `16 * block ..` of the row at `row`, before scales.
    ///
    /// # Safety
    /// The row has these columns; the CPU has AVX2, FMA and F16C.
    unsafe fn avx2(row: *const u8, block: usize) -> [__m256; 2];

    /// The same in one vector.
    ///
    /// # Safety
    /// The row has these columns; the CPU has AVX-512 F, BW, VL and DQ.
    unsafe fn avx512(row: *const u8, block: usize) -> __m512;
}

/// Two codes a byte, the even column in the low nibble; a code is the value plus 8.
#[derive(Clone, Copy)]
pub(super) struct Int4;

impl Codes for Int4 {
    const BYTES: usize = 8;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2(row: *const u8, block: usize) -> [__m256; 2] {
        // SAFETY: 8 bytes of the row.
        whole(_mm_sub_epi8(unsafe { nibbles(row.add(8 * block)) }, _mm_set1_epi8(8)))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn avx512(row: *const u8, block: usize) -> __m512 {
        let values = _mm512_setr_ps(
            -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
        );
        // SAFETY: 8 bytes of the row.
        _mm512_permutexvar_ps(unsafe { layouts_avx512::nibbles(row.add(8 * block)) }, values)
    }
}

/// E4M3, a byte each.
#[derive(Clone, Copy)]
pub(super) struct E4m3;

impl Codes for E4m3 {
    const BYTES: usize = 16;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2(row: *const u8, block: usize) -> [__m256; 2] {
        // SAFETY: 16 bytes of the row.
        layouts_avx2::e4m3(unsafe { _mm_loadu_si128(row.add(16 * block).cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn avx512(row: *const u8, block: usize) -> __m512 {
        // SAFETY: 16 bytes of the row.
        layouts_avx512::e4m3(unsafe { _mm_loadu_si128(row.add(16 * block).cast()) })
    }
}
