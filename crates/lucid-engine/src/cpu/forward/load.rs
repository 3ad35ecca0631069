//! From a checkpoint to a model that runs.

use super::{CpuModel, ExpertsStep, Scratch};
#[cfg(target_arch = "x86_64")]
use crate::Mode;
use crate::backend::Load;
use crate::cpu::rope::{Rope, softmax_scale};
use crate::cpu::threads::Threads;
#[cfg(target_arch = "x86_64")]
use crate::cpu::tiles;
use crate::parallel::{Collective, Rank, Shard};
use crate::weights::{Weights, cache_scales};
use crate::{Activations, Error, Semantics};

impl CpuModel {
    /// Loads the part of a rank.
    ///
    /// # Errors
    /// When the checkpoint is incomplete or unsupported, can't be dealt out, or threads can't be started.
    pub fn load(load: &Load<'_>, rank: Rank, ranks: Box<dyn Collective>) -> Result<CpuModel, Error> {
        let mut weights = load.weights()?;
        if load.semantics.activations == Activations::W4A4 {
            weights.check_w4a4()?;
        }
        if rank.is_alone() {
            weights.gather().map_err(Error::Copy)?;
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
        let shard = Shard::new(&config, rank, load.experts);
        let part = shard.config()?;
        let mut semantics = Semantics::new(&config, load.semantics);
        let threads = match load.threads {
            Some(0) => {
                return Err(Error::Option { option: "threads", value: "0".into(), expected: "at least 1" });
            }
            Some(count) => count,
            None => std::thread::available_parallelism().map_or(1, usize::from).div_ceil(rank.count()),
        };
        let w4a4 = load.semantics.activations == Activations::W4A4;
        let scales = cache_scales(load, config.num_hidden_layers, &mut semantics)?;
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
}
