//! The expanded form against the formula, against the absorbed form, and against itself in other cuts.

use lucid_checkpoint::gguf::BlockType;
use lucid_checkpoint::{Bytes, Matrix, Packed};

use super::*;
use crate::KvCacheDtype;
use crate::cpu::attention;
use crate::cpu::row::Rows;
use crate::kv_cache::{PageId, PagePool};
use crate::weights::KeysAndValues;

fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

fn matrix(rows: usize, cols: usize, seed: u32) -> Matrix {
    let bytes: Vec<u8> = values(rows * cols, seed).into_iter().flat_map(f32::to_le_bytes).collect();
    Matrix { name: "kv_b".to_owned(), rows, cols, packed: Packed::F32(Bytes::from(bytes)) }
}

/// Two sequences, their pages mixed, and a third one's NaN in the places that nobody has written.
struct Sequences {
    cache: LatentCache,
    pages: [Vec<PageId>; 2],
    /// `[tokens, latent + rope]`, as the cache holds them.
    entries: [Vec<f32>; 2],
    /// `[tokens, heads, nope + rope]`
    queries: [Vec<f32>; 2],
    projection: KeysAndValues,
    shape: Shape,
}

const TOKENS: [usize; 2] = [150, 70];

fn sequences(shape: Shape) -> Sequences {
    let width = shape.latent + shape.rope;
    let mut pool = PagePool::new(5 * PAGE_TOKENS);
    let mut pages = [Vec::new(), Vec::new()];
    for tokens in [PAGE_TOKENS, TOKENS[1], TOKENS[0]] {
        let index = usize::from(tokens == TOKENS[1]);
        assert!(pool.extend(&mut pages[index], tokens));
    }
    let mut cache = LatentCache::new(1, 5, width, KvCacheDtype::F32);
    let entries = [0, 1].map(|i| values(TOKENS[i] * width, 3 + i as u32));
    for (pages, entries) in pages.iter().zip(&entries) {
        for position in 0..pages.len() * PAGE_TOKENS {
            let nan = vec![f32::NAN; width];
            let entry = entries.get(position * width..(position + 1) * width).unwrap_or(&nan);
            cache.write(0, pages[position / PAGE_TOKENS], position % PAGE_TOKENS, entry);
        }
    }
    let queries = [0, 1].map(|i| values(TOKENS[i] * shape.heads * (shape.nope + shape.rope), 7 + i as u32));
    let kv_b = matrix(shape.heads * (shape.nope + shape.value), shape.latent, 11);
    let projection = KeysAndValues::joined(kv_b, shape.heads, shape.nope, shape.value);
    Sequences { cache, pages, entries, queries, projection, shape }
}

impl Sequences {
    /// The formula in f64, `[tokens, heads, value]`.
    fn exact(&self, sequence: usize) -> Vec<f64> {
        let Shape { heads, latent, nope, rope, value, scale } = self.shape;
        let width = latent + rope;
        let mut row = vec![0f32; latent];
        let mut out = Vec::new();
        let entry = |t: usize| &self.entries[sequence][t * width..(t + 1) * width];
        let mut project = |index: usize, t: usize| -> f64 {
            self.projection.to_joined().decode_row(index, &mut row);
            row.iter().zip(entry(t)).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let mut keys = vec![Vec::new(); heads];
        let mut heads_values = vec![Vec::new(); heads];
        for t in 0..TOKENS[sequence] {
            for h in 0..heads {
                let first = h * (nope + value);
                let mut key: Vec<f64> = (0..nope).map(|n| project(first + n, t)).collect();
                key.extend(entry(t)[latent..].iter().map(|&x| f64::from(x)));
                keys[h].push(key);
                heads_values[h].push((0..value).map(|v| project(first + nope + v, t)).collect::<Vec<f64>>());
            }
        }
        for t in 0..TOKENS[sequence] {
            for h in 0..heads {
                let query = &self.queries[sequence][(t * heads + h) * (nope + rope)..][..nope + rope];
                let score = |key: &Vec<f64>| -> f64 {
                    let dot: f64 = key.iter().zip(query).map(|(a, b)| a * f64::from(*b)).sum();
                    (dot * f64::from(scale)).exp()
                };
                let weights: Vec<f64> = keys[h][..=t].iter().map(score).collect();
                let sum: f64 = weights.iter().sum();
                for v in 0..value {
                    let weighted = weights.iter().zip(&heads_values[h]).map(|(w, x)| w * x[v]).sum::<f64>();
                    out.push(weighted / sum);
                }
            }
        }
        out
    }

    /// The expanded form, both sequences in each step, cut at these positions.
    fn expanded(&self, threads: usize, cuts: &[usize]) -> [Vec<f32>; 2] {
        let mut threads = Threads::new(threads).unwrap();
        let mut expanded = Expanded::default();
        let Shape { heads, value, .. } = self.shape;
        let (query, result) = (heads * (self.shape.nope + self.shape.rope), heads * value);
        let mut out = TOKENS.map(|tokens| vec![f32::NAN; tokens * result]);
        let mut first = 0;
        for &cut in cuts {
            let ranges = TOKENS.map(|tokens| first.min(tokens)..cut.min(tokens));
            let mut queries = Vec::new();
            let mut spans = Vec::new();
            for (i, range) in ranges.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
                let (position, count, prompt) = (range.start, range.len(), TOKENS[i]);
                let row = queries.len() / query;
                spans.push(Span { pages: &self.pages[i], position, count, row, prompt });
                queries.extend_from_slice(&self.queries[i][range.start * query..range.end * query]);
            }
            let mut step = vec![f32::NAN; queries.len() / query * result];
            expanded.attend(
                &mut threads,
                &self.cache,
                0,
                self.shape,
                &self.projection,
                &spans,
                &queries,
                &mut step,
            );
            let mut step = &step[..];
            for (range, out) in ranges.into_iter().zip(&mut out) {
                let (here, rest) = step.split_at(range.len() * result);
                out[range.start * result..range.end * result].copy_from_slice(here);
                step = rest;
            }
            first = cut;
        }
        out
    }

    /// The absorbed form of a sequence.
    fn absorbed(&self, sequence: usize) -> Vec<f32> {
        let Shape { heads, latent, nope, rope, value, scale } = self.shape;
        let (count, width, key) = (TOKENS[sequence], latent + rope, nope + rope);
        let mut threads = Threads::new(1).unwrap();
        let transposed = self.projection.keys();
        let (weight, values) = self.projection.values(nope, value);
        let dot = |weight: &Matrix, row: usize, x: &[f32]| {
            crate::cpu::dot::dot_plain(&Rows::of(weight, row..row + 1), 0, x)
        };
        let mut queries = Vec::new();
        for (i, query) in self.queries[sequence].chunks_exact(key).enumerate() {
            let first = i % heads * latent;
            queries.extend((0..latent).map(|l| dot(transposed, first + l, &query[..nope])));
            queries.extend_from_slice(&query[nope..]);
        }
        assert_eq!(queries.len(), count * heads * width);
        let span = Span { pages: &self.pages[sequence], position: 0, count, row: 0, prompt: 0 };
        let mut sums = vec![f32::NAN; count * heads * latent];
        let shape = attention::Shape { heads, latent, scale };
        attention::attend(&mut threads, &self.cache, 0, shape, &[span], &queries, &mut sums);
        let mut out = Vec::new();
        for (i, sum) in sums.chunks_exact(latent).enumerate() {
            out.extend(values(i % heads).map(|row| dot(weight, row, sum)));
        }
        out
    }
}

/// Both forms are the formula, within 2e-5 of values around 1 (sums of up to 512 products and 150 positions in f32).
#[test]
fn both_forms_are_the_formula() {
    for (heads, latent, nope, rope, value) in [(3, 64, 32, 16, 32), (2, 512, 128, 64, 128), (5, 37, 11, 6, 9)]
    {
        let shape = Shape { heads, latent, nope, rope, value, scale: 0.5 / (nope as f32).sqrt() };
        let sequences = sequences(shape);
        let expanded = sequences.expanded(1, &[TOKENS[0]]);
        for (sequence, expanded) in expanded.iter().enumerate() {
            let exact = sequences.exact(sequence);
            let absorbed = sequences.absorbed(sequence);
            let size = (exact.iter().map(|x| x * x).sum::<f64>() / exact.len() as f64).sqrt();
            for ((expanded, absorbed), exact) in expanded.iter().zip(&absorbed).zip(&exact) {
                let difference = |form: f32| (f64::from(form) - exact).abs() / size;
                assert!(difference(*expanded) < 2e-5, "expanded: {expanded} {exact}");
                assert!(difference(*absorbed) < 2e-5, "absorbed: {absorbed} {exact}");
            }
            assert_eq!(expanded.len(), exact.len());
            assert_eq!(absorbed.len(), exact.len());
        }
    }
}

/// However the prompts are cut, on any number of threads.
#[test]
fn the_cut_does_not_change_a_bit() {
    let shape = Shape { heads: 3, latent: 64, nope: 32, rope: 16, value: 32, scale: 0.2 };
    let sequences = sequences(shape);
    let whole = sequences.expanded(1, &[TOKENS[0]]);
    let one_by_one: Vec<usize> = (1..=TOKENS[0]).collect();
    for (threads, cuts) in [(3, &[1, 7, 64, 65, 130, TOKENS[0]][..]), (2, &one_by_one), (3, &[TOKENS[0]])] {
        let cut = sequences.expanded(threads, cuts);
        for (whole, cut) in whole.iter().flatten().zip(cut.iter().flatten()) {
            assert_eq!(whole.to_bits(), cut.to_bits(), "{threads} threads");
        }
    }
}

/// Halves of a GGUF file, multiplied as they are stored, give the bits of the joined matrix.
#[test]
fn quantized_halves_have_the_bits_of_one_matrix() {
    let shape = Shape { heads: 3, latent: 64, nope: 32, rope: 16, value: 64, scale: 0.2 };
    let Shape { heads, latent, nope, value, .. } = shape;
    let quantized = |block: BlockType, rows: usize, cols: usize, scale: u8| {
        let (count, bytes) = (rows * cols / block.elements(), block.bytes());
        // A binary16 scale first in every block of these types: 0.05 to 0.1.
        let block_of = |i: usize| {
            (0..bytes).map(move |at| match at {
                0 => (i * 37) as u8,
                1 => scale,
                _ => (i * 31 + at * 7) as u8,
            })
        };
        let bytes: Vec<u8> = (0..count).flat_map(block_of).collect();
        let packed = Packed::Gguf { block, bytes: Bytes::from(bytes), scale: 1.0 };
        Matrix { name: block.as_str().to_owned(), rows, cols, packed }
    };
    let mut sequences = sequences(shape);
    for (of_keys, of_values) in [(BlockType::Q8_0, BlockType::Q8_0), (BlockType::Q5_0, BlockType::Q4_0)] {
        let keys = quantized(of_keys, heads * latent, nope, 0x1e);
        let values = quantized(of_values, heads * value, latent, 0x1f);
        let split = KeysAndValues::Split { keys, values };
        let joined = KeysAndValues::joined(split.to_joined(), heads, nope, value);
        let run = |sequences: &Sequences| (sequences.expanded(2, &[70, TOKENS[0]]), sequences.absorbed(0));
        sequences.projection = joined;
        let (prompts, answers) = run(&sequences);
        sequences.projection = split;
        let (prompts_of_halves, answers_of_halves) = run(&sequences);
        for (a, b) in prompts.iter().flatten().zip(prompts_of_halves.iter().flatten()) {
            assert_eq!(a.to_bits(), b.to_bits(), "{of_keys}");
        }
        for (a, b) in answers.iter().zip(&answers_of_halves) {
            assert_eq!(a.to_bits(), b.to_bits(), "{of_values}");
        }
        assert!(prompts.iter().flatten().all(|x| x.is_finite() && *x != 0.0));
    }
}
