//! RMSNorm.

use super::driver::{Address, Gpu, launch};
use super::kernels::Kernels;
use crate::Error;

/// Normalizes `count` rows of `width` values, `stride` apart, into split form: in natural order, in NVFP4's, or in both;
/// [`Address::NULL`] leaves one out.
#[allow(clippy::too_many_arguments)] // The kernel's.
pub fn rms_norm(
    gpu: &Gpu,
    kernels: &Kernels,
    count: usize,
    (x, stride): (Address, usize),
    weight: Address,
    eps: f32,
    width: usize,
    natural: Address,
    nvfp4: Address,
) -> Result<(), Error> {
    let (width, stride) = (width as u32, stride as u32);
    let threads = if width > 1024 { 1024 } else { 256 };
    launch!(gpu, kernels.rms_norm, (count, 1, 1), threads, 0; x, weight, eps, width, stride, natural, nvfp4)
}
