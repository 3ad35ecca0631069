//! Multi-head latent attention in the absorbed form over the paged cache.

use super::arguments::Order;
use super::cache::LayerCache;
use super::driver::{Address, Buffer, Gpu, launch};
use super::expanded::part;
use super::kernels::{ATTENTION_SHARED, Kernels, VALUES_SHARED};
use super::matmul::{Product, multiply};
use crate::kv_cache::PAGE_TOKENS;
use crate::{Error, KvCacheDtype, Mode};

/// The plain kernels' sums run over units of 32 tokens (see `attention.cu`).
const UNIT_TOKENS: usize = 32;
/// Of a large GPU; a block on tensor cores takes one.
const MULTIPROCESSORS: usize = 132;
/// Threads of `attention_inputs`, as in `attention.cu`.
const INPUTS_THREADS: usize = 128;
/// Blocks that keep half of them busy.
const ENOUGH_BLOCKS: usize = 60;
/// Rows whose sums should fit; more take turns.
const ROWS_AT_ONCE: usize = 64;
/// Heads of a block of Hopper's kernel.
const WIDE_HEADS: usize = 64;
/// Threads of such a block.
const WIDE_THREADS: usize = 512;
/// Blocks of that kernel from which on it is the fastest.
const ENOUGH_WIDE_BLOCKS: usize = 16;
/// Spans as `attention_tensor.cu` cuts them: up to so many pages that a row sees, a span has so many.
const SPANS: [(usize, usize); 4] = [(16, 2), (64, 4), (256, 8), (usize::MAX, 16)];
/// Floats before the sums of a unit, `PARTIAL_SUMS` of `attention.cu`.
const PARTIAL_SUMS: usize = 8;
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
    /// Reference or serving arithmetic.
    pub mode: Mode,
    /// Element type of the cache.
    pub cache: KvCacheDtype,
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
    /// What rows attend to.
    pub choices: Choices,
}

/// What rows attend to where an indexer chooses: `Choices` of `pages.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Choices {
    /// `[count, most]` ascending positions, of rows that have more than `most` tokens; null where all see everything.
    pub lists: Address,
    /// Tokens that a row sees at the most.
    pub most: u32,
}

impl Choices {
    /// None are made.
    pub const EVERYTHING: Choices = Choices { lists: Address::NULL, most: 0 };

    /// Pages' worth of tokens that a row sees, of `pages` that it has.
    fn pages(self, pages: usize) -> usize {
        if self.lists == Address::NULL {
            pages
        } else {
            pages.min((self.most as usize).div_ceil(PAGE_TOKENS))
        }
    }
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
    /// `[rows, terms, heads * nope]` bf16, written; null where nobody wants it.
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
    cache: LayerCache,
    inputs: &Inputs<'_>,
) -> Result<(), Error> {
    let kernel = match shape.cache {
        KvCacheDtype::F32 => kernels.attention_inputs_f32,
        KvCacheDtype::Bf16 => kernels.attention_inputs_bf16,
        KvCacheDtype::Fp8E4m3 => kernels.attention_inputs_f8,
    };
    let (heads, nope, interleaved) = (shape.heads as u32, shape.nope as u32, i32::from(inputs.interleaved));
    let (norm, angles) = (inputs.norm.address(), inputs.angles.address());
    // A block for each head gives a few rows the whole GPU; many rows don't need so many blocks.
    let at_once = if step.count < MULTIPROCESSORS { 1 } else { shape.heads.min(16) };
    let blocks = 1 + shape.heads.div_ceil(at_once);
    let at_once = at_once as u32;
    launch!(gpu, kernel, (step.count, blocks, 1), INPUTS_THREADS, 0;
        inputs.entries, norm, inputs.eps, inputs.queries, heads, at_once, nope, angles, interleaved, step.rows, step.pages, cache.at,
        cache.scale, inputs.nope_split, inputs.absorbed)
}

/// `WideJob` of `attention_hopper.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct WideJob {
    queries: Address,
    latents: Address,
    heads: u32,
    scale: f32,
    rows: Address,
    pages: Address,
    choices: Choices,
    partial: Address,
    count: u32,
    units: u32,
    blocks: u32,
}

/// Room for the sums of single units.
pub struct PartialSums(Buffer);

/// Which kernels sum. A model takes the same ones always, for their bits differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// f32 throughout, for any cache.
    Plain,
    /// On tensor cores: bf16 or E4M3 cache, bf16 queries and softmax weights.
    Tensor,
}

impl Kind {
    /// What a model with such a cache takes on this GPU.
    #[must_use]
    pub fn of(kernels: &Kernels, shape: Shape) -> Kind {
        let tensor = shape.mode == Mode::Serving && shape.cache != KvCacheDtype::F32 && kernels.roomy;
        if tensor { Kind::Tensor } else { Kind::Plain }
    }

    /// The most parts that may be summed by themselves, of rows that see up to `pages` pages.
    fn units(self, pages: usize) -> usize {
        match self {
            Kind::Plain => pages * PAGE_TOKENS / UNIT_TOKENS,
            Kind::Tensor => {
                SPANS.iter().map(|&(most, span)| pages.min(most).div_ceil(span)).max().unwrap_or_default()
            }
        }
    }
}

/// The latent width that `attention_hopper.cu` is written for, of all published models.
const WIDE_LATENT: usize = 512;

/// How units are summed; the bits are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Side by side: for decoding.
    SideBySide,
    /// The same with all heads in one block, for many units: Hopper's kernel. It takes the latent part of the queries from where its
    /// results go, as bf16.
    Wide,
    /// One after the other.
    InOrder,
}

impl PartialSums {
    /// Enough for a decoding step at `positions` tokens of context, within bounds.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn new(gpu: &Gpu, shape: Shape, positions: usize) -> Result<PartialSums, Error> {
        let pages = positions.div_ceil(PAGE_TOKENS);
        let one_row = bytes(shape, 1, Kind::Plain.units(pages));
        let busy = bytes(shape, ROWS_AT_ONCE, Kind::Tensor.units(pages));
        Ok(PartialSums(gpu.allocate(one_row.max(busy).clamp(PARTIAL_BYTES, MOST_PARTIAL_BYTES))?))
    }

    /// The fastest way that fits.
    #[must_use]
    pub fn choose(&self, kernels: &Kernels, shape: Shape, step: StepRows) -> Pages {
        let kind = Kind::of(kernels, shape);
        let units = kind.units(step.choices.pages(step.most_pages));
        let rows = self.rows(shape, units);
        if kind == Kind::Tensor && kernels.hopper.is_some() && shape.latent == WIDE_LATENT && rows > 0 {
            let wide_blocks = step.count * shape.heads.div_ceil(WIDE_HEADS) * units;
            return if wide_blocks >= ENOUGH_WIDE_BLOCKS { Pages::Wide } else { Pages::SideBySide };
        }
        let busy = kind == Kind::Tensor && step.count * shape.heads.div_ceil(32) >= ENOUGH_BLOCKS;
        if step.count <= rows && !busy { Pages::SideBySide } else { Pages::InOrder }
    }

    /// Rows whose sums fit at a time, as many as a grid has at the most.
    fn rows(&self, shape: Shape, units: usize) -> usize {
        (self.0.bytes() / bytes(shape, 1, units.max(1))).min(65_535)
    }
}

fn bytes(shape: Shape, rows: usize, units: usize) -> usize {
    rows * shape.heads * units * (shape.latent + PARTIAL_SUMS) * 4
}

/// Rows whose sums are merged by the kernel that multiplies them, at the most: its blocks have a head each, whatever the rows.
const MERGED_WITH_VALUES: usize = 2;
/// Warps of its blocks, a row tile each.
const VALUE_TILES: usize = 8;

/// Whether one kernel merges a step's sums and multiplies them with W_UV (see `attention_values.cu`); the bits are the same.
fn merges_values(launches: &Launches<'_>, step: StepRows, values: &Product) -> bool {
    let Launches { kernels, shape, pages, .. } = launches;
    kernels.prefill
        && shape.latent == WIDE_LATENT
        && Kind::of(kernels, *shape) == Kind::Tensor
        && *pages != Pages::InOrder
        && step.count <= MERGED_WITH_VALUES
        && values.is_bf16_in_tiles()
}

/// `queries` `[rows, heads, latent + rope]` f32 against the cache, then `values` of the sums, a product for each head: see
/// [`attend`], whose result stands in `out` in between, if at all.
#[allow(clippy::too_many_arguments)] // The kernels'.
pub fn attend_and_multiply(
    gpu: &Gpu,
    kernels: &Kernels,
    shape: Shape,
    step: StepRows,
    cache: LayerCache,
    queries: Address,
    partial: &PartialSums,
    pages: Pages,
    (out, order): (Address, Order),
    values: Product,
) -> Result<(), Error> {
    let units = Kind::of(kernels, shape).units(step.choices.pages(step.most_pages));
    let launches = Launches { gpu, kernels, shape, cache, pages, units, sums: partial.0.address(), order };
    if merges_values(&launches, step, &values) && step.count <= partial.rows(shape, units) {
        sum_rows(launches, step, queries, out)?;
        return merge_values(launches, step, &values);
    }
    attend(gpu, kernels, shape, step, cache, queries, partial, pages, (out, order))?;
    multiply(gpu, kernels, values, None, step.count)
}

/// `queries` `[rows, heads, latent + rope]` f32 against the cache; `out` `[rows, terms, heads * latent]` in split form, in `order`, still to
/// be multiplied with the cache's scale. [`Pages::Wide`] reads `[rows, heads, latent]` bf16 there before, in place of the queries' latent part.
#[allow(clippy::too_many_arguments)] // The kernels'.
pub fn attend(
    gpu: &Gpu,
    kernels: &Kernels,
    shape: Shape,
    step: StepRows,
    cache: LayerCache,
    queries: Address,
    partial: &PartialSums,
    pages: Pages,
    (out, order): (Address, Order),
) -> Result<(), Error> {
    let units = Kind::of(kernels, shape).units(step.choices.pages(step.most_pages));
    let at_once = match pages {
        Pages::InOrder => step.count,
        // All sums of a step of many rows and long contexts need not fit.
        Pages::SideBySide | Pages::Wide => partial.rows(shape, units).max(1),
    };
    let launches = Launches { gpu, kernels, shape, cache, pages, units, sums: partial.0.address(), order };
    for first in (0..step.count).step_by(at_once) {
        let rows = part(step, first, at_once.min(step.count - first));
        let queries = queries.offset(4 * first * shape.heads * (shape.latent + shape.rope));
        let out = out.offset(2 * kernels.terms * first * shape.heads * shape.latent);
        attend_rows(launches, rows, queries, out)?;
    }
    Ok(())
}

/// What the launches of a step have in common.
#[derive(Clone, Copy)]
struct Launches<'a> {
    gpu: &'a Gpu,
    kernels: &'a Kernels,
    shape: Shape,
    cache: LayerCache,
    pages: Pages,
    /// Parts of a row that are summed by themselves.
    units: usize,
    /// Where their sums go.
    sums: Address,
    order: Order,
}

/// The same for rows whose sums fit.
fn attend_rows(launches: Launches<'_>, step: StepRows, queries: Address, out: Address) -> Result<(), Error> {
    sum_rows(launches, step, queries, out)?;
    let Launches { gpu, kernels, shape, units, sums, order, pages, .. } = launches;
    let kind = Kind::of(kernels, shape);
    if pages == Pages::InOrder {
        return Ok(());
    }
    let (heads, rows, choices) = (shape.heads as u32, step.rows, step.choices);
    let (units, tokens) = (units as u32, if kind == Kind::Tensor { 0 } else { UNIT_TOKENS as u32 });
    launch!(gpu, kernels.merge_units, (shape.heads, step.count, 1), shape.latent / 2, 0;
        sums, heads, units, tokens, rows, choices, order, out)
}

/// Merges the sums of a few rows' spans and multiplies them.
fn merge_values(launches: Launches<'_>, step: StepRows, values: &Product) -> Result<(), Error> {
    let Launches { gpu, kernels, shape, units, sums, .. } = launches;
    let (heads, units, rows, choices) = (shape.heads as u32, units as u32, step.rows, step.choices);
    let (product, count) = (values.args(), step.count as u32);
    let blocks = (shape.heads, values.tiles().div_ceil(VALUE_TILES), 1);
    launch!(gpu, kernels.merge_values, blocks, 32 * VALUE_TILES, VALUES_SHARED;
        sums, heads, units, rows, choices, product, count)
}

/// The sums of spans side by side, still to be merged, or of whole rows.
fn sum_rows(launches: Launches<'_>, step: StepRows, queries: Address, out: Address) -> Result<(), Error> {
    let Launches { gpu, kernels, shape, cache, pages, units, sums, order } = launches;
    let heads = shape.heads as u32;
    let kind = Kind::of(kernels, shape);
    let (rows, page_table, choices) = (step.rows, step.pages, step.choices);
    let (cache, scale) = (cache.at, shape.scale * cache.scale);
    match kind {
        Kind::Tensor if pages == Pages::Wide => {
            let kernel = match shape.cache {
                KvCacheDtype::Fp8E4m3 => kernels.attend_wide_f8,
                _ => kernels.attend_wide_bf16,
            };
            let blocks = shape.heads.div_ceil(WIDE_HEADS);
            let job = WideJob {
                queries,
                latents: out,
                heads,
                scale,
                rows,
                pages: page_table,
                choices,
                partial: sums,
                count: step.count as u32,
                units: units as u32,
                blocks: blocks as u32,
            };
            let at_once = kernels.hopper.unwrap_or(MULTIPROCESSORS).min(step.count * units * blocks);
            launch!(gpu, kernel, (at_once, 1, 1), WIDE_THREADS, ATTENTION_SHARED; job, cache)
        }
        Kind::Tensor => {
            // Few rows leave multiprocessors idle: then more blocks with fewer heads.
            let parts = if pages == Pages::InOrder { 1 } else { units };
            let wide_blocks = parts * step.count * shape.heads.div_ceil(32);
            let few = shape.heads <= 16 || 2 * wide_blocks <= MULTIPROCESSORS;
            let codes = shape.cache == KvCacheDtype::Fp8E4m3;
            let (at_once, one_by_one, side_by_side) = match (few, codes) {
                (true, false) => (16, kernels.attend_rows_16, kernels.attend_spans_16),
                (false, false) => (32, kernels.attend_rows_32, kernels.attend_spans_32),
                (true, true) => (16, kernels.attend_rows_16_f8, kernels.attend_spans_16_f8),
                (false, true) => (32, kernels.attend_rows_32_f8, kernels.attend_spans_32_f8),
            };
            let blocks = shape.heads.div_ceil(at_once);
            if pages == Pages::InOrder {
                return launch!(gpu, one_by_one, (1, blocks, step.count), 256, ATTENTION_SHARED;
                    queries, heads, scale, rows, page_table, choices, cache, order, out);
            }
            launch!(gpu, side_by_side, (units, blocks, step.count), 256, ATTENTION_SHARED;
                queries, heads, scale, rows, page_table, choices, cache, sums)
        }
        Kind::Plain => {
            let (one_by_one, side_by_side) = match shape.cache {
                KvCacheDtype::F32 => (kernels.attend_f32, kernels.attend_units_f32),
                KvCacheDtype::Bf16 => (kernels.attend_bf16, kernels.attend_units_bf16),
                KvCacheDtype::Fp8E4m3 => (kernels.attend_f8, kernels.attend_units_f8),
            };
            let blocks = shape.heads.div_ceil(8);
            if pages == Pages::InOrder {
                return launch!(gpu, one_by_one, (blocks, step.count, 1), 256, 0;
                    queries, heads, scale, rows, page_table, choices, cache, order, out);
            }
            launch!(gpu, side_by_side, (units, blocks, step.count), 256, 0;
                queries, heads, scale, rows, page_table, choices, cache, sums)
        }
    }
}
