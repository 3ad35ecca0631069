//! The vectors of a product in the form that the tile unit wants on its right-hand side.
//!
//! A tile there is sixteen rows of up to sixteen dwords: row `p` holds columns `2p` and `2p + 1` of each vector as two bf16
//! numbers. Up to sixteen vectors make a block. With up to five of them all three parts fit side by side into one tile, else
//! every part is a tile of its own.

use std::arch::x86_64::*;

use super::parts::{PARTS, split_32};
use super::transpose::transpose;

/// Columns that one tile multiplies.
pub const STEP: usize = 32;

/// Vectors of a full block.
pub const BLOCK: usize = 16;

/// Vectors whose parts fit into one tile: 3 · 5 ≤ 16.
const NARROW: usize = 5;

/// 64 bytes, aligned.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [u32; 16]);

impl Line {
    /// All zero.
    pub const ZERO: Line = Line([0; 16]);
}

/// How some vectors of a block lie in memory.
#[derive(Clone, Copy)]
pub struct Form {
    /// Vectors, 1 to 16.
    pub vectors: usize,
}

impl Form {
    /// Whether all parts stand in one tile.
    pub fn is_narrow(self) -> bool {
        self.vectors <= NARROW
    }

    /// Dwords of a tile's row.
    pub fn tile_columns(self) -> usize {
        if self.is_narrow() { PARTS * self.vectors } else { self.vectors }
    }

    /// Dwords that one step of 32 columns takes: the same in both forms.
    pub fn step_len(self) -> usize {
        16 * PARTS * self.vectors
    }

    /// Dwords of the whole block.
    pub fn len(self, cols: usize) -> usize {
        cols.div_ceil(STEP) * self.step_len()
    }
}

/// Splits and turns `form.vectors` vectors, `x(i)` the `i`-th, of `cols` columns into `out`.
///
/// # Safety
/// The CPU has AVX-512 F, BW and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub unsafe fn pack<'x>(form: Form, cols: usize, x: impl Fn(usize) -> &'x [f32], out: &mut [u32]) {
    assert!(out.len() >= form.len(cols) && form.vectors <= BLOCK);
    let zero = [_mm512_setzero_si512(); BLOCK];
    for (step, out) in out.chunks_exact_mut(form.step_len()).take(cols.div_ceil(STEP)).enumerate() {
        let first = step * STEP;
        let mut parts = [zero; PARTS];
        for i in 0..form.vectors {
            let x = &x(i)[first..cols];
            // SAFETY: masked loads touch only what is there.
            let [a, b] = unsafe { [load(x, 0), load(x, 16)] };
            for (part, value) in parts.iter_mut().zip(split_32(a, b)) {
                part[i] = value;
            }
        }
        if form.is_narrow() {
            let mut rows = zero;
            for (i, row) in rows.iter_mut().enumerate().take(PARTS * form.vectors) {
                *row = parts[i / form.vectors][i % form.vectors];
            }
            store(transpose(rows), form.tile_columns(), out);
        } else {
            for (part, out) in parts.into_iter().zip(out.chunks_exact_mut(16 * form.vectors)) {
                store(transpose(part), form.vectors, out);
            }
        }
    }
}

/// Up to sixteen values from `first` on, then zeros.
///
/// # Safety
/// The CPU has AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(x: &[f32], first: usize) -> __m512 {
    let there = x.len().saturating_sub(first).min(16);
    let mask = ((1u32 << there) - 1) as u16;
    // SAFETY: lanes outside of `x` are masked, and masked lanes are not read.
    unsafe { _mm512_maskz_loadu_ps(mask, x.as_ptr().wrapping_add(first)) }
}

/// Writes sixteen rows of `columns` dwords each, one after the other.
#[inline]
#[target_feature(enable = "avx512f")]
fn store(rows: [__m512i; 16], columns: usize, out: &mut [u32]) {
    let mask = ((1u32 << columns) - 1) as u16;
    for (row, out) in rows.into_iter().zip(out.chunks_exact_mut(columns)) {
        // SAFETY: `columns` dwords, and the other lanes are masked.
        unsafe { _mm512_mask_storeu_epi32(out.as_mut_ptr().cast(), mask, row) };
    }
}
