//! The values of the KV cache in the GPU's memory.

use lucid_checkpoint::Config;

use super::driver::{Address, Buffer, Gpu};
use super::indexer::Indexer;
use crate::kv_cache::PAGE_TOKENS;
use crate::{Error, KvCacheDtype, Mode};

/// `[layers][pages, PAGE_TOKENS, width]`, `width` = kv_lora_rank + qk_rope_head_dim.
pub struct LatentCache {
    layers: Vec<Buffer>,
    /// One a layer: what E4M3 codes are multiplied with, 1 for other types.
    scales: Vec<f32>,
    /// `[pages, PAGE_TOKENS, index_head_dim]` of layers that choose what they attend to.
    index_keys: Vec<Option<Buffer>>,
}

/// A layer's part of the cache.
#[derive(Clone, Copy, Debug)]
pub struct LayerCache {
    /// Where its pages begin.
    pub at: Address,
    /// What its values are multiplied with.
    pub scale: f32,
}

/// Bytes of a value.
fn value_bytes(dtype: KvCacheDtype) -> usize {
    match dtype {
        KvCacheDtype::F32 => 4,
        KvCacheDtype::Bf16 => 2,
        KvCacheDtype::Fp8E4m3 => 1,
    }
}

impl LatentCache {
    /// A cache of `pages` pages. `mode` is that of the index keys.
    ///
    /// # Errors
    /// When it doesn't fit.
    pub fn new(
        gpu: &Gpu,
        config: &Config,
        pages: usize,
        mode: Mode,
        dtype: KvCacheDtype,
        scales: &[f32],
    ) -> Result<LatentCache, Error> {
        let width = config.kv_lora_rank + config.qk_rope_head_dim;
        let bytes = pages * PAGE_TOKENS * width * value_bytes(dtype);
        let layers = 0..config.num_hidden_layers;
        let index_keys = |layer: usize| {
            let chooses = config.indexer.as_ref().is_some_and(|indexer| indexer.is_full(layer));
            chooses.then(|| gpu.allocate(Indexer::cache_bytes(config, pages, mode))).transpose()
        };
        Ok(LatentCache {
            index_keys: layers.clone().map(index_keys).collect::<Result<_, _>>()?,
            layers: layers.map(|_| gpu.allocate(bytes)).collect::<Result<_, _>>()?,
            scales: scales.to_vec(),
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

    /// A layer's pages.
    #[must_use]
    pub fn layer(&self, layer: usize) -> LayerCache {
        LayerCache { at: self.layers[layer].address(), scale: self.scales[layer] }
    }

    /// What each layer's values are multiplied with.
    #[must_use]
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }
}
