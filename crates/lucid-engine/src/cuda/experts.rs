//! The feed-forward half of a layer: one SwiGLU block, or routed experts and a shared one.

use super::driver::{Address, Buffer, Gpu, launch};
use super::kernels::{Kernels, Order, TERMS, VisitsArgs};
use super::matmul::{Product, multiply};
use super::router::Routes;
use super::weights::{Experts, Layout, Mlps};
use crate::Error;

/// Buffers of the feed-forward half, made for the largest step.
pub struct ExpertBuffers {
    /// `[visits, 3, width]` bf16
    activated: Buffer,
    /// `[visits, hidden]` f32
    down: Buffer,
}

impl ExpertBuffers {
    /// For `visits` visits to blocks of up to `width`.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn new(gpu: &Gpu, visits: usize, width: usize, hidden: usize) -> Result<ExpertBuffers, Error> {
        Ok(ExpertBuffers {
            activated: gpu.allocate(visits * TERMS * width * 2)?,
            down: gpu.allocate(visits * hidden * 4)?,
        })
    }

    /// Where the outputs of visits stand.
    #[cfg(test)]
    pub fn outputs(&self) -> Address {
        self.down.address()
    }
}

/// A step's normalized vectors, in both orders.
#[derive(Clone, Copy)]
pub struct Normed {
    /// `[tokens, 3, hidden]` bf16
    pub natural: Address,
    /// The same in NVFP4's order.
    pub nvfp4: Address,
}

/// `hidden += Σ_e w_e · Expert_e(x) + Shared(x)`.
#[allow(clippy::too_many_arguments)] // What a layer has.
pub fn run(
    gpu: &Gpu,
    kernels: &Kernels,
    experts: &Experts,
    routes: &Routes,
    buffers: &ExpertBuffers,
    count: usize,
    x: Normed,
    hidden: Address,
) -> Result<(), Error> {
    let router = Product::new(&experts.router, vectors(x, experts.router.layout, experts.router.cols));
    multiply(gpu, kernels, router.into(routes.logits.address()), None, count)?;
    let bias = experts.bias.as_ref().map_or(Address::NULL, Buffer::address);
    routes.choose(gpu, kernels, bias, count)?;
    let (mlps, slots) = (&experts.routed, routes.most_active(count));
    visit(gpu, kernels, mlps, routes.visits(), slots, Pass::best(mlps, slots, count), x, buffers)?;
    let shared = i32::from(experts.shared_joined);
    combine(gpu, kernels, buffers, Some(routes), shared, count, mlps.hidden, hidden)?;
    match &experts.shared {
        Some(shared) => swiglu(gpu, kernels, shared, buffers, count, x, hidden),
        None => Ok(()),
    }
}

/// `hidden += down · (silu(gate · x) ⊙ (up · x))` for one block.
pub fn swiglu(
    gpu: &Gpu,
    kernels: &Kernels,
    mlp: &Mlps,
    buffers: &ExpertBuffers,
    count: usize,
    x: Normed,
    hidden: Address,
) -> Result<(), Error> {
    let visits = VisitsArgs { slots: Address::NULL, tokens: Address::NULL, count: count as u32 };
    visit(gpu, kernels, mlp, visits, 1, Pass::best(mlp, 1, count), x, buffers)?;
    combine(gpu, kernels, buffers, None, 1, count, mlp.hidden, hidden)
}

fn vectors(x: Normed, layout: Layout, cols: usize) -> Address {
    match layout.order(cols) {
        Order::Natural => x.natural,
        Order::Nvfp4 => x.nvfp4,
    }
}

/// Which kernels take the visits. All but the plain ones give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The ones for any layout, for tests: layouts without others get them by themselves.
    Plain,
    /// Two visitors share a pass over the weights.
    Two,
    /// Eight do.
    Eight,
    /// Eight do, and a warp has two tiles of rows: faster once there is work for the whole GPU.
    EightWide,
}

impl Pass {
    /// The fastest for a step of `count` tokens that visits up to `slots` experts.
    #[must_use]
    pub fn best(mlps: &Mlps, slots: usize, count: usize) -> Pass {
        let slices = mlps.gate_layout.slices(mlps.hidden, WARPS / 2);
        let blocks =
            row_blocks(2 * mlps.width.div_ceil(TILE_ROWS), Pass::EightWide.row_tiles(), slices) * slots;
        match count {
            0..=2 => Pass::Two,
            _ if blocks < ENOUGH_BLOCKS => Pass::Eight,
            _ => Pass::EightWide,
        }
    }

    /// Tiles of sixteen rows that a warp has.
    fn row_tiles(self) -> usize {
        if self == Pass::EightWide { 2 } else { 1 }
    }
}

/// All visits: `outputs[v] = Expert(x[token of v])`. `slots` is the most experts that can be active.
#[allow(clippy::too_many_arguments)] // The kernels'.
pub fn visit(
    gpu: &Gpu,
    kernels: &Kernels,
    mlps: &Mlps,
    visits: VisitsArgs,
    slots: usize,
    pass: Pass,
    x: Normed,
    buffers: &ExpertBuffers,
) -> Result<(), Error> {
    gate_up(gpu, kernels, mlps, visits, slots, pass, x, buffers)?;
    down(gpu, kernels, mlps, visits, slots, pass, buffers)
}

/// Whether the tensor-core kernels take such blocks.
fn is_fast(layout: Layout, cols: usize, pass: Pass) -> bool {
    layout == Layout::Nvfp4 && layout.is_fast(cols) && pass != Pass::Plain
}

/// Blocks that fill a large GPU: two on each of about 132 multiprocessors.
const ENOUGH_BLOCKS: usize = 264;
/// Warps of a block (see `mma.cuh`).
const WARPS: usize = 8;
const THREADS: usize = 32 * WARPS;
const TILE_ROWS: usize = 16;

/// Blocks for `tiles` tiles of rows, when a warp has `per_warp` and `slices` warps share their columns.
fn row_blocks(tiles: usize, per_warp: usize, slices: usize) -> usize {
    tiles.div_ceil(WARPS / slices * per_warp)
}

/// `activated[v] = silu(gate · x) ⊙ (up · x)`.
#[allow(clippy::too_many_arguments)] // The kernels'.
pub fn gate_up(
    gpu: &Gpu,
    kernels: &Kernels,
    mlps: &Mlps,
    visits: VisitsArgs,
    slots: usize,
    pass: Pass,
    x: Normed,
    buffers: &ExpertBuffers,
) -> Result<(), Error> {
    let (rows, cols) = (mlps.width as u32, mlps.hidden as u32);
    let (gate, up) = (mlps.gate.args(), mlps.up.args());
    let activated = buffers.activated.address();
    let vectors = vectors(x, mlps.gate_layout, mlps.hidden);
    let down_order = mlps.down_layout.order(mlps.width);
    if is_fast(mlps.gate_layout, mlps.hidden, pass) {
        let slices = mlps.gate_layout.slices(mlps.hidden, WARPS / 2);
        let kernel = match pass {
            Pass::Plain | Pass::Two => kernels.experts_gate_up_2,
            Pass::Eight => kernels.experts_gate_up_8,
            Pass::EightWide => kernels.experts_gate_up_8_wide,
        };
        let grid = (row_blocks(2 * mlps.width.div_ceil(TILE_ROWS), pass.row_tiles(), slices), slots, 1);
        let slices = slices as u32;
        launch!(gpu, kernel, grid, THREADS, 0; gate, up, rows, cols, visits, vectors, activated, down_order, slices)
    } else {
        let (layout, order) = (mlps.gate_layout.number(mlps.hidden), mlps.gate_layout.order(mlps.hidden));
        let grid = (mlps.width.div_ceil(8), slots, 1);
        launch!(gpu, kernels.experts_gate_up_plain, grid, 256, 0;
            layout, gate, up, rows, cols, visits, vectors, order, activated, down_order)
    }
}

/// `outputs[v] = down · activated[v]`.
pub fn down(
    gpu: &Gpu,
    kernels: &Kernels,
    mlps: &Mlps,
    visits: VisitsArgs,
    slots: usize,
    pass: Pass,
    buffers: &ExpertBuffers,
) -> Result<(), Error> {
    let (rows, cols, down) = (mlps.hidden as u32, mlps.width as u32, mlps.down.args());
    let (activated, y) = (buffers.activated.address(), buffers.down.address());
    if is_fast(mlps.down_layout, mlps.width, pass) {
        let slices = mlps.down_layout.slices(mlps.width, WARPS);
        let kernel = match pass {
            Pass::Plain | Pass::Two => kernels.experts_down_2,
            Pass::Eight => kernels.experts_down_8,
            Pass::EightWide => kernels.experts_down_8_wide,
        };
        let grid = (row_blocks(mlps.hidden.div_ceil(TILE_ROWS), pass.row_tiles(), slices), slots, 1);
        let slices = slices as u32;
        launch!(gpu, kernel, grid, THREADS, 0; down, rows, cols, visits, activated, y, slices)
    } else {
        let (layout, order) = (mlps.down_layout.number(mlps.width), mlps.down_layout.order(mlps.width));
        let grid = (mlps.hidden.div_ceil(8), slots, 1);
        launch!(gpu, kernels.experts_down_plain, grid, 256, 0;
            layout, down, rows, cols, visits, activated, order, y)
    }
}

#[allow(clippy::too_many_arguments)] // The kernel's.
fn combine(
    gpu: &Gpu,
    kernels: &Kernels,
    buffers: &ExpertBuffers,
    routes: Option<&Routes>,
    shared: i32,
    count: usize,
    width: usize,
    hidden: Address,
) -> Result<(), Error> {
    let y = buffers.down.address();
    let (places, weights, per_token) = match routes {
        Some(routes) => (routes.places.address(), routes.weights.address(), routes.per_token()),
        None => (Address::NULL, Address::NULL, 0),
    };
    let shared_first = (count * per_token) as u32;
    let (per_token, columns) = (per_token as u32, width as u32);
    launch!(gpu, kernels.combine, (width.div_ceil(256), count, 1), 256, 0;
        y, places, weights, per_token, shared, shared_first, columns, hidden)
}
