//! Layouts with scales for groups of columns: INT4, FP8 blocks, and block types of GGUF.
//!
//! A panel's scales become f32 first (`group_scales.rs`), once for all of its tokens; then a column's value is its code times its
//! group's scale, less the group's minimum where there is one. Every product and difference is rounded where
//! `Matrix::decode_row` rounds.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use lucid_checkpoint::gguf::BlockType;
use lucid_checkpoint::{Matrix, Packed};

use super::blocks_of_32::{Blocks, Q4_0, Q5_0, Q8_0};
use super::codes::{Codes, E4m3, Int4, Q4K, Q6K};
use super::group_scales::{f8_blocks, int4, q4_k, q6_k};
use super::layouts::Layout;
use super::{layouts_avx2, layouts_avx512};
use crate::cpu::row::{BLOCK, Rows, Stored};

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

impl<C: Codes> layouts_avx2::Load for Grouped<C> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: columns of the row, and its groups' scales.
        unsafe {
            let [low, high] = C::avx2(self.codes, block);
            let scale = _mm256_broadcast_ss(&*self.scales.add(block >> self.shift));
            let (low, high) = (_mm256_mul_ps(low, scale), _mm256_mul_ps(high, scale));
            if C::MINIMA {
                let minimum = _mm256_broadcast_ss(&*self.minima.add(block >> self.shift));
                return [_mm256_sub_ps(low, minimum), _mm256_sub_ps(high, minimum)];
            }
            [low, high]
        }
    }
}

impl<C: Codes> layouts_avx512::Load for Grouped<C> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn load(self, block: usize) -> __m512 {
        // SAFETY: columns of the row, and its groups' scales.
        unsafe {
            let scale = _mm512_set1_ps(*self.scales.add(block >> self.shift));
            let values = _mm512_mul_ps(C::avx512(self.codes, block), scale);
            if C::MINIMA {
                return _mm512_sub_ps(values, _mm512_set1_ps(*self.minima.add(block >> self.shift)));
            }
            values
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
    Q4K(Grouped<Q4K>),
    /// GGUF's.
    Q6K(Grouped<Q6K>),
    /// GGUF's.
    Q8_0(Blocks<Q8_0>),
    /// GGUF's.
    Q5_0(Blocks<Q5_0>),
    /// GGUF's.
    Q4_0(Blocks<Q4_0>),
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
            Packed::Gguf { block, bytes, scale: 1.0 } => {
                let row_bytes = cols / block.elements() * block.bytes();
                let bytes = &bytes[first_row * row_bytes..(first_row + rows.count) * row_bytes];
                let codes = bytes.as_ptr();
                match block {
                    BlockType::Q8_0 => Some(PackedRows::Q8_0(Blocks::new(codes, row_bytes))),
                    BlockType::Q5_0 => Some(PackedRows::Q5_0(Blocks::new(codes, row_bytes))),
                    BlockType::Q4_0 => Some(PackedRows::Q4_0(Blocks::new(codes, row_bytes))),
                    BlockType::Q4_K => {
                        q4_k(bytes, scales);
                        let groups = cols / 32;
                        Some(PackedRows::Q4K(grouped(codes, row_bytes, scales, groups, 1, rows.count, Q4K)))
                    }
                    BlockType::Q6_K => {
                        q6_k(bytes, scales);
                        let groups = cols / 16;
                        Some(PackedRows::Q6K(grouped(codes, row_bytes, scales, groups, 0, rows.count, Q6K)))
                    }
                    _ => None,
                }
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
            $crate::cpu::dot::packed::PackedRows::Q4K($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q6K($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q8_0($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q5_0($load) => $run,
            $crate::cpu::dot::packed::PackedRows::Q4_0($load) => $run,
        }
    };
}

pub(super) use with_packed;
