//! The index keys of all tokens, in the pages of the KV cache: whoever holds a page holds its index keys too.

use lucid_checkpoint::Indexer;

use crate::KvCacheDtype;
use crate::cpu::aligned::Aligned;
use crate::cpu::cache::LatentCache;
use crate::kv_cache::{PAGE_TOKENS, PageId};

/// `[layers that choose][pages, PAGE_TOKENS, width]`.
pub struct IndexKeys {
    pages: LatentCache,
    /// The place of a layer among those that choose. Other layers' places are never asked for.
    places: Vec<usize>,
}

impl IndexKeys {
    /// Room for `pages` pages of a model with `layers` layers; none without an indexer.
    #[must_use]
    pub fn new(indexer: Option<&Indexer>, layers: usize, pages: usize, dtype: KvCacheDtype) -> IndexKeys {
        let full = |layer: usize| indexer.is_some_and(|indexer| indexer.is_full(layer));
        let places = (0..layers).map(|layer| (0..layer).filter(|&before| full(before)).count()).collect();
        let count = (0..layers).filter(|&layer| full(layer)).count();
        let width = indexer.map_or(0, |indexer| indexer.index_head_dim);
        IndexKeys { pages: LatentCache::new(count, pages, width, dtype), places }
    }

    /// Stores the key `[width]` of the token at `position` of the sequence with these pages.
    pub fn write(&mut self, layer: usize, pages: &[PageId], position: usize, key: &[f32]) {
        self.pages.write(self.places[layer], pages[position / PAGE_TOKENS], position % PAGE_TOKENS, key);
    }

    /// The first `count` keys of a page as f32 `[count, width]`: in place, or decoded into `scratch`.
    pub fn page<'a>(
        &'a self,
        layer: usize,
        page: PageId,
        count: usize,
        scratch: &'a mut Aligned<f32>,
    ) -> &'a [f32] {
        self.pages.page(self.places[layer], page, count, scratch)
    }
}
