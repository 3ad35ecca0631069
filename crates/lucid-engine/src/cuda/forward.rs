//! The forward pass on the GPU, block by block, in the order of `cpu/forward.rs`.

use std::ops::Range;
use std::panic::resume_unwind;

use lucid_checkpoint::{Config, TokenId};

use super::attention::{self, PartialSums, Shape, StepRows};
use super::cache::LatentCache;
use super::compile::Sizes;
use super::driver::{Address, Buffer, Gpu, Pinned};
use super::embedding::embed;
use super::expanded::{self, Expanded, Plan};
use super::experts::{self, ExpertBuffers, Normed};
use super::graph::Graphs;
use super::indexer::{self, Indexer};
use super::kernels::{Kernels, Order};
use super::matmul::{Product, multiply};
use super::norm::rms_norm;
use super::packing::Room;
use super::ranks::{Place, Ranks, Seat, Sum};
use super::rope::upload_angles;
use super::router::Routes;
use super::sampling::{Draws, MOST_TOKENS};
use super::step::StepInputs;
use super::weights::{Attention, DeviceMatrix, FeedForward, Layer, Query, Weights};
use crate::backend::Load;
use crate::choice::Choice;
use crate::cpu::{Observer, Span, softmax_scale};
use crate::kv_cache::PAGE_TOKENS;
use crate::parallel::{Rank, Shard, shard_config};
use crate::{Error, Semantics};

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

/// Buffers of the largest step. f32, or split form (one or three bf16 a value).
struct Scratch {
    hidden: Buffer,       // [tokens, hidden] f32: the residual stream
    normed: Buffer, // [tokens, terms, hidden], natural order; after the last layer the final norm's output
    normed_nvfp4: Buffer, // the same in NVFP4's order
    query_low: Buffer, // [tokens, Q] f32
    query_low_split: Buffer,
    query: Buffer,      // [tokens, A, N + R] f32
    nope: Buffer,       // [tokens, terms, A N]
    entry: Buffer,      // [tokens, L + R] f32: what the cache receives
    absorbed: Buffer,   // [tokens, A, L + R] f32
    latent: Buffer,     // [tokens, terms, A L]: attention's sums
    heads: Buffer,      // [tokens, terms, A V]
    logits: Buffer,     // [LOGIT_ROWS, vocab] f32
    logit_rows: Buffer, // [LOGIT_ROWS] u32
}

impl CudaModel {
    /// Loads a model on the GPUs from `ordinal` on, one a rank.
    ///
    /// # Errors
    /// When there is no such GPU or no compiler, the checkpoint is incomplete or unsupported, the weights don't fit or can't be
    /// dealt out, or the GPUs can't reach each other.
    pub fn load(load: &Load<'_>, ordinal: usize) -> Result<Vec<CudaModel>, Error> {
        let config = &load.config()?;
        if let Some(planted) = load.semantics.plant.filter(|planted| planted.needs_cpu(config)) {
            return Err(Error::Unsupported {
                what: format!("the planted fault {} on a GPU", planted.plant),
                hint: "plant it on the CPU",
            });
        }
        check_supported(config)?;
        let semantics = Semantics::new(config, load.semantics).on_gpu(load.semantics)?;
        let sizes = Sizes {
            latent: config.kv_lora_rank,
            rope: config.qk_rope_head_dim,
            terms: semantics.mode.terms(),
        };
        let mut opened = Vec::new();
        for rank in Rank::all(load.ranks) {
            let gpu = Gpu::open(ordinal + rank.number())?;
            // The first compiles, the others find the program in the cache.
            let kernels = Kernels::load(&gpu, sizes)?;
            opened.push((rank, gpu, kernels));
        }
        for (rank, gpu, _) in &opened {
            for (other, peer, _) in opened.iter().filter(|(other, ..)| other != rank) {
                debug_assert_ne!(rank, other);
                gpu.reach(peer)?;
            }
        }
        let mut seats = Vec::new();
        if load.ranks > 1 {
            for (_, gpu, _) in &opened {
                gpu.make_current()?;
                seats.push(Seat::new(gpu, load.max_step_tokens * config.hidden_size)?);
            }
        }
        let places: Vec<Place> = seats.iter().map(Seat::place).collect();
        let mut seats = seats.into_iter();
        let host = load.weights()?;
        std::thread::scope(|scope| {
            let threads: Vec<_> = opened
                .into_iter()
                .map(|(rank, gpu, kernels)| {
                    let (host, places, semantics) = (&host, places.clone(), semantics.clone());
                    let seat = seats.next();
                    scope.spawn(move || {
                        gpu.make_current()?;
                        let ranks = match seat {
                            Some(seat) => Ranks::new(rank, seat, places)?,
                            None => Ranks::ALONE,
                        };
                        let tied = config.tie_word_embeddings;
                        let (shard, told) =
                            (Shard::new(config, rank), load.progress.filter(|_| rank.number() == 0));
                        let weights = Weights::upload(&gpu, &kernels, host, tied, shard, told)?;
                        let sizes = (load.positions, load.max_step_tokens);
                        CudaModel::assemble(
                            gpu,
                            kernels,
                            config.clone(),
                            semantics,
                            weights,
                            sizes,
                            rank,
                            ranks,
                        )
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        })
    }

    /// A model from weights that are on the GPU already, for sequences of up to `positions` tokens and steps of up to
    /// `max_tokens`.
    #[allow(clippy::too_many_arguments)] // What a model is made of.
    pub(super) fn assemble(
        gpu: Gpu,
        kernels: Kernels,
        config: Config,
        semantics: Semantics,
        weights: Weights,
        (positions, max_tokens): (usize, usize),
        rank: Rank,
        ranks: Ranks,
    ) -> Result<CudaModel, Error> {
        let vocabulary = Shard::new(&config, rank).vocabulary();
        let (whole, config) = (config.clone(), shard_config(&config, rank)?);
        let (latent, rope) = (config.kv_lora_rank, config.qk_rope_head_dim);
        let joined = weights.layers.iter().any(|layer| match &layer.feed_forward {
            FeedForward::Experts(experts) => experts.shared_joined,
            FeedForward::Dense(_) => false,
        });
        let shape = Shape {
            heads: config.num_attention_heads,
            nope: config.qk_nope_head_dim,
            latent,
            rope,
            scale: softmax_scale(&whole),
            mode: semantics.mode,
        };
        let moe = config.moe.as_ref();
        let per_token = moe.map_or(0, |moe| moe.num_experts_per_tok);
        let widest = moe.map_or(0, |moe| moe.moe_intermediate_size * moe.n_shared_experts.max(per_token + 1));
        // A dense block has one visit a token, experts one for each route and one for the shared expert.
        let (visits, width) =
            ((per_token + 1) * max_tokens, widest.max(config.intermediate_size).div_ceil(per_token + 1));
        let heads = config.num_attention_heads;
        let columns =
            [config.hidden_size, config.q_lora_rank.unwrap_or(0), heads * latent, heads * config.v_head_dim];
        let room = Room {
            // At least a page, for attention.
            tokens: max_tokens.max(PAGE_TOKENS),
            columns: columns.into_iter().max().unwrap_or(0),
            visits,
            visit_columns: config.hidden_size.max(width),
            slots: moe.map_or(0, |moe| moe.n_routed_experts) + 1,
        };
        Ok(CudaModel {
            graphs: Graphs::new(&gpu),
            cache: LatentCache::new(&gpu, &config, 0, semantics.mode)?,
            step: StepInputs::new(&gpu, max_tokens, 0)?,
            logit_rows: Pinned::new(&gpu, LOGIT_ROWS)?,
            draws: Draws::new(&gpu, LOGIT_ROWS)?,
            scratch: Scratch::new(&gpu, &config, kernels.terms, max_tokens)?,
            partial: PartialSums::new(&gpu, shape, positions)?,
            // Prompts that choose their tokens take the absorbed form.
            expanded: match weights
                .layers
                .first()
                .filter(|_| whole.indexer.is_none())
                .map(|layer| &layer.attention.kv_b)
            {
                Some(kv_b) => Expanded::new(&gpu, &kernels, shape, config.v_head_dim, kv_b, positions)?,
                None => None,
            },
            routes: moe.map(|moe| Routes::new(&gpu, moe, joined, max_tokens)).transpose()?,
            indexer: Indexer::new(&gpu, &whole, kernels.terms, positions, max_tokens)?,
            experts: ExpertBuffers::new(&gpu, &kernels, room, width, config.hidden_size)?,
            angles: upload_angles(&gpu, &whole, positions)?,
            weights,
            kernels,
            shape,
            max_tokens,
            semantics,
            vocabulary,
            value: config.v_head_dim,
            ranks,
            config: whole,
            gpu,
        })
    }

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
        // The old cache goes first: both may not fit.
        self.cache = LatentCache::new(&self.gpu, &self.config, 0, self.shape.mode)?;
        self.cache = LatentCache::new(&self.gpu, &self.config, pages, self.shape.mode)?;
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
        if observer.is_some() || has_prompts || tokens.len() > RECORDED_TOKENS {
            return self.queue(step, observer);
        }
        // Recordings are made for powers of two: blocks for pages that a row doesn't have end at once.
        step.most_pages = step.most_pages.next_power_of_two();
        let mut graphs = std::mem::replace(&mut self.graphs, Graphs::new(&self.gpu));
        let result = graphs.run((step.count, step.most_pages), || self.queue(step, None::<&mut ()>));
        self.graphs = graphs;
        result
    }

    /// The tokens whose logits this part computes.
    #[must_use]
    pub fn vocabulary(&self) -> Range<usize> {
        self.vocabulary.clone()
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

    /// Logits `[rows, vocabulary]` of some rows of the last step, for the part's tokens.
    ///
    /// # Errors
    /// When the GPU fails, or any work of the step did.
    pub fn logits(&mut self, rows: &[usize], out: &mut Vec<f32>) -> Result<(), Error> {
        let vocab = self.vocabulary.len();
        out.resize(rows.len() * vocab, 0.0);
        for (rows, out) in rows.chunks(LOGIT_ROWS).zip(out.chunks_mut(LOGIT_ROWS * vocab)) {
            let logits = self.scratch.logits.address();
            self.queue_logits(rows, (logits, vocab))?;
            self.gpu.read(out, logits)?;
        }
        Ok(())
    }

    /// Queues the logits of up to `LOGIT_ROWS` rows, for the part's tokens, to rows of `width` f32. Nothing of an earlier call may be
    /// under way.
    fn queue_logits(&mut self, rows: &[usize], (to, width): (Address, usize)) -> Result<(), Error> {
        self.gpu.make_current()?;
        for (word, &row) in self.logit_rows.words().iter_mut().zip(rows) {
            *word = row as u32;
        }
        let s = &self.scratch;
        self.logit_rows.copy_to(s.logit_rows.address(), rows.len())?;
        let weight = self.weights.lm_head();
        let x = vectors(weight, s.normed.address(), s.normed_nvfp4.address());
        let product = Product::new(weight, x).gather(s.logit_rows.address()).into(to).of_width(width);
        multiply(&self.gpu, &self.kernels, product, None, rows.len())
    }

    /// Whether [`CudaModel::draw`] can be used.
    #[must_use]
    pub fn can_draw(&self) -> bool {
        self.config.vocab_size <= MOST_TOKENS
    }

    /// Draws a token from each of some rows of the last step, on the first of all `ranks`; `None` where a logit is not finite.
    ///
    /// # Errors
    /// When a GPU fails, or any work of the step did.
    pub fn draw(ranks: &mut [CudaModel], rows: &[(usize, Choice)]) -> Result<Vec<Option<TokenId>>, Error> {
        let mut tokens = Vec::with_capacity(rows.len());
        for rows in rows.chunks(LOGIT_ROWS) {
            let (rows, choices): (Vec<usize>, Vec<Choice>) = rows.iter().copied().unzip();
            let Some((logits, vocab)) =
                ranks.first().map(|first| (first.scratch.logits.address(), first.config.vocab_size))
            else {
                break;
            };
            // All ranks write to the first one's memory, each its columns.
            for rank in &mut *ranks {
                let columns = logits.offset(4 * rank.vocabulary.start);
                rank.queue_logits(&rows, (columns, vocab))?;
            }
            let Some((first, others)) = ranks.split_first_mut() else { break };
            for other in others {
                first.gpu.follow(&other.gpu)?;
            }
            first.gpu.make_current()?;
            first.draws.draw(&first.gpu, &first.kernels, (logits, vocab), &choices, &mut tokens)?;
        }
        Ok(tokens)
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
        self.norm(step.count, &self.weights.norm, &[self.weights.lm_head().order()])
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

    /// `x += Attn(RMSNorm(x)); x += FFN(RMSNorm(x))`.
    fn layer(&self, i: usize, layer: &Layer, step: StepRows) -> Result<(), Error> {
        let (gpu, kernels, s) = (&self.gpu, &self.kernels, &self.scratch);
        let query = match &layer.attention.query {
            Query::Latent { q_a, .. } => q_a,
            Query::Direct(q) => q,
        };
        let mut readers = vec![query.order(), layer.attention.kv_a.order()];
        readers.extend(layer.attention.indexer.iter().flat_map(|indexer| indexer.orders()));
        self.norm(step.count, &layer.input_layernorm, &readers)?;
        self.attention(i, &layer.attention, step)?;
        self.sum(Sum::Attention, step.count)?;
        self.norm(step.count, &layer.post_attention_layernorm, &layer.feed_forward.orders())?;
        let x = Normed { natural: s.normed.address(), nvfp4: s.normed_nvfp4.address() };
        let out = self.ranks.output(Sum::FeedForward, s.hidden.address());
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
        self.sum(Sum::FeedForward, step.count)
    }

    /// The residual stream gets the sum of all ranks' parts.
    fn sum(&self, sum: Sum, count: usize) -> Result<(), Error> {
        let values = count * self.config.hidden_size;
        self.ranks.sum(&self.gpu, &self.kernels, sum, values, self.scratch.hidden.address())
    }

    /// `normed = RMSNorm(hidden)`, row by row, in the orders that somebody reads.
    fn norm(&self, count: usize, weight: &Buffer, readers: &[Order]) -> Result<(), Error> {
        let (width, eps) = (self.config.hidden_size, self.config.rms_norm_eps as f32);
        let s = &self.scratch;
        let address =
            |order, buffer: &Buffer| if readers.contains(&order) { buffer.address() } else { Address::NULL };
        let (natural, nvfp4) = (address(Order::Natural, &s.normed), address(Order::Nvfp4, &s.normed_nvfp4));
        let x = (s.hidden.address(), width);
        rms_norm(&self.gpu, &self.kernels, count, x, weight.address(), eps, width, natural, nvfp4)
    }

    /// Multi-head latent attention from `normed`, added to `hidden`: answers in the absorbed form; prompts, where there are kernels for
    /// it, in the expanded one.
    fn attention(&self, layer: usize, weights: &Attention, step: StepRows) -> Result<(), Error> {
        let (gpu, kernels, s, shape) = (&self.gpu, &self.kernels, &self.scratch, self.shape);
        let (count, heads, latent, nope) = (step.count, shape.heads, shape.latent, shape.nope);
        let (width, value) = (latent + shape.rope, self.value);
        let normed = |weight| vectors(weight, s.normed.address(), s.normed_nvfp4.address());

        // Queries, and the cache entry [c | k_pe].
        let product = |weight, x| Product::new(weight, x).packed_in(&self.experts.packing);
        let entry = product(&weights.kv_a, normed(&weights.kv_a)).into(s.entry.address());
        match &weights.query {
            Query::Latent { q_a, q_a_norm, q_b } => {
                let low = product(q_a, normed(q_a)).into(s.query_low.address());
                multiply(gpu, kernels, low, Some(entry), count)?;
                let (rank, eps) = (q_a.rows, self.semantics.latent_norm_eps as f32);
                let split = s.query_low_split.address();
                let natural = q_b.order() == Order::Natural;
                let (natural, nvfp4) = if natural { (split, Address::NULL) } else { (Address::NULL, split) };
                let x = (s.query_low.address(), rank);
                let wq_b = weights.indexer.as_ref().map(|indexer| &indexer.wq_b);
                let (natural, nvfp4) = match (wq_b, &self.indexer) {
                    (Some(wq_b), Some(indexer)) if wq_b.order() != q_b.order() => {
                        if natural.0 == 0 {
                            (indexer.low(), nvfp4)
                        } else {
                            (natural, indexer.low())
                        }
                    }
                    _ => (natural, nvfp4),
                };
                rms_norm(gpu, kernels, count, x, q_a_norm.address(), eps, rank, natural, nvfp4)?;
                multiply(gpu, kernels, product(q_b, split).into(s.query.address()), None, count)?;
            }
            Query::Direct(q) => {
                let query = product(q, normed(q)).into(s.query.address());
                multiply(gpu, kernels, query, Some(entry), count)?;
            }
        }
        let plan = self.expanded.as_ref().map(Expanded::plan).filter(|plan| !plan.is_absorbed());
        let inputs = attention::Inputs {
            entries: s.entry.address(),
            norm: &weights.kv_a_norm,
            eps: self.semantics.latent_norm_eps as f32,
            queries: s.query.address(),
            angles: &self.angles,
            interleaved: self.semantics.rope_pairing == "interleaved",
            nope_split: if plan.is_some_and(|plan| plan.absorbed.is_empty()) {
                Address::NULL
            } else {
                s.nope.address()
            },
            absorbed: s.absorbed.address(),
        };
        let cache = self.cache.layer(layer);
        attention::inputs(gpu, kernels, shape, step, cache, &inputs)?;
        let step = self.choose(layer, weights, step)?;

        let order = weights.o.order();
        let all = Plan::absorbed(count);
        if let (Some(_), Some(prompts)) = (plan, &self.expanded) {
            let queries = (s.query.address(), s.absorbed.address());
            let (packing, out) = (&self.experts.packing, (s.heads.address(), order));
            prompts.attend(gpu, kernels, shape, &weights.kv_b, cache, packing, queries, out)?;
        }
        // The other rows in the absorbed form: q̃_h = UK_hᵀ q_h, then Σ_t p_t c_t, then UV_h of it.
        for &(first, count) in &plan.unwrap_or(&all).absorbed {
            let of = |buffer: &Buffer, bytes: usize| buffer.address().offset(first * bytes);
            let split = |columns: usize| columns * kernels.terms * 2;
            let step = expanded::part(step, first, count);
            let absorbed = of(&s.absorbed, heads * width * 4);
            let latents = of(&s.latent, split(heads * latent));
            let absorb = product(&weights.k_b_transposed, of(&s.nope, split(heads * nope)))
                .into(absorbed)
                .per_head(heads, (0, latent, latent), (width, heads * width));
            multiply(gpu, kernels, absorb, None, count)?;
            let pages = self.partial.choose(kernels, shape, step);
            let to = (latents, weights.kv_b.order());
            attention::attend(gpu, kernels, shape, step, cache, absorbed, &self.partial, pages, to)?;
            let values = product(&weights.kv_b, latents)
                .split_into(of(&s.heads, split(heads * value)), order)
                .per_head(heads, (nope, nope + value, value), (value, heads * value));
            multiply(gpu, kernels, values, None, count)?;
        }
        let out = self.ranks.output(Sum::Attention, s.hidden.address());
        let output = product(&weights.o, s.heads.address());
        let output = if out.add { output.add_to(out.at) } else { output.into(out.at) };
        multiply(gpu, kernels, output, None, count)
    }
}

impl CudaModel {
    /// The step with what its rows attend to: as the layer's indexer chooses, or as the last one chose.
    fn choose(&self, layer: usize, weights: &Attention, step: StepRows) -> Result<StepRows, Error> {
        let Some(indexer) = &self.indexer else { return Ok(step) };
        if let (Some(own), Query::Latent { q_b, .. }) = (&weights.indexer, &weights.query) {
            let s = &self.scratch;
            let same_order = own.wq_b.order() == q_b.order();
            let inputs = indexer::Inputs {
                normed: (s.normed.address(), s.normed_nvfp4.address()),
                query_low: if same_order { s.query_low_split.address() } else { indexer.low() },
                angles: &self.angles,
                cache: self.cache.index_keys(layer),
                mode: self.shape.mode,
            };
            indexer.run(&self.gpu, &self.kernels, own, step, inputs)?;
        }
        Ok(indexer.choice(step))
    }
}

/// The normalized vectors in the order that `weight` takes.
fn vectors(weight: &DeviceMatrix, natural: Address, nvfp4: Address) -> Address {
    match weight.order() {
        Order::Natural => natural,
        Order::Nvfp4 => nvfp4,
    }
}

fn check_supported(config: &Config) -> Result<(), Error> {
    let (latent, rope) = (config.kv_lora_rank, config.qk_rope_head_dim);
    // A block holds two pages in shared memory.
    if !latent.is_multiple_of(64) || !rope.is_multiple_of(64) || latent > 512 || rope > 64 {
        return Err(Error::Unsupported {
            what: format!("attention with kv_lora_rank {latent} and qk_rope_head_dim {rope}, on a GPU,"),
            hint: "multiples of 64 up to 512 and 64 are, and the processor takes any",
        });
    }
    Ok(())
}

impl Scratch {
    fn new(gpu: &Gpu, config: &Config, terms: usize, tokens: usize) -> Result<Scratch, Error> {
        let (hidden, heads, latent) = (config.hidden_size, config.num_attention_heads, config.kv_lora_rank);
        let (nope, rope, value) = (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim);
        let low = config.q_lora_rank.unwrap_or(0);
        let f32s = |width: usize| gpu.allocate(tokens * width * 4);
        let split = |width: usize| gpu.allocate(tokens * width * terms * 2);
        Ok(Scratch {
            hidden: f32s(hidden)?,
            normed: split(hidden)?,
            normed_nvfp4: split(hidden)?,
            query_low: f32s(low)?,
            query_low_split: split(low)?,
            query: f32s(heads * (nope + rope))?,
            nope: split(heads * nope)?,
            entry: f32s(latent + rope)?,
            absorbed: f32s(heads * (latent + rope))?,
            latent: split(heads * latent)?,
            heads: split(heads * value)?,
            logits: gpu.allocate(LOGIT_ROWS * config.vocab_size * 4)?,
            logit_rows: gpu.allocate(LOGIT_ROWS * 4)?,
        })
    }
}

#[cfg(test)]
impl CudaModel {
    /// Prints the parts of a layer's time in a step of `count` tokens of one sequence.
    pub fn time_parts(&mut self, count: usize, pages: &[crate::kv_cache::PageId]) {
        let span = Span { pages, position: 0, count, row: 0, prompt: count };
        let tokens = vec![TokenId(1); count];
        let step = self.step.send(&tokens, &[span]).unwrap();
        if let Some(expanded) = &mut self.expanded {
            expanded.send(&self.gpu, &[span], self.shape.heads).unwrap();
        }
        self.gpu.synchronize().unwrap();
        let layer = &self.weights.layers[0];
        let hidden = self.scratch.hidden.address();
        let time = |queue: &dyn Fn() -> Result<(), Error>| {
            let mut times: Vec<f64> = (0..4).map(|_| self.gpu.time(queue).unwrap()).collect();
            times.sort_by(f64::total_cmp);
            times[1] * 1e3
        };
        let attention = time(&|| self.attention(0, &layer.attention, step));
        let cache = self.cache.layer(0);
        let sums = time(&|| {
            let s = &self.scratch;
            let (packing, to) = (&self.experts.packing, (s.heads.address(), Order::Natural));
            let queries = (s.query.address(), s.absorbed.address());
            let kv_b = &layer.attention.kv_b;
            match &self.expanded {
                Some(prompts) => {
                    prompts.attend(&self.gpu, &self.kernels, self.shape, kv_b, cache, packing, queries, to)
                }
                None => Ok(()),
            }
        });
        println!("{count} tokens: attention {attention:.2} ms, its sums in the expanded form {sums:.2} ms");
        if let (FeedForward::Experts(experts), Some(routes)) = (&layer.feed_forward, &self.routes) {
            let x =
                Normed { natural: self.scratch.normed.address(), nvfp4: self.scratch.normed_nvfp4.address() };
            let out = self.ranks.output(Sum::FeedForward, hidden);
            let all = time(&|| {
                experts::run(&self.gpu, &self.kernels, experts, routes, &self.experts, count, x, out)
            });
            let slots = routes.most_active(count);
            let visits = time(&|| {
                let pass = experts::Pass::best(
                    &self.kernels,
                    &experts.routed,
                    slots,
                    count,
                    count * routes.per_token(),
                );
                let visits = routes.visits(count);
                experts::visit(
                    &self.gpu,
                    &self.kernels,
                    &experts.routed,
                    visits,
                    slots,
                    pass,
                    x,
                    &self.experts,
                )
            });
            println!("{count} tokens: experts with router {all:.2} ms, the experts alone {visits:.2} ms");
        }
    }
}
