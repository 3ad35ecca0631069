//! The order of the sums, in plain code. What the tile unit does was taken from Intel's pseudo-code of TDPBF16PS and found again
//! to the bit on a processor of family 6, model 207.

use super::parts::{PARTS, split};
use super::vectors::STEP;
use crate::cpu::row::Rows;

/// One row, one vector: per part and step of 32 columns a chain of fused multiply-adds over the even columns and one over the
/// odd ones; their sum is added to the part's sum. At the end small parts are added first.
pub fn dot_plain(rows: &Rows<'_>, row: usize, x: &[f32]) -> f32 {
    let mut sums = [0f32; PARTS];
    let columns: Vec<usize> = (0..rows.cols).collect();
    for step in columns.chunks(STEP) {
        let mut chains = [[0f32; 2]; PARTS];
        for &k in step {
            for (chain, part) in chains.iter_mut().zip(split(x[k])) {
                chain[k % 2] = rows.value(row, k).mul_add(part, chain[k % 2]);
            }
        }
        for (sum, [even, odd]) in sums.iter_mut().zip(chains) {
            *sum += even + odd;
        }
    }
    let [low, middle, high] = sums;
    high + (middle + low)
}
