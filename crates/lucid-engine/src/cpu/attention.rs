//! Latent attention in the absorbed form, one page after the other: answers, and prompts too where the tile unit runs.
//!
//! Every head's query is `[q̃ | q_pe]` against cache entries `[c | k_pe]`; the values are the entries' latent part. The softmax
//! runs online over the pages in order. Pages begin at fixed positions, so the
//! order of every sum depends on the token's position alone: not on the chunk, the batch or the threads.

use std::cell::RefCell;

use super::aligned::Aligned;
use super::cache::LatentCache;
use super::dot::{Scratch, Target, dots};
use super::softmax::Softmax;
use super::threads::Threads;
use super::weighted_sum::{Sizes, weighted_sum};
use crate::kv_cache::{PAGE_TOKENS, PageId};

/// Query vectors (tokens times heads) that one task holds: their running sums stay in the core's own cache, and it is a
/// multiple of the widest tile, 6.
const BLOCK_QUERIES: usize = 48;

/// Consecutive tokens of one sequence in this step, whose cache entries are written already.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The sequence's pages, in order.
    pub pages: &'a [PageId],
    /// Position of the first token.
    pub position: usize,
    /// Tokens.
    pub count: usize,
    /// Row of the first token in the step's buffers.
    pub row: usize,
    /// How many of the sequence's tokens are its prompt. A processor computes prompt and answer by different forms of attention,
    /// so this must not depend on when a token is computed.
    pub prompt: usize,
}

impl<'a> Span<'a> {
    /// The tokens of the prompt, then those of the answer, where there are such; with `prompts` off, all as an answer.
    pub fn split(self, prompts: bool) -> impl Iterator<Item = (bool, Span<'a>)> {
        let prompt = if prompts { self.prompt.saturating_sub(self.position).min(self.count) } else { 0 };
        let first = Span { count: prompt, ..self };
        let (position, row) = (self.position + prompt, self.row + prompt);
        let rest = Span { position, row, count: self.count - prompt, ..self };
        [(true, first), (false, rest)].into_iter().filter(|(_, span)| span.count > 0)
    }
}

/// Sizes and scale.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Attention heads.
    pub heads: usize,
    /// Latent part of an entry (kv_lora_rank).
    pub latent: usize,
    /// Softmax scale.
    pub scale: f32,
}

/// What one thread needs for a block.
#[derive(Default)]
struct Block {
    page: Aligned<f32>,   // [PAGE_TOKENS, width]
    scores: Aligned<f32>, // [queries, PAGE_TOKENS]
    softmax: Softmax,
    accumulated: Aligned<f32>, // [queries, latent]
    no_scratch: Scratch,
}

thread_local! {
    static BLOCK: RefCell<Block> = RefCell::new(Block::default());
}

/// Where a task's results go.
struct Output(*mut f32);
// SAFETY: every (token, head) belongs to exactly one task, which alone writes its `latent` values.
unsafe impl Sync for Output {}

/// For each row and head `Σ_t p_t c_t`.
///
/// `queries` `[rows, heads, width]`, `out` `[rows, heads, latent]`.
pub fn attend(
    threads: &mut Threads,
    cache: &LatentCache,
    layer: usize,
    shape: Shape,
    spans: &[Span<'_>],
    queries: &[f32],
    out: &mut [f32],
) {
    let tokens = spans.iter().map(|span| span.row + span.count).max().unwrap_or(0);
    assert!(out.len() >= tokens * shape.heads * shape.latent, "attention output is too small");
    #[cfg(target_arch = "x86_64")]
    if threads.tiles() && cache.is_bf16() {
        return super::tiles::attend(threads, cache, layer, shape, spans, queries, out);
    }
    let block_tokens = (BLOCK_QUERIES / shape.heads).max(1);
    let blocks: usize = spans.iter().map(|span| span.count.div_ceil(block_tokens)).sum();
    // Few blocks (decode): cut the heads too, so that every thread has work.
    let head_groups = threads.count().div_ceil(blocks.max(1)).clamp(1, shape.heads);
    let group = shape.heads.div_ceil(head_groups);
    let head_groups = shape.heads.div_ceil(group);
    let output = Output(out.as_mut_ptr());
    let output = &output;
    threads.for_each(blocks * head_groups, |task| {
        let (mut block, heads) = (task / head_groups, task % head_groups * group);
        for span in spans {
            let here = span.count.div_ceil(block_tokens);
            if block < here {
                let tokens = block * block_tokens..span.count.min((block + 1) * block_tokens);
                let heads = heads..shape.heads.min(heads + group);
                return BLOCK.with_borrow_mut(|scratch| {
                    attend_block(scratch, cache, layer, shape, span, tokens, heads, queries, output);
                });
            }
            block -= here;
        }
    });
}

#[allow(clippy::too_many_arguments)] // one call, one place: a struct would only rename them
fn attend_block(
    block: &mut Block,
    cache: &LatentCache,
    layer: usize,
    shape: Shape,
    span: &Span<'_>,
    tokens: std::ops::Range<usize>,
    heads: std::ops::Range<usize>,
    queries: &[f32],
    output: &Output,
) {
    let (width, latent) = (cache.width(), shape.latent);
    let count = tokens.len() * heads.len();
    let token_of = |q: usize| tokens.start + q / heads.len();
    let head_of = |q: usize| heads.start + q % heads.len();
    let query = |q: usize| {
        let at = ((span.row + token_of(q)) * shape.heads + head_of(q)) * width;
        &queries[at..at + width]
    };
    block.scores.resize(count * PAGE_TOKENS, 0.0);
    block.softmax.begin(count);
    block.accumulated.clear();
    block.accumulated.resize(count * latent, 0.0);

    let last = span.position + tokens.end; // positions below are visible to the last token
    for (number, &page) in span.pages[..last.div_ceil(PAGE_TOKENS)].iter().enumerate() {
        let first = number * PAGE_TOKENS;
        let entries = PAGE_TOKENS.min(last - first);
        let values = cache.entries(layer, page, entries, &mut block.page);
        let target = Target { at: block.scores.as_mut_ptr(), stride: PAGE_TOKENS, scale: shape.scale };
        // SAFETY: `scores` has room for PAGE_TOKENS entries of every query, and is ours.
        unsafe { dots(values.rows(width), count, query, &mut block.no_scratch, target) };
        let visible = |q: usize| (span.position + token_of(q) + 1).saturating_sub(first).min(entries);
        block.softmax.page(&mut block.scores, visible, &mut block.accumulated, latent);
        weighted_sum(
            Sizes::page(count, entries, latent, width),
            &block.scores,
            values,
            &mut block.accumulated,
        );
    }
    for q in 0..count {
        let at = ((span.row + token_of(q)) * shape.heads + head_of(q)) * latent;
        let inverse = block.softmax.inverse(q);
        for (i, &value) in block.accumulated[q * latent..(q + 1) * latent].iter().enumerate() {
            // SAFETY: inside `out` (checked in `attend`); this (token, head) is this task's own.
            unsafe { output.0.add(at + i).write(value * inverse) };
        }
    }
}
