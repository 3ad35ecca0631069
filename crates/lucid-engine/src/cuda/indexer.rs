//! DeepSeek sparse attention: which tokens a row attends to, as lists beside the step's rows (see `cpu/indexer/mod.rs`).

use lucid_checkpoint::Config;

use super::arguments::Order;
use super::attention::{Choices, StepRows};
use super::driver::{Address, Buffer, Gpu, launch};
use super::kernels::Kernels;
use super::matmul::{Product, multiply};
use super::weights::DeviceMatrix;
use crate::kv_cache::PAGE_TOKENS;
use crate::{Error, Mode, weights};

/// The widest index head that the kernels take.
const MOST_WIDTH: usize = 128;
/// Scores that are in memory at a time: 64 MiB. Rows of long contexts choose a few at a time.
const MOST_SCORES: usize = 16 << 20;
/// Rows of a launch at the most: the grid's second side.
const MOST_ROWS: usize = 65_535;
/// From so many rows on, blocks score a few at a time.
const MANY_ROWS: usize = 512;
/// So many.
const ROWS_AT_ONCE: usize = 8;
/// Threads of the kernel's only block of a row that chooses.
const CHOOSE_THREADS: usize = 1_024;

/// A layer's indexer; shapes as in [`weights::Indexer`].
#[allow(missing_docs)]
pub struct IndexerWeights {
    pub wq_b: DeviceMatrix,
    pub wk: DeviceMatrix,
    pub k_norm: Buffer,
    pub k_norm_bias: Buffer,
    pub weights_proj: DeviceMatrix,
}

impl IndexerWeights {
    /// Uploads one.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn upload(gpu: &Gpu, kernels: &Kernels, host: &weights::Indexer) -> Result<IndexerWeights, Error> {
        let matrix = |host| DeviceMatrix::upload(gpu, kernels, host);
        Ok(IndexerWeights {
            wq_b: matrix(&host.wq_b)?,
            wk: matrix(&host.wk)?,
            k_norm: gpu.upload(&host.k_norm)?,
            k_norm_bias: gpu.upload(&host.k_norm_bias)?,
            weights_proj: matrix(&host.weights_proj)?,
        })
    }

    /// The orders in which it reads the normalized hidden state.
    #[must_use]
    pub fn orders(&self) -> [Order; 2] {
        [self.wk.order(), self.weights_proj.order()]
    }
}

/// `Indexer` of `indexer.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)] // As there.
pub struct Rules {
    pub heads: u32,
    pub width: u32,
    pub most: u32,
    pub interleaved: i32,
    pub scale: f32,
}

/// Chooses for `count` rows: `scores` `[count, stride]` up to each row's own position; `lists` `[count, most]`, written where there are more
/// tokens than `most`.
///
/// # Errors
/// When the kernel can't be queued.
#[allow(clippy::too_many_arguments)] // The kernel's.
pub fn choose(
    gpu: &Gpu,
    kernels: &Kernels,
    rules: Rules,
    (scores, stride): (Address, u32),
    rows: Address,
    lists: Address,
    count: usize,
) -> Result<(), Error> {
    launch!(gpu, kernels.index_choose, (count, 1, 1), CHOOSE_THREADS, 0; rules, scores, stride, rows, lists)
}

/// What an indexer reads.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// `[rows, terms, hidden]`: the layer's normalized input, in both orders.
    pub normed: (Address, Address),
    /// `[rows, terms, Q]`: the normalized latent of queries, in the order of `wq_b`.
    pub query_low: Address,
    /// `[positions, rope / 2]` cosines and sines.
    pub angles: &'a Buffer,
    /// The layer's index keys `[pages, PAGE_TOKENS, width]`.
    pub cache: Address,
    /// Element type of the cache.
    pub mode: Mode,
}

/// Chooses; keeps the last choice for the layers that share it.
pub struct Indexer {
    rules: Rules,
    keys: Buffer,    // [tokens, width] f32
    queries: Buffer, // [tokens, heads, width] f32
    turned: Buffer,  // the same after RoPE, in the cache's element type
    weights: Buffer, // [tokens, heads] f32
    scores: Buffer,  // [rows of a group, positions] f32
    lists: Buffer,   // [tokens, most] u32: ascending positions
    low: Buffer,     // [tokens, terms, Q]: where `wq_b` takes another order than the attention's own product
}

impl Indexer {
    /// Whether there are kernels for a model's indexer, if it has one.
    ///
    /// # Errors
    /// When its heads are wider than the kernels take.
    pub fn check(config: &Config) -> Result<(), Error> {
        let width = config.indexer.as_ref().map_or(0, |rules| rules.index_head_dim);
        if width > MOST_WIDTH || !width.is_multiple_of(16) {
            return Err(Error::Unsupported {
                what: format!("index_head_dim {width}, on a GPU,"),
                hint: "multiples of 16 up to 128 are, and the processor takes any",
            });
        }
        Ok(())
    }

    /// For steps of up to `tokens` tokens of sequences of up to `positions`; `None` for models that attend to everything.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn new(
        gpu: &Gpu,
        config: &Config,
        terms: usize,
        positions: usize,
        tokens: usize,
    ) -> Result<Option<Indexer>, Error> {
        let (Some(rules), Some(rank)) = (&config.indexer, config.q_lora_rank) else { return Ok(None) };
        let (heads, width) = (rules.index_n_heads, rules.index_head_dim);
        let pages = positions.div_ceil(PAGE_TOKENS).next_power_of_two();
        let f32s = |count: usize| gpu.allocate(4 * count);
        Ok(Some(Indexer {
            rules: Rules {
                heads: heads as u32,
                width: width as u32,
                most: rules.index_topk as u32,
                interleaved: i32::from(rules.rope_interleave),
                scale: 1.0 / ((heads * width) as f32).sqrt(),
            },
            keys: f32s(tokens * width)?,
            queries: f32s(tokens * heads * width)?,
            turned: f32s(tokens * heads * width)?,
            weights: f32s(tokens * heads)?,
            scores: f32s(MOST_SCORES.max(pages * PAGE_TOKENS).min(tokens * pages * PAGE_TOKENS))?,
            lists: f32s(tokens * rules.index_topk)?,
            low: gpu.allocate(2 * tokens * terms * rank)?,
        }))
    }

    /// Bytes of a layer's index keys.
    #[must_use]
    pub fn cache_bytes(config: &Config, pages: usize, mode: Mode) -> usize {
        let width = config.indexer.as_ref().map_or(0, |rules| rules.index_head_dim);
        pages * PAGE_TOKENS * width * if mode == Mode::Reference { 4 } else { 2 }
    }

    /// Where queries' latents may stand in another order.
    #[must_use]
    pub fn low(&self) -> Address {
        self.low.address()
    }

    /// The step with what its rows attend to, once it is chosen.
    #[must_use]
    pub fn choice(&self, step: StepRows) -> StepRows {
        if self.sees_everything(step) {
            return step;
        }
        let choices = Choices { lists: self.lists.address(), most: self.rules.most };
        StepRows { choices, ..step }
    }

    /// Whether no row of a step is so long that it has to choose.
    fn sees_everything(&self, step: StepRows) -> bool {
        step.most_pages * PAGE_TOKENS <= self.rules.most as usize
    }

    /// Stores the step's index keys and chooses for each of its rows.
    ///
    /// # Errors
    /// When a kernel can't be queued.
    pub fn run(
        &self,
        gpu: &Gpu,
        kernels: &Kernels,
        weights: &IndexerWeights,
        step: StepRows,
        inputs: Inputs<'_>,
    ) -> Result<(), Error> {
        let (rules, count) = (self.rules, step.count);
        let of = |weight: &DeviceMatrix| match weight.order() {
            Order::Natural => inputs.normed.0,
            Order::Nvfp4 => inputs.normed.1,
        };
        let product = |weight: &DeviceMatrix, x, to: &Buffer| Product::new(weight, x).into(to.address());
        multiply(gpu, kernels, product(&weights.wk, of(&weights.wk), &self.keys), None, count)?;
        let chooses = !self.sees_everything(step);
        if chooses {
            let queries = product(&weights.wq_b, inputs.query_low, &self.queries);
            multiply(gpu, kernels, queries, None, count)?;
            let heads = product(&weights.weights_proj, of(&weights.weights_proj), &self.weights);
            multiply(gpu, kernels, heads, None, count)?;
        }
        let (store, score) = match inputs.mode {
            Mode::Reference => (kernels.index_inputs_f32, kernels.index_scores_f32),
            Mode::Serving => (kernels.index_inputs_bf16, kernels.index_scores_bf16),
        };
        let (keys, queries, turned) = (self.keys.address(), self.queries.address(), self.turned.address());
        let (norm, bias, angles) =
            (weights.k_norm.address(), weights.k_norm_bias.address(), inputs.angles.address());
        let (rows, pages, cache) = (step.rows, step.pages, inputs.cache);
        launch!(gpu, store, (count, 1 + usize::from(chooses), 1), 128, 0;
            rules, keys, norm, bias, queries, turned, angles, rows, pages, cache)?;
        if !chooses {
            return Ok(());
        }
        let stride = step.most_pages * PAGE_TOKENS;
        let group = (self.scores.bytes() / (4 * stride)).clamp(1, MOST_ROWS);
        let (scores, stride) = (self.scores.address(), stride as u32);
        // Rows of a prompt see the same keys.
        let at_once = if inputs.mode == Mode::Serving && count >= MANY_ROWS { ROWS_AT_ONCE } else { 1 };
        let bytes = if inputs.mode == Mode::Reference { 4 } else { 2 };
        for first in (0..count).step_by(group) {
            let here = group.min(count - first);
            let of_row = |buffer: &Buffer, bytes: u32| buffer.address().offset(first * bytes as usize);
            let queries = of_row(&self.turned, bytes * rules.heads * rules.width);
            let heads = of_row(&self.weights, 4 * rules.heads);
            let (rows, lists) = (step.rows.offset(8 * first), of_row(&self.lists, 4 * rules.most));
            let (rows_at_once, rows_here) = (at_once as u32, here as u32);
            launch!(gpu, score, (step.most_pages, here.div_ceil(at_once), 1), 256, 0;
                rules, queries, heads, rows, pages, cache, scores, stride, rows_at_once, rows_here)?;
            choose(gpu, kernels, rules, (scores, stride), rows, lists, here)?;
        }
        Ok(())
    }

    /// The positions that each row of a step of one sequence has chosen, ascending; `None` for rows that see everything.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn read(&self, gpu: &Gpu, step: StepRows) -> Result<Vec<Option<Vec<u32>>>, Error> {
        if self.sees_everything(step) {
            return Ok(vec![None; step.count]);
        }
        let most = self.rules.most as usize;
        let (mut rows, mut lists) = (vec![0u32; 2 * step.count], vec![0u32; step.count * most]);
        gpu.read(&mut rows, step.rows)?;
        gpu.read(&mut lists, self.lists.address())?;
        let list = |(row, list): (&[u32], &[u32])| (row[0] as usize >= most).then(|| list.to_vec());
        Ok(rows.chunks_exact(2).zip(lists.chunks_exact(most)).map(list).collect())
    }
}
