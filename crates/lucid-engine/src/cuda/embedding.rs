//! Tokens to vectors.

use super::driver::{Address, Gpu, launch};
use super::kernels::Kernels;
use super::weights::DeviceMatrix;
use crate::Error;

/// `hidden[t] = matrix[tokens[t] - first]`, 0 for tokens that are not in the matrix; `tokens` `[count]` u32, `hidden`
/// `[count, cols]` f32, both on the GPU.
pub fn embed(
    gpu: &Gpu,
    kernels: &Kernels,
    (matrix, first): (&DeviceMatrix, usize),
    count: usize,
    tokens: Address,
    hidden: Address,
) -> Result<(), Error> {
    let (layout, scale, width) = (matrix.layout.number(matrix.cols), matrix.global_scale, matrix.cols as u32);
    let (first, rows) = (first as u32, matrix.rows as u32);
    let (values, scales) = (matrix.values.address(), matrix.scales_address());
    launch!(gpu, kernels.embed, (count, 1, 1), 256, 0; layout, values, scales, scale, width, first, rows, tokens, hidden)
}
