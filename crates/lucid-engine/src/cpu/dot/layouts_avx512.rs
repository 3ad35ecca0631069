//! How AVX-512 reads sixteen columns of a stored row.

use std::arch::x86_64::*;

use lucid_checkpoint::{E4M3, nvfp4};

use super::layouts::{Bf16, F8E4m3, F16, F32, Layout, Nvfp4};
use crate::cpu::unroll::unroll;

/// Rows that AVX-512 reads.
pub(super) trait Load: Layout {
    /// Columns `16 * block ..` of the first row.
    ///
    /// # Safety
    /// The row has these columns; the CPU has AVX-512 F, BW, VL and DQ.
    unsafe fn load(self, block: usize) -> __m512;

    /// The columns of step `step` of one token's tile: the first `STEPS` of these sixteens.
    ///
    /// # Safety
    /// As [`Load::load`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn step(self, step: usize) -> [__m512; 8] {
        let mut sixteens = [_mm512_setzero_ps(); 8];
        // SAFETY: promised by the caller.
        unsafe {
            unroll!(I < Self::STEPS => { sixteens[I] = self.load(step * Self::STEPS + I); });
        }
        sixteens
    }
}

impl Load for F32 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn load(self, block: usize) -> __m512 {
        // SAFETY: 64 bytes of the row, as the caller promises.
        unsafe { _mm512_loadu_ps(self.at.add(64 * block).cast()) }
    }
}

impl Load for F16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn load(self, block: usize) -> __m512 {
        // SAFETY: 32 bytes of the row.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(self.at.add(32 * block).cast())) }
    }
}

impl Load for Bf16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn load(self, block: usize) -> __m512 {
        // SAFETY: 32 bytes of the row.
        let halves = unsafe { _mm256_loadu_si256(self.at.add(32 * block).cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
    }
}

impl Load for F8E4m3 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn load(self, block: usize) -> __m512 {
        // SAFETY: 16 bytes of the row.
        e4m3(unsafe { _mm_loadu_si128(self.at.add(16 * block).cast()) })
    }
}

impl Load for Nvfp4 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn load(self, block: usize) -> __m512 {
        // SAFETY: 8 bytes of codes and one scale of the row, and a table of sixteen floats.
        unsafe {
            let values = _mm512_loadu_ps(nvfp4::E2M1.as_ptr());
            let scale = _mm512_set1_ps(E4M3[*self.scales.add(block) as usize]);
            // Two significant bits times four: exact.
            _mm512_mul_ps(_mm512_permutexvar_ps(nibbles(self.codes.add(8 * block)), values), scale)
        }
    }
}

/// Sixteen nibbles of eight bytes, low ones first, in the low bits of sixteen dwords. Higher bits hold something else: the
/// permutations that take these as indices read four bits.
///
/// # Safety
/// Eight bytes can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn nibbles(at: *const u8) -> __m512i {
    // SAFETY: promised by the caller.
    let bytes = _mm512_cvtepu8_epi64(unsafe { _mm_loadl_epi64(at.cast()) });
    // A byte's high nibble goes to the dword above it.
    _mm512_or_si512(bytes, _mm512_slli_epi64::<28>(bytes))
}

/// Sixteen signed bytes as floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn whole(bytes: __m128i) -> __m512 {
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
}

/// Sixteen E4M3 numbers. Their bits are those of a binary16 number 256 times smaller, but for NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn e4m3(codes: __m128i) -> __m512 {
    let wide = _mm256_cvtepu8_epi16(codes);
    let magnitude = _mm256_and_si256(_mm256_slli_epi16::<7>(wide), _mm256_set1_epi16(0x3f80));
    let sign = _mm256_and_si256(_mm256_slli_epi16::<8>(wide), _mm256_set1_epi16(0x8000u16 as i16));
    let values = _mm512_cvtph_ps(_mm256_or_si256(magnitude, sign));
    let nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x3f80));
    let values = _mm512_mul_ps(values, _mm512_set1_ps(256.0));
    _mm512_mask_mov_ps(values, nan, _mm512_set1_ps(f32::NAN))
}
