//! Attention of prompts in the expanded form, on Hopper (see `kernels/expanded.cu`).

use super::arguments::Order;
use super::attention::{Shape, StepRows};
use super::cache::LayerCache;
use super::driver::{Address, Buffer, Gpu, Pinned, launch};
use super::kernels::{HOPPER_SHARED, Kernels};
use super::layout::Layout;
use super::matmul::{HOPPER_THREADS, Product};
use super::packing::Packing;
use super::weights::DeviceMatrix;
use crate::cpu::Span;
use crate::kv_cache::PAGE_TOKENS;
use crate::{Error, KvCacheDtype, Mode};

/// Head sizes that the kernels are written for: those of every DeepSeek-V3 and Kimi-K2.
const NOPE: usize = 128;
const ROPE: usize = 64;
const VALUE: usize = 128;
/// Keys and values of a page for one head, in bytes.
const PAGE_BYTES: usize = (NOPE + ROPE + VALUE) * PAGE_TOKENS * 2;
/// Rows of a tile, and positions; a sequence's pages are expanded in pairs.
const TILE: usize = 128;
const PAIR: usize = TILE / PAGE_TOKENS;
/// Room for expanded keys and values. Longer sequences are expanded for some heads at a time.
const MOST_BYTES: usize = 512 << 20;
/// Words that the lists have room for at first.
const FIRST_WORDS: usize = 1 << 12;

/// What a step's prompts need.
pub struct Expanded {
    /// Tiles of four words, then pages of two; they grow when a step needs more.
    host: Pinned,
    device: Buffer,
    expanded: Buffer,
    /// What the last step sent.
    plan: Plan,
}

/// Which rows of a step go which way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Prompts that are expanded together.
    batches: Vec<Batch>,
    /// Rows in the absorbed form: first and count.
    pub absorbed: Vec<(usize, usize)>,
}

/// Tiles and pages of some sequences, as places in the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Batch {
    first_tile: usize,
    tiles: usize,
    first_page: usize,
    pages: usize,
}

impl Plan {
    /// Whether no row is a prompt's.
    #[must_use]
    pub fn is_absorbed(&self) -> bool {
        self.batches.is_empty()
    }

    fn tiles(&self) -> usize {
        self.batches.iter().map(|batch| batch.tiles).sum()
    }

    /// All `count` rows in the absorbed form.
    #[must_use]
    pub fn absorbed(count: usize) -> Plan {
        Plan { batches: Vec::new(), absorbed: vec![(0, count)] }
    }

    /// Deals a step's rows out. `batch_pages`: pages whose heads are expanded together where they fit.
    fn new(spans: &[Span<'_>], batch_pages: usize) -> (Plan, Vec<[u32; 4]>, Vec<[u32; 2]>) {
        let (mut plan, mut tiles, mut pages) = (Plan::default(), Vec::new(), Vec::new());
        for (is_prompt, span) in spans.iter().flat_map(|span| span.split(true)) {
            if !is_prompt {
                match plan.absorbed.last_mut() {
                    Some((first, count)) if *first + *count == span.row => *count += span.count,
                    _ => plan.absorbed.push((span.row, span.count)),
                }
                continue;
            }
            let seen = span.position + span.count;
            let needed = seen.div_ceil(TILE) * PAIR;
            let fits = plan.batches.last().is_some_and(|batch| batch.pages + needed <= batch_pages);
            if !fits {
                let (first_tile, first_page) = (tiles.len(), pages.len());
                plan.batches.push(Batch { first_tile, tiles: 0, first_page, pages: 0 });
            }
            let Some(batch) = plan.batches.last_mut() else { continue };
            for first in (0..span.count).step_by(TILE) {
                let count = TILE.min(span.count - first);
                tiles.push(
                    [span.row + first, count, span.position + first, batch.pages].map(|word| word as u32),
                );
                batch.tiles += 1;
            }
            for page in 0..needed {
                let written = seen.saturating_sub(page * PAGE_TOKENS).min(PAGE_TOKENS);
                // A page that nothing was written to is zeros, whatever stands there.
                let index = span.pages.get(page).map_or(0, |page| page.index());
                pages.push([index as u32, written as u32]);
            }
            batch.pages += needed;
        }
        (plan, tiles, pages)
    }
}

impl Expanded {
    /// For sequences of up to `positions` tokens; nothing where the kernels don't take the model.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn new(
        gpu: &Gpu,
        kernels: &Kernels,
        shape: Shape,
        value: usize,
        kv_b: &DeviceMatrix,
        positions: usize,
    ) -> Result<Option<Expanded>, Error> {
        let sizes =
            (shape.nope, shape.rope, value) == (NOPE, ROPE, VALUE) && shape.latent.is_multiple_of(128);
        let layout = matches!(kv_b.layout, Layout::Bf16 | Layout::F8Blocks) && kv_b.layout.is_fast(kv_b.cols);
        if kernels.hopper.is_none()
            || !sizes
            || !layout
            || shape.mode != Mode::Serving
            || shape.cache == KvCacheDtype::F32
        {
            return Ok(None);
        }
        // At least one head of the longest sequence.
        let longest = positions.div_ceil(TILE) * PAIR * PAGE_BYTES;
        Ok(Some(Expanded {
            host: Pinned::new(gpu, FIRST_WORDS)?,
            device: gpu.allocate(4 * FIRST_WORDS)?,
            expanded: gpu.allocate(MOST_BYTES.max(longest))?,
            plan: Plan::default(),
        }))
    }

    /// Queues the copy of a step's lists. The plan says what is to be done.
    ///
    /// # Errors
    /// When the memory is missing, or the copy can't be queued.
    pub fn send(&mut self, gpu: &Gpu, spans: &[Span<'_>], heads: usize) -> Result<&Plan, Error> {
        let (plan, tiles, pages) = Plan::new(spans, self.expanded.bytes() / (heads * PAGE_BYTES));
        self.plan = plan;
        if self.plan.is_absorbed() {
            return Ok(&self.plan);
        }
        self.host.wait()?;
        let words = 4 * tiles.len() + 2 * pages.len();
        if words > self.host.words().len() {
            let room = words.next_power_of_two();
            (self.host, self.device) = (Pinned::new(gpu, room)?, gpu.allocate(4 * room)?);
        }
        let all = tiles.as_flattened().iter().chain(pages.as_flattened());
        for (word, value) in self.host.words().iter_mut().zip(all) {
            *word = *value;
        }
        self.host.copy_to(self.device.address(), words)?;
        Ok(&self.plan)
    }

    /// What the last step sent.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The last step's prompts: from `queries` `[rows, heads, NOPE + ROPE]` and their rotated parts in `absorbed` `[rows, heads, latent +
    /// ROPE]`, both f32, to `out` `[rows, heads * VALUE]` bf16 in `order`. The cache has the step's entries.
    ///
    /// # Errors
    /// When the GPU fails.
    #[allow(clippy::too_many_arguments)] // The kernels'.
    pub fn attend(
        &self,
        gpu: &Gpu,
        kernels: &Kernels,
        shape: Shape,
        kv_b: &DeviceMatrix,
        cache: LayerCache,
        packing: &Packing,
        (queries, absorbed): (Address, Address),
        (out, order): (Address, Order),
    ) -> Result<(), Error> {
        let blocks = (kernels.hopper.unwrap_or(1), 1, 1);
        let expanded = self.expanded.address();
        let expand = if kv_b.layout == Layout::F8Blocks { kernels.expand_f8 } else { kernels.expand_bf16 };
        let scale = shape.scale * std::f32::consts::LOG2_E;
        let codes = shape.cache == KvCacheDtype::Fp8E4m3;
        let inputs = if codes { kernels.expand_inputs_f8 } else { kernels.expand_inputs_bf16 };
        let (cache, cache_scale) = (cache.at, cache.scale);
        for batch in &self.plan.batches {
            let tiles = self.device.address().offset(16 * batch.first_tile);
            let pages = self.device.address().offset(16 * self.plan.tiles() + 8 * batch.first_page);
            let heads_at_once = (self.expanded.bytes() / (batch.pages * PAGE_BYTES)).clamp(1, shape.heads);
            for first in (0..shape.heads).step_by(heads_at_once) {
                let heads = heads_at_once.min(shape.heads - first);
                // As many pages at a time as there is room to pack.
                let at_once = (packing.bytes() / (PAGE_TOKENS * shape.latent * 2)).max(1);
                for page in (0..batch.pages).step_by(at_once) {
                    let here = at_once.min(batch.pages - page);
                    let list = pages.offset(8 * page);
                    let to = expanded.offset(page * heads * PAGE_BYTES);
                    let (packed, heads) = (packing.vectors(), heads as u32);
                    launch!(gpu, inputs, (here, 1, 1), 256, 0; list, cache, cache_scale, heads, packed, to)?;
                    let rows = (first * (NOPE + VALUE), heads as usize * (NOPE + VALUE));
                    let product = Product::new(kv_b, Address::NULL).rows(rows).scaled(cache_scale).args();
                    let positions = (here * PAGE_TOKENS) as u32;
                    launch!(gpu, expand, blocks, HOPPER_THREADS, HOPPER_SHARED; product, heads, packed, positions, to)?;
                }
                let (count, first, heads, all) =
                    (batch.tiles as u32, first as u32, heads as u32, shape.heads as u32);
                launch!(gpu, kernels.attend_expanded, blocks, HOPPER_THREADS, HOPPER_SHARED;
                    tiles, count, first, heads, all, queries, absorbed, scale, expanded, order, out)?;
            }
        }
        Ok(())
    }
}

/// Rows `first` to `first + count` of a step.
#[must_use]
pub fn part(step: StepRows, first: usize, count: usize) -> StepRows {
    let mut choices = step.choices;
    if choices.lists != Address::NULL {
        choices.lists = choices.lists.offset(4 * first * choices.most as usize);
    }
    StepRows { count, rows: step.rows.offset(8 * first), choices, ..step }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_cache::{PageId, PagePool};

    fn pages(tokens: usize) -> Vec<PageId> {
        let (mut pool, mut pages) = (PagePool::new(tokens), Vec::new());
        assert!(pool.extend(&mut pages, tokens));
        pages
    }

    #[test]
    fn rows_of_prompts_come_in_tiles_and_those_of_answers_in_ranges() {
        let (first, second, third) = (pages(64), pages(320), pages(128));
        let spans = [
            // An answer; the end of a prompt of 300 with one token that was generated; an answer.
            Span { pages: &first, position: 60, count: 1, row: 0, prompt: 10 },
            Span { pages: &second, position: 100, count: 201, row: 1, prompt: 300 },
            Span { pages: &third, position: 70, count: 1, row: 202, prompt: 70 },
        ];
        let (plan, tiles, list) = Plan::new(&spans, 1_000);
        assert_eq!(plan.absorbed, [(0, 1), (201, 2)]);
        assert_eq!(tiles, [[1, 128, 100, 0], [129, 72, 228, 0]]);
        assert_eq!(plan.batches, [Batch { first_tile: 0, tiles: 2, first_page: 0, pages: 6 }]);
        let written: Vec<u32> = list.iter().map(|page| page[1]).collect();
        assert_eq!(written, [64, 64, 64, 64, 44, 0], "300 positions, in pairs of pages");
        for (listed, page) in list.iter().zip(&second) {
            assert_eq!(listed[0] as usize, page.index());
        }
    }

    #[test]
    fn prompts_that_have_no_room_together_are_expanded_one_after_the_other() {
        let (first, second) = (pages(128), pages(256));
        let spans = [
            Span { pages: &first, position: 0, count: 100, row: 0, prompt: 100 },
            Span { pages: &second, position: 0, count: 200, row: 100, prompt: 200 },
        ];
        let (plan, tiles, _) = Plan::new(&spans, 4);
        assert!(plan.absorbed.is_empty());
        let batch = |first_tile, tiles, first_page, pages| Batch { first_tile, tiles, first_page, pages };
        assert_eq!(plan.batches, [batch(0, 1, 0, 2), batch(1, 2, 2, 4)]);
        assert_eq!(tiles.iter().map(|tile| tile[3]).collect::<Vec<_>>(), [0, 0, 0]);
        let (together, tiles, _) = Plan::new(&spans, 6);
        assert_eq!(together.batches, [batch(0, 3, 0, 6)]);
        assert_eq!(tiles.iter().map(|tile| tile[3]).collect::<Vec<_>>(), [0, 2, 2]);
    }
}
