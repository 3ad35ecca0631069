//! Q8_0 of GGUF: a binary16 scale and 32 signed bytes, again and again.

use std::arch::x86_64::*;

use super::layouts::Layout;
use super::layouts_avx2::{self, whole};
use super::layouts_avx512;

/// Rows of it.
#[derive(Clone, Copy)]
pub(super) struct Q8_0 {
    pub(super) at: *const u8,
    pub(super) row_bytes: usize,
}

impl Layout for Q8_0 {
    #[inline]
    unsafe fn skip(self, rows: usize) -> Self {
        // SAFETY: inside the rows, as the caller promises.
        Q8_0 { at: unsafe { self.at.add(rows * self.row_bytes) }, ..self }
    }

    #[inline]
    fn fetch(self, block: usize) -> Option<*const u8> {
        Some(self.at.wrapping_add(17 * block))
    }

    #[inline]
    fn row_bytes(self) -> usize {
        self.row_bytes
    }
}

impl layouts_avx2::Load for Q8_0 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: a scale and 16 bytes of the row.
        unsafe {
            let at = self.at.add(block / 2 * 34);
            let scale = _mm256_cvtph_ps(_mm_set1_epi16(at.cast::<i16>().read_unaligned()));
            let [low, high] = whole(_mm_loadu_si128(at.add(2 + block % 2 * 16).cast()));
            [_mm256_mul_ps(low, scale), _mm256_mul_ps(high, scale)]
        }
    }
}

impl layouts_avx512::Load for Q8_0 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn load(self, block: usize) -> __m512 {
        // SAFETY: a scale and 16 bytes of the row.
        unsafe {
            let at = self.at.add(block / 2 * 34);
            let scale = _mm512_cvtph_ps(_mm256_set1_epi16(at.cast::<i16>().read_unaligned()));
            let values = layouts_avx512::whole(_mm_loadu_si128(at.add(2 + block % 2 * 16).cast()));
            _mm512_mul_ps(values, scale)
        }
    }
}
