//! Latent attention over chosen positions.
//!
//! As in `attention.rs`, with blocks of chosen entries, gathered in ascending order, in place of pages. If every position is chosen
//! the blocks are the pages, and the result has the bits of attention over everything.

use std::cell::RefCell;
use std::ops::Range;

use super::{Choice, Choices};
use crate::cpu::aligned::Aligned;
use crate::cpu::attention::{Shape, Span, attend};
use crate::cpu::cache::{Entries, LatentCache};
use crate::cpu::dot::{Scratch, Target, dots};
use crate::cpu::row::Rows;
use crate::cpu::softmax::Softmax;
use crate::cpu::threads::Threads;
use crate::cpu::weighted_sum::{Sizes, weighted_sum};
use crate::kv_cache::PAGE_TOKENS;

/// What one thread needs for a row.
#[derive(Default)]
struct Block {
    entries: Aligned<f32>, // [PAGE_TOKENS, width]
    scores: Aligned<f32>,  // [heads, PAGE_TOKENS]
    softmax: Softmax,
    accumulated: Aligned<f32>, // [heads, latent]
    no_scratch: Scratch,
}

thread_local! {
    static BLOCK: RefCell<Block> = RefCell::new(Block::default());
}

/// Where a task's results go.
struct Output(*mut f32);
// SAFETY: every (row, head) belongs to exactly one task, which alone writes its `latent` values.
unsafe impl Sync for Output {}

/// As [`attend`], each row over its choice.
#[allow(clippy::too_many_arguments)] // as `attend`
pub fn attend_chosen(
    threads: &mut Threads,
    cache: &LatentCache,
    layer: usize,
    shape: Shape,
    spans: &[Span<'_>],
    choices: &Choices,
    queries: &[f32],
    out: &mut [f32],
) {
    let tokens = spans.iter().map(|span| span.row + span.count).max().unwrap_or(0);
    assert!(out.len() >= tokens * shape.heads * shape.latent, "attention output is too small");
    // Rows that see everything come first in a span, for there are more and more tokens to see.
    let sees_everything = |span: &Span<'_>| {
        (0..span.count).take_while(|i| choices.of(span.row + i) == Choice::Everything).count()
    };
    let (mut whole, mut chosen) = (Vec::new(), Vec::new());
    for span in spans {
        let count = sees_everything(span);
        if count > 0 {
            whole.push(Span { count, ..*span });
        }
        chosen.extend((count..span.count).map(|i| {
            let (row, position) = (span.row + i, span.position + i);
            Span { position, count: 1, row, ..*span }
        }));
    }
    if !whole.is_empty() {
        attend(threads, cache, layer, shape, &whole, queries, out);
    }
    // Few rows (decode): cut the heads too, so that every thread has work.
    let head_groups = (2 * threads.count()).div_ceil(chosen.len().max(1)).clamp(1, shape.heads);
    let group = shape.heads.div_ceil(head_groups);
    let head_groups = shape.heads.div_ceil(group);
    let output = Output(out.as_mut_ptr());
    let output = &output;
    threads.for_each(chosen.len() * head_groups, |task| {
        let (token, first) = (&chosen[task / head_groups], task % head_groups * group);
        let heads = first..shape.heads.min(first + group);
        let list = match choices.of(token.row) {
            Choice::Listed(number) => Some(choices.list(number)),
            Choice::NotFinite | Choice::Everything => None,
        };
        BLOCK.with_borrow_mut(|block| {
            attend_row(block, cache, layer, shape, token, heads, list, queries, output);
        });
    });
}

#[allow(clippy::too_many_arguments)] // one call, one place: a struct would only rename them
fn attend_row(
    block: &mut Block,
    cache: &LatentCache,
    layer: usize,
    shape: Shape,
    token: &Span<'_>,
    heads: Range<usize>,
    list: Option<&[u32]>,
    queries: &[f32],
    output: &Output,
) {
    let (width, latent, count) = (cache.width(), shape.latent, heads.len());
    let query = |q: usize| &queries[(token.row * shape.heads + heads.start + q) * width..][..width];
    let at = (token.row * shape.heads + heads.start) * latent;
    let Some(list) = list else {
        for i in 0..count * latent {
            // SAFETY: inside `out` (checked in `attend_chosen`); these heads of this row are this task's own.
            unsafe { output.0.add(at + i).write(f32::NAN) };
        }
        return;
    };
    // All of the list, unless a planted fault moved the row to an earlier position.
    let list = &list[..list.partition_point(|&position| position as usize <= token.position)];
    block.scores.resize(count * PAGE_TOKENS, 0.0);
    block.softmax.begin(count);
    block.accumulated.clear();
    block.accumulated.resize(count * latent, 0.0);
    block.entries.resize(PAGE_TOKENS * width, 0.0);
    for positions in list.chunks(PAGE_TOKENS) {
        for (&position, entry) in positions.iter().zip(block.entries.chunks_exact_mut(width)) {
            let position = position as usize;
            cache.entry(layer, token.pages[position / PAGE_TOKENS], position % PAGE_TOKENS, entry);
        }
        let entries = &block.entries[..positions.len() * width];
        let target = Target { at: block.scores.as_mut_ptr(), stride: PAGE_TOKENS, scale: shape.scale };
        // SAFETY: `scores` has room for PAGE_TOKENS entries of every head, and is ours.
        unsafe { dots(Rows::f32s(entries, width), count, query, &mut block.no_scratch, target) };
        block.softmax.page(&mut block.scores, |_| positions.len(), &mut block.accumulated, latent);
        let sizes = Sizes::page(count, positions.len(), latent, width);
        weighted_sum(sizes, &block.scores, Entries::F32(entries), &mut block.accumulated);
    }
    for q in 0..count {
        let inverse = block.softmax.inverse(q);
        for (i, &value) in block.accumulated[q * latent..(q + 1) * latent].iter().enumerate() {
            // SAFETY: as above.
            unsafe { output.0.add(at + q * latent + i).write(value * inverse) };
        }
    }
}
