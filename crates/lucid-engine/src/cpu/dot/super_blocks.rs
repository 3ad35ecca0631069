//! The codes of GGUF's blocks of 256 columns: Q2_K to Q6_K and IQ4_XS.
//!
//! The bits of a column stand apart from each other, always in the same place for sixteen neighbours: a load, a shift and a mask give one
//! part of sixteen codes.

use std::arch::x86_64::*;

use super::codes::Codes;
use super::layouts_avx2::whole;
use super::layouts_avx512;
use super::nibble_values::{FROM_0, IQ4, iq4_values, looked_up};
use super::staged::Staged;
use crate::cpu::unroll::unroll;

/// Sixteens of columns in a block.
const SIXTEENS: usize = 16;

/// How such a block holds its codes.
pub(super) trait SuperBlock: Copy {
    /// Bytes of it.
    const BYTES: usize;
    /// Whether a minimum is taken off.
    const MINIMA: bool = false;
    /// A group has `16 << SHIFT` columns.
    const SHIFT: u32 = 0;
    /// See [`Codes::LOOKED_UP`]: where codes of four bits stand as Q4_K's do, from this byte on, and mean these numbers.
    const NIBBLES: Option<(usize, &'static [f32; 16])> = None;

    /// The whole numbers of columns `16 * part ..` of the block at `at`, before scales.
    ///
    /// # Safety
    /// A block stands there; the CPU has AVX2.
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i;

    /// The same as f32 numbers.
    ///
    /// # Safety
    /// A block stands there; the CPU has AVX-512 F, BW, VL and DQ.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn values(at: *const u8, part: usize) -> __m512 {
        // SAFETY: promised by the caller.
        layouts_avx512::whole(unsafe { Self::numbers(at, part) })
    }

    /// The whole numbers of half a block, 128 columns.
    ///
    /// # Safety
    /// A block stands at `at`; the CPU has AVX2.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn half(at: *const u8, half: usize) -> [__m256i; 4] {
        let mut numbers = [_mm256_setzero_si256(); 4];
        // SAFETY: promised by the caller.
        unsafe {
            unroll!(I < 4, at most 4 => {
                let part = 8 * half + 2 * I;
                numbers[I] = _mm256_set_m128i(Self::numbers(at, part + 1), Self::numbers(at, part));
            });
        }
        numbers
    }
}

impl<B: SuperBlock> Codes for B {
    const MINIMA: bool = B::MINIMA;
    const STEPS: usize = 8;
    const SHIFT: Option<u32> = Some(B::SHIFT);
    const LOOKED_UP: bool = B::NIBBLES.is_some();

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn looked_up(row: *const u8, step: usize, scales: *const f32, minima: *const f32) -> [__m512; 8] {
        let mut sixteens = [_mm512_setzero_ps(); 8];
        let Some((first, numbers)) = B::NIBBLES else { return sixteens };
        // SAFETY: the row has this step, and its four groups their scales, as the caller promises; sixteen numbers.
        unsafe {
            let at = row.add(step / 2 * B::BYTES + first + step % 2 * 64);
            let numbers = _mm512_loadu_ps(numbers.as_ptr());
            unroll!(PAIR < 2, at most 2 => {
                let mut tables = [numbers; 2];
                unroll!(GROUP < 2, at most 2 => {
                    let mut table = _mm512_mul_ps(numbers, _mm512_set1_ps(*scales.add(2 * PAIR + GROUP)));
                    if B::MINIMA {
                        table = _mm512_sub_ps(table, _mm512_set1_ps(*minima.add(2 * PAIR + GROUP)));
                    }
                    // Or the compiler would look codes up before it scales, 32 times instead of once.
                    std::arch::asm!("/* {0} */", inout(zmm_reg) table, options(pure, nomem, nostack, preserves_flags));
                    tables[GROUP] = table;
                });
                unroll!(HALF < 2, at most 2 => {
                    // A lookup reads the four lowest bits.
                    let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(at.add(32 * PAIR + 16 * HALF).cast()));
                    sixteens[4 * PAIR + HALF] = _mm512_permutexvar_ps(codes, tables[0]);
                    sixteens[4 * PAIR + 2 + HALF] = _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(codes), tables[1]);
                });
            });
        }
        sixteens
    }
    const BYTES: usize = B::BYTES / SIXTEENS;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2(row: *const u8, block: usize) -> [__m256; 2] {
        // SAFETY: the row has this block, as the caller promises.
        whole(unsafe { B::numbers(row.add(block / SIXTEENS * B::BYTES), block % SIXTEENS) })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn avx512(row: *const u8, block: usize) -> __m512 {
        // SAFETY: the row has this block, as the caller promises.
        unsafe { B::values(row.add(block / SIXTEENS * B::BYTES), block % SIXTEENS) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn stage(row: *const u8, step: usize, staged: &mut Staged) {
        // SAFETY: the row has this step, as the caller promises.
        unsafe { staged.put(B::half(row.add(step / 2 * B::BYTES), step % 2)) };
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn staged(_row: *const u8, block: usize, staged: &Staged) -> [__m256; 2] {
        // SAFETY: it was staged, as the caller promises.
        unsafe { staged.sixteen_avx2(block % 8) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn avx512_step(row: *const u8, step: usize) -> [__m512; 8] {
        let mut sixteens = [_mm512_setzero_ps(); 8];
        let staged = &mut Staged::new();
        // SAFETY: the row has this step, as the caller promises.
        unsafe {
            Self::stage(row, step, staged);
            unroll!(I < 8 => { sixteens[I] = staged.sixteen_avx512(I); });
        }
        sixteens
    }
}

/// Sixteen bytes shifted right by some bits, as far as `mask` lets them through.
///
/// # Safety
/// Sixteen bytes can be read; the CPU has AVX2.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn bits(at: *const u8, shift: usize, mask: i8) -> __m128i {
    // SAFETY: promised by the caller.
    let bytes = unsafe { _mm_loadu_si128(at.cast()) };
    // Bits that come over from the neighbour in a pair of bytes are above the mask.
    _mm_and_si128(_mm_srl_epi16(bytes, _mm_cvtsi32_si128(shift as i32)), _mm_set1_epi8(mask))
}

/// Two bits a column; of 128 columns, each 32 are two bits further up in 32 bytes.
///
/// # Safety
/// 64 bytes of codes stand at `codes`; the CPU has AVX2.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn two_bits(codes: *const u8, part: usize) -> __m128i {
    // SAFETY: inside the 64 bytes.
    unsafe { bits(codes.add(part / 8 * 32 + part % 2 * 16), part % 8 / 2 * 2, 3) }
}

/// Four bits a column; of 64 columns, the first 32 are the low nibbles of 32 bytes.
///
/// # Safety
/// 128 bytes of codes stand at `codes`; the CPU has AVX2.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn four_bits(codes: *const u8, part: usize) -> __m128i {
    // SAFETY: inside the 128 bytes.
    unsafe { bits(codes.add(part / 4 * 32 + part % 2 * 16), part / 2 % 2 * 4, 15) }
}

/// Four bits a column, all 128 columns of 64 bytes: of 64 columns, the first 32 are the low nibbles of 32 bytes.
///
/// # Safety
/// 64 bytes can be read; the CPU has AVX2.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn nibbles_of_128(at: *const u8) -> [__m256i; 4] {
    let mask = _mm256_set1_epi8(15);
    // SAFETY: promised by the caller.
    let (a, b) = unsafe { (_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())) };
    [
        _mm256_and_si256(a, mask),
        _mm256_and_si256(_mm256_srli_epi16::<4>(a), mask),
        _mm256_and_si256(b, mask),
        _mm256_and_si256(_mm256_srli_epi16::<4>(b), mask),
    ]
}

/// One bit a column; each 32 columns are one bit further up in 32 bytes.
///
/// # Safety
/// 32 bytes of bits stand at `at`; the CPU has AVX2.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn one_bit(at: *const u8, part: usize) -> __m128i {
    // SAFETY: inside the 32 bytes.
    unsafe { bits(at.add(part % 2 * 16), part / 2, 1) }
}

/// Scales and minima of sixteen columns, then two bits a column.
#[derive(Clone, Copy)]
pub(super) struct Q2K;

impl SuperBlock for Q2K {
    const BYTES: usize = 84;
    const MINIMA: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i {
        // SAFETY: inside the block.
        unsafe { two_bits(at.add(16), part) }
    }
}

/// The third bits, then two bits a column; four is taken off.
#[derive(Clone, Copy)]
pub(super) struct Q3K;

impl SuperBlock for Q3K {
    const BYTES: usize = 110;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i {
        // SAFETY: inside the block.
        let (low, high) = unsafe { (two_bits(at.add(32), part), one_bit(at, part)) };
        _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16::<2>(high)), _mm_set1_epi8(4))
    }
}

/// Scales and minima of 32 columns, then four bits a column.
#[derive(Clone, Copy)]
pub(super) struct Q4K;

impl SuperBlock for Q4K {
    const BYTES: usize = 144;
    const MINIMA: bool = true;
    const SHIFT: u32 = 1;
    const NIBBLES: Option<(usize, &'static [f32; 16])> = Some((16, &FROM_0));

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn half(at: *const u8, half: usize) -> [__m256i; 4] {
        // SAFETY: inside the block.
        unsafe { nibbles_of_128(at.add(16 + 64 * half)) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i {
        // SAFETY: inside the block.
        unsafe { four_bits(at.add(16), part) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn values(at: *const u8, part: usize) -> __m512 {
        // SAFETY: inside the block.
        unsafe { looked_up(at.add(16 + part / 4 * 32 + part % 2 * 16), part / 2 % 2, &FROM_0) }
    }
}

/// As Q4_K, with the fifth bits before the others.
#[derive(Clone, Copy)]
pub(super) struct Q5K;

impl SuperBlock for Q5K {
    const BYTES: usize = 176;
    const MINIMA: bool = true;
    const SHIFT: u32 = 1;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn half(at: *const u8, half: usize) -> [__m256i; 4] {
        // SAFETY: inside the block.
        unsafe {
            let mut numbers = nibbles_of_128(at.add(48 + 64 * half));
            let fifths = _mm256_loadu_si256(at.add(16).cast());
            unroll!(I < 4, at most 4 => {
                let bit = _mm_cvtsi32_si128((4 * half + I) as i32);
                let fifth = _mm256_and_si256(_mm256_srl_epi16(fifths, bit), _mm256_set1_epi8(1));
                numbers[I] = _mm256_or_si256(numbers[I], _mm256_slli_epi16::<4>(fifth));
            });
            numbers
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i {
        // SAFETY: inside the block.
        let (low, high) = unsafe { (four_bits(at.add(48), part), one_bit(at.add(16), part)) };
        _mm_or_si128(low, _mm_slli_epi16::<4>(high))
    }
}

/// Four bits a column, of 128 columns in 64 bytes, then two bits a column; 32 is taken off.
#[derive(Clone, Copy)]
pub(super) struct Q6K;

impl SuperBlock for Q6K {
    const BYTES: usize = 210;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn half(at: *const u8, half: usize) -> [__m256i; 4] {
        // SAFETY: inside the block.
        let (low, high) = unsafe {
            let low = at.add(64 * half).cast::<__m256i>();
            let high = _mm256_loadu_si256(at.add(128 + 32 * half).cast());
            ([_mm256_loadu_si256(low), _mm256_loadu_si256(low.add(1))], high)
        };
        let (four, two) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
        let highs =
            [_mm256_slli_epi16::<4>(high), _mm256_slli_epi16::<2>(high), high, _mm256_srli_epi16::<2>(high)];
        let lows = [low[0], low[1], _mm256_srli_epi16::<4>(low[0]), _mm256_srli_epi16::<4>(low[1])];
        let mut numbers = [_mm256_setzero_si256(); 4];
        unroll!(I < 4, at most 4 => {
            let six = _mm256_or_si256(_mm256_and_si256(lows[I], four), _mm256_and_si256(highs[I], two));
            numbers[I] = _mm256_sub_epi8(six, _mm256_set1_epi8(32));
        });
        numbers
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i {
        let (half, quarter, first) = (part / 8, part % 8 / 2, part % 2 * 16);
        // SAFETY: inside the block.
        let (low, high) = unsafe {
            let low = bits(at.add(64 * half + 32 * (quarter % 2) + first), quarter / 2 * 4, 15);
            (low, two_bits(at.add(128), part))
        };
        _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16::<4>(high)), _mm_set1_epi8(32))
    }
}

/// Scales of 32 columns, then four bits a column, the number of a value; of 32 columns, the first 16 are the low nibbles.
#[derive(Clone, Copy)]
pub(super) struct Iq4Xs;

impl SuperBlock for Iq4Xs {
    const BYTES: usize = 136;
    const SHIFT: u32 = 1;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn numbers(at: *const u8, part: usize) -> __m128i {
        // SAFETY: inside the block.
        iq4_values(unsafe { bits(at.add(8 + part / 2 * 16), part % 2 * 4, 15) })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn values(at: *const u8, part: usize) -> __m512 {
        // SAFETY: inside the block.
        unsafe { looked_up(at.add(8 + part / 2 * 16), part % 2, &IQ4) }
    }
}
