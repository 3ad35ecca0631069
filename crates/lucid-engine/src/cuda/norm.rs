//! RMSNorm.

use super::driver::{Address, Gpu, launch};
use super::kernels::Kernels;
use crate::Error;

/// What becomes of rows of `width` values: they are normalized into split form, in natural order, in NVFP4's, or in both;
/// [`Address::NULL`] leaves one out.
#[derive(Clone, Copy)]
pub struct Norm {
    /// `[width]` f32
    pub weight: Address,
    /// Added to the mean of the squares.
    pub eps: f32,
    /// Values of a row.
    pub width: usize,
    /// `[rows, terms, width]` bf16
    pub natural: Address,
    /// The same in NVFP4's order.
    pub nvfp4: Address,
}

/// Normalizes `count` rows, `stride` values apart.
///
/// # Errors
/// When the GPU fails.
pub fn rms_norm(
    gpu: &Gpu,
    kernels: &Kernels,
    count: usize,
    (x, stride): (Address, usize),
    norm: Norm,
) -> Result<(), Error> {
    let Norm { weight, eps, width, natural, nvfp4 } = norm;
    // A thread has eight columns (see `norm.cu`).
    let threads = width.div_ceil(8).next_multiple_of(32).min(1024);
    let (width, stride) = (width as u32, stride as u32);
    launch!(gpu, kernels.rms_norm, (count, 1, 1), threads, 0; x, weight, eps, width, stride, natural, nvfp4)
}
