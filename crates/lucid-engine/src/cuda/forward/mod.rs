//! The forward pass on the GPU, block by block, in the order of `cpu/forward.rs`.

mod attention;
mod load;
mod logits;
mod scratch;
#[cfg(test)]
mod timing;

pub use logits::All;

use std::ops::Range;

use lucid_checkpoint::{Config, TokenId};

use super::arguments::Order;
use super::attention::{PartialSums, Shape, StepRows};
use super::cache::LatentCache;
use super::driver::{Address, Buffer, Gpu, Pinned};
use super::embedding::embed;
use super::expanded::Expanded;
use super::experts::{self, ExpertBuffers, Normed, Output};
use super::graph::Graphs;
use super::indexer::Indexer;
use super::kernels::Kernels;
use super::norm::{Norm, rms_norm};
use super::ranks::{Ranks, Sum};
use super::router::Routes;
use super::sampling::Draws;
use super::scoring::Scores;
use super::step::StepInputs;
use super::weights::{DeviceMatrix, FeedForward, Layer, Weights};
use crate::cpu::{Observer, Span};
use crate::{Error, Semantics};
use scratch::Scratch;

/// Up to so many tokens a step is recorded as a graph: more take long enough to hide the starts.
const RECORDED_TOKENS: usize = 64;
/// Rows of logits at a time: 64 of Kimi's are 42 MB, and stay in the second-level cache.
const LOGIT_ROWS: usize = 64;

/// A model (or a rank's part of it) on a GPU, its cache and its scratch memory.
pub struct CudaModel {
    /// Of the whole model.
    config: Config,
    /// The part's tokens.
    vocabulary: Range<usize>,
    /// Values of a head of the part.
    value: usize,
    ranks: Ranks,
    semantics: Semantics,
    // Dropped before what it names.
    graphs: Graphs,
    cache: LatentCache,
    step: StepInputs,
    logit_rows: Pinned,
    draws: Draws,
    scores: Scores,
    scratch: Scratch,
    partial: PartialSums,
    expanded: Option<Expanded>,
    routes: Option<Routes>,
    indexer: Option<Indexer>,
    experts: ExpertBuffers,
    angles: Buffer,
    weights: Weights,
    kernels: Kernels,
    shape: Shape,
    max_tokens: usize,
    gpu: Gpu,
}

impl CudaModel {
    /// The checkpoint's config.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What is computed, and how.
    #[must_use]
    pub fn semantics(&self) -> &Semantics {
        &self.semantics
    }

    /// Makes a new, empty cache of `pages` pages.
    ///
    /// # Errors
    /// When it doesn't fit.
    pub fn set_cache(&mut self, pages: usize) -> Result<(), Error> {
        self.gpu.make_current()?;
        // Recorded steps name the old buffers.
        self.graphs = Graphs::new(&self.gpu);
        let (scales, mode, dtype) = (self.cache.scales().to_vec(), self.shape.mode, self.shape.cache);
        let new = |pages| LatentCache::new(&self.gpu, &self.config, pages, mode, dtype, &scales);
        // The old cache goes first: both may not fit.
        self.cache = new(0)?;
        self.cache = new(pages)?;
        self.step = StepInputs::new(&self.gpu, self.max_tokens, pages)?;
        Ok(())
    }

    /// Runs `tokens` through all layers. `spans` cover them, row by row in order; their pages have room for them.
    ///
    /// Afterwards [`CudaModel::logits`] gives the logits of any of these rows.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn forward(
        &mut self,
        tokens: &[TokenId],
        spans: &[Span<'_>],
        observer: Option<&mut impl Observer>,
    ) -> Result<(), Error> {
        if tokens.is_empty() {
            return Ok(());
        }
        self.gpu.make_current()?;
        if self.step.grow(&self.gpu, spans)? {
            // Recorded steps name the old buffers.
            self.graphs = Graphs::new(&self.gpu);
        }
        let mut step = self.step.send(tokens, spans)?;
        let has_prompts = match &mut self.expanded {
            Some(expanded) => !expanded.send(&self.gpu, spans, self.shape.heads)?.is_absorbed(),
            None => false,
        };
        if observer.is_some() || has_prompts || tokens.len() > RECORDED_TOKENS || !self.ranks.recordable() {
            return self.queue(step, observer);
        }
        // Recordings are made for powers of two: blocks for pages that a row doesn't have end at once.
        step.most_pages = step.most_pages.next_power_of_two();
        let mut graphs = std::mem::replace(&mut self.graphs, Graphs::new(&self.gpu));
        let result = graphs.run((step.count, step.most_pages), || self.queue(step, None::<&mut ()>));
        self.graphs = graphs;
        result
    }

    /// Bytes of the GPU's memory that are taken, and all of them.
    ///
    /// # Errors
    /// When the GPU is lost.
    pub fn memory(&self) -> Result<(usize, usize), Error> {
        self.gpu.make_current()?;
        let (free, total) = self.gpu.memory()?;
        Ok((total - free, total))
    }

    /// The program's variables of that name, for a step's timeline.
    #[cfg(test)]
    pub fn variables(&self, name: &str) -> Vec<(Address, usize)> {
        self.kernels.variables(name)
    }

    /// Forgets the layers from `count` on.
    #[cfg(test)]
    pub fn keep_layers(&mut self, count: usize) {
        self.graphs = Graphs::new(&self.gpu);
        self.weights.layers.truncate(count);
    }

    /// Shows every layer's caches and their sizes in bytes.
    #[cfg(test)]
    pub fn fill_cache(&self, mut fill: impl FnMut(Address, usize)) {
        self.cache.buffers().for_each(|buffer| fill(buffer.address(), buffer.bytes()));
    }

    /// Experts that the last layer of the last step used.
    #[cfg(test)]
    pub fn active_experts(&self) -> usize {
        self.routes.as_ref().map_or(0, |routes| routes.active(&self.gpu))
    }

    /// Queues a whole step.
    fn queue(&self, step: StepRows, mut observer: Option<&mut impl Observer>) -> Result<(), Error> {
        let (gpu, kernels, s) = (&self.gpu, &self.kernels, &self.scratch);
        let hidden = s.hidden.address();
        let embedding = (&self.weights.embed_tokens, self.vocabulary.start);
        let output = self.ranks.output(Sum::Embedding, hidden);
        embed(gpu, kernels, embedding, step.count, self.step.tokens(), output.at)?;
        self.sum(Sum::Embedding, step.count)?;
        self.observe(0, step.count, &mut observer)?;
        self.normalize(step.count, self.norm_before(0))?;
        for (i, layer) in self.weights.layers.iter().enumerate() {
            self.layer(i, layer, step)?;
            if let (Some(observer), Some(indexer)) = (observer.as_deref_mut(), &self.indexer) {
                for (row, chosen) in indexer.read(gpu, step)?.iter().enumerate() {
                    if let Some(chosen) = chosen {
                        observer.chosen(i, row, chosen);
                    }
                }
            }
            if let (Some(observer), FeedForward::Experts(_), Some(routes)) =
                (observer.as_deref_mut(), &layer.feed_forward, &self.routes)
            {
                for (row, routes) in routes.read(gpu, step.count)?.iter().enumerate() {
                    observer.routes(i, row, routes);
                }
            }
            self.observe(i + 1, step.count, &mut observer)?;
        }
        Ok(())
    }

    fn observe(
        &self,
        layer: usize,
        count: usize,
        observer: &mut Option<&mut impl Observer>,
    ) -> Result<(), Error> {
        if let Some(observer) = observer {
            let mut values = vec![0f32; count * self.config.hidden_size];
            self.gpu.read(&mut values, self.scratch.hidden.address())?;
            observer.hidden(layer, &values);
        }
        Ok(())
    }

    /// `x += Attn(n); x += FFN(RMSNorm(x))`, where `n` is `RMSNorm(x)` already; then `n = RMSNorm(x)` for whatever follows.
    fn layer(&self, i: usize, layer: &Layer, step: StepRows) -> Result<(), Error> {
        let (gpu, kernels, s) = (&self.gpu, &self.kernels, &self.scratch);
        self.attention(i, &layer.attention, step)?;
        self.sum(Sum::Attention, step.count)?;
        let norm = self.norm(&layer.post_attention_layernorm, &layer.feed_forward.orders());
        self.normalize(step.count, norm)?;
        let x = Normed { natural: s.normed.address(), nvfp4: s.normed_nvfp4.address() };
        let (next, alone) = (self.norm_before(i + 1), self.ranks.is_alone());
        let out = self.ranks.output(Sum::FeedForward, s.hidden.address());
        let out = Output { then: alone.then_some(next), ..out };
        match (&layer.feed_forward, &self.routes) {
            (FeedForward::Dense(mlp), _) => {
                experts::swiglu(gpu, kernels, mlp, &self.experts, step.count, x, out)?;
            }
            (FeedForward::Experts(experts), Some(routes)) => {
                experts::run(gpu, kernels, experts, routes, &self.experts, step.count, x, out)?;
            }
            // The config has the section, or no layer would have been loaded as experts.
            (FeedForward::Experts(_), None) => {}
        }
        self.sum(Sum::FeedForward, step.count)?;
        if alone { Ok(()) } else { self.normalize(step.count, next) }
    }

    /// The residual stream gets the sum of all ranks' parts.
    fn sum(&self, sum: Sum, count: usize) -> Result<(), Error> {
        let values = count * self.config.hidden_size;
        self.ranks.sum(&self.gpu, &self.kernels, sum, values, self.scratch.hidden.address())
    }

    /// The norm before layer `i`, or behind the last one.
    fn norm_before(&self, i: usize) -> Norm {
        match self.weights.layers.get(i) {
            Some(layer) => self.norm(&layer.input_layernorm, &layer.attention.orders()),
            None => self.norm(&self.weights.norm, &[self.weights.lm_head().order()]),
        }
    }

    /// `normed = RMSNorm(hidden)` in the orders that somebody reads.
    fn norm(&self, weight: &Buffer, readers: &[Order]) -> Norm {
        let s = &self.scratch;
        let address =
            |order, buffer: &Buffer| if readers.contains(&order) { buffer.address() } else { Address::NULL };
        Norm {
            weight: weight.address(),
            eps: self.config.rms_norm_eps as f32,
            width: self.config.hidden_size,
            natural: address(Order::Natural, &s.normed),
            nvfp4: address(Order::Nvfp4, &s.normed_nvfp4),
        }
    }

    /// The same for `count` rows.
    fn normalize(&self, count: usize, norm: Norm) -> Result<(), Error> {
        rms_norm(&self.gpu, &self.kernels, count, (self.scratch.hidden.address(), norm.width), norm)
    }
}

/// The normalized vectors in the order that `weight` takes.
fn vectors(weight: &DeviceMatrix, natural: Address, nvfp4: Address) -> Address {
    match weight.order() {
        Order::Natural => natural,
        Order::Nvfp4 => nvfp4,
    }
}
