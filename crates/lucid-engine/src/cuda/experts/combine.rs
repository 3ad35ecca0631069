//! The weighted sum of a token's experts, and the norm that follows it.

use super::{ExpertBuffers, Output};
use crate::Error;
use crate::cuda::arguments::CombinedArgs;
use crate::cuda::driver::{Address, Gpu, launch};
use crate::cuda::kernels::Kernels;
use crate::cuda::norm::{Norm, rms_norm};
use crate::cuda::router::{Routes, SharedVisits};

/// Up to so many tokens one kernel sums and normalizes, which saves the start of another.
const TOGETHER_TOKENS: usize = 64;
/// Columns of a row that it takes at the most, `combine_norm` of `combine.cu`.
const TOGETHER_COLUMNS: usize = 8_192;
/// Its blocks a token, and their threads.
const PARTS: usize = 8;
const PART_THREADS: usize = 128;

/// Adds up what `count` tokens' visits gave, `width` values each; without `routes` all went to one block.
#[allow(clippy::too_many_arguments)] // What a layer has.
pub(super) fn combine(
    gpu: &Gpu,
    kernels: &Kernels,
    buffers: &ExpertBuffers,
    routes: Option<&Routes>,
    shared_visits: SharedVisits,
    count: usize,
    width: usize,
    out: Output,
) -> Result<(), Error> {
    let (places, weights, shared_places, per_token) = match routes {
        Some(routes) => {
            let (places, weights) = (routes.places.address(), routes.weights.address());
            (places, weights, routes.shared_places(shared_visits), routes.per_token())
        }
        None => (Address::NULL, Address::NULL, Address::NULL, 0),
    };
    let args = CombinedArgs {
        y: buffers.down.address(),
        places,
        weights,
        shared_places,
        per_token: per_token as u32,
        shared: i32::from(shared_visits == SharedVisits::All),
        shared_first: (count * per_token) as u32,
        width: width as u32,
        accumulate: i32::from(out.add),
        hidden: out.at,
    };
    match out.then {
        Some(norm) if together(gpu, count, width) => {
            let Norm { weight, eps, natural, nvfp4, .. } = norm;
            launch!(gpu, kernels.combine_norm, (PARTS, count, 1), PART_THREADS, 0; args, weight, eps, natural, nvfp4)
        }
        then => {
            launch!(gpu, kernels.combine, (width.div_ceil(256), count, 1), 256, 0; args)?;
            then.map_or(Ok(()), |norm| rms_norm(gpu, kernels, count, (out.at, width), norm))
        }
    }
}

/// Whether one kernel does both: clusters of blocks are Hopper's and later GPUs'.
fn together(gpu: &Gpu, count: usize, width: usize) -> bool {
    gpu.capability() >= 90 && count <= TOGETHER_TOKENS && width <= TOGETHER_COLUMNS && width.is_multiple_of(8)
}
