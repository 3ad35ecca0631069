//! Layouts with scales for groups of columns: INT4, FP8 blocks, and block types of GGUF.
//!
//! A panel's scales become f32 first (`group_scales.rs`), once for all of its tokens; then a column's value is its code times its
//! group's scale, less the group's minimum where there is one. Every product and difference is rounded where
//! `Matrix::decode_row` rounds.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use lucid_checkpoint::gguf::BlockType;
use lucid_checkpoint::{Matrix, Packed};

use super::codes::{Codes, E4m3, Int4};
use super::group_scales::{f8_blocks, int4, iq4_xs, q2_k, q3_k, q4_k_q5_k, q6_k};
use super::layouts::Layout;
use super::number_blocks::{Blocks, Iq4Nl, Mxfp4, Nvfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use super::staged::Staged;
use super::super_blocks::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::{layouts_avx2, layouts_avx512};
use crate::cpu::row::{BLOCK, Rows, Stored};
use crate::cpu::unroll::unroll;

/// Codes, and f32 scales beside them.
#[derive(Clone, Copy)]
pub(super) struct Grouped<C> {
    codes: *const u8,
    row_bytes: usize,
    /// `[rows, groups]`
    scales: *const f32,
    /// `[rows, groups]`, if `C::MINIMA`.
    minima: *const f32,
    groups: usize,
    /// A group has `16 << shift` columns.
    shift: u32,
    codes_are: PhantomData<C>,
}

impl<C: Codes> Layout for Grouped<C> {
    const STEPS: usize = C::STEPS;
    const SCALES_FIRST: bool = true;

    #[inline]
    unsafe fn skip(self, rows: usize) -> Self {
        // SAFETY: inside the rows, as the caller promises.
        unsafe {
            Grouped {
                codes: self.codes.add(rows * self.row_bytes),
                scales: self.scales.add(rows * self.groups),
                minima: if C::MINIMA { self.minima.add(rows * self.groups) } else { self.minima },
                ..self
            }
        }
    }

    #[inline]
    fn fetch(self, block: usize) -> Option<*const u8> {
        Some(self.codes.wrapping_add(block * C::BYTES))
    }

    #[inline]
    fn row_bytes(self) -> usize {
        self.row_bytes
    }
}

impl<C: Codes> Grouped<C> {
    /// The group of columns `16 * block ..`.
    #[inline(always)]
    fn group(self, block: usize) -> usize {
        block >> C::SHIFT.unwrap_or(self.shift)
    }

    /// Codes' values times their scale, less their minimum.
    ///
    /// # Safety
    /// The row has this block; the CPU has AVX2, FMA and F16C.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scaled_avx2(self, [low, high]: [__m256; 2], block: usize) -> [__m256; 2] {
        // SAFETY: the groups of the row's columns.
        unsafe {
            let scale = _mm256_broadcast_ss(&*self.scales.add(self.group(block)));
            let (low, high) = (_mm256_mul_ps(low, scale), _mm256_mul_ps(high, scale));
            if C::MINIMA {
                let minimum = _mm256_broadcast_ss(&*self.minima.add(self.group(block)));
                return [_mm256_sub_ps(low, minimum), _mm256_sub_ps(high, minimum)];
            }
            [low, high]
        }
    }

    /// The same.
    ///
    /// # Safety
    /// The row has this block; the CPU has AVX-512 F, BW, VL and DQ.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn scaled_avx512(self, values: __m512, block: usize) -> __m512 {
        // SAFETY: the groups of the row's columns.
        unsafe {
            let values = _mm512_mul_ps(values, _mm512_set1_ps(*self.scales.add(self.group(block))));
            if C::MINIMA {
                return _mm512_sub_ps(values, _mm512_set1_ps(*self.minima.add(self.group(block))));
            }
            values
        }
    }
}

impl<C: Codes> layouts_avx2::Load for Grouped<C> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: columns of the row, and its groups' scales.
        unsafe { self.scaled_avx2(C::avx2(self.codes, block), block) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn stage(self, step: usize, staged: &mut Staged) {
        // SAFETY: the row has this step.
        unsafe { C::stage(self.codes, step, staged) };
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn staged(self, block: usize, staged: &Staged) -> [__m256; 2] {
        // SAFETY: as in `load`.
        unsafe { self.scaled_avx2(C::staged(self.codes, block, staged), block) }
    }
}

impl<C: Codes> layouts_avx512::Load for Grouped<C> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn load(self, block: usize) -> __m512 {
        // SAFETY: columns of the row, and its groups' scales.
        unsafe { self.scaled_avx512(C::avx512(self.codes, block), block) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn step(self, step: usize) -> [__m512; 8] {
        // SAFETY: as in `load`.
        unsafe {
            if C::LOOKED_UP {
                let group = self.group(step * C::STEPS);
                return C::looked_up(self.codes, step, self.scales.add(group), self.minima.add(group));
            }
            let mut sixteens = C::avx512_step(self.codes, step);
            unroll!(I < C::STEPS => { sixteens[I] = self.scaled_avx512(sixteens[I], step * C::STEPS + I); });
            sixteens
        }
    }
}

/// Rows of a layout that a kernel reads as stored.
#[derive(Clone, Copy)]
pub(super) enum PackedRows {
    /// INT4 with groups of `16 << n` columns.
    Int4(Grouped<Int4>),
    /// E4M3 with blocks `16 << n` columns wide.
    F8Blocks(Grouped<E4m3>),
    /// GGUF's.
    Q2K(Grouped<Q2K>),
    /// GGUF's.
    Q3K(Grouped<Q3K>),
    /// GGUF's.
    Q4K(Grouped<Q4K>),
    /// GGUF's.
    Q5K(Grouped<Q5K>),
    /// GGUF's.
    Q6K(Grouped<Q6K>),
    /// GGUF's.
    Iq4Xs(Grouped<Iq4Xs>),
    /// GGUF's.
    Q8_0(Blocks<Q8_0>),
    /// GGUF's.
    Q5_1(Blocks<Q5_1>),
    /// GGUF's.
    Q5_0(Blocks<Q5_0>),
    /// GGUF's.
    Q4_1(Blocks<Q4_1>),
    /// GGUF's.
    Q4_0(Blocks<Q4_0>),
    /// GGUF's.
    Iq4Nl(Blocks<Iq4Nl>),
    /// GGUF's.
    Mxfp4(Blocks<Mxfp4>),
    /// GGUF's.
    Nvfp4(Blocks<Nvfp4>),
}

/// The rows, and their scales in `scales`, which grows; `None` if no kernel reads this layout or these shapes.
///
/// # Safety
/// The CPU has AVX2 and F16C.
pub(super) unsafe fn packed(rows: &Rows<'_>, scales: &mut Vec<f32>) -> Option<PackedRows> {
    let Stored::Decoded { matrix, first_row } = rows.stored else { return None };
    if !rows.cols.is_multiple_of(BLOCK) {
        return None;
    }
    let shift = |columns: usize| {
        let blocks = columns / BLOCK;
        (columns.is_multiple_of(BLOCK) && blocks.is_power_of_two()).then(|| blocks.trailing_zeros())
    };
    let Matrix { cols, packed, .. } = matrix;
    // SAFETY: the features were promised; each function fills the scales of exactly these rows.
    unsafe {
        match packed {
            Packed::Int4 { codes, scales: stored, group_size } => {
                let (shift, groups) = (shift(*group_size)?, cols / group_size);
                int4(stored, first_row * groups, rows.count * groups, scales);
                let codes = codes[first_row * cols / 2..].as_ptr();
                Some(PackedRows::Int4(grouped(codes, cols / 2, scales, groups, shift, rows.count, Int4)))
            }
            Packed::F8Blocks { codes, scales: stored, block } => {
                let (shift, groups) = (shift(block[1])?, cols.div_ceil(block[1]));
                f8_blocks(stored, block[0], first_row, rows.count, groups, scales);
                let codes = codes[first_row * cols..].as_ptr();
                Some(PackedRows::F8Blocks(grouped(codes, *cols, scales, groups, shift, rows.count, E4m3)))
            }
            // No other type has a scale beside its blocks.
            Packed::Gguf { block, scale, .. } if *scale != 1.0 && *block != BlockType::NVFP4 => None,
            // Tiles take whole blocks.
            Packed::Gguf { block, .. } if !cols.is_multiple_of(block.elements()) => None,
            Packed::Gguf { block, bytes, scale } => {
                let row_bytes = cols / block.elements() * block.bytes();
                let bytes = &bytes[first_row * row_bytes..(first_row + rows.count) * row_bytes];
                let (at, count) = (bytes.as_ptr(), rows.count);
                Some(match block {
                    BlockType::Q8_0 => PackedRows::Q8_0(Blocks::new(at, row_bytes, 1.0)),
                    BlockType::Q5_1 => PackedRows::Q5_1(Blocks::new(at, row_bytes, 1.0)),
                    BlockType::Q5_0 => PackedRows::Q5_0(Blocks::new(at, row_bytes, 1.0)),
                    BlockType::Q4_1 => PackedRows::Q4_1(Blocks::new(at, row_bytes, 1.0)),
                    BlockType::Q4_0 => PackedRows::Q4_0(Blocks::new(at, row_bytes, 1.0)),
                    BlockType::IQ4_NL => PackedRows::Iq4Nl(Blocks::new(at, row_bytes, 1.0)),
                    BlockType::MXFP4 => PackedRows::Mxfp4(Blocks::new(at, row_bytes, 1.0)),
                    BlockType::NVFP4 => PackedRows::Nvfp4(Blocks::new(at, row_bytes, *scale)),
                    BlockType::Q2_K => {
                        q2_k(bytes, scales);
                        PackedRows::Q2K(grouped(at, row_bytes, scales, cols / 16, 0, count, Q2K))
                    }
                    BlockType::Q3_K => {
                        q3_k(bytes, scales);
                        PackedRows::Q3K(grouped(at, row_bytes, scales, cols / 16, 0, count, Q3K))
                    }
                    BlockType::Q4_K => {
                        q4_k_q5_k::<144>(bytes, scales);
                        PackedRows::Q4K(grouped(at, row_bytes, scales, cols / 32, 1, count, Q4K))
                    }
                    BlockType::Q5_K => {
                        q4_k_q5_k::<176>(bytes, scales);
                        PackedRows::Q5K(grouped(at, row_bytes, scales, cols / 32, 1, count, Q5K))
                    }
                    BlockType::Q6_K => {
                        q6_k(bytes, scales);
                        PackedRows::Q6K(grouped(at, row_bytes, scales, cols / 16, 0, count, Q6K))
                    }
                    BlockType::IQ4_XS => {
                        iq4_xs(bytes, scales);
                        PackedRows::Iq4Xs(grouped(at, row_bytes, scales, cols / 32, 1, count, Iq4Xs))
                    }
                })
            }
            _ => None,
        }
    }
}

/// Scales `[rows, groups]` stand first in `scales`, minima after them.
fn grouped<C: Codes>(
    codes: *const u8,
    row_bytes: usize,
    scales: &[f32],
    groups: usize,
    shift: u32,
    rows: usize,
    _: C,
) -> Grouped<C> {
    let len = rows * groups;
    assert!(scales.len() >= if C::MINIMA { 2 * len } else { len }, "scales of all groups");
    let minima = if C::MINIMA { scales[len..].as_ptr() } else { scales.as_ptr() };
    Grouped { codes, row_bytes, scales: scales.as_ptr(), minima, groups, shift, codes_are: PhantomData }
}

/// Calls `$run` with the pointers `$load` of packed rows.
macro_rules! with_packed {
    ($packed:expr, $load:ident => $run:expr) => {
        match $packed {
            $crate::cpu::dot::packed::PackedRows::Int4($load) => $run,
            $crate::cpu::dot::packed::PackedRows::F8Blocks($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q2K($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q3K($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q4K($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q5K($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q6K($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Iq4Xs($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q8_0($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q5_1($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q5_0($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q4_1($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q4_0($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Iq4Nl($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Mxfp4($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Nvfp4($load) => $run,
        }
    };
}

pub(super) use with_packed;
