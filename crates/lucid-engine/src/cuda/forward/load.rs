//! A model comes to the GPUs.

use std::panic::resume_unwind;
use std::sync::Arc;

use lucid_checkpoint::Config;

use super::scratch::Scratch;
use super::{CudaModel, LOGIT_ROWS};
use crate::backend::Load;
use crate::cpu::softmax_scale;
use crate::cuda::attention::{PartialSums, Shape};
use crate::cuda::cache::LatentCache;
use crate::cuda::compile::Sizes;
use crate::cuda::driver::{Gpu, Pinned};
use crate::cuda::expanded::Expanded;
use crate::cuda::experts::ExpertBuffers;
use crate::cuda::graph::Graphs;
use crate::cuda::indexer::Indexer;
use crate::cuda::kernels::Kernels;
use crate::cuda::nccl::Communicator;
use crate::cuda::packing::Room;
use crate::cuda::ranks::{Apart, Place, Ranks, Seat};
use crate::cuda::rope::upload_angles;
use crate::cuda::router::Routes;
use crate::cuda::sampling::Draws;
use crate::cuda::scoring::Scores;
use crate::cuda::step::StepInputs;
use crate::cuda::weights::{FeedForward, Weights};
use crate::kv_cache::PAGE_TOKENS;
use crate::parallel::{Rank, Shard};
use crate::weights::cache_scales;
use crate::world::{Watch, World};
use crate::{Error, Semantics};

impl CudaModel {
    /// Loads a model on the GPUs from `ordinal` on, one a rank.
    ///
    /// # Errors
    /// When there is no such GPU or no compiler, the checkpoint is incomplete or unsupported, the weights don't fit or can't be
    /// dealt out, or the GPUs can't reach each other.
    pub fn load(load: &Load<'_>, ordinal: usize) -> Result<Vec<CudaModel>, Error> {
        let Prepared { config, semantics, cache_scales, sizes } = &prepare(load)?;
        let mut opened = Vec::new();
        for rank in Rank::all(load.ranks) {
            let gpu = Gpu::open(ordinal + rank.number())?;
            // The first compiles, the others find the program in the cache.
            let kernels = Kernels::load(&gpu, *sizes)?;
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
                    let cache_scales = cache_scales.clone();
                    let seat = seats.next();
                    scope.spawn(move || {
                        gpu.make_current()?;
                        let ranks = match seat {
                            Some(seat) => Ranks::here(rank, seat, places)?,
                            None => Ranks::Alone,
                        };
                        let tied = config.tie_word_embeddings;
                        let shard = Shard::new(config, rank, load.experts);
                        let told = load.progress.filter(|_| rank.number() == 0);
                        let weights = Weights::upload(&gpu, &kernels, host, tied, shard, told)?;
                        let sizes = (load.positions, load.max_step_tokens);
                        CudaModel::assemble(
                            gpu,
                            kernels,
                            shard,
                            (semantics, cache_scales),
                            weights,
                            sizes,
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

    /// Loads one rank's part, in a process of its own, and meets the other ranks under the name `meeting`. `first` is the number of the
    /// machine's first GPU; a launcher may show each process only its own. When `watch` loses somebody, nobody is waited for any more.
    ///
    /// # Errors
    /// As [`CudaModel::load`], and when there is no NCCL or the others don't come.
    pub fn join(
        load: &Load<'_>,
        first: usize,
        world: &World,
        meeting: &[u8; 128],
        watch: &Watch,
    ) -> Result<CudaModel, Error> {
        let Prepared { config, semantics, cache_scales, sizes } = prepare(load)?;
        let ordinal = if Gpu::count()? == 1 { first } else { first + world.local_rank };
        let gpu = Gpu::open(ordinal)?;
        let rank = Rank::of(world.rank, world.size);
        let communicator = Arc::new(Communicator::meet(&gpu, rank, *meeting)?);
        let weak = Arc::downgrade(&communicator);
        watch.on_loss(move || {
            if let Some(communicator) = weak.upgrade() {
                communicator.give_up();
            }
        });
        let kernels = Kernels::load(&gpu, sizes)?;
        let values = load.max_step_tokens * config.hidden_size;
        let ranks = Ranks::Apart(Apart::new(&gpu, communicator, values, LOGIT_ROWS * config.vocab_size)?);
        let (host, tied) = (load.weights()?, config.tie_word_embeddings);
        let told = load.progress.filter(|_| rank.number() == 0);
        let shard = Shard::new(&config, rank, load.experts);
        let weights = Weights::upload(&gpu, &kernels, &host, tied, shard, told)?;
        let room = (load.positions, load.max_step_tokens);
        CudaModel::assemble(gpu, kernels, shard, (semantics, cache_scales), weights, room, ranks)
    }

    /// A model, or the part of one that `shard` is, from weights that are on the GPU already, with a scale of the cache for each layer, for
    /// sequences of up to `positions` tokens and steps of up to `max_tokens`.
    #[allow(clippy::too_many_arguments)] // What a model is made of.
    pub(in crate::cuda) fn assemble(
        gpu: Gpu,
        kernels: Kernels,
        shard: Shard<'_>,
        (semantics, cache_scales): (Semantics, Vec<f32>),
        weights: Weights,
        (positions, max_tokens): (usize, usize),
        ranks: Ranks,
    ) -> Result<CudaModel, Error> {
        let vocabulary = shard.vocabulary();
        let (whole, config) = (shard.whole().clone(), shard.config()?);
        let (latent, rope) = (config.kv_lora_rank, config.qk_rope_head_dim);
        // Of all layers.
        let numbers = weights.layers.iter().find_map(|layer| match &layer.feed_forward {
            FeedForward::Experts(experts) => Some(experts.numbers.clone()),
            FeedForward::Dense(_) => None,
        });
        let here = numbers.unwrap_or_default();
        let shape = Shape {
            heads: config.num_attention_heads,
            nope: config.qk_nope_head_dim,
            latent,
            rope,
            scale: softmax_scale(&whole),
            mode: semantics.mode,
            cache: semantics.kv_cache,
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
            slots: here.len() + 1,
        };
        Ok(CudaModel {
            graphs: Graphs::new(&gpu),
            cache: LatentCache::new(&gpu, &config, 0, semantics.mode, shape.cache, &cache_scales)?,
            step: StepInputs::new(&gpu, max_tokens, 0)?,
            logit_rows: Pinned::new(&gpu, LOGIT_ROWS)?,
            draws: Draws::new(&gpu, LOGIT_ROWS)?,
            scores: Scores::new(&gpu, LOGIT_ROWS)?,
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
            routes: moe.map(|moe| Routes::new(&gpu, moe, here, max_tokens)).transpose()?,
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
}

/// What all ranks of a model agree on.
struct Prepared {
    config: Config,
    semantics: Semantics,
    cache_scales: Vec<f32>,
    sizes: Sizes,
}

fn prepare(load: &Load<'_>) -> Result<Prepared, Error> {
    let config = load.config()?;
    if let Some(planted) = load.semantics.plant.filter(|planted| planted.needs_cpu(&config)) {
        return Err(Error::Unsupported {
            what: format!("the planted fault {} on a GPU", planted.plant),
            hint: "plant it on the CPU",
        });
    }
    check_supported(&config)?;
    let mut semantics = Semantics::new(&config, load.semantics).on_gpu(load.semantics)?;
    let cache_scales = cache_scales(load, config.num_hidden_layers, &mut semantics)?;
    let sizes =
        Sizes { latent: config.kv_lora_rank, rope: config.qk_rope_head_dim, terms: semantics.mode.terms() };
    Ok(Prepared { config, semantics, cache_scales, sizes })
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
    Indexer::check(config)
}
