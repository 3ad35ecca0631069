//! Dot products of stored weight rows with f32 vectors: the plain form and the dispatch to vector forms.
//!
//! Every product is one chain of fused multiply-adds a lane: column `k` goes to lane `k mod 16`, columns in order, then
//! the sixteen lanes are added in a fixed tree. A tile of several rows and tokens runs many such chains side by side and
//! never mixes them, so a result depends neither on the tile nor on the vector unit: this is where batch invariance comes from.

#[cfg(target_arch = "x86_64")]
mod ahead;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod codes;
#[cfg(target_arch = "x86_64")]
mod group_scales;
#[cfg(target_arch = "x86_64")]
mod layouts;
#[cfg(target_arch = "x86_64")]
mod layouts_avx2;
#[cfg(target_arch = "x86_64")]
mod layouts_avx512;
#[cfg(target_arch = "x86_64")]
mod nibble_values;
#[cfg(target_arch = "x86_64")]
mod number_blocks;
#[cfg(target_arch = "x86_64")]
mod packed;
#[cfg(target_arch = "x86_64")]
mod panels;
#[cfg(target_arch = "x86_64")]
mod staged;
#[cfg(target_arch = "x86_64")]
mod sums_avx2;
#[cfg(target_arch = "x86_64")]
mod sums_avx512;
#[cfg(target_arch = "x86_64")]
mod super_blocks;
#[cfg(test)]
mod tests;

use super::aligned::Aligned;
use super::row::{Rows, Stored};
use super::unit::Unit;

/// Lanes of one chain.
pub(super) const LANES: usize = 16;

/// Where products go: the product of row `r` and token `t`, times `scale`, goes to `at[t * stride + r]`.
#[derive(Clone, Copy)]
pub struct Target {
    /// Place of row 0, token 0.
    pub at: *mut f32,
    /// From one token to the next.
    pub stride: usize,
    /// Applied to every product.
    pub scale: f32,
}

impl Target {
    /// # Safety
    /// The place is valid for writes, and nobody else touches it meanwhile.
    #[inline]
    pub(super) unsafe fn put(self, row: usize, token: usize, sum: f32) {
        // SAFETY: promised by the caller.
        unsafe { self.at.add(token * self.stride + row).write(sum * self.scale) };
    }
}

/// What one thread needs for a panel of rows; grows once and is reused.
#[derive(Default)]
pub struct Scratch {
    /// Decoded rows.
    decoded: Aligned<f32>,
    /// Scales of groups of columns.
    scales: Vec<f32>,
    /// Sums of a part of the columns.
    lanes: Aligned<f32>,
}

impl Scratch {
    /// Nothing yet.
    pub const fn new() -> Scratch {
        Scratch { decoded: Aligned::new(), scales: Vec::new(), lanes: Aligned::new() }
    }
}

/// The plain form: one row, one token.
#[must_use]
pub fn dot_plain(rows: &Rows<'_>, row: usize, x: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    for (k, &x) in x.iter().enumerate().take(rows.cols) {
        lanes[k % LANES] = rows.value(row, k).mul_add(x, lanes[k % LANES]);
    }
    sum_lanes(lanes)
}

/// Lanes 8 apart first, then 4, 2 and 1 apart.
pub(super) fn sum_lanes(l: [f32; LANES]) -> f32 {
    let e: [f32; 8] = std::array::from_fn(|i| l[i] + l[i + 8]);
    ((e[0] + e[4]) + (e[2] + e[6])) + ((e[1] + e[5]) + (e[3] + e[7]))
}

/// Decodes all rows into `out` `[count, cols]`: the bits of `Matrix::decode_row`, in vectors where a kernel reads the layout.
///
/// # Panics
/// When `out` is shorter than the rows.
pub fn decode(rows: &Rows<'_>, scratch: &mut Scratch, out: &mut [f32]) {
    let out = &mut out[..rows.count * rows.cols];
    let Stored::Decoded { matrix, first_row } = rows.stored else {
        for (i, out) in out.iter_mut().enumerate() {
            *out = rows.value(i / rows.cols, i % rows.cols);
        }
        return;
    };
    // SAFETY: the processor has its best unit.
    let decoded = unsafe {
        match Unit::best() {
            #[cfg(target_arch = "x86_64")]
            Unit::Avx512 => avx512::decode_packed(rows, &mut scratch.scales, out),
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2 => avx2::decode_packed(rows, &mut scratch.scales, out),
            _ => false,
        }
    };
    if !decoded {
        for (row, out) in out.chunks_exact_mut(rows.cols).enumerate() {
            matrix.decode_row(first_row + row, out);
        }
    }
}

/// The products of all `rows` with `tokens` vectors; `x(t)` gives a vector of at least `rows.cols` values.
///
/// # Safety
/// `target` is valid for writes at every row and token, and nobody else touches these places meanwhile.
pub unsafe fn dots<'x>(
    rows: Rows<'_>,
    tokens: usize,
    x: impl Fn(usize) -> &'x [f32],
    scratch: &mut Scratch,
    target: Target,
) {
    // SAFETY: promised by the caller.
    unsafe { dots_on(Unit::best(), rows, tokens, x, scratch, target) };
}

/// The same on a unit of choice.
///
/// # Safety
/// As [`dots`], and the processor has the unit.
pub unsafe fn dots_on<'x>(
    unit: Unit,
    rows: Rows<'_>,
    tokens: usize,
    x: impl Fn(usize) -> &'x [f32],
    scratch: &mut Scratch,
    target: Target,
) {
    // SAFETY: unit and target as promised by the caller.
    unsafe {
        match unit {
            #[cfg(target_arch = "x86_64")]
            Unit::Avx512 => avx512::dots(rows, tokens, x, scratch, target),
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2 => avx2::dots(rows, tokens, x, scratch, target),
            _ => {
                let rows = rows.decoded(&mut scratch.decoded);
                for t in 0..tokens {
                    for r in 0..rows.count {
                        target.put(r, t, dot_plain(&rows, r, x(t)));
                    }
                }
            }
        }
    }
}
