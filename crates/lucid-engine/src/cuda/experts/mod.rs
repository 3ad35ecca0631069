//! The feed-forward half of a layer: one SwiGLU block, or routed experts and a shared one.

mod combine;
mod pass;
mod tilings;
mod visit;

pub use pass::{Expected, Pass};
pub use visit::{Job, visit};
#[cfg(test)]
pub use visit::{down, gate_up};

use super::arguments::{Order, VisitsArgs};
use super::driver::{Address, Buffer, Gpu};
use super::kernels::{Kernels, WHOLE_GROUPS};
use super::layout::Layout;
use super::matmul::{Product, multiply};
use super::norm::Norm;
use super::packing::{Packing, Room};
use super::router::{Routes, SharedVisits};
use super::weights::{Experts, Mlps};
use crate::Error;
use combine::combine;

/// Buffers of the feed-forward half, made for the largest step.
pub struct ExpertBuffers {
    /// `[visits, terms, width]` bf16
    activated: Buffer,
    /// `[visits, hidden]` f32
    down: Buffer,
    /// `[WHOLE_GROUPS + 2]` u32, zero between steps: see `experts_whole.cuh`
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
    /// What becomes of the rows there afterwards.
    pub then: Option<Norm>,
}

/// `hidden += Σ_e w_e · Expert_e(x) + Shared(x)`, over the experts that are here, and what `out` says of it afterwards.
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
    let (mlps, shared) = (&experts.routed, experts.shared_visits);
    routes.choose(gpu, kernels, bias, shared, count)?;
    let (visits, slots) = (routes.visits(shared, count), routes.most_active(shared, count));
    let pass = Pass::best(kernels, mlps, Some(routes.expected(shared, count)), count);
    visit(Job { gpu, kernels, mlps, visits, slots, pass, x, buffers })?;
    let then = if experts.shared.is_some() { None } else { out.then };
    combine(gpu, kernels, buffers, Some(routes), shared, count, mlps.hidden, Output { then, ..out })?;
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
    let visits = VisitsArgs {
        slots: Address::NULL,
        tokens: Address::NULL,
        count: count as u32,
        shared: 0,
        step: count as u32,
    };
    let pass = Pass::best(kernels, mlp, None, count);
    visit(Job { gpu, kernels, mlps: mlp, visits, slots: 1, pass, x, buffers })?;
    combine(gpu, kernels, buffers, None, SharedVisits::All, count, mlp.hidden, out)
}

fn vectors(x: Normed, layout: Layout, cols: usize) -> Address {
    match layout.order(cols) {
        Order::Natural => x.natural,
        Order::Nvfp4 => x.nvfp4,
    }
}
