//! Index scores, page by page, and the choice.

use std::cell::RefCell;

use super::top::top;
use super::{Choice, IndexKeys, Indexer, Query, Shape, Step};
use crate::cpu::aligned::Aligned;
use crate::cpu::dot::{self, Target, dots};
use crate::cpu::row::Rows;
use crate::cpu::threads::Threads;
use crate::cpu::vectorize::vectorized;
use crate::kv_cache::PAGE_TOKENS;

/// Scores that are in memory at a time: 16 MiB. Queries of long contexts are scored a few at a time.
pub const MOST_SCORES: usize = 4 << 20;
/// Queries of one task: with 64 heads each, their products with a page are 128 KiB.
const TASK_QUERIES: usize = 8;
/// Pages of one task.
const TASK_PAGES: usize = 8;

#[derive(Default)]
struct Scratch {
    page: Aligned<f32>,     // [PAGE_TOKENS, width]
    products: Aligned<f32>, // [queries, heads, PAGE_TOKENS]
    order: Vec<u64>,
    no_scratch: dot::Scratch,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Where a task's results go.
struct Output<T>(*mut T);
// SAFETY: tasks write to disjoint elements, as `score` and `choose` say where they write.
unsafe impl<T: Send> Sync for Output<T> {}

/// Chooses for all queries.
pub(super) fn choose(
    threads: &mut Threads,
    shape: Shape,
    step: &Step<'_>,
    queries: &[Query],
    cache: &IndexKeys,
    indexer: &mut Indexer,
) {
    let Indexer { queries: vectors, weights, scores, choices, .. } = indexer;
    let mut first = 0;
    while first < queries.len() {
        let (count, positions) = group(&queries[first..]);
        let here = &queries[first..first + count];
        scores.resize(scores.len().max(count * positions), 0.0);
        let vectors = &vectors[first * shape.heads * shape.width..];
        let weights = &weights[first * shape.heads..];
        score(threads, shape, step, here, cache, (vectors, weights), positions, scores);

        let mut found = vec![Choice::NotFinite; count];
        let (lists, choice) = (Output(choices.positions.as_mut_ptr()), Output(found.as_mut_ptr()));
        let (lists, choice, scores) = (&lists, &choice, &*scores);
        threads.for_each(count, |i| {
            let seen = &scores[i * positions..][..here[i].position + 1];
            SCRATCH.with_borrow_mut(|scratch| {
                let number = first + i;
                // SAFETY: `run` made room for a list a query, and list `number` belongs to this task alone.
                let list =
                    unsafe { std::slice::from_raw_parts_mut(lists.0.add(number * shape.most), shape.most) };
                if top(seen, &mut scratch.order, list) {
                    // SAFETY: `found` has `count` places, and this one belongs to this task alone.
                    unsafe { choice.0.add(i).write(Choice::Listed(number)) };
                }
            });
        });
        for (query, found) in here.iter().zip(found) {
            choices.of_row[query.row] = found;
        }
        first += count;
    }
}

/// How many of the first queries are scored together, and the positions that the longest of them sees.
fn group(queries: &[Query]) -> (usize, usize) {
    let (mut count, mut positions) = (0, 0);
    for query in queries {
        let longer = positions.max(query.position + 1);
        if count > 0 && (count + 1) * longer > MOST_SCORES {
            break;
        }
        (count, positions) = (count + 1, longer);
    }
    (count, positions)
}

/// `scores` `[queries, positions]` up to each query's own position; vectors `[queries, heads, width]`, weights `[queries, heads]`.
#[allow(clippy::too_many_arguments)] // one call, one place: a struct would only rename them
fn score(
    threads: &mut Threads,
    shape: Shape,
    step: &Step<'_>,
    queries: &[Query],
    cache: &IndexKeys,
    (vectors, weights): (&[f32], &[f32]),
    positions: usize,
    scores: &mut [f32],
) {
    let runs = positions.div_ceil(PAGE_TOKENS * TASK_PAGES);
    let output = Output(scores.as_mut_ptr());
    let output = &output;
    // Queries of one span that follow each other see the same pages.
    let mut blocks: Vec<(usize, usize)> = Vec::new();
    for (i, query) in queries.iter().enumerate() {
        match blocks.last_mut() {
            Some((start, count)) if *count < TASK_QUERIES && queries[*start].span == query.span => {
                *count += 1
            }
            _ => blocks.push((i, 1)),
        }
    }
    threads.for_each(blocks.len() * runs, |task| {
        let (start, count) = blocks[task / runs];
        let pages = step.spans[queries[start].span].pages;
        let last = queries[start + count - 1].position + 1;
        let run = task % runs * TASK_PAGES;
        SCRATCH.with_borrow_mut(|scratch| {
            let pages = pages[..last.div_ceil(PAGE_TOKENS)].iter().enumerate();
            for (number, &page) in pages.skip(run).take(TASK_PAGES) {
                let first = number * PAGE_TOKENS;
                let entries = PAGE_TOKENS.min(last - first);
                let keys = cache.page(step.layer, page, entries, &mut scratch.page);
                let vector = |v: usize| &vectors[(start * shape.heads + v) * shape.width..][..shape.width];
                scratch.products.resize(count * shape.heads * PAGE_TOKENS, 0.0);
                let at = scratch.products.as_mut_ptr();
                let target = Target { at, stride: PAGE_TOKENS, scale: 1.0 };
                let rows = Rows::f32s(keys, shape.width);
                // SAFETY: `products` has room for PAGE_TOKENS products of every head of every query, and is ours.
                unsafe { dots(rows, count * shape.heads, vector, &mut scratch.no_scratch, target) };
                for i in start..start + count {
                    let weights = &weights[i * shape.heads..(i + 1) * shape.heads];
                    let products = &scratch.products[(i - start) * shape.heads * PAGE_TOKENS..];
                    let seen = (queries[i].position + 1).saturating_sub(first).min(entries);
                    let mut sums = [0f32; PAGE_TOKENS];
                    add_heads(weights, products, &mut sums);
                    for (j, &sum) in sums[..seen].iter().enumerate() {
                        // SAFETY: below `positions`, in the row of query `i`; this page of it is this task's own.
                        unsafe { output.0.add(i * positions + first + j).write(sum) };
                    }
                }
            }
        });
    });
}

vectorized! {
    /// `sums[t] += Σ_h weights[h] ReLU(products[h, t])`, head by head; `products` `[heads, PAGE_TOKENS]`.
    fn add_heads(weights: &[f32], products: &[f32], sums: &mut [f32; PAGE_TOKENS]) {
        let (products, _) = products.as_chunks::<PAGE_TOKENS>();
        for (&weight, products) in weights.iter().zip(products) {
            for (sum, &product) in sums.iter_mut().zip(products) {
                // `max` would turn NaN into 0.
                let positive = if product < 0.0 { 0.0 } else { product };
                *sum += weight * positive;
            }
        }
    }
}
