//! The feed-forward half of a layer: one SwiGLU block, or routed experts and a shared one.

use super::driver::{Address, Buffer, Gpu, launch};
use super::kernels::{
    DOWN_SHARED, ExpertKernels, ExpertsJobArgs, GATE_UP_SHARED, GateUpAndDown, HOPPER_SHARED, Kernels, Order,
    PREFILL_SHARED, PREFILL_VECTORS, VisitsArgs, WHOLE_GROUPS, WholeKernel,
};
use super::matmul::{HOPPER_THREADS, Product, multiply};
use super::packing::{Packing, Room};
use super::router::Routes;
use super::weights::{Experts, Layout, Mlps};
use crate::Error;

/// Buffers of the feed-forward half, made for the largest step.
pub struct ExpertBuffers {
    /// `[visits, terms, width]` bf16
    activated: Buffer,
    /// `[visits, hidden]` f32
    down: Buffer,
    /// `[WHOLE_GROUPS + 2]` u32, zero between steps: see `experts_whole.cu`
    done: Buffer,
    /// For prompts on Hopper; the layer's other products use it too.
    pub packing: Packing,
}

impl ExpertBuffers {
    /// For visits to blocks of up to `width`, and what `room` says.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn new(
        gpu: &Gpu,
        kernels: &Kernels,
        room: Room,
        width: usize,
        hidden: usize,
    ) -> Result<ExpertBuffers, Error> {
        Ok(ExpertBuffers {
            activated: gpu.allocate(room.visits * kernels.terms * width * 2)?,
            down: gpu.allocate(room.visits * hidden * 4)?,
            done: gpu.upload(&[0u32; WHOLE_GROUPS + 2])?,
            packing: Packing::new(gpu, kernels, room)?,
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
    /// `[tokens, terms, hidden]` bf16
    pub natural: Address,
    /// The same in NVFP4's order.
    pub nvfp4: Address,
}

/// Where a block's result goes.
#[derive(Clone, Copy)]
pub struct Output {
    /// `[tokens, hidden]` f32
    pub at: Address,
    /// Whether it is added to what is there.
    pub add: bool,
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
    out: Output,
) -> Result<(), Error> {
    let router = Product::new(&experts.router, vectors(x, experts.router.layout, experts.router.cols))
        .packed_in(&buffers.packing);
    multiply(gpu, kernels, router.into(routes.logits.address()), None, count)?;
    let bias = experts.bias.as_ref().map_or(Address::NULL, Buffer::address);
    routes.choose(gpu, kernels, bias, count)?;
    let (mlps, slots) = (&experts.routed, routes.most_active(count));
    let pass = Pass::best(kernels, mlps, Some(slots), count, count * routes.per_token());
    visit(gpu, kernels, mlps, routes.visits(count), slots, pass, x, buffers)?;
    let shared = i32::from(experts.shared_joined);
    combine(gpu, kernels, buffers, Some(routes), shared, count, mlps.hidden, out)?;
    match &experts.shared {
        Some(shared) => swiglu(gpu, kernels, shared, buffers, count, x, Output { add: true, ..out }),
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
    out: Output,
) -> Result<(), Error> {
    let visits = VisitsArgs { slots: Address::NULL, tokens: Address::NULL, count: count as u32 };
    visit(gpu, kernels, mlp, visits, 1, Pass::best(kernels, mlp, None, count, count), x, buffers)?;
    combine(gpu, kernels, buffers, None, 1, count, mlp.hidden, out)
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
    /// Eight columns (terms of visitors) share a pass over the weights.
    Narrow,
    /// Up to 24 do.
    Many,
    /// Gate, up and down in one kernel that keeps the whole GPU busy, for listed visits with bf16 activations on GPUs with large blocks
    /// and a copy engine.
    Whole,
    /// Up to 64 share what is unpacked, and vectors come to shared memory: for prompts.
    Prefill,
    /// So many share it, on warpgroup instructions: for prompts on Hopper. One of the widths that [`ExpertKernels::hopper`] has.
    Hopper(usize),
}

impl Pass {
    /// The fastest for a step of `count` tokens with so many visits, to up to `slots` experts if there are lists of them.
    #[must_use]
    pub fn best(kernels: &Kernels, mlps: &Mlps, slots: Option<usize>, count: usize, visits: usize) -> Pass {
        let same_form = mlps.gate_layout == mlps.down_layout;
        if kernels.prefill && count > PREFILL_VECTORS {
            let fast = is_fast(mlps.gate_layout, mlps.hidden, Pass::Prefill)
                && is_fast(mlps.down_layout, mlps.width, Pass::Prefill)
                && same_form;
            return if kernels.hopper.is_some() && fast {
                let mean = visits / slots.unwrap_or(1);
                Pass::Hopper(hopper_width(kernels.experts(mlps.gate_layout), mean))
            } else {
                Pass::Prefill
            };
        }
        let whole = |slots| whole_kernel(kernels, mlps, slots, visits + count).is_some();
        if count > FEWEST_TOKENS && slots.is_some_and(whole) {
            Pass::Whole
        } else if kernels.terms * count <= 8 {
            Pass::Narrow
        } else {
            Pass::Many
        }
    }

    /// The kernels for it, and what it becomes where the layout has none.
    fn kernels(self, of: &ExpertKernels) -> (Pass, GateUpAndDown) {
        match self {
            Pass::Many | Pass::Whole => (Pass::Many, of.many),
            Pass::Hopper(width) => match of.hopper.iter().find(|(wide, _)| *wide == width) {
                Some((_, pair)) => (Pass::Hopper(width), *pair),
                None => (Pass::Prefill, of.prefill),
            },
            Pass::Prefill => (Pass::Prefill, of.prefill),
            Pass::Plain | Pass::Narrow => (Pass::Narrow, of.narrow),
        }
    }

    /// Blocks for so many rows, where `tiles` tiles belong to each sixteen, and `slices` warps share columns.
    fn row_blocks(self, rows: usize, tiles: usize, slices: usize) -> usize {
        match self {
            Pass::Prefill => (rows.div_ceil(TILE_ROWS) * tiles).div_ceil(2 * WARPS),
            _ => (rows.div_ceil(TILE_ROWS) * tiles).div_ceil(WARPS / slices),
        }
    }
}

/// Groups of up to `width` visitors, at the most.
fn groups(visits: VisitsArgs, slots: usize, width: usize) -> usize {
    match visits.slots {
        Address::NULL => (visits.count as usize).div_ceil(width),
        // Each expert's last group may be small.
        _ => slots + visits.count as usize / width,
    }
}

/// The width of the tiles for experts' last visitors, where those of `width` are much wider; else 0.
fn narrow_width(kernels: &ExpertKernels, width: usize) -> usize {
    kernels.hopper.iter().map(|(narrow, _)| *narrow).filter(|narrow| 2 * narrow <= width).max().unwrap_or(0)
}

/// The two lists of groups, for tiles of `width` and for narrow ones: where each stands, how many groups of how many visits it has
/// at the most, and the kernels for it.
fn tilings<'a>(
    kernels: &'a ExpertKernels,
    packing: &'a Packing,
    visits: VisitsArgs,
    slots: usize,
    width: usize,
) -> impl Iterator<Item = (Address, (usize, usize), GateUpAndDown)> + 'a {
    let narrow = narrow_width(kernels, width);
    // Without lists of visitors there is one group after the other, all in the first list.
    let slots_with_last = if visits.slots == Address::NULL { 0 } else { slots };
    let lists = [
        (packing.groups(), (groups(visits, slots, width), width)),
        (packing.narrow_groups(), (slots_with_last, narrow)),
    ];
    lists.into_iter().filter(|(_, (most, _))| *most > 0).filter_map(|(list, room)| {
        kernels.hopper.iter().find(|(wide, _)| *wide == room.1).map(|(_, pair)| (list, room, *pair))
    })
}

/// The narrowest tile in which most experts' visitors find room, where `mean` visit one: two standard deviations more.
fn hopper_width(kernels: &ExpertKernels, mean: usize) -> usize {
    let wanted = mean + 2 * mean.isqrt();
    let widths = || kernels.hopper.iter().map(|(width, _)| *width);
    widths().find(|&width| width >= wanted).or(widths().next_back()).unwrap_or(0)
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
    if let (Pass::Whole, Some(kernel)) = (pass, whole_kernel(kernels, mlps, slots, visits.count as usize)) {
        return whole(gpu, kernels, kernel, mlps, visits, slots, x, buffers);
    }
    gate_up(gpu, kernels, mlps, visits, slots, pass, x, buffers)?;
    down(gpu, kernels, mlps, visits, slots, pass, buffers)
}

/// The kernel that computes all of such experts' visits at once, if there is one. It lists the visits in groups of eight.
fn whole_kernel(kernels: &Kernels, mlps: &Mlps, slots: usize, visits: usize) -> Option<WholeKernel> {
    let fast = mlps.gate_layout.is_for_experts(mlps.hidden) && mlps.down_layout.is_for_experts(mlps.width);
    let fits = slots + visits / WHOLE_VISITS <= WHOLE_GROUPS && visits <= WHOLE_VISITS * slots;
    let takes = fast && mlps.gate_layout == mlps.down_layout && kernels.whole_blocks > 0 && fits;
    kernels.experts(mlps.gate_layout).whole.filter(|_| takes)
}

/// Gate, up and down of listed visits.
#[allow(clippy::too_many_arguments)] // The kernel's.
fn whole(
    gpu: &Gpu,
    kernels: &Kernels,
    kernel: WholeKernel,
    mlps: &Mlps,
    visits: VisitsArgs,
    slots: usize,
    x: Normed,
    buffers: &ExpertBuffers,
) -> Result<(), Error> {
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
    let blocks = items.div_ceil(kernel.threads / 32).min(kernels.whole_blocks);
    launch!(gpu, kernel.kernel, (blocks, 1, 1), kernel.threads, kernel.shared; job)
}

/// Whether the tensor-core kernels take such blocks.
fn is_fast(layout: Layout, cols: usize, pass: Pass) -> bool {
    layout.is_for_experts(cols) && pass != Pass::Plain
}

/// How many warps share a row: by shape alone.
fn slices(layout: Layout, cols: usize, warps: usize) -> usize {
    // bf16's own count is for tiles of 32 columns.
    if layout == Layout::Bf16 { Layout::F8Blocks.slices(cols, warps) } else { layout.slices(cols, warps) }
}

/// Warps of a block (see `mma.cuh`).
const WARPS: usize = 8;
const THREADS: usize = 32 * WARPS;
const TILE_ROWS: usize = 16;
/// Up to so many tokens the kernels that take gate and up, then down, are faster: there are too few items for one that takes all.
const FEWEST_TOKENS: usize = 2;
/// Visits of a group, `WHOLE_VISITS` of `experts_whole.cu`.
const WHOLE_VISITS: usize = 8;

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
        let slices = slices(mlps.gate_layout, mlps.hidden, WARPS / 2);
        let (pass, pair) = pass.kernels(kernels.experts(mlps.gate_layout));
        let kernel = match pass {
            Pass::Hopper(width) => {
                let (packing, slices) = (&buffers.packing, slices as u32);
                let of = kernels.experts(mlps.gate_layout);
                packing.list(gpu, kernels, visits, slots, (width, narrow_width(of, width)))?;
                let blocks = (kernels.hopper.unwrap_or(1), 1, 1);
                for (groups, room, pair) in tilings(of, packing, visits, slots, width) {
                    packing.pack_visitors(gpu, kernels, groups, room, visits.tokens, vectors, mlps.hidden)?;
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
        let slices = slices(mlps.down_layout, mlps.width, WARPS);
        let (pass, pair) = pass.kernels(kernels.experts(mlps.down_layout));
        let kernel = match pass {
            Pass::Hopper(width) => {
                // The lists are gate's and up's.
                let (packing, slices) = (&buffers.packing, slices as u32);
                let blocks = (kernels.hopper.unwrap_or(1), 1, 1);
                let of = kernels.experts(mlps.down_layout);
                for (groups, room, pair) in tilings(of, packing, visits, slots, width) {
                    packing.pack_visitors(
                        gpu,
                        kernels,
                        groups,
                        room,
                        Address::NULL,
                        activated,
                        mlps.width,
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

#[allow(clippy::too_many_arguments)] // The kernel's.
fn combine(
    gpu: &Gpu,
    kernels: &Kernels,
    buffers: &ExpertBuffers,
    routes: Option<&Routes>,
    shared: i32,
    count: usize,
    width: usize,
    out: Output,
) -> Result<(), Error> {
    let y = buffers.down.address();
    let (places, weights, per_token) = match routes {
        Some(routes) => (routes.places.address(), routes.weights.address(), routes.per_token()),
        None => (Address::NULL, Address::NULL, 0),
    };
    let shared_first = (count * per_token) as u32;
    let (per_token, columns) = (per_token as u32, width as u32);
    let (accumulate, hidden) = (i32::from(out.add), out.at);
    launch!(gpu, kernels.combine, (width.div_ceil(256), count, 1), 256, 0;
        y, places, weights, per_token, shared, shared_first, columns, accumulate, hidden)
}
