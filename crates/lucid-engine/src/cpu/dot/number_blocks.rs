//! Block types of GGUF whose scales are plain numbers: Q8_0, Q5_1, Q5_0, Q4_1, Q4_0 and IQ4_NL (32 columns, binary16), MXFP4 (32,
//! a power of two), NVFP4 (64, an E4M3 number for sixteen).
//!
//! Every product and sum is rounded where `BlockType::decode_row` rounds.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use lucid_checkpoint::gguf::UNSIGNED_E4M3;

use super::layouts::Layout;
use super::layouts_avx2::{self, whole};
use super::layouts_avx512;
use super::nibble_values::{
    DOUBLED_E2M1, FROM_0, FROM_MINUS_8, IQ4, doubled_e2m1, iq4_values, looked_up, looked_up_twice,
};

/// What such a block holds.
pub(super) trait Block: Copy {
    /// Bytes of it.
    const BYTES: usize;
    /// Columns of it, in sixteens.
    const SIXTEENS: usize = 2;
    /// Whether a binary16 number after the scale is added to every column.
    const OFFSET: bool = false;
    /// Whether a matrix may have a scale of its own.
    const OUTER_SCALE: bool = false;

    /// The whole numbers of its columns `16 * part ..`, before the scale.
    ///
    /// # Safety
    /// A block stands at `at`; the CPU has AVX2.
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i;

    /// The same as f32 numbers.
    ///
    /// # Safety
    /// A block stands at `at`; the CPU has AVX-512 F, BW, VL and DQ.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn values(at: *const u8, part: usize) -> __m512 {
        // SAFETY: promised by the caller.
        layouts_avx512::whole(unsafe { Self::numbers(at, part) })
    }

    /// The scale of these columns, eight times: a binary16 number at the block's beginning.
    ///
    /// # Safety
    /// As [`Block::numbers`], and the CPU has F16C.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scale_avx2(at: *const u8, _part: usize) -> __m256 {
        // SAFETY: two bytes of the block.
        unsafe { half_avx2(at) }
    }

    /// The same sixteen times.
    ///
    /// # Safety
    /// As [`Block::numbers`], and the CPU has AVX-512 F, BW, VL and DQ.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn scale_avx512(at: *const u8, _part: usize) -> __m512 {
        // SAFETY: two bytes of the block.
        unsafe { half_avx512(at) }
    }
}

/// A binary16 number, eight times.
///
/// # Safety
/// Two bytes can be read; the CPU has AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half_avx2(at: *const u8) -> __m256 {
    // SAFETY: promised by the caller.
    _mm256_cvtph_ps(_mm_set1_epi16(unsafe { at.cast::<i16>().read_unaligned() }))
}

/// The same sixteen times.
///
/// # Safety
/// Two bytes can be read; the CPU has AVX-512 F, BW, VL and DQ.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn half_avx512(at: *const u8) -> __m512 {
    // SAFETY: promised by the caller.
    _mm512_cvtph_ps(_mm256_set1_epi16(unsafe { at.cast::<i16>().read_unaligned() }))
}

/// 32 signed bytes.
#[derive(Clone, Copy)]
pub(super) struct Q8_0;

impl Block for Q8_0 {
    const BYTES: usize = 34;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i {
        // SAFETY: 16 bytes of the block.
        unsafe { _mm_loadu_si128(at.add(2 + 16 * part).cast()) }
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

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn values(at: *const u8, part: usize) -> __m512 {
        // SAFETY: codes of the block.
        unsafe { looked_up(at.add(2), part, &FROM_MINUS_8) }
    }
}

/// As Q4_0, but a number is added after the scale, and nothing is taken off.
#[derive(Clone, Copy)]
pub(super) struct Q4_1;

impl Block for Q4_1 {
    const BYTES: usize = 20;
    const OFFSET: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i {
        // SAFETY: 16 bytes of the block.
        unsafe { half_nibbles(at.add(4), part) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn values(at: *const u8, part: usize) -> __m512 {
        // SAFETY: codes of the block.
        unsafe { looked_up(at.add(4), part, &FROM_0) }
    }
}

/// As Q4_0, with a fifth bit for every column in four bytes before the nibbles, and sixteen taken off.
#[derive(Clone, Copy)]
pub(super) struct Q5_0;

impl Block for Q5_0 {
    const BYTES: usize = 22;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i {
        // SAFETY: 2 and 16 bytes of the block.
        let (fifth, low) = unsafe { (fifth_bits(at.add(2 + 2 * part)), half_nibbles(at.add(6), part)) };
        // Sixteen off, unless the fifth bit gives them back.
        _mm_sub_epi8(low, _mm_andnot_si128(fifth, _mm_set1_epi8(16)))
    }
}

/// As Q4_1, with the fifth bits of Q5_0.
#[derive(Clone, Copy)]
pub(super) struct Q5_1;

impl Block for Q5_1 {
    const BYTES: usize = 24;
    const OFFSET: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i {
        // SAFETY: 2 and 16 bytes of the block.
        let (fifth, low) = unsafe { (fifth_bits(at.add(4 + 2 * part)), half_nibbles(at.add(8), part)) };
        _mm_or_si128(low, _mm_and_si128(fifth, _mm_set1_epi8(16)))
    }
}

/// As Q4_0, but a nibble is the number of a value.
#[derive(Clone, Copy)]
pub(super) struct Iq4Nl;

impl Block for Iq4Nl {
    const BYTES: usize = 18;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i {
        // SAFETY: 16 bytes of the block.
        iq4_values(unsafe { half_nibbles(at.add(2), part) })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn values(at: *const u8, part: usize) -> __m512 {
        // SAFETY: codes of the block.
        unsafe { looked_up(at.add(2), part, &IQ4) }
    }
}

/// A byte that is a power of two, then sixteen bytes of E2M1 codes; the low nibbles are the first sixteen columns.
#[derive(Clone, Copy)]
pub(super) struct Mxfp4;

impl Mxfp4 {
    /// Half of the scale; the halves of the two smallest are subnormal.
    ///
    /// # Safety
    /// A block stands at `at`.
    #[inline]
    unsafe fn half_scale(at: *const u8) -> f32 {
        // SAFETY: promised by the caller.
        let exponent = u32::from(unsafe { *at });
        f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 })
    }
}

impl Block for Mxfp4 {
    const BYTES: usize = 17;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i {
        // SAFETY: 16 bytes of the block.
        doubled_e2m1(unsafe { half_nibbles(at.add(1), part) })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn values(at: *const u8, part: usize) -> __m512 {
        // SAFETY: codes of the block.
        unsafe { looked_up(at.add(1), part, &DOUBLED_E2M1) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scale_avx2(at: *const u8, _part: usize) -> __m256 {
        // SAFETY: promised by the caller.
        _mm256_set1_ps(unsafe { Mxfp4::half_scale(at) })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn scale_avx512(at: *const u8, _part: usize) -> __m512 {
        // SAFETY: promised by the caller.
        _mm512_set1_ps(unsafe { Mxfp4::half_scale(at) })
    }
}

/// Four E4M3 bytes, then eight bytes of E2M1 codes for each: of sixteen columns, the low nibbles are the first eight.
#[derive(Clone, Copy)]
pub(super) struct Nvfp4;

impl Block for Nvfp4 {
    const BYTES: usize = 36;
    const SIXTEENS: usize = 4;
    const OUTER_SCALE: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i {
        // SAFETY: 8 bytes of the block.
        let bytes = unsafe { _mm_loadl_epi64(at.add(4 + 8 * part).cast()) };
        let both = _mm_unpacklo_epi64(bytes, _mm_srli_epi16::<4>(bytes));
        doubled_e2m1(_mm_and_si128(both, _mm_set1_epi8(15)))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn values(at: *const u8, part: usize) -> __m512 {
        // SAFETY: codes of the block.
        unsafe { looked_up_twice(at.add(4 + 8 * part), &DOUBLED_E2M1) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scale_avx2(at: *const u8, part: usize) -> __m256 {
        // SAFETY: a byte of the block. Halving is exact.
        _mm256_set1_ps(0.5 * UNSIGNED_E4M3[usize::from(unsafe { *at.add(part) })])
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn scale_avx512(at: *const u8, part: usize) -> __m512 {
        // SAFETY: a byte of the block. Halving is exact.
        _mm512_set1_ps(0.5 * UNSIGNED_E4M3[usize::from(unsafe { *at.add(part) })])
    }
}

/// Of sixteen bits, sixteen bytes that are all ones or zero.
///
/// # Safety
/// Two bytes can be read; the CPU has AVX2.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fifth_bits(at: *const u8) -> __m128i {
    // SAFETY: promised by the caller.
    let bits = _mm_set1_epi16(unsafe { at.cast::<i16>().read_unaligned() });
    // Byte i gets the byte that its bit is in; then one bit is left of it.
    let bytes = _mm_shuffle_epi8(bits, _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    let one = _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128);
    _mm_cmpeq_epi8(_mm_and_si128(bytes, one), one)
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
    /// 1, unless `B::OUTER_SCALE`.
    scale: f32,
    blocks_are: PhantomData<B>,
}

impl<B: Block> Blocks<B> {
    /// Rows from `at` on; every value is multiplied by `scale`, if blocks of this type may have one.
    pub(super) fn new(at: *const u8, row_bytes: usize, scale: f32) -> Blocks<B> {
        debug_assert!(B::OUTER_SCALE || scale == 1.0, "no such scale");
        Blocks { at, row_bytes, scale, blocks_are: PhantomData }
    }
}

impl<B: Block> Layout for Blocks<B> {
    const STEPS: usize = B::SIXTEENS;

    #[inline]
    unsafe fn skip(self, rows: usize) -> Self {
        // SAFETY: inside the rows, as the caller promises.
        Blocks { at: unsafe { self.at.add(rows * self.row_bytes) }, ..self }
    }

    #[inline]
    fn fetch(self, block: usize) -> Option<*const u8> {
        Some(self.at.wrapping_add(B::BYTES / B::SIXTEENS * block))
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
        // SAFETY: the row has this block.
        unsafe {
            let at = self.at.add(block / B::SIXTEENS * B::BYTES);
            let scale = B::scale_avx2(at, block % B::SIXTEENS);
            let [low, high] = whole(B::numbers(at, block % B::SIXTEENS));
            let (low, high) = (_mm256_mul_ps(low, scale), _mm256_mul_ps(high, scale));
            if B::OFFSET {
                let offset = half_avx2(at.add(2));
                return [_mm256_add_ps(low, offset), _mm256_add_ps(high, offset)];
            }
            if B::OUTER_SCALE {
                let scale = _mm256_set1_ps(self.scale);
                return [_mm256_mul_ps(low, scale), _mm256_mul_ps(high, scale)];
            }
            [low, high]
        }
    }
}

impl<B: Block> layouts_avx512::Load for Blocks<B> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn load(self, block: usize) -> __m512 {
        // SAFETY: the row has this block.
        unsafe {
            let at = self.at.add(block / B::SIXTEENS * B::BYTES);
            let scale = B::scale_avx512(at, block % B::SIXTEENS);
            let values = _mm512_mul_ps(B::values(at, block % B::SIXTEENS), scale);
            if B::OFFSET {
                return _mm512_add_ps(values, half_avx512(at.add(2)));
            }
            if B::OUTER_SCALE {
                return _mm512_mul_ps(values, _mm512_set1_ps(self.scale));
            }
            values
        }
    }
}
