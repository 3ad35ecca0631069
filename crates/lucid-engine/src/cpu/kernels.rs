//! Single kernels on one thread and a vector unit of choice: for benchmarks (`cargo bench -p lucid-engine`).

use lucid_checkpoint::Matrix;

pub use super::dot::Scratch;
use super::dot::{Target, dots_on};
use super::matmul::{PANEL_ROWS, PANEL_TOKENS};
use super::row::{Rows, global_scale};
pub use super::unit::Unit;

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
