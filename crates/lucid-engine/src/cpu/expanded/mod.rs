//! Latent attention in the expanded form: the prompt.
//!
//! Every head's keys `[UK_h c | k_pe]` and values `UV_h c` are computed from the cache entries, and attended to as in any
//! transformer: 320 multiply-adds a query, position and head where the absorbed form (`attention.rs`) takes 1,088. Expanding costs
//! as much as absorbing one query does, so it pays where many queries see the same positions. Both are the same formula, summed in
//! another order. Which one a token gets depends on whether it belongs to the prompt, and never on the chunk that it came in.
//!
//! Pages and their softmax are those of the absorbed form, so a token's sums depend on its position alone here too.

mod keys;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

pub use keys::side_by_side;
use keys::{HeadPage, Keys};

use crate::cpu::aligned::Aligned;
use crate::cpu::attention::Span;
use crate::cpu::cache::{Entries, LatentCache};
use crate::cpu::dot::Scratch;
use crate::cpu::softmax::{Softmax, scale};
use crate::cpu::threads::Threads;
use crate::cpu::weighted_sum::{Sizes, weighted_sum};
use crate::kv_cache::PAGE_TOKENS;
use crate::weights::KeysAndValues;

/// Queries that one task holds: a page of keys and values is read once for all of them, and their sums stay in the core's own
/// cache. A multiple of the widest tile, 12.
const BLOCK_QUERIES: usize = 96;

/// Queries that go together where not all of them see a whole page: nothing is computed that the last of them doesn't see.
const FEW_QUERIES: usize = 12;

/// Columns that are computed together at least: a vector of scores.
const COLUMNS: usize = 16;

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

/// Buffers; they grow to the longest prompt's and stay.
#[derive(Default)]
pub struct Expanded {
    keys: Keys,
}

/// What one thread needs for a block.
#[derive(Default)]
struct Block {
    page: Aligned<f32>,    // [PAGE_TOKENS, latent + rope] or [PAGE_TOKENS, nope]
    queries: Aligned<f32>, // [columns of nope, then of rope, by PAGE_TOKENS][queries, PAGE_TOKENS]
    scores: Aligned<f32>,  // [queries, PAGE_TOKENS]
    softmax: Softmax,
    accumulated: Aligned<f32>, // [queries, value]
    scratch: Scratch,
}

thread_local! {
    static BLOCK: RefCell<Block> = RefCell::new(Block::default());
}

/// A buffer whose parts are written by different threads.
struct Shared<'a> {
    at: *mut f32,
    len: usize,
    buffer: PhantomData<&'a mut [f32]>,
}

// SAFETY: every part belongs to exactly one task of a round.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    fn new(buffer: &'a mut [f32]) -> Shared<'a> {
        Shared { at: buffer.as_mut_ptr(), len: buffer.len(), buffer: PhantomData }
    }

    /// # Safety
    /// No other task has a part that overlaps this one.
    #[allow(clippy::mut_from_ref)] // that is what it is for: the caller keeps parts apart
    unsafe fn part(&self, start: usize, len: usize) -> &mut [f32] {
        assert!(start + len <= self.len, "a part leaves its buffer");
        // SAFETY: inside the buffer, which stays borrowed, and nobody else's.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(start), len) }
    }
}

/// One task: some queries of a span, one head.
struct Piece<'a> {
    shape: Shape,
    span: &'a Span<'a>,
    tokens: Range<usize>,
    head: usize,
    /// `[rows, heads, nope + rope]`
    queries: &'a [f32],
    keys: &'a Keys,
    /// The head's number among those in `keys`.
    index: usize,
    /// The span's first page in `keys`.
    first_page: usize,
}

impl Expanded {
    /// For each row and head `Σ_t p_t v_t`, over rows of prompts.
    ///
    /// `queries` `[rows, heads, nope + rope]`, `out` `[rows, heads, value]`.
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
        projection: &KeysAndValues,
        spans: &[Span<'_>],
        queries: &[f32],
        out: &mut [f32],
    ) {
        let begins = self.keys.read(threads, cache, layer, shape, spans);
        let blocks: usize = spans.iter().map(|span| span.count.div_ceil(BLOCK_QUERIES)).sum();
        let output = Shared::new(out);
        let group = (MOST_BYTES / self.keys.head_bytes(shape).max(1)).clamp(1, shape.heads);
        for first in (0..shape.heads).step_by(group) {
            let heads = first..shape.heads.min(first + group);
            self.keys.expand(threads, shape, projection, heads.clone());
            threads.for_each(blocks * heads.len(), |task| {
                // Late blocks see the most, so they go first.
                let (mut block, index) = (blocks - 1 - task / heads.len(), task % heads.len());
                for (span, &first_page) in spans.iter().zip(&begins) {
                    let here = span.count.div_ceil(BLOCK_QUERIES);
                    if block < here {
                        let tokens = block * BLOCK_QUERIES..span.count.min((block + 1) * BLOCK_QUERIES);
                        let (head, keys) = (heads.start + index, &self.keys);
                        let piece = Piece { shape, span, tokens, head, queries, keys, index, first_page };
                        return BLOCK.with_borrow_mut(|scratch| attend_piece(scratch, &piece, &output));
                    }
                    block -= here;
                }
            });
        }
    }
}

fn attend_piece(block: &mut Block, piece: &Piece<'_>, output: &Shared<'_>) {
    let Piece { shape, span, head, .. } = *piece;
    let (count, key, value) = (piece.tokens.len(), shape.nope + shape.rope, shape.value);
    let row = |q: usize| (span.row + piece.tokens.start + q) * shape.heads + head;
    // Side by side and cut like weights of a page: in the step's buffer the queries of a head are so far apart that they push each
    // other out of the first cache.
    let cuts = |columns: Range<usize>| {
        let end = columns.end;
        columns.step_by(PAGE_TOKENS).map(move |first| first..end.min(first + PAGE_TOKENS))
    };
    let rotated = cuts(0..shape.nope).count() * count * PAGE_TOKENS; // where queries' rotated columns begin
    block.queries.clear();
    for columns in cuts(0..shape.nope).chain(cuts(shape.nope..key)) {
        for q in 0..count {
            let at = block.queries.len();
            block.queries.extend_from_slice(&piece.queries[row(q) * key..][columns.clone()]);
            block.queries.resize(at + PAGE_TOKENS, 0.0);
        }
    }
    block.scores.resize(count * PAGE_TOKENS, 0.0);
    block.softmax.begin(count);
    block.accumulated.clear();
    block.accumulated.resize(count * value, 0.0);

    let position = span.position + piece.tokens.start;
    let last = position + count; // positions below are visible to the last query
    let pages = last.div_ceil(PAGE_TOKENS);
    let side_by_side = side_by_side();
    for number in 0..pages {
        let first = number * PAGE_TOKENS;
        let visible = |q: usize| (position + q + 1).saturating_sub(first).min(PAGE_TOKENS);
        let page = piece.keys.page(shape, piece.index, piece.first_page + number);
        let next =
            (number + 1 < pages).then(|| piece.keys.page(shape, piece.index, piece.first_page + number + 1));
        let next = next.unwrap_or(HeadPage { keys: &[], rotated: &[], values: &[] });
        // Queries that see something of it, in groups.
        let seeing = first.saturating_sub(position);
        let group = if visible(0) == PAGE_TOKENS { count } else { FEW_QUERIES };
        let groups = || (seeing..count).step_by(group).map(|q| q..count.min(q + group));
        for group in groups() {
            let queries = &block.queries[group.start * PAGE_TOKENS..];
            let scores = &mut block.scores[group.start * PAGE_TOKENS..group.end * PAGE_TOKENS];
            let cols = visible(group.end - 1).next_multiple_of(COLUMNS);
            scores.fill(0.0);
            let mut add = |queries: &[f32], entries: usize, keys: &[f32], next: &[f32]| {
                let sizes = Sizes {
                    queries: group.len(),
                    entries,
                    cols,
                    parts_stride: count * PAGE_TOKENS,
                    values_stride: side_by_side,
                    block: side_by_side,
                    blocks_stride: entries * side_by_side,
                    sums_stride: PAGE_TOKENS,
                    next,
                };
                weighted_sum(sizes, queries, Entries::F32(keys), scores);
            };
            add(queries, shape.nope, page.keys, next.keys);
            add(&queries[rotated..], shape.rope, page.rotated, next.rotated);
            scale(scores, shape.scale);
        }
        block.softmax.page(&mut block.scores, visible, &mut block.accumulated, value);
        for group in groups() {
            let weights = &block.scores[group.start * PAGE_TOKENS..group.end * PAGE_TOKENS];
            let sums = &mut block.accumulated[group.start * value..group.end * value];
            let entries = visible(group.end - 1);
            let sizes = Sizes {
                values_stride: side_by_side,
                block: side_by_side,
                blocks_stride: PAGE_TOKENS * side_by_side,
                next: next.values,
                ..Sizes::page(group.len(), entries, value, value)
            };
            weighted_sum(sizes, weights, Entries::F32(page.values), sums);
        }
    }
    for q in 0..count {
        let sums = &mut block.accumulated[q * value..(q + 1) * value];
        scale(sums, block.softmax.inverse(q));
        // SAFETY: this (token, head) is this task's own.
        unsafe { output.part(row(q) * value, value) }.copy_from_slice(sums);
    }
}
