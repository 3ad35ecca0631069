//! Block types of GGUF with 32 columns and a binary16 scale at their beginning: Q8_0, Q5_0, Q4_0.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::layouts::Layout;
use super::layouts_avx2::{self, whole};
use super::layouts_avx512;

/// What such a block holds.
pub(super) trait Block: Copy {
    /// Bytes of it.
    const BYTES: usize;

    /// The whole numbers of its columns `16 * half ..`, before the scale.
    ///
    /// # Safety
    /// A block stands at `at`; the CPU has AVX2.
    unsafe fn numbers(at: *const u8, half: usize) -> __m128i;
}

/// 32 signed bytes.
#[derive(Clone, Copy)]
pub(super) struct Q8_0;

impl Block for Q8_0 {
    const BYTES: usize = 34;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, half: usize) -> __m128i {
        // SAFETY: 16 bytes of the block.
        unsafe { _mm_loadu_si128(at.add(2 + 16 * half).cast()) }
    }
}

/// Sixteen bytes; the low nibbles are the first sixteen columns, and eight is taken off.
#[derive(Clone, Copy)]
pub(super) struct Q4_0;

impl Block for Q4_0 {
    const BYTES: usize = 18;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, half: usize) -> __m128i {
        // SAFETY: 16 bytes of the block.
        _mm_sub_epi8(unsafe { half_nibbles(at.add(2), half) }, _mm_set1_epi8(8))
    }
}

/// As Q4_0, with a fifth bit for every column in four bytes before the nibbles, and sixteen taken off.
#[derive(Clone, Copy)]
pub(super) struct Q5_0;

impl Block for Q5_0 {
    const BYTES: usize = 22;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, half: usize) -> __m128i {
        // SAFETY: 2 and 16 bytes of the block.
        let (bits, low) = unsafe {
            let bits = at.add(2 + 2 * half).cast::<i16>().read_unaligned();
            (_mm_set1_epi16(bits), half_nibbles(at.add(6), half))
        };
        // Byte i gets the byte that its bit is in; then one bit is left of it.
        let bytes = _mm_shuffle_epi8(bits, _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
        let one = _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128);
        let is_set = _mm_cmpeq_epi8(_mm_and_si128(bytes, one), one);
        // Sixteen off, unless the fifth bit gives them back.
        _mm_sub_epi8(low, _mm_andnot_si128(is_set, _mm_set1_epi8(16)))
    }
}

/// The low nibbles of sixteen bytes, or the high ones.
///
/// # Safety
/// Sixteen bytes can be read; the CPU has AVX2.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half_nibbles(at: *const u8, half: usize) -> __m128i {
    // SAFETY: promised by the caller.
    let bytes = unsafe { _mm_loadu_si128(at.cast()) };
    let shift = _mm_cvtsi32_si128((4 * half) as i32);
    _mm_and_si128(_mm_srl_epi16(bytes, shift), _mm_set1_epi8(15))
}

/// Rows of such blocks.
#[derive(Clone, Copy)]
pub(super) struct Blocks<B> {
    at: *const u8,
    row_bytes: usize,
    blocks_are: PhantomData<B>,
}

impl<B: Block> Blocks<B> {
    /// Rows from `at` on.
    pub(super) fn new(at: *const u8, row_bytes: usize) -> Blocks<B> {
        Blocks { at, row_bytes, blocks_are: PhantomData }
    }
}

impl<B: Block> Layout for Blocks<B> {
    #[inline]
    unsafe fn skip(self, rows: usize) -> Self {
        // SAFETY: inside the rows, as the caller promises.
        Blocks { at: unsafe { self.at.add(rows * self.row_bytes) }, ..self }
    }

    #[inline]
    fn fetch(self, block: usize) -> Option<*const u8> {
        Some(self.at.wrapping_add(B::BYTES / 2 * block))
    }

    #[inline]
    fn row_bytes(self) -> usize {
        self.row_bytes
    }
}

impl<B: Block> layouts_avx2::Load for Blocks<B> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: the row has this block, and its scale is its first two bytes.
        unsafe {
            let at = self.at.add(block / 2 * B::BYTES);
            let scale = _mm256_cvtph_ps(_mm_set1_epi16(at.cast::<i16>().read_unaligned()));
            let [low, high] = whole(B::numbers(at, block % 2));
            [_mm256_mul_ps(low, scale), _mm256_mul_ps(high, scale)]
        }
    }
}

impl<B: Block> layouts_avx512::Load for Blocks<B> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn load(self, block: usize) -> __m512 {
        // SAFETY: the row has this block, and its scale is its first two bytes.
        unsafe {
            let at = self.at.add(block / 2 * B::BYTES);
            let scale = _mm512_cvtph_ps(_mm256_set1_epi16(at.cast::<i16>().read_unaligned()));
            _mm512_mul_ps(layouts_avx512::whole(B::numbers(at, block % 2)), scale)
        }
    }
}
