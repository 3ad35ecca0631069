//! Latent attention in the expanded form: the prompt.
//!
//! Every head's keys `[UK_h c | k_pe]` and values `UV_h c` are computed from the cache entries, and attended to as in any
//! transformer: 320 multiply-adds a query, position and head where the absorbed form (`attention.rs`) takes 1,088. Expanding costs
//! as much as absorbing one query does, so it pays where many queries see the same positions. Both are the same formula, summed in
//! another order. Which one a token gets depends on whether it belongs to the prompt, and never on the chunk that it came in.
//!
//! Pages and their softmax are those of the absorbed form, so a token's sums depend on its position alone here too.

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use lucid_checkpoint::Matrix;

use crate::cpu::attention::{Span, scale, softmax_page};
use crate::cpu::cache::{Entries, LatentCache};
use crate::cpu::dot::{Scratch, Target, dots};
use crate::cpu::matmul::{Inputs, OutputBuffer, Product, multiply};
use crate::cpu::row::Rows;
use crate::cpu::threads::Threads;
use crate::cpu::weighted_sum::weighted_sum;
use crate::kv_cache::{PAGE_TOKENS, PageId};

/// Queries that one task holds: a page of keys and values is read once for all of them, and their sums stay in the core's own
/// cache. A multiple of the widest tile, 6.
const BLOCK_QUERIES: usize = 96;

/// Bytes of keys and values that are expanded at a time, if one head doesn't need more.
pub const MOST_BYTES: usize = 64 << 20;

/// Sizes and scale.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Attention heads.
    pub heads: usize,
    /// Latent part of a cache entry (kv_lora_rank).
    pub latent: usize,
    /// Columns of a head's key that come from the latent (qk_nope_head_dim).
    pub nope: usize,
    /// Columns that all heads' keys share (qk_rope_head_dim).
    pub rope: usize,
    /// Columns of a head's value.
    pub value: usize,
    /// Softmax scale.
    pub scale: f32,
}

impl Shape {
    fn key(self) -> usize {
        self.nope + self.rope
    }
}

/// Buffers; they grow to the longest prompt's and stay.
#[derive(Default)]
pub struct Expanded {
    entries: Vec<f32>, // [positions, latent + rope]: of all spans, one after the other
    keys: Vec<f32>,    // [heads of a group, positions, nope + rope]
    values: Vec<f32>,  // [heads of a group, positions, value]
}

/// What one thread needs for a block.
#[derive(Default)]
struct Block {
    page: Vec<f32>,        // [PAGE_TOKENS, latent + rope]
    scores: Vec<f32>,      // [queries, PAGE_TOKENS]
    maximum: Vec<f32>,     // [queries]
    sum: Vec<f32>,         // [queries]
    accumulated: Vec<f32>, // [queries, value]
    no_scratch: Scratch,
}

thread_local! {
    static BLOCK: RefCell<Block> = RefCell::new(Block::default());
}

/// A buffer whose parts are written by different threads.
struct Shared(*mut f32);
// SAFETY: every element belongs to exactly one task of a round.
unsafe impl Sync for Shared {}

/// One task: some queries of a span, one head.
struct Piece<'a> {
    shape: Shape,
    span: &'a Span<'a>,
    tokens: Range<usize>,
    head: usize,
    /// `[rows, heads, nope + rope]`
    queries: &'a [f32],
    /// `[positions of the span, nope + rope]`
    keys: &'a [f32],
    /// `[positions of the span, value]`
    values: &'a [f32],
}

impl Expanded {
    /// For each row and head `Σ_t p_t v_t`, over rows of prompts.
    ///
    /// `queries` `[rows, heads, nope + rope]`, `kv_b` `[heads (nope + value), latent]`, `out` `[rows, heads, value]`.
    ///
    /// # Panics
    /// When a buffer is too small.
    #[allow(clippy::too_many_arguments)] // one call, one place: a struct would only rename them
    pub fn attend(
        &mut self,
        threads: &mut Threads,
        cache: &LatentCache,
        layer: usize,
        shape: Shape,
        kv_b: &Matrix,
        spans: &[Span<'_>],
        queries: &[f32],
        out: &mut [f32],
    ) {
        let rows = spans.iter().map(|span| span.row + span.count).max().unwrap_or(0);
        assert!(out.len() >= rows * shape.heads * shape.value, "attention output is too small");
        // Where each span's positions begin.
        let mut begins = Vec::with_capacity(spans.len());
        let mut positions = 0;
        for span in spans {
            begins.push(positions);
            positions += span.position + span.count;
        }
        let head_bytes = 4 * positions * (shape.key() + shape.value);
        let group = (MOST_BYTES / head_bytes.max(1)).clamp(1, shape.heads);
        for first in (0..shape.heads).step_by(group) {
            let heads = first..shape.heads.min(first + group);
            self.read(threads, cache, layer, shape, spans, &begins, positions, heads.len());
            self.expand(threads, shape, kv_b, positions, heads.clone());
            self.attend_heads(threads, shape, spans, &begins, positions, heads, queries, out);
        }
    }

    /// Fills `entries`, and the shared columns of `heads` keys.
    #[allow(clippy::too_many_arguments)] // see `attend`
    fn read(
        &mut self,
        threads: &mut Threads,
        cache: &LatentCache,
        layer: usize,
        shape: Shape,
        spans: &[Span<'_>],
        begins: &[usize],
        positions: usize,
        heads: usize,
    ) {
        let (width, key) = (shape.latent + shape.rope, shape.key());
        self.entries.resize(self.entries.len().max(positions * width), 0.0);
        self.keys.resize(self.keys.len().max(heads * positions * key), 0.0);
        self.values.resize(self.values.len().max(heads * positions * shape.value), 0.0);
        // Page, how many entries of it, where they go.
        let pages: Vec<(PageId, usize, usize)> = spans
            .iter()
            .zip(begins)
            .flat_map(|(span, &begin)| {
                let last = span.position + span.count;
                let pages = span.pages.iter().enumerate().take(last.div_ceil(PAGE_TOKENS));
                pages.map(move |(number, &page)| {
                    let first = number * PAGE_TOKENS;
                    (page, PAGE_TOKENS.min(last - first), begin + first)
                })
            })
            .collect();
        let (entries, keys) = (Shared(self.entries.as_mut_ptr()), Shared(self.keys.as_mut_ptr()));
        let (entries, keys) = (&entries, &keys);
        threads.for_each(pages.len(), |task| {
            let (page, count, at) = pages[task];
            BLOCK.with_borrow_mut(|block| {
                let values = cache.page(layer, page, count, &mut block.page);
                for (i, entry) in values.chunks_exact(width).enumerate() {
                    // SAFETY: both buffers were made for all positions and heads; a position belongs to one page of one span.
                    unsafe {
                        let place = entries.0.add((at + i) * width);
                        place.copy_from_nonoverlapping(entry.as_ptr(), width);
                        for head in 0..heads {
                            let place = keys.0.add((head * positions + at + i) * key + shape.nope);
                            place.copy_from_nonoverlapping(entry[shape.latent..].as_ptr(), shape.rope);
                        }
                    }
                }
            });
        });
    }

    /// The other columns of the keys, and the values.
    fn expand(
        &mut self,
        threads: &mut Threads,
        shape: Shape,
        kv_b: &Matrix,
        positions: usize,
        heads: Range<usize>,
    ) {
        let inputs = Inputs::dense(&self.entries, shape.latent + shape.rope);
        let (mut keys, mut values) = (OutputBuffer::new(&mut self.keys), OutputBuffer::new(&mut self.values));
        let mut products = Vec::with_capacity(2 * heads.len());
        for (i, head) in heads.enumerate() {
            let first = head * (shape.nope + shape.value);
            let (key, value) = (shape.key(), shape.value);
            // SAFETY: each head has its own part, and keys and values are different buffers.
            let outputs = unsafe {
                [
                    keys.rows(i * positions * key, key, positions, shape.nope),
                    values.rows(i * positions * value, value, positions, value),
                ]
            };
            let rows = [first..first + shape.nope, first + shape.nope..first + shape.nope + value];
            for (rows, outputs) in rows.into_iter().zip(outputs) {
                products.push(Product { weight: kv_b, rows, inputs, count: positions, outputs });
            }
        }
        multiply(threads, &products);
    }

    #[allow(clippy::too_many_arguments)] // see `attend`
    fn attend_heads(
        &self,
        threads: &mut Threads,
        shape: Shape,
        spans: &[Span<'_>],
        begins: &[usize],
        positions: usize,
        heads: Range<usize>,
        queries: &[f32],
        out: &mut [f32],
    ) {
        let blocks: usize = spans.iter().map(|span| span.count.div_ceil(BLOCK_QUERIES)).sum();
        let output = Shared(out.as_mut_ptr());
        let output = &output;
        threads.for_each(blocks * heads.len(), |task| {
            // Late blocks see the most, so they go first.
            let (mut block, index) = (blocks - 1 - task / heads.len(), task % heads.len());
            for (span, &begin) in spans.iter().zip(begins) {
                let here = span.count.div_ceil(BLOCK_QUERIES);
                if block < here {
                    let first = index * positions + begin;
                    let last = first + span.position + span.count;
                    let piece = Piece {
                        shape,
                        span,
                        tokens: block * BLOCK_QUERIES..span.count.min((block + 1) * BLOCK_QUERIES),
                        head: heads.start + index,
                        queries,
                        keys: &self.keys[first * shape.key()..last * shape.key()],
                        values: &self.values[first * shape.value..last * shape.value],
                    };
                    return BLOCK.with_borrow_mut(|scratch| attend_piece(scratch, &piece, output));
                }
                block -= here;
            }
        });
    }
}

fn attend_piece(block: &mut Block, piece: &Piece<'_>, output: &Shared) {
    let Piece { shape, span, head, .. } = *piece;
    let (count, key, value) = (piece.tokens.len(), shape.key(), shape.value);
    let row = |q: usize| (span.row + piece.tokens.start + q) * shape.heads + head;
    block.scores.resize(count * PAGE_TOKENS, 0.0);
    block.maximum.clear();
    block.maximum.resize(count, f32::NEG_INFINITY);
    block.sum.clear();
    block.sum.resize(count, 0.0);
    block.accumulated.clear();
    block.accumulated.resize(count * value, 0.0);

    let last = span.position + piece.tokens.end; // positions below are visible to the last query
    for first in (0..last).step_by(PAGE_TOKENS) {
        let entries = PAGE_TOKENS.min(last - first);
        let keys = Rows::f32s(&piece.keys[first * key..(first + entries) * key], key);
        let target = Target { at: block.scores.as_mut_ptr(), stride: PAGE_TOKENS, scale: shape.scale };
        let query = |q: usize| &piece.queries[row(q) * key..][..key];
        // SAFETY: `scores` has room for PAGE_TOKENS entries of every query, and is ours.
        unsafe { dots(keys, count, query, &mut block.no_scratch, target) };
        for q in 0..count {
            let visible = (span.position + piece.tokens.start + q + 1).saturating_sub(first).min(entries);
            let scores = &mut block.scores[q * PAGE_TOKENS..(q + 1) * PAGE_TOKENS];
            let rescale = softmax_page(scores, visible, &mut block.maximum[q], &mut block.sum[q]);
            if rescale != 1.0 {
                scale(&mut block.accumulated[q * value..(q + 1) * value], rescale);
            }
        }
        let values = Entries::F32(&piece.values[first * value..(first + entries) * value]);
        weighted_sum((count, entries, value), &block.scores, values, value, &mut block.accumulated);
    }
    for q in 0..count {
        let sums = &mut block.accumulated[q * value..(q + 1) * value];
        scale(sums, 1.0 / block.sum[q]);
        // SAFETY: inside `out` (checked by `attend`); this (token, head) is this task's own.
        unsafe { output.0.add(row(q) * value).copy_from_nonoverlapping(sums.as_ptr(), value) };
    }
}
