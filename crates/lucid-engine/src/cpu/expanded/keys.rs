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
use crate::cpu::dot::{Target, decode, dots};
use crate::cpu::matmul::{Inputs, OutputBuffer, PANEL_ROWS, Product, SCRATCH, panel, tasks_of};
use crate::cpu::row::Rows;
use crate::cpu::threads::Threads;
use crate::cpu::unit::Unit;
use crate::cpu::vectorize::vectorized;
use crate::kv_cache::{PAGE_TOKENS, PageId};
use crate::weights::KeysAndValues;

/// Buffers; they grow to the longest prompt's and stay. What lies behind a span's last position is left over from others.
#[derive(Default)]
pub(super) struct Keys {
    entries: Aligned<f32>, // [pages, PAGE_TOKENS, latent + rope]: of all spans, one after the other
    rotated: Aligned<f32>, // [pages, PAGE_TOKENS / B, rope, B], B as `side_by_side` says: the columns that all heads share
    keys: Aligned<f32>,    // [heads of a group, pages, PAGE_TOKENS / B, nope, B]
    values: Aligned<f32>,  // [heads of a group, pages, value / B, PAGE_TOKENS, B]
    weights: Aligned<f32>, // [heads of a group, nope + value, latent]: rows of `kv_b`, where it is stored in halves
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

    /// Bytes of keys and values of a head, and of the rows that they may be computed with.
    pub(super) fn head_bytes(&self, shape: Shape) -> usize {
        let keys_and_values = shape.nope + shape.value.next_multiple_of(side_by_side());
        4 * (self.pages.len() * PAGE_TOKENS * keys_and_values + shape.latent * (shape.nope + shape.value))
    }

    /// Computes keys and values of some heads.
    pub(super) fn expand(
        &mut self,
        threads: &mut Threads,
        shape: Shape,
        projection: &KeysAndValues,
        heads: Range<usize>,
    ) {
        let (nope, value, latent) = (shape.nope, shape.value, shape.latent);
        let width = latent + shape.rope;
        let (pages, values_len) = (self.pages.len(), PAGE_TOKENS * value.next_multiple_of(side_by_side()));
        self.keys.grow(heads.len() * pages * nope * PAGE_TOKENS, 0.0);
        self.values.grow(heads.len() * pages * values_len, 0.0);
        if let KeysAndValues::Split { keys, values } = projection {
            self.join(threads, shape, [keys, values], heads.clone());
        }
        let (keys, values) = (Shared::new(&mut self.keys), Shared::new(&mut self.values));
        let (entries, weights) = (&self.entries, &self.weights);
        threads.for_each(heads.len() * pages, |task| {
            let (page, head) = (task % pages, task / pages);
            let count = self.pages[page].count;
            let inputs =
                Inputs::Strided { values: entries, start: page * PAGE_TOKENS * width, stride: width };
            // Some rows of the head's N + V.
            let multiply = |rows: Range<usize>, out: &mut [f32]| match projection {
                KeysAndValues::Joined { kv_b, .. } => {
                    let first = (heads.start + head) * (nope + value);
                    let rows = first + rows.start..first + rows.end;
                    // SAFETY: one output, dense, in a buffer of its own.
                    let outputs = unsafe { OutputBuffer::new(out).rows(0, rows.len(), count, rows.len()) };
                    let product = Product { weight: kv_b, rows, inputs, count, outputs };
                    (0..tasks_of(&product)).for_each(|task| panel(&product, task));
                }
                KeysAndValues::Split { .. } => {
                    let first = head * (nope + value);
                    let weights = &weights[(first + rows.start) * latent..(first + rows.end) * latent];
                    multiply_numbers(weights, latent, inputs, count, out);
                }
            };
            BLOCK.with_borrow_mut(|block| {
                let straight = &mut block.page;
                straight.grow(PAGE_TOKENS * nope.max(value), 0.0);
                multiply(0..nope, straight);
                // SAFETY: a page of a head belongs to one task.
                let (keys, values) = unsafe {
                    (
                        keys.part(task * nope * PAGE_TOKENS, nope * PAGE_TOKENS),
                        values.part(task * values_len, values_len),
                    )
                };
                turn(&straight[..count * nope], nope, 0, side_by_side(), keys);
                multiply(nope..nope + value, straight);
                cut(&straight[..count * value], value, side_by_side(), values);
            });
        });
    }

    /// Decodes some heads' halves `[A L, N]` and `[A V, L]` to rows `[N + V, L]`.
    fn join(&mut self, threads: &mut Threads, shape: Shape, halves: [&Matrix; 2], heads: Range<usize>) {
        let (nope, value, latent) = (shape.nope, shape.value, shape.latent);
        let size = (nope + value) * latent;
        self.weights.grow(heads.len() * size, 0.0);
        let weights = Shared::new(&mut self.weights);
        let [keys, values] = halves;
        threads.for_each(heads.len(), |task| {
            let head = heads.start + task;
            // SAFETY: a head belongs to one task.
            let (of_keys, of_values) = unsafe { weights.part(task * size, size) }.split_at_mut(nope * latent);
            BLOCK.with_borrow_mut(|block| {
                let straight = &mut block.page;
                straight.grow(latent * nope, 0.0);
                let scratch = &mut block.scratch;
                decode(&Rows::of(keys, head * latent..(head + 1) * latent), scratch, straight);
                turn(&straight[..latent * nope], nope, 0, latent, of_keys);
                decode(&Rows::of(values, head * value..(head + 1) * value), scratch, of_values);
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

/// `out` `[count, rows]`: rows `[_, latent]` of numbers by `count` vectors.
fn multiply_numbers(weights: &[f32], latent: usize, inputs: Inputs<'_>, count: usize, out: &mut [f32]) {
    let rows = weights.len() / latent;
    assert!(out.len() >= count * rows, "output leaves its buffer");
    SCRATCH.with_borrow_mut(|scratch| {
        for first in (0..rows).step_by(PANEL_ROWS) {
            let last = rows.min(first + PANEL_ROWS);
            let panel = Rows::f32s(&weights[first * latent..last * latent], latent);
            let target = Target { at: out[first..].as_mut_ptr(), stride: rows, scale: 1.0 };
            // SAFETY: `out` has room for every vector and row, and is this task's own.
            unsafe { dots(panel, count, |t| inputs.vector(t, latent), scratch, target) };
        }
    });
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
