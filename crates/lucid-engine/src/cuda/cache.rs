//! The values of the KV cache in the GPU's memory.

use super::driver::{Address, Buffer, Gpu};
use crate::kv_cache::PAGE_TOKENS;
use crate::{Error, Mode};

/// `[layers][pages, PAGE_TOKENS, width]`, `width` = kv_lora_rank + qk_rope_head_dim; f32 for the reference, bf16 for serving.
pub struct LatentCache {
    layers: Vec<Buffer>,
}

impl LatentCache {
    /// A cache of `pages` pages.
    ///
    /// # Errors
    /// When it doesn't fit.
    pub fn new(
        gpu: &Gpu,
        layers: usize,
        pages: usize,
        width: usize,
        mode: Mode,
    ) -> Result<LatentCache, Error> {
        let bytes = pages * PAGE_TOKENS * width * if mode == Mode::Reference { 4 } else { 2 };
        Ok(LatentCache { layers: (0..layers).map(|_| gpu.allocate(bytes)).collect::<Result<_, _>>()? })
    }

    /// The layers' memory.
    #[cfg(test)]
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.layers.iter()
    }

    /// Where a layer's pages begin.
    #[must_use]
    pub fn layer(&self, layer: usize) -> Address {
        self.layers[layer].address()
    }
}
