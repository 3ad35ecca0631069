//! The codes of layouts with scales for groups of columns, sixteen at a time.

use std::arch::x86_64::*;

use super::layouts_avx2::{self, nibbles, whole};
use super::layouts_avx512;
use super::staged::Staged;
use crate::cpu::unroll::unroll;

/// How sixteen columns' codes stand in a row.
pub(super) trait Codes: Copy {
    /// Whether a minimum is taken off.
    const MINIMA: bool = false;
    /// See [`Layout::STEPS`](super::layouts::Layout::STEPS).
    const STEPS: usize = 1;
    /// A group has `16 << shift` columns, if the layout itself says so.
    const SHIFT: Option<u32> = None;
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

    /// Whether [`Codes::looked_up`] gives a step's values for less.
    const LOOKED_UP: bool = false;

    /// The values of step `step`, of scales and minima of its groups of 32 columns: where codes have four bits, a group's sixteen values
    /// are computed once.
    ///
    /// # Safety
    /// As [`Codes::avx512`], and there are so many groups.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn looked_up(
        _row: *const u8,
        _step: usize,
        _scales: *const f32,
        _minima: *const f32,
    ) -> [__m512; 8] {
        unreachable!("only where LOOKED_UP says so")
    }

    /// See [`Load::stage`](layouts_avx2::Load::stage).
    ///
    /// # Safety
    /// As [`Codes::avx2`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn stage(_row: *const u8, _step: usize, _staged: &mut Staged) {}

    /// As [`Codes::avx2`], of the step that was staged last.
    ///
    /// # Safety
    /// As there, and it was staged.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn staged(row: *const u8, block: usize, _staged: &Staged) -> [__m256; 2] {
        // SAFETY: promised by the caller.
        unsafe { Self::avx2(row, block) }
    }

    /// See [`Load::step`](layouts_avx512::Load::step); before scales.
    ///
    /// # Safety
    /// As [`Codes::avx512`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn avx512_step(row: *const u8, step: usize) -> [__m512; 8] {
        let mut sixteens = [_mm512_setzero_ps(); 8];
        // SAFETY: promised by the caller.
        unsafe {
            unroll!(I < Self::STEPS => { sixteens[I] = Self::avx512(row, step * Self::STEPS + I); });
        }
        sixteens
    }
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
