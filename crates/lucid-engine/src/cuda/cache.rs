//! The values of the KV cache in the GPU's memory.

use lucid_checkpoint::Config;

use super::driver::{Address, Buffer, Gpu};
use super::indexer::Indexer;
use crate::kv_cache::PAGE_TOKENS;
use crate::{Error, Mode};

/// `[layers][pages, PAGE_TOKENS, width]`, `width` = kv_lora_rank + qk_rope_head_dim; f32 for the reference, bf16 for serving.
pub struct LatentCache {
    layers: Vec<Buffer>,
    /// `[pages, PAGE_TOKENS, index_head_dim]` of layers that choose what they attend to.
    index_keys: Vec<Option<Buffer>>,
}

impl LatentCache {
    /// A cache of `pages` pages.
    ///
    /// # Errors
    /// When it doesn't fit.
    pub fn new(gpu: &Gpu, config: &Config, pages: usize, mode: Mode) -> Result<LatentCache, Error> {
        let width = config.kv_lora_rank + config.qk_rope_head_dim;
        let bytes = pages * PAGE_TOKENS * width * if mode == Mode::Reference { 4 } else { 2 };
        let layers = 0..config.num_hidden_layers;
        let index_keys = |layer: usize| {
            let chooses = config.indexer.as_ref().is_some_and(|indexer| indexer.is_full(layer));
            chooses.then(|| gpu.allocate(Indexer::cache_bytes(config, pages, mode))).transpose()
        };
        Ok(LatentCache {
            index_keys: layers.clone().map(index_keys).collect::<Result<_, _>>()?,
            layers: layers.map(|_| gpu.allocate(bytes)).collect::<Result<_, _>>()?,
        })
    }

    /// Where the index keys of a layer's pages begin; null if it doesn't choose.
    #[must_use]
    pub fn index_keys(&self, layer: usize) -> Address {
        self.index_keys[layer].as_ref().map_or(Address::NULL, Buffer::address)
    }

    /// The layers' memory.
    #[cfg(test)]
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.layers.iter().chain(self.index_keys.iter().flatten())
    }

    /// Where a layer's pages begin.
    #[must_use]
    pub fn layer(&self, layer: usize) -> Address {
        self.layers[layer].address()
    }
}
