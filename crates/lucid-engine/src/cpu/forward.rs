//! The forward pass, block by block, in the order of the paper (DeepSeek-V3, arXiv:2412.19437, §2.1).

mod attention;
mod layerwise;
mod load;

use std::ops::Range;

use lucid_checkpoint::{Config, TokenId};

use super::aligned::Aligned;
pub use super::attention::Span;
use super::cache::{Cache, LatentCache};
use super::expanded::Expanded;
use super::experts::{Experts as ExpertsStep, swiglu};
use super::indexer::{self, IndexKeys, Indexer};
use super::matmul::{Inputs, OutputBuffer, Product, multiply};
use super::norm::{rms_norm, rms_norm_in_place};
use super::rope::Rope;
use super::router::Route;
use super::threads::Threads;
use crate::Semantics;
use crate::parallel::Collective;
use crate::plant::Running;
use crate::weights::{FeedForward, Layer, Weights};

/// Looks at a step's insides; does nothing by default.
pub trait Observer {
    /// The residual stream `[tokens, hidden_size]`: `layer` 0 is the embedding, `i + 1` comes after layer `i`.
    fn hidden(&mut self, _layer: usize, _values: &[f32]) {}
    /// The experts of one token (its row in the step) in one layer.
    fn routes(&mut self, _layer: usize, _row: usize, _routes: &[Route]) {}
    /// Whether [`Observer::preferences`] is to be called, which costs something.
    fn wants_preferences(&self) -> bool {
        false
    }
    /// What the experts of one token were chosen by, in one layer: `[experts]`, the score plus the bias, -∞ where the expert's group is
    /// out. Only a processor tells it.
    fn preferences(&mut self, _layer: usize, _row: usize, _preferences: &[f32]) {}
    /// The positions that one token's attention is restricted to in one layer, ascending; not called if it is not.
    fn chosen(&mut self, _layer: usize, _row: usize, _positions: &[u32]) {}
}

impl Observer for () {}

/// A model (or a rank's part of it), its threads and its scratch memory.
pub struct CpuModel {
    /// Of the whole model.
    config: Config,
    /// Of the part: its heads and widths.
    part: Config,
    /// The part's tokens.
    vocabulary: Range<usize>,
    ranks: Box<dyn Collective>,
    semantics: Semantics,
    weights: Weights,
    rope: Rope,
    softmax_scale: f32,
    threads: Threads,
    scratch: Scratch,
    /// Whether activations are rounded for NVFP4 weights.
    w4a4: bool,
    /// Of an fp8 KV cache, one a layer.
    kv_scales: Vec<f32>,
    /// A planted fault that acts while the model runs.
    fault: Option<Running>,
}

/// Buffers of a step; they grow to the largest step and stay.
#[derive(Default)]
struct Scratch {
    hidden: Aligned<f32>, // [tokens, hidden]: the residual stream; after the last layer, normalized
    normed: Aligned<f32>, // [tokens, hidden]
    query_low: Aligned<f32>, // [tokens, Q]
    query: Aligned<f32>,  // [tokens, A, N + R]
    entry: Aligned<f32>,  // [tokens, L + R]: what the cache receives
    absorbed: Aligned<f32>, // [tokens, A, L + R], of answers
    latent: Aligned<f32>, // [tokens, A, L]: attention's sums, of answers
    expanded: Expanded,   // keys and values of prompts
    heads: Aligned<f32>,  // [tokens, A, V]
    output: Aligned<f32>, // [tokens, hidden]: what a block adds to the residual stream
    rounded: Aligned<f32>, // [tokens, hidden] or [tokens, Q]: what NVFP4 projections read with W4A4
    experts: ExpertsStep,
    indexer: Indexer,
    spans: [Vec<Span<'static>>; 2],  // of prompts, of answers
    runs: Vec<Range<usize>>,         // rows of answers
    products: Vec<Product<'static>>, // of a round
}

impl CpuModel {
    /// The checkpoint's config.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tokens whose logits this part computes.
    #[must_use]
    pub fn vocabulary(&self) -> Range<usize> {
        self.vocabulary.clone()
    }

    /// Tells the other ranks that this one has failed.
    pub fn leave(&self) {
        self.ranks.leave();
    }

    /// What is computed, and how.
    #[must_use]
    pub fn semantics(&self) -> &Semantics {
        &self.semantics
    }

    /// A cache for this model.
    #[must_use]
    pub fn new_cache(&self, pages: usize) -> Cache {
        let (layers, mode) = (self.part.num_hidden_layers, self.semantics.mode);
        let width = self.part.kv_lora_rank + self.part.qk_rope_head_dim;
        let latent = LatentCache::new(layers, pages, width, self.semantics.kv_cache);
        Cache {
            latent: latent.with_scales(&self.kv_scales),
            index_keys: IndexKeys::new(self.part.indexer.as_ref(), layers, pages, mode.kv_cache()),
        }
    }

    /// Runs `tokens` through all layers. `spans` cover them, row by row in order; their pages have room for them.
    ///
    /// Afterwards [`CpuModel::logits`] gives the logits of any of these rows.
    pub fn forward(
        &mut self,
        tokens: &[TokenId],
        spans: &[Span<'_>],
        cache: &mut Cache,
        observer: &mut impl Observer,
    ) {
        debug_assert_eq!(spans.iter().map(|span| span.count).sum::<usize>(), tokens.len());
        let hidden = self.part.hidden_size;
        let eps = self.part.rms_norm_eps as f32;
        let weights = std::mem::take(&mut self.weights.layers);
        self.scratch.hidden.resize(tokens.len() * hidden, 0.0);
        for (token, out) in tokens.iter().zip(self.scratch.hidden.chunks_exact_mut(hidden)) {
            // Another rank's tokens are zero here.
            match token.row().checked_sub(self.vocabulary.start) {
                Some(row) if row < self.vocabulary.len() => self.weights.embed_tokens.decode_row(row, out),
                _ => out.fill(0.0),
            }
        }
        self.ranks.sum(&mut self.scratch.hidden);
        observer.hidden(0, &self.scratch.hidden);
        if let Some(fault) = &mut self.fault {
            fault.before(tokens, spans, &cache.latent);
        }
        for (i, layer) in weights.iter().enumerate() {
            self.layer(i, layer, tokens.len(), spans, cache, observer);
            observer.hidden(i + 1, &self.scratch.hidden);
        }
        self.weights.layers = weights;
        if let Some(fault) = &mut self.fault {
            fault.after(spans, &mut cache.latent, &mut self.scratch.hidden);
        }
        for row in self.scratch.hidden.chunks_exact_mut(hidden) {
            rms_norm_in_place(row, &self.weights.norm, eps);
        }
    }

    /// Logits `[rows, vocabulary]` of some rows of the last step, for the part's tokens.
    pub fn logits(&mut self, rows: &[usize], out: &mut Vec<f32>) {
        let (hidden, vocab) = (self.part.hidden_size, self.vocabulary.len());
        out.resize(rows.len() * vocab, 0.0);
        let inputs = Inputs::Gathered { values: &self.scratch.hidden, stride: hidden, rows };
        // SAFETY: one output, dense.
        let outputs = unsafe { OutputBuffer::new(out).rows(0, vocab, rows.len(), vocab) };
        let weight = &self.weights.lm_head;
        let product = Product { weight, rows: 0..vocab, inputs, count: rows.len(), outputs };
        multiply(&mut self.threads, &[product]);
    }

    /// `x += Attn(RMSNorm(x)); x += FFN(RMSNorm(x))`.
    fn layer(
        &mut self,
        i: usize,
        layer: &Layer,
        tokens: usize,
        spans: &[Span<'_>],
        cache: &mut Cache,
        observer: &mut impl Observer,
    ) {
        self.norm(&layer.input_layernorm);
        self.attention(i, &layer.attention, tokens, spans, cache);
        if self.part.indexer.is_some() {
            let choices = self.scratch.indexer.choices();
            for row in 0..tokens {
                if let indexer::Choice::Listed(number) = choices.of(row) {
                    observer.chosen(i, row, choices.list(number));
                }
            }
        }
        self.add();
        self.norm(&layer.post_attention_layernorm);
        let s = &mut self.scratch;
        s.output.resize(tokens * self.part.hidden_size, 0.0);
        match &layer.feed_forward {
            FeedForward::Dense(mlp) => {
                swiglu(&mut self.threads, mlp, tokens, &s.normed, &mut s.experts, &mut s.output);
            }
            FeedForward::Experts(experts) => {
                // The config has the section, or no layer would have been loaded as experts.
                if let Some(moe) = &self.part.moe {
                    s.experts.run(&mut self.threads, moe, experts, tokens, &s.normed, &mut s.output);
                    for row in 0..tokens {
                        observer.routes(i, row, s.experts.routes(row));
                        if observer.wants_preferences() {
                            observer.preferences(i, row, &s.experts.preferences(moe, experts, row));
                        }
                    }
                }
            }
        }
        self.add();
    }

    /// The prefix cache was emptied.
    pub fn forget_pages(&mut self) {
        if let Some(fault) = &mut self.fault {
            fault.forget_pages();
        }
    }

    /// `normed = RMSNorm(hidden)`, row by row.
    fn norm(&mut self, weight: &[f32]) {
        let (hidden, eps) = (self.part.hidden_size, self.part.rms_norm_eps as f32);
        let s = &mut self.scratch;
        s.normed.resize(s.hidden.len(), 0.0);
        for (x, out) in s.hidden.chunks_exact(hidden).zip(s.normed.chunks_exact_mut(hidden)) {
            rms_norm(x, weight, eps, out);
        }
    }

    /// `hidden += output`, summed over the ranks.
    fn add(&mut self) {
        self.ranks.sum(&mut self.scratch.output);
        for (x, &y) in self.scratch.hidden.iter_mut().zip(self.scratch.output.iter()) {
            *x += y;
        }
    }
}
