//! Latent attention on tiles: the twin of `cpu/attention.rs`, page by page as there.
//!
//! A page of the cache is already what the tile unit takes as weights: its product with the queries gives the scores. For the
//! weighted sum the softmax weights are cut into three bf16 parts and stand on the left, and pairs of cache entries are woven
//! together on the right.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::kernel::{NO_SUMS, ROWS, Sums, Tiles, add_weighted, multiply_block};
use super::parts::{PARTS, split_32};
use super::vectors::{BLOCK, Form, Line, STEP, pack};
use super::weights::Panel;
use crate::cpu::attention::{Shape, Span};
use crate::cpu::cache::LatentCache;
use crate::cpu::dot::Target;
use crate::cpu::softmax::{Softmax, scale};
use crate::cpu::threads::Threads;
use crate::kv_cache::PAGE_TOKENS;

/// Query vectors (tokens times heads) that one task holds: enough that weaving a page is cheap beside using it, and their sums
/// stay in the core's own cache.
const BLOCK_QUERIES: usize = 128;

/// Columns of the sums that are computed together: four tiles.
pub const COLUMNS: usize = 64;

/// What one thread needs for a block.
#[derive(Default)]
struct Block {
    queries: Vec<Line>, // blocks of sixteen, packed
    scores: Vec<f32>,   // [queries, PAGE_TOKENS]
    weights: Vec<Line>, // [queries / 16, 3 parts, 16, PAGE_TOKENS] bf16
    values: Vec<Line>,  // [PAGE_TOKENS / 2, latent] pairs of bf16
    softmax: Softmax,
    accumulated: Vec<f32>, // [queries, latent]
    sums: Option<Box<Sums>>,
}

thread_local! {
    static SCRATCH: RefCell<Block> = RefCell::new(Block::default());
}

/// Where a task's results go.
struct Output(*mut f32);
// SAFETY: every (token, head) belongs to exactly one task, which alone writes its `latent` values.
unsafe impl Sync for Output {}

/// One task: some tokens of a span, some heads.
struct Piece<'a> {
    cache: &'a LatentCache,
    layer: usize,
    shape: Shape,
    span: &'a Span<'a>,
    tokens: Range<usize>,
    heads: Range<usize>,
    queries: &'a [f32],
}

impl Piece<'_> {
    fn count(&self) -> usize {
        self.tokens.len() * self.heads.len()
    }

    fn token(&self, query: usize) -> usize {
        self.tokens.start + query / self.heads.len()
    }

    /// The row of a query in `[rows, heads, _]`.
    fn row(&self, query: usize) -> usize {
        let head = self.heads.start + query % self.heads.len();
        (self.span.row + self.token(query)) * self.shape.heads + head
    }
}

/// Whether this form takes such a cache.
pub fn takes(latent: usize, width: usize) -> bool {
    latent.is_multiple_of(COLUMNS) && width.is_multiple_of(STEP)
}

/// See [`crate::cpu::attention::attend`].
pub fn attend(
    threads: &mut Threads,
    cache: &LatentCache,
    layer: usize,
    shape: Shape,
    spans: &[Span<'_>],
    queries: &[f32],
    out: &mut [f32],
) {
    let block_tokens = (BLOCK_QUERIES / shape.heads).max(1);
    let blocks: usize = spans.iter().map(|span| span.count.div_ceil(block_tokens)).sum();
    // Few blocks (decode): cut the heads too, so that every thread has work; but each task weaves its pages itself.
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
                let piece = Piece { cache, layer, shape, span, tokens, heads, queries };
                // SAFETY: the tile unit was found, and AVX-512 comes with it.
                return SCRATCH.with_borrow_mut(|scratch| unsafe { attend_piece(scratch, &piece, output) });
            }
            block -= here;
        }
    });
}

/// Attends with one piece of the queries.
///
/// # Safety
/// The processor has the tile unit and AVX-512, and `output` has a row for every query of the piece that no other thread writes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn attend_piece(block: &mut Block, piece: &Piece<'_>, output: &Output) {
    let (width, latent, count) = (piece.cache.width(), piece.shape.latent, piece.count());
    let steps = width / STEP;
    let query_blocks = count.div_ceil(BLOCK);
    block.scores.resize(count * PAGE_TOKENS, 0.0);
    block.softmax.begin(count);
    block.accumulated.clear();
    block.accumulated.resize(count * latent, 0.0);
    block.weights.resize(query_blocks * PARTS * ROWS * (PAGE_TOKENS / STEP), Line::ZERO);
    block.values.resize(PAGE_TOKENS / 2 * latent / 16, Line::ZERO);
    // SAFETY: AVX-512 and tiles as promised by the caller; buffers were made for these sizes.
    unsafe {
        pack_queries(block, piece);
        let visible_to_last = piece.span.position + piece.tokens.end;
        for (number, &page) in piece.span.pages[..visible_to_last.div_ceil(PAGE_TOKENS)].iter().enumerate() {
            let first = number * PAGE_TOKENS;
            let entries = PAGE_TOKENS.min(visible_to_last - first);
            let Some(values) = piece.cache.bf16_page(piece.layer, page, entries) else { return };
            let panel = Panel { at: values.as_ptr().cast(), stride: width * 2, rows: entries, steps };
            score(block, piece, panel);
            let visible =
                |q: usize| (piece.span.position + piece.token(q) + 1).saturating_sub(first).min(entries);
            block.softmax.page(&mut block.scores, visible, &mut block.accumulated, latent);
            split_weights(&block.scores[..count * PAGE_TOKENS], &mut block.weights);
            weave(values, width, latent, &mut block.values);
            for at in (0..count).step_by(ROWS) {
                let rows = ROWS.min(count - at);
                let tiles = Tiles::for_weighted_sum(rows);
                let weights = block.weights.as_ptr().add(at / ROWS * PARTS * ROWS * (PAGE_TOKENS / STEP));
                let sums = block.accumulated.as_mut_ptr().add(at * latent);
                add_weighted(&tiles, weights, block.values.as_ptr(), latent, sums);
            }
        }
        for q in 0..count {
            let sums = &mut block.accumulated[q * latent..(q + 1) * latent];
            scale(sums, block.softmax.inverse(q));
            // Inside `out` (checked by the caller); this (token, head) is this task's own.
            output.0.add(piece.row(q) * latent).copy_from_nonoverlapping(sums.as_ptr(), latent);
        }
    }
}

/// Lays the queries of a piece out for the tile unit.
///
/// # Safety
/// The processor has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_queries(block: &mut Block, piece: &Piece<'_>) {
    let width = piece.cache.width();
    let full = Form { vectors: BLOCK }.len(width);
    block.queries.resize(piece.count().div_ceil(BLOCK) * full / 16, Line::ZERO);
    // SAFETY: lines are dwords; AVX-512 as promised by the caller.
    unsafe {
        let dwords = block.queries.len() * 16;
        let packed = std::slice::from_raw_parts_mut(block.queries.as_mut_ptr().cast::<u32>(), dwords);
        for (number, packed) in packed.chunks_exact_mut(full).enumerate() {
            let first = number * BLOCK;
            let form = Form { vectors: BLOCK.min(piece.count() - first) };
            let query = |i: usize| &piece.queries[piece.row(first + i) * width..][..width];
            pack(form, width, query, packed);
        }
    }
}

/// The scores of all queries against the entries of a page.
///
/// # Safety
/// The processor has the tile unit and AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn score(block: &mut Block, piece: &Piece<'_>, panel: Panel) {
    let full = Form { vectors: BLOCK }.len(piece.cache.width());
    let mut tiles: Option<(usize, Tiles)> = None;
    for first in (0..piece.count()).step_by(BLOCK) {
        let form = Form { vectors: BLOCK.min(piece.count() - first) };
        // SAFETY: `scores` has PAGE_TOKENS places for every query; the rest as promised by the caller.
        unsafe {
            if tiles.as_ref().is_none_or(|(vectors, _)| *vectors != form.vectors) {
                // The old one gives the unit back, so it goes before the new one sets it up.
                drop(tiles.take());
                tiles = Some((form.vectors, Tiles::for_product(panel.rows.min(ROWS), form)));
            }
            let at = block.scores.as_mut_ptr().add(first * PAGE_TOKENS);
            let target = Target { at, stride: PAGE_TOKENS, scale: piece.shape.scale };
            let queries = block.queries.as_ptr().cast::<u32>().add(first / BLOCK * full);
            let sums = block.sums.get_or_insert_with(|| Box::new(NO_SUMS));
            multiply_block(panel, form, queries, sums, target);
        }
    }
}

/// `[queries, PAGE_TOKENS]` to blocks of sixteen queries, each `[3 parts, 16, PAGE_TOKENS]` in bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn split_weights(scores: &[f32], weights: &mut [Line]) {
    const LINES: usize = PAGE_TOKENS / STEP;
    for (q, scores) in scores.chunks_exact(PAGE_TOKENS).enumerate() {
        for (step, scores) in scores.as_chunks::<STEP>().0.iter().enumerate() {
            // SAFETY: 32 floats, and a line for each part.
            unsafe {
                let at = scores.as_ptr();
                let parts = split_32(_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(16)));
                for (part, value) in parts.into_iter().enumerate() {
                    let line = &mut weights[((q / ROWS * PARTS + part) * ROWS + q % ROWS) * LINES + step];
                    _mm512_store_si512(line.0.as_mut_ptr().cast(), value);
                }
            }
        }
    }
}

/// Rows `2p` and `2p + 1` of a page, value by value side by side; rows that are not there count as 0.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn weave(values: &[u16], width: usize, latent: usize, out: &mut [Line]) {
    // Dword i takes half i of the first row and half i of the second.
    let low = _mm512_set_epi16(
        47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34,
        2, 33, 1, 32, 0,
    );
    let high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    let entries = values.len() / width;
    for (pair, out) in out.chunks_exact_mut(latent / 16).enumerate() {
        for (block, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let (mut a, mut b) = (_mm512_setzero_si512(), _mm512_setzero_si512());
            let first = 2 * pair * width + 32 * block;
            // SAFETY: 32 halves of a row that is there, two lines.
            unsafe {
                if 2 * pair < entries {
                    a = _mm512_loadu_si512(values[first..][..32].as_ptr().cast());
                }
                if 2 * pair + 1 < entries {
                    b = _mm512_loadu_si512(values[first + width..][..32].as_ptr().cast());
                }
                _mm512_store_si512(out[0].0.as_mut_ptr().cast(), _mm512_permutex2var_epi16(a, low, b));
                _mm512_store_si512(out[1].0.as_mut_ptr().cast(), _mm512_permutex2var_epi16(a, high, b));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvCacheDtype;
    use crate::cpu::attention;
    use crate::kv_cache::PagePool;

    const SHAPE: Shape = Shape { heads: 6, latent: 128, scale: 0.3 };
    const WIDTH: usize = 160;

    fn values(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    /// Near the plain form, and the same bits however the tokens are cut and on any number of threads. Pages hold what others
    /// left in them, NaN too.
    #[test]
    fn sums_are_those_of_the_plain_form_and_do_not_depend_on_the_cut() {
        if !super::super::available() {
            println!("skipped: no tile unit");
            return;
        }
        let tokens = 150;
        let (mut pool, mut pages) = (PagePool::new(3 * PAGE_TOKENS), Vec::new());
        assert!(pool.extend(&mut pages, tokens));
        let mut cache = LatentCache::new(1, 3, WIDTH, KvCacheDtype::Bf16);
        for position in 0..3 * PAGE_TOKENS {
            let stale = vec![f32::NAN; WIDTH];
            let entry = if position < tokens { values(WIDTH, position as u32) } else { stale };
            cache.write(0, pages[position / PAGE_TOKENS], position % PAGE_TOKENS, &entry);
        }
        let queries = values(tokens * SHAPE.heads * WIDTH, 7);
        let run = |tiles: bool, count: usize, cuts: &[usize]| {
            let mut threads = Threads::new(count).unwrap();
            if tiles {
                threads.use_tiles();
            }
            let mut out = vec![f32::NAN; tokens * SHAPE.heads * SHAPE.latent];
            let mut first = 0;
            // Each cut is a step of its own.
            for &cut in cuts {
                let span = Span { pages: &pages, position: first, count: cut - first, row: 0, prompt: 0 };
                let row = SHAPE.heads * SHAPE.latent;
                let queries = &queries[first * SHAPE.heads * WIDTH..];
                attention::attend(
                    &mut threads,
                    &cache,
                    0,
                    SHAPE,
                    &[span],
                    queries,
                    &mut out[first * row..cut * row],
                );
                first = cut;
            }
            out
        };
        let plain = run(false, 1, &[tokens]);
        let whole = run(true, 1, &[tokens]);
        for (i, (plain, fast)) in plain.iter().zip(&whole).enumerate() {
            assert!((plain - fast).abs() < 2e-6, "value {i}: {fast} {plain}");
        }
        let one_by_one: Vec<usize> = (1..=tokens).collect();
        for (count, cuts) in
            [(3, &[tokens][..]), (2, &[1, 7, 64, 65, 130, tokens]), (1, &one_by_one), (3, &one_by_one)]
        {
            let cut = run(true, count, cuts);
            assert!(cut.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()), "{count} threads");
        }
    }
}
