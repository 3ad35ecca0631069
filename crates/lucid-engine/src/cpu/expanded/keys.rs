//! Keys and values of all heads, page by page, from the entries of the cache.
//!
//! Keys stand in columns, one position a column: a score is then one chain of multiply-adds over the key's columns, sixteen scores
//! side by side in a vector, where keys in rows would need the lanes of every score added at the end (a third of the time for
//! keys of 192 columns).
//!
//! The columns of a page that a tile walks down stand behind each other without a gap. Rows of 64 or 128 numbers, of which an AVX2 tile
//! reads sixteen, would lie in a quarter or an eighth of a first-level cache's sets, and push each other out of one of 32 KB.

use std::ops::Range;

use lucid_checkpoint::Matrix;

use super::{BLOCK, Shape, Shared};
use crate::cpu::aligned::Aligned;
use crate::cpu::attention::Span;
use crate::cpu::cache::LatentCache;
use crate::cpu::matmul::{Inputs, OutputBuffer, Product, panel, tasks_of};
use crate::cpu::threads::Threads;
use crate::cpu::unit::Unit;
use crate::cpu::vectorize::vectorized;
use crate::kv_cache::{PAGE_TOKENS, PageId};

/// Buffers; they grow to the longest prompt's and stay. What lies behind a span's last position is left over from others.
#[derive(Default)]
pub(super) struct Keys {
    entries: Aligned<f32>, // [pages, PAGE_TOKENS, latent + rope]: of all spans, one after the other
    rotated: Aligned<f32>, // [pages, PAGE_TOKENS / B, rope, B], B as `side_by_side` says: the columns that all heads share
    keys: Aligned<f32>,    // [heads of a group, pages, PAGE_TOKENS / B, nope, B]
    values: Aligned<f32>,  // [heads of a group, pages, value / B, PAGE_TOKENS, B]
    pages: Vec<Page>,      // of all spans, one after the other
}

#[derive(Clone, Copy)]
struct Page {
    id: PageId,
    /// Entries that a span sees of it.
    count: usize,
}

/// Columns of a page that stand side by side: as many as a tile is wide.
pub fn side_by_side() -> usize {
    match Unit::best() {
        #[cfg(target_arch = "x86_64")]
        Unit::Avx512 => 64,
        _ => 16,
    }
}

/// What a block of queries meets: a page of one head.
pub(super) struct HeadPage<'a> {
    /// `[PAGE_TOKENS / B, nope, B]`
    pub keys: &'a [f32],
    /// `[PAGE_TOKENS / B, rope, B]`
    pub rotated: &'a [f32],
    /// `[value / B, PAGE_TOKENS, B]`
    pub values: &'a [f32],
}

impl Keys {
    /// Reads the entries of all spans, in order; returns at which page each span begins.
    pub(super) fn read(
        &mut self,
        threads: &mut Threads,
        cache: &LatentCache,
        layer: usize,
        shape: Shape,
        spans: &[Span<'_>],
    ) -> Vec<usize> {
        self.pages.clear();
        let mut begins = Vec::with_capacity(spans.len());
        for span in spans {
            begins.push(self.pages.len());
            let last = span.position + span.count;
            let pages = span.pages.iter().take(last.div_ceil(PAGE_TOKENS)).enumerate();
            self.pages.extend(
                pages.map(|(number, &id)| Page { id, count: PAGE_TOKENS.min(last - number * PAGE_TOKENS) }),
            );
        }
        let width = shape.latent + shape.rope;
        self.entries.grow(self.pages.len() * PAGE_TOKENS * width, 0.0);
        self.rotated.grow(self.pages.len() * shape.rope * PAGE_TOKENS, 0.0);
        let (entries, rotated) = (Shared::new(&mut self.entries), Shared::new(&mut self.rotated));
        threads.for_each(self.pages.len(), |task| {
            let Page { id, count } = self.pages[task];
            BLOCK.with_borrow_mut(|block| {
                let values = cache.page(layer, id, count, &mut block.page);
                // SAFETY: a page's places belong to one task.
                let (entries, rotated) = unsafe {
                    (
                        entries.part(task * PAGE_TOKENS * width, count * width),
                        rotated.part(task * shape.rope * PAGE_TOKENS, shape.rope * PAGE_TOKENS),
                    )
                };
                entries.copy_from_slice(values);
                turn(entries, width, shape.latent, side_by_side(), rotated);
            });
        });
        begins
    }

    /// Bytes of keys and values of a head.
    pub(super) fn head_bytes(&self, shape: Shape) -> usize {
        4 * self.pages.len() * PAGE_TOKENS * (shape.nope + shape.value.next_multiple_of(side_by_side()))
    }

    /// Computes keys and values of some heads. `kv_b` `[heads (nope + value), latent]`.
    pub(super) fn expand(&mut self, threads: &mut Threads, shape: Shape, kv_b: &Matrix, heads: Range<usize>) {
        let (nope, value, width) = (shape.nope, shape.value, shape.latent + shape.rope);
        let (pages, values_len) = (self.pages.len(), PAGE_TOKENS * value.next_multiple_of(side_by_side()));
        self.keys.grow(heads.len() * pages * nope * PAGE_TOKENS, 0.0);
        self.values.grow(heads.len() * pages * values_len, 0.0);
        let (keys, values) = (Shared::new(&mut self.keys), Shared::new(&mut self.values));
        let entries = &self.entries;
        threads.for_each(heads.len() * pages, |task| {
            let page = task % pages;
            let first = (heads.start + task / pages) * (nope + value);
            let count = self.pages[page].count;
            let inputs =
                Inputs::Strided { values: entries, start: page * PAGE_TOKENS * width, stride: width };
            let multiply = |rows: Range<usize>, out: &mut [f32]| {
                // SAFETY: one output, dense, in a buffer of its own.
                let outputs = unsafe { OutputBuffer::new(out).rows(0, rows.len(), count, rows.len()) };
                let product = Product { weight: kv_b, rows, inputs, count, outputs };
                (0..tasks_of(&product)).for_each(|task| panel(&product, task));
            };
            BLOCK.with_borrow_mut(|block| {
                let straight = &mut block.page;
                straight.grow(PAGE_TOKENS * nope.max(value), 0.0);
                multiply(first..first + nope, straight);
                // SAFETY: a page of a head belongs to one task.
                let (keys, values) = unsafe {
                    (
                        keys.part(task * nope * PAGE_TOKENS, nope * PAGE_TOKENS),
                        values.part(task * values_len, values_len),
                    )
                };
                turn(&straight[..count * nope], nope, 0, side_by_side(), keys);
                multiply(first + nope..first + nope + value, straight);
                cut(&straight[..count * value], value, side_by_side(), values);
            });
        });
    }

    /// Page `page` of the `index`-th head of those that were computed.
    pub(super) fn page(&self, shape: Shape, index: usize, page: usize) -> HeadPage<'_> {
        let part = |number: usize, cols: usize| {
            let size = cols * PAGE_TOKENS;
            number * size..(number + 1) * size
        };
        let number = index * self.pages.len() + page;
        HeadPage {
            keys: &self.keys[part(number, shape.nope)],
            rotated: &self.rotated[part(page, shape.rope)],
            values: &self.values[part(number, shape.value.next_multiple_of(side_by_side()))],
        }
    }
}

vectorized! {
    /// Columns from `first` on of `rows` `[positions, width]`, as rows of `out` `[PAGE_TOKENS / block, columns, block]`.
    fn turn(rows: &[f32], width: usize, first: usize, block: usize, out: &mut [f32]) {
        let blocks = out.chunks_exact_mut((width - first) * block);
        for (rows, out) in rows.chunks(block * width).zip(blocks) {
            for (position, row) in rows.chunks_exact(width).enumerate() {
                for (value, out) in row[first..].iter().zip(out.chunks_exact_mut(block)) {
                    out[position] = *value;
                }
            }
        }
    }

    /// `rows` `[positions, width]` as `out` `[width / block, PAGE_TOKENS, block]`.
    fn cut(rows: &[f32], width: usize, block: usize, out: &mut [f32]) {
        for (number, out) in out.chunks_exact_mut(PAGE_TOKENS * block).enumerate() {
            let columns = number * block..width.min((number + 1) * block);
            for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(block)) {
                out[..columns.len()].copy_from_slice(&row[columns.clone()]);
            }
        }
    }
}
