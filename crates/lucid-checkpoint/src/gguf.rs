//! GGUF, llama.cpp's container: one file (or several parts) with metadata, tokenizer and tensors.
//!
//! Everything in the file is outside data: each count, length and offset is checked against the file before it is used,
//! and nothing is allocated by a number that the file only claims.
//! Source of the format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod blocks;
mod config;
mod container;
mod metadata;
mod tensors;

use std::collections::BTreeMap;

pub use blocks::{BlockType, UNSIGNED_E4M3};
pub use metadata::{Array, Metadata, Value};

use crate::checkpoint::Tensor;
use crate::{Config, Error, Files, Generation};

/// What a checkpoint folder spreads over several files.
pub(crate) struct Model {
    pub(crate) config: Config,
    pub(crate) generation: Generation,
    pub(crate) tensors: BTreeMap<String, Tensor>,
    pub(crate) notices: Vec<String>,
}

/// Reads the header of every part.
pub(crate) fn open(files: &Files) -> Result<Model, Error> {
    let parts = container::read_all(files)?;
    let location = files.root();
    let mut notices = Vec::new();
    let metadata = parts.iter().map(|part| &part.metadata).next();
    let Some(metadata) = metadata else {
        return Err(Error::MissingFile { location, hint: "no part of the GGUF model is there" });
    };
    let names = parts.iter().flat_map(|part| &part.tensors).map(|tensor| tensor.name.as_str()).collect();
    let (config, generation) = config::read(metadata, &names, &mut notices)?;
    let experts = config.moe.as_ref().map_or(0, |moe| moe.n_routed_experts);
    let tensors = tensors::canonical(files, parts, experts)?;
    Ok(Model { config, generation, tensors, notices })
}

/// The metadata of a GGUF model (of its first part); `None` when `files` is no GGUF model.
///
/// # Errors
/// When the file is missing, truncated or damaged.
pub fn metadata(files: &Files) -> Result<Option<Metadata>, Error> {
    if !files.is_gguf() {
        return Ok(None);
    }
    Ok(container::read_all(files)?.into_iter().next().map(|part| part.metadata))
}
