//! Multi-head latent attention in the absorbed form over the paged cache.

use super::driver::{Address, Buffer, Gpu, launch};
use super::kernels::{Kernels, Order};
use crate::kv_cache::PAGE_TOKENS;
use crate::{Error, Mode};

/// Sums run over units of 32 tokens (see `attention.cu`).
const UNITS_PER_PAGE: usize = PAGE_TOKENS / 32;
/// Memory for sums of single units, when it is free to choose.
const PARTIAL_BYTES: usize = 64 << 20;
/// At the most, however long the context.
const MOST_PARTIAL_BYTES: usize = 512 << 20;

/// Sizes and scale.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Attention heads.
    pub heads: usize,
    /// Query and key columns without position.
    pub nope: usize,
    /// Latent part of an entry.
    pub latent: usize,
    /// Rotated part of an entry.
    pub rope: usize,
    /// Softmax scale.
    pub scale: f32,
    /// Element type of the cache.
    pub mode: Mode,
}

/// The rows of a step, on the GPU.
#[derive(Clone, Copy)]
pub struct StepRows {
    /// Rows.
    pub count: usize,
    /// `[count]` position and start in `pages`, u32 each.
    pub rows: Address,
    /// Pages of all sequences, u32.
    pub pages: Address,
    /// No row sees more pages.
    pub most_pages: usize,
}

/// Where queries and entries come from, and where they go.
pub struct Inputs<'a> {
    /// `[rows, latent + rope]` f32
    pub entries: Address,
    /// `[latent]`
    pub norm: &'a Buffer,
    /// Of that norm.
    pub eps: f32,
    /// `[rows, heads, nope + rope]` f32
    pub queries: Address,
    /// `[positions, rope / 2]` cosines and sines.
    pub angles: &'a Buffer,
    /// Pairs are adjacent.
    pub interleaved: bool,
    /// `[rows, 3, heads * nope]` bf16, written.
    pub nope_split: Address,
    /// `[rows, heads, latent + rope]` f32; the rotated part is written.
    pub absorbed: Address,
}

/// Normalizes and rotates entries into the layer's cache, and rotates queries.
pub fn inputs(
    gpu: &Gpu,
    kernels: &Kernels,
    shape: Shape,
    step: StepRows,
    cache: Address,
    inputs: &Inputs<'_>,
) -> Result<(), Error> {
    let kernel = match shape.mode {
        Mode::Reference => kernels.attention_inputs_f32,
        Mode::Serving => kernels.attention_inputs_bf16,
    };
    let (heads, nope, interleaved) = (shape.heads as u32, shape.nope as u32, i32::from(inputs.interleaved));
    let (norm, angles) = (inputs.norm.address(), inputs.angles.address());
    launch!(gpu, kernel, (step.count, shape.heads + 1, 1), 128, 0;
        inputs.entries, norm, inputs.eps, inputs.queries, heads, nope, angles, interleaved, step.rows, step.pages, cache,
        inputs.nope_split, inputs.absorbed)
}

/// Room for the sums of single units.
pub struct PartialSums(Buffer);

/// How pages are summed; the bits are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Side by side, when they fit into the partial sums: for decoding.
    SideBySide,
    /// One after the other.
    InOrder,
}

impl PartialSums {
    /// Enough for a decoding step at `positions` tokens of context, within bounds.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn new(gpu: &Gpu, shape: Shape, positions: usize) -> Result<PartialSums, Error> {
        let one_row = bytes(shape, 1, positions.div_ceil(PAGE_TOKENS));
        Ok(PartialSums(gpu.allocate(one_row.clamp(PARTIAL_BYTES, MOST_PARTIAL_BYTES))?))
    }

    /// Whether a step's sums fit.
    #[must_use]
    pub fn choose(&self, shape: Shape, step: StepRows) -> Pages {
        let fits = bytes(shape, step.count, step.most_pages) <= self.0.bytes();
        if fits && step.count <= 65_535 { Pages::SideBySide } else { Pages::InOrder }
    }
}

fn bytes(shape: Shape, rows: usize, pages: usize) -> usize {
    rows * shape.heads * pages * UNITS_PER_PAGE * (shape.latent + 2) * 4
}

/// `queries` `[rows, heads, latent + rope]` f32 against the cache; `out` `[rows, 3, heads * latent]` in split form, in `order`.
#[allow(clippy::too_many_arguments)] // The kernels'.
pub fn attend(
    gpu: &Gpu,
    kernels: &Kernels,
    shape: Shape,
    step: StepRows,
    cache: Address,
    queries: Address,
    partial: &PartialSums,
    pages: Pages,
    (out, order): (Address, Order),
) -> Result<(), Error> {
    let (one_by_one, side_by_side) = match shape.mode {
        Mode::Reference => (kernels.attend_f32, kernels.attend_units_f32),
        Mode::Serving => (kernels.attend_bf16, kernels.attend_units_bf16),
    };
    let (heads, blocks) = (shape.heads as u32, shape.heads.div_ceil(8));
    if pages == Pages::InOrder {
        return launch!(gpu, one_by_one, (blocks, step.count, 1), 256, 0;
            queries, heads, shape.scale, step.rows, step.pages, cache, order, out);
    }
    let sums = partial.0.address();
    let units = step.most_pages * UNITS_PER_PAGE;
    launch!(gpu, side_by_side, (units, blocks, step.count), 256, 0;
        queries, heads, shape.scale, step.rows, step.pages, cache, sums)?;
    let units = units as u32;
    launch!(gpu, kernels.merge_units, (shape.heads, step.count, 1), 256, 0; sums, heads, units, step.rows, order, out)
}
