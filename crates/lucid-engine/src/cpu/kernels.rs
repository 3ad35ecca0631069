//! Single kernels on one thread and a vector unit of choice: for benchmarks (`cargo bench -p lucid-engine`).

use lucid_checkpoint::Matrix;

use super::cache::Entries;
pub use super::dot::Scratch;
use super::dot::{Target, dots_on};
use super::matmul::{PANEL_ROWS, PANEL_TOKENS};
use super::row::{Rows, global_scale};
pub use super::unit::Unit;
use super::weighted_sum::{Sizes, weighted_sum_on};
use crate::kv_cache::PAGE_TOKENS;

/// `out[i] = weight · x[i]` for `count` vectors, `x` `[count, cols]`, `out` `[count, rows]`.
///
/// # Panics
/// When a buffer is too small, or this processor doesn't have the unit.
pub fn multiply(
    unit: Unit,
    weight: &Matrix,
    x: &[f32],
    count: usize,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let (rows, cols) = (weight.rows, weight.cols);
    assert!(unit <= Unit::best(), "this processor has no {unit:?}");
    assert!(x.len() >= count * cols && out.len() >= count * rows);
    for token in (0..count).step_by(PANEL_TOKENS) {
        for row in (0..rows).step_by(PANEL_ROWS) {
            let panel = Rows::of(weight, row..rows.min(row + PANEL_ROWS));
            let at = out[token * rows + row..].as_mut_ptr();
            let target = Target { at, stride: rows, scale: global_scale(weight) };
            let x = |i: usize| &x[(token + i) * cols..][..cols];
            // SAFETY: the unit is there, and `out` has room for every vector and row.
            unsafe { dots_on(unit, panel, PANEL_TOKENS.min(count - token), x, scratch, target) };
        }
    }
}

/// Values of a page of attention, as an engine stores them.
#[derive(Clone, Copy)]
pub enum PageValues<'a> {
    /// `[cols / block, entries, block]`: keys and values of a prompt's head, `block` columns side by side.
    Blocks {
        /// The numbers.
        values: &'a [f32],
        /// Columns side by side.
        block: usize,
    },
    /// bf16 `[entries, cols]`: a page of the cache.
    Rows(&'a [u16]),
}

/// Columns of a prompt's keys and values that the engine keeps side by side for the processor's best unit.
#[must_use]
pub fn columns_side_by_side() -> usize {
    super::expanded::side_by_side()
}

/// `sums[q] += Σ_j weights[q, j] · values[j]`: attention's sums over a page, and its scores where keys stand in columns. `weights`
/// `[ceil(entries / 64), queries, 64]`, `sums` `[queries, cols]`.
///
/// # Panics
/// When a buffer is too small, or this processor doesn't have the unit.
pub fn weighted_sum(
    unit: Unit,
    [queries, entries, cols]: [usize; 3],
    weights: &[f32],
    values: PageValues<'_>,
    sums: &mut [f32],
) {
    assert!(unit <= Unit::best(), "this processor has no {unit:?}");
    let parts_stride = queries * PAGE_TOKENS;
    let page = Sizes { parts_stride, ..Sizes::page(queries, entries, cols, cols) };
    match values {
        PageValues::Rows(values) => weighted_sum_on(unit, page, weights, Entries::Bf16(values), sums),
        PageValues::Blocks { values, block } => {
            let sizes = Sizes { values_stride: block, block, blocks_stride: entries * block, ..page };
            weighted_sum_on(unit, sizes, weights, Entries::F32(values), sums);
        }
    }
}
