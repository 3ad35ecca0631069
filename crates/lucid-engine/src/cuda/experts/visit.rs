//! All visits of a step to its experts: the launches.

use super::pass::{Pass, THREADS, TILE_ROWS, WARPS, is_fast, slices, whole_kernel};
use super::tilings::{groups, narrow_width, tilings};
use super::{ExpertBuffers, Normed, vectors};
use crate::Error;
use crate::cuda::arguments::{ExpertsJobArgs, VisitsArgs};
use crate::cuda::driver::{Address, Gpu, launch};
use crate::cuda::form_kernels::WholeKernel;
use crate::cuda::kernels::{
    DOWN_SHARED, GATE_UP_SHARED, HOPPER_SHARED, Kernels, PREFILL_SHARED, PREFILL_VECTORS,
};
use crate::cuda::layout::Layout;
use crate::cuda::matmul::HOPPER_THREADS;
use crate::cuda::weights::Mlps;

/// Visits of a step to its experts.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// Where they are computed.
    pub gpu: &'a Gpu,
    /// By what.
    pub kernels: &'a Kernels,
    /// The experts.
    pub mlps: &'a Mlps,
    /// Who visits whom.
    pub visits: VisitsArgs,
    /// The most experts that can be visited.
    pub slots: usize,
    /// Which kernels take them.
    pub pass: Pass,
    /// The step's vectors.
    pub x: Normed,
    /// For results.
    pub buffers: &'a ExpertBuffers,
}

/// All of them: `outputs[v] = Expert(x[token of v])`.
pub fn visit(job: Job<'_>) -> Result<(), Error> {
    let kernel = whole_kernel(job.kernels, job.mlps, job.slots, job.visits.count as usize);
    if let (Pass::Whole, Some(kernel)) = (job.pass, kernel) {
        return whole(job, kernel);
    }
    gate_up(job)?;
    down(job)
}

/// Gate, up and down of listed visits.
fn whole(job: Job<'_>, kernel: WholeKernel) -> Result<(), Error> {
    let Job { gpu, mlps, visits, slots, x, buffers, .. } = job;
    let job = ExpertsJobArgs {
        gate: mlps.gate.args(),
        up: mlps.up.args(),
        down: mlps.down.args(),
        hidden: mlps.hidden as u32,
        width: mlps.width as u32,
        visits,
        slots: slots as u32,
        x: vectors(x, mlps.gate_layout, mlps.hidden),
        activated: buffers.activated.address(),
        y: buffers.down.address(),
        done: buffers.done.address(),
        activated_order: mlps.down_layout.order(mlps.width),
        up_slices: slices(mlps.gate_layout, mlps.hidden, WARPS / 2) as u32,
        down_slices: slices(mlps.down_layout, mlps.width, WARPS) as u32,
    };
    // A warp's items: a tile of rows of gate and up, two of down.
    let items = slots * (mlps.width.div_ceil(TILE_ROWS) + mlps.hidden.div_ceil(2 * TILE_ROWS));
    let blocks = items.div_ceil(kernel.threads / 32).min(kernel.blocks);
    launch!(gpu, kernel.kernel, (blocks, 1, 1), kernel.threads, kernel.shared; job)
}

/// `activated[v] = silu(gate · x) ⊙ (up · x)`.
pub fn gate_up(job: Job<'_>) -> Result<(), Error> {
    let Job { gpu, kernels, mlps, visits, slots, pass, x, buffers } = job;
    let (rows, cols) = (mlps.width as u32, mlps.hidden as u32);
    let (gate, up) = (mlps.gate.args(), mlps.up.args());
    let activated = buffers.activated.address();
    let vectors = vectors(x, mlps.gate_layout, mlps.hidden);
    let down_order = mlps.down_layout.order(mlps.width);
    if is_fast(mlps.gate_layout, mlps.hidden, pass) {
        let slices = slices(mlps.gate_layout, mlps.hidden, WARPS / 2);
        let (pass, pair) = pass.kernels(&kernels.form(mlps.gate_layout).experts);
        let kernel = match pass {
            Pass::Hopper(width) => {
                let (packing, slices) = (&buffers.packing, slices as u32);
                let of = &kernels.form(mlps.gate_layout).experts;
                packing.list(gpu, kernels, visits, slots, (width, narrow_width(of, width)))?;
                let blocks = (kernels.hopper.unwrap_or(1), 1, 1);
                for (groups, room, pair) in tilings(of, packing, visits, slots, width) {
                    packing.pack_visitors(
                        gpu,
                        kernels,
                        groups,
                        room,
                        visits.tokens,
                        vectors,
                        mlps.hidden,
                        mlps.gate_layout,
                    )?;
                    let packed = packing.vectors();
                    launch!(gpu, pair.gate_up, blocks, HOPPER_THREADS, HOPPER_SHARED;
                        gate, up, rows, cols, groups, packed, activated, down_order, slices)?;
                }
                return Ok(());
            }
            Pass::Prefill => {
                let grid =
                    (pass.row_blocks(mlps.width, 2, slices), groups(visits, slots, PREFILL_VECTORS), 1);
                let (slices, slots) = (slices as u32, slots as u32);
                return launch!(gpu, pair.gate_up, grid, THREADS, PREFILL_SHARED;
                    gate, up, rows, cols, visits, slots, vectors, activated, down_order, slices);
            }
            _ => pair.gate_up,
        };
        let grid = (pass.row_blocks(mlps.width, 2, slices), slots, 1);
        let slices = slices as u32;
        launch!(gpu, kernel, grid, THREADS, GATE_UP_SHARED; gate, up, rows, cols, visits, vectors, activated, down_order, slices)
    } else {
        let (layout, order) = (mlps.gate_layout.number(mlps.hidden), mlps.gate_layout.order(mlps.hidden));
        let grid = (mlps.width.div_ceil(8), slots, 1);
        launch!(gpu, kernels.experts_gate_up_plain, grid, 256, 0;
            layout, gate, up, rows, cols, visits, vectors, order, activated, down_order)
    }
}

/// `outputs[v] = down · activated[v]`.
pub fn down(job: Job<'_>) -> Result<(), Error> {
    let Job { gpu, kernels, mlps, visits, slots, pass, buffers, .. } = job;
    let (rows, cols, down) = (mlps.hidden as u32, mlps.width as u32, mlps.down.args());
    let (activated, y) = (buffers.activated.address(), buffers.down.address());
    if is_fast(mlps.down_layout, mlps.width, pass) {
        let slices = slices(mlps.down_layout, mlps.width, WARPS);
        let (pass, pair) = pass.kernels(&kernels.form(mlps.down_layout).experts);
        let kernel = match pass {
            Pass::Hopper(width) => {
                // The lists are gate's and up's.
                let (packing, slices) = (&buffers.packing, slices as u32);
                let blocks = (kernels.hopper.unwrap_or(1), 1, 1);
                let of = &kernels.form(mlps.down_layout).experts;
                for (groups, room, pair) in tilings(of, packing, visits, slots, width) {
                    packing.pack_visitors(
                        gpu,
                        kernels,
                        groups,
                        room,
                        Address::NULL,
                        activated,
                        mlps.width,
                        mlps.down_layout,
                    )?;
                    let packed = packing.vectors();
                    launch!(gpu, pair.down, blocks, HOPPER_THREADS, HOPPER_SHARED;
                        down, rows, cols, groups, packed, y, slices)?;
                }
                return Ok(());
            }
            Pass::Prefill => {
                let grid =
                    (pass.row_blocks(mlps.hidden, 1, slices), groups(visits, slots, PREFILL_VECTORS), 1);
                let (slices, slots) = (slices as u32, slots as u32);
                return launch!(gpu, pair.down, grid, THREADS, PREFILL_SHARED;
                    down, rows, cols, visits, slots, activated, y, slices);
            }
            _ => pair.down,
        };
        let grid = (pass.row_blocks(mlps.hidden, 1, slices), slots, 1);
        let shared = if mlps.down_layout == Layout::Bf16 { GATE_UP_SHARED } else { DOWN_SHARED };
        let slices = slices as u32;
        launch!(gpu, kernel, grid, THREADS, shared; down, rows, cols, visits, activated, y, slices)
    } else {
        let (layout, order) = (mlps.down_layout.number(mlps.width), mlps.down_layout.order(mlps.width));
        let grid = (mlps.hidden.div_ceil(8), slots, 1);
        launch!(gpu, kernels.experts_down_plain, grid, 256, 0;
            layout, down, rows, cols, visits, activated, order, y)
    }
}
