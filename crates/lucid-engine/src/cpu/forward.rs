//! The forward pass, block by block, in the order of the paper (DeepSeek-V3, arXiv:2412.19437, §2.1).

mod layerwise;

use std::ops::Range;

use lucid_checkpoint::{Config, TokenId};

use super::activations::{input_scale, round_to_nvfp4};
use super::aligned::Aligned;
pub use super::attention::Span;
use super::attention::{Shape, attend};
use super::cache::{Cache, LatentCache};
use super::expanded::{self, Expanded};
use super::experts::{Experts as ExpertsStep, swiglu};
use super::indexer::{self, IndexKeys, Indexer, attend_chosen};
use super::matmul::{Inputs, OutputBuffer, Product, multiply};
use super::norm::{rms_norm, rms_norm_in_place};
use super::rope::{Rope, softmax_scale};
use super::router::Route;
use super::threads::Threads;
#[cfg(target_arch = "x86_64")]
use super::tiles;
#[cfg(target_arch = "x86_64")]
use crate::Mode;
use crate::backend::Load;
use crate::kv_cache::PAGE_TOKENS;
use crate::parallel::{Collective, Rank, Shard, shard_config};
use crate::plant::{Attended, Running};
use crate::weights::{Attention, FeedForward, Layer, Query, Weights, kv_scales};
use crate::{Activations, Error, KvCacheDtype, KvScales, Semantics};

/// Looks at a step's insides; does nothing by default.
pub trait Observer {
    /// The residual stream `[tokens, hidden_size]`: `layer` 0 is the embedding, `i + 1` comes after layer `i`.
    fn hidden(&mut self, _layer: usize, _values: &[f32]) {}
    /// The experts of one token (its row in the step) in one layer.
    fn routes(&mut self, _layer: usize, _row: usize, _routes: &[Route]) {}
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
}

impl CpuModel {
    /// Loads the part of a rank.
    ///
    /// # Errors
    /// When the checkpoint is incomplete or unsupported, can't be dealt out, or threads can't be started.
    pub fn load(load: &Load<'_>, rank: Rank, ranks: Box<dyn Collective>) -> Result<CpuModel, Error> {
        let weights = load.weights()?;
        if load.semantics.activations == Activations::W4A4 {
            weights.check_w4a4()?;
        }
        CpuModel::with_weights(load, weights, rank, ranks)
    }

    /// The same with weights that are there already; it takes its part of them.
    ///
    /// # Errors
    /// When they can't be dealt out, or threads can't be started.
    pub fn with_weights(
        load: &Load<'_>,
        mut weights: Weights,
        rank: Rank,
        ranks: Box<dyn Collective>,
    ) -> Result<CpuModel, Error> {
        let config = load.config()?;
        let part = shard_config(&config, rank)?;
        let mut semantics = Semantics::new(&config, load.semantics);
        let threads = match load.threads {
            Some(0) => {
                return Err(Error::Option { option: "threads", value: "0".into(), expected: "at least 1" });
            }
            Some(count) => count,
            None => std::thread::available_parallelism().map_or(1, usize::from).div_ceil(rank.count()),
        };
        let shard = Shard::new(&config, rank);
        let w4a4 = load.semantics.activations == Activations::W4A4;
        let mut scales = vec![1.0; config.num_hidden_layers];
        if semantics.kv_cache == KvCacheDtype::Fp8E4m3 {
            let (found, text) = kv_scales(load.checkpoint, config.num_hidden_layers)?;
            semantics.kv_scales = Some(match load.semantics.kv_scales {
                KvScales::Checkpoint => {
                    scales = found;
                    text
                }
                KvScales::Lost if found.iter().any(|scale| *scale != 1.0) => {
                    "scale 1, k_scale is lost".to_owned()
                }
                KvScales::Lost => {
                    return Err(Error::Unsupported {
                        what: "losing the scales of an fp8 KV cache that has none".to_owned(),
                        hint: "compute with the checkpoint's scales",
                    });
                }
            });
        }
        if !rank.is_alone() {
            for layer in &mut weights.layers {
                *layer = shard.layer(layer)?;
            }
            weights.embed_tokens = shard.vocabulary_rows(&weights.embed_tokens)?;
            weights.lm_head = shard.vocabulary_rows(&weights.lm_head)?;
        }
        let mut threads = Threads::new(threads).map_err(Error::Threads)?;
        #[cfg(target_arch = "x86_64")]
        {
            let (latent, rope) = (config.kv_lora_rank, config.qk_rope_head_dim);
            // The witness stays with plain f32.
            if load.semantics.mode == Mode::Serving
                && tiles::available()
                && tiles::takes(latent, latent + rope)
            {
                threads.use_tiles();
                semantics.products = "exact bf16 parts on AMX tiles";
            }
        }
        Ok(CpuModel {
            vocabulary: shard.vocabulary(),
            weights,
            rope: Rope::new(&config, load.positions, semantics.rope_pairing == "interleaved"),
            softmax_scale: softmax_scale(&config),
            ranks,
            threads,
            scratch: Scratch { experts: ExpertsStep::new(w4a4), ..Scratch::default() },
            w4a4,
            kv_scales: scales,
            fault: load.semantics.plant.and_then(|planted| planted.running(&config)),
            semantics,
            config,
            part,
        })
    }

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
                    }
                }
            }
        }
        self.add();
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

    /// Multi-head latent attention, from `normed` to `output`: prompts in the expanded form, answers in the absorbed one.
    fn attention(
        &mut self,
        layer: usize,
        weights: &Attention,
        tokens: usize,
        spans: &[Span<'_>],
        cache: &mut Cache,
    ) {
        let config = &self.part;
        let (hidden, heads, latent) = (config.hidden_size, config.num_attention_heads, config.kv_lora_rank);
        let (nope, rope, value) = (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim);
        let (head, width) = (nope + rope, latent + rope);
        let latent_eps = self.semantics.latent_norm_eps as f32;
        let (threads, s) = (&mut self.threads, &mut self.scratch);
        s.query.resize(tokens * heads * head, 0.0);
        s.entry.resize(tokens * width, 0.0);
        s.heads.resize(tokens * heads * value, 0.0);
        s.output.resize(tokens * hidden, 0.0);

        // Queries, and the cache entry [c | k_pe].
        let first = match &weights.query {
            Query::Latent { q_a, .. } => [&weights.kv_a, q_a],
            Query::Direct(q) => [&weights.kv_a, q],
        };
        let normed = match input_scale(&first).filter(|_| self.w4a4) {
            Some(scale) => rounded_copy(&s.normed, scale, &mut s.rounded),
            None => &s.normed,
        };
        let normed = Inputs::dense(normed, hidden);
        let entry = dense(&weights.kv_a, normed, tokens, &mut s.entry);
        match &weights.query {
            Query::Latent { q_a, q_a_norm, q_b } => {
                s.query_low.resize(tokens * q_a.rows, 0.0);
                multiply(threads, &[entry, dense(q_a, normed, tokens, &mut s.query_low)]);
                for row in s.query_low.chunks_exact_mut(q_a.rows) {
                    rms_norm_in_place(row, q_a_norm, latent_eps);
                }
                let low = match input_scale(&[q_b]).filter(|_| self.w4a4) {
                    Some(scale) => rounded_copy(&s.query_low, scale, &mut s.rounded),
                    None => &s.query_low,
                };
                let low = Inputs::dense(low, q_a.rows);
                multiply(threads, &[dense(q_b, low, tokens, &mut s.query)]);
            }
            Query::Direct(q) => multiply(threads, &[entry, dense(q, normed, tokens, &mut s.query)]),
        }
        for span in spans {
            for i in 0..span.count {
                let (row, position) = (span.row + i, span.position + i);
                let entry = &mut s.entry[row * width..(row + 1) * width];
                // The norm is for the latent part only.
                rms_norm_in_place(&mut entry[..latent], &weights.kv_a_norm, latent_eps);
                self.rope.rotate(&mut entry[latent..], position);
                cache.latent.write(layer, span.pages[position / PAGE_TOKENS], position % PAGE_TOKENS, entry);
                let queries = &mut s.query[row * heads * head..(row + 1) * heads * head];
                for query in queries.chunks_exact_mut(head) {
                    self.rope.rotate(&mut query[nope..], position);
                }
            }
        }

        if let (Some(rules), Some(weights)) = (&config.indexer, &weights.indexer) {
            let shape = indexer::Shape {
                heads: rules.index_n_heads,
                width: rules.index_head_dim,
                rotated: rope,
                interleaved: rules.rope_interleave,
                most: rules.index_topk,
            };
            let (normed, query_low) = (&s.normed, &s.query_low);
            let step = indexer::Step { layer, weights, normed, query_low, spans, tokens };
            s.indexer.run(threads, shape, &self.rope, &step, &mut cache.index_keys);
        }

        let attended = self.fault.as_ref().and_then(|fault| fault.attended(layer, spans));
        let attended = attended.as_ref().map(Attended::spans);
        let attended = attended.as_deref().unwrap_or(spans);
        // On the tile unit the absorbed form is the faster one for prompts too; chosen entries are attended to as they are.
        let expands = !threads.tiles() && config.indexer.is_none();
        let (prompts, answers): (Vec<_>, Vec<_>) =
            attended.iter().flat_map(|span| span.split(expands)).partition(|(is_prompt, _)| *is_prompt);
        let prompts: Vec<Span<'_>> = prompts.into_iter().map(|(_, span)| span).collect();
        let answers: Vec<Span<'_>> = answers.into_iter().map(|(_, span)| span).collect();
        if !prompts.is_empty() {
            let shape = expanded::Shape { heads, latent, nope, rope, value, scale: self.softmax_scale };
            let (latents, kv_b) = (&cache.latent, &weights.kv_b);
            s.expanded.attend(threads, latents, layer, shape, kv_b, &prompts, &s.query, &mut s.heads);
        }
        if !answers.is_empty() {
            s.absorbed.resize(tokens * heads * width, 0.0);
            s.latent.resize(tokens * heads * latent, 0.0);
            let shape = Shape { heads, latent, scale: self.softmax_scale };
            // q̃_h = UK_hᵀ q_h, then Σ_t p_t c_t, then UV_h of it.
            let mut absorbed = OutputBuffer::new(&mut s.absorbed);
            let mut products = Vec::new();
            for rows in runs(&answers) {
                for h in 0..heads {
                    let start = rows.start * heads;
                    products.push(Product {
                        weight: &weights.k_b_transposed,
                        rows: h * latent..(h + 1) * latent,
                        inputs: Inputs::Strided {
                            values: &s.query,
                            start: (start + h) * head,
                            stride: heads * head,
                        },
                        count: rows.len(),
                        // SAFETY: each row and head has its own columns.
                        outputs: unsafe {
                            absorbed.rows((start + h) * width, heads * width, rows.len(), latent)
                        },
                    });
                }
            }
            multiply(threads, &products);
            for rows in runs(&answers) {
                let range = rows.start * heads..rows.end * heads;
                let absorbed = s.absorbed[range.start * width..range.end * width].chunks_exact_mut(width);
                let queries = s.query[range.start * head..range.end * head].chunks_exact(head);
                for (absorbed, query) in absorbed.zip(queries) {
                    absorbed[latent..].copy_from_slice(&query[nope..]);
                }
            }
            let (latents, queries, out) = (&cache.latent, &s.absorbed, &mut s.latent);
            match &config.indexer {
                None => attend(threads, latents, layer, shape, &answers, queries, out),
                Some(_) => {
                    let choices = s.indexer.choices();
                    attend_chosen(threads, latents, layer, shape, &answers, choices, queries, out);
                }
            }
            let mut head_values = OutputBuffer::new(&mut s.heads);
            let mut products = Vec::new();
            for rows in runs(&answers) {
                for h in 0..heads {
                    let start = rows.start * heads;
                    products.push(Product {
                        weight: &weights.kv_b,
                        rows: h * (nope + value) + nope..(h + 1) * (nope + value),
                        inputs: Inputs::Strided {
                            values: &s.latent,
                            start: (start + h) * latent,
                            stride: heads * latent,
                        },
                        count: rows.len(),
                        // SAFETY: each row and head has its own columns.
                        outputs: unsafe {
                            head_values.rows((start + h) * value, heads * value, rows.len(), value)
                        },
                    });
                }
            }
            multiply(threads, &products);
        }
        if let Some(scale) = input_scale(&[&weights.o]).filter(|_| self.w4a4) {
            round_to_nvfp4(&mut s.heads, scale);
        }
        let values = Inputs::dense(&s.heads, heads * value);
        multiply(threads, &[dense(&weights.o, values, tokens, &mut s.output)]);
        if let Some(fault) = &self.fault {
            fault.attention_output(layer, hidden, &mut s.output);
        }
    }
}

/// The rows of `spans`, neighbours joined.
fn runs(spans: &[Span<'_>]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for span in spans {
        match runs.last_mut() {
            Some(run) if run.end == span.row => run.end += span.count,
            _ => runs.push(span.row..span.row + span.count),
        }
    }
    runs
}

/// `values`, rounded to NVFP4, in `buffer`.
fn rounded_copy<'a>(values: &[f32], scale: f32, buffer: &'a mut Aligned<f32>) -> &'a [f32] {
    buffer.clear();
    buffer.extend_from_slice(values);
    round_to_nvfp4(buffer, scale);
    buffer
}

/// A product over a whole weight into a dense buffer of its own.
fn dense<'a>(
    weight: &'a lucid_checkpoint::Matrix,
    inputs: Inputs<'a>,
    count: usize,
    out: &'a mut [f32],
) -> Product<'a> {
    // SAFETY: one output, dense, in a buffer that stays borrowed until the product is computed.
    let outputs = unsafe { OutputBuffer::new(out).rows(0, weight.rows, count, weight.rows) };
    Product { weight, rows: 0..weight.rows, inputs, count, outputs }
}
