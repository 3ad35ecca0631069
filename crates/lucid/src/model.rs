//! From a path (or none) to a model that can be served.

use std::path::Path;

use anyhow::{Result, bail};
use lucid_checkpoint::Files;
use lucid_engine::{
    Activations, Device, EngineOptions, ExpertSharing, KvCacheDtype, LoadFormat, Mode, SemanticsOptions,
    World,
};
use lucid_server::Plant;

use crate::arguments::{EngineArguments, KvCacheArgument, LoadFormatArgument, ModeArgument, Nvfp4Argument};
use crate::bundled;

/// The files of a model folder; the bundled canary for none, or for its name if no such folder exists.
pub fn files(model: Option<&Path>) -> Result<Files> {
    match model {
        None => Ok(bundled::canary()),
        Some(path) if path.as_os_str() == bundled::NAME && !path.exists() => Ok(bundled::canary()),
        Some(path) => Ok(Files::open(path)?),
    }
}

/// What a model is called when nobody says: the folder's name.
pub fn default_name(model: Option<&Path>) -> String {
    let canonical = model.and_then(|path| path.canonicalize().ok());
    let name = canonical.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| bundled::NAME.to_owned())
}

/// The engine's options from the command line.
pub fn engine_options(arguments: &EngineArguments) -> EngineOptions {
    EngineOptions {
        semantics: SemanticsOptions {
            mode: match arguments.mode {
                ModeArgument::Serving => Mode::Serving,
                ModeArgument::Reference => Mode::Reference,
            },
            kv_cache: kv_cache(arguments.kv_cache_dtype),
            follows_declared_cache: true,
            activations: activations(arguments.nvfp4),
            latent_norm_eps: arguments.latent_norm_eps,
            ..SemanticsOptions::default()
        },
        max_model_len: arguments.max_model_len,
        kv_cache_tokens: arguments.kv_cache_tokens,
        max_running: arguments.max_num_seqs,
        max_step_tokens: arguments.max_num_batched_tokens,
        threads: arguments.threads,
        prefix_cache: !arguments.no_enable_prefix_caching,
        ranks: arguments.tensor_parallel_size,
        experts: match arguments.enable_expert_parallel {
            true => ExpertSharing::Whole,
            false => ExpertSharing::Widths,
        },
        load_format: match arguments.load_format {
            LoadFormatArgument::Auto => LoadFormat::Checkpoint,
            LoadFormatArgument::Dummy => LoadFormat::Dummy,
        },
        device: arguments.device,
        ..EngineOptions::default()
    }
}

/// This process' place where a launcher has started one for each of several ranks: as many as `--tensor-parallel-size` says. One process
/// alone has all ranks.
pub fn world(arguments: &EngineArguments) -> Result<Option<World>> {
    let ranks = arguments.tensor_parallel_size;
    if ranks < 2 || arguments.device == Device::Cpu {
        return Ok(None);
    }
    let world = World::from_environment(|name| std::env::var(name).ok())?;
    if let Some(world) = world.as_ref().filter(|world| world.size != ranks) {
        bail!(
            "a launcher has started {} processes, and --tensor-parallel-size is {ranks}: start as many, or only one",
            world.size
        );
    }
    Ok(world)
}

/// `--kv-cache-dtype`; `None` is the checkpoint's or the mode's own.
pub fn kv_cache(argument: KvCacheArgument) -> Option<KvCacheDtype> {
    match argument {
        KvCacheArgument::Auto => None,
        KvCacheArgument::F32 => Some(KvCacheDtype::F32),
        KvCacheArgument::Bf16 => Some(KvCacheDtype::Bf16),
        KvCacheArgument::Fp8E4m3 => Some(KvCacheDtype::Fp8E4m3),
    }
}

/// `--nvfp4`.
pub fn activations(argument: Nvfp4Argument) -> Activations {
    match argument {
        Nvfp4Argument::W4a16 => Activations::W4A16,
        Nvfp4Argument::W4a4 => Activations::W4A4,
    }
}

/// The fault of that name.
pub fn plant(name: &str) -> Result<Plant> {
    match Plant::from_name(name) {
        Some(plant) => Ok(plant),
        None => {
            let names: Vec<&str> = Plant::ALL.iter().map(|plant| plant.name()).collect();
            bail!("there is no fault {name:?} to plant: choose one of {}", names.join(", "))
        }
    }
}
