//! The indexer's parts against the formulas, and sparse attention against attention over everything.

use lucid_checkpoint::{Bytes, Config, Matrix, Packed};

use super::*;
use crate::KvCacheDtype;
use crate::cpu::attention::{self, attend};
use crate::cpu::cache::LatentCache;
use crate::kv_cache::{PAGE_TOKENS, PageId, PagePool};

/// From -1 to 1.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn matrix(rows: usize, cols: usize, seed: u32) -> Matrix {
    let bytes: Vec<u8> = noise(rows * cols, seed).into_iter().flat_map(f32::to_le_bytes).collect();
    Matrix { name: "m".into(), rows, cols, packed: Packed::F32(Bytes::from(bytes)) }
}

fn values(matrix: &Matrix) -> Vec<Vec<f64>> {
    let row = |row| {
        let mut out = vec![0f32; matrix.cols];
        matrix.decode_row(row, &mut out);
        out.into_iter().map(f64::from).collect()
    };
    (0..matrix.rows).map(row).collect()
}

fn pages(tokens: usize) -> Vec<PageId> {
    let (mut pool, mut pages) = (PagePool::new(tokens + 3 * PAGE_TOKENS), Vec::new());
    assert!(pool.extend(&mut pages, tokens + 2 * PAGE_TOKENS));
    // Not in the order of the memory.
    pages.reverse();
    pages
}

/// Sparse attention over everything has the bits of attention over everything; over a part, those of a cache with that part alone.
#[test]
fn attention_over_chosen_tokens_sees_them_alone() {
    let (heads, latent, width, tokens) = (3, 32, 40, 150);
    let shape = attention::Shape { heads, latent, scale: 0.3 };
    let pages = pages(tokens);
    let entries = noise(tokens * width, 1);
    let entry = |token: usize| &entries[token * width..(token + 1) * width];
    for dtype in [KvCacheDtype::F32, KvCacheDtype::Bf16, KvCacheDtype::Fp8E4m3] {
        let mut cache = LatentCache::new(1, 8, width, dtype);
        for token in 0..tokens {
            cache.write(0, pages[token / PAGE_TOKENS], token % PAGE_TOKENS, entry(token));
        }
        let rows = 7;
        let span = Span { pages: &pages, position: tokens - rows, count: rows, row: 0, prompt: 0 };
        let queries = noise(rows * heads * width, 2);
        let run = |threads: usize, choices: &Choices, cache: &LatentCache| {
            let mut out = vec![7f32; rows * heads * latent];
            let mut threads = Threads::new(threads).unwrap();
            attend_chosen(&mut threads, cache, 0, shape, &[span], choices, &queries, &mut out);
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let mut whole = vec![0f32; rows * heads * latent];
        attend(&mut Threads::new(1).unwrap(), &cache, 0, shape, &[span], &queries, &mut whole);
        let whole: Vec<u32> = whole.into_iter().map(f32::to_bits).collect();
        let everything = Choices::given(vec![Choice::Everything; rows], Vec::new(), 0);
        assert_eq!(run(2, &everything, &cache), whole);

        // The last row's list is everything that it sees; then every third token, which a cache of its own holds.
        let all: Vec<u32> = (0..tokens as u32).collect();
        let mut of_row = vec![Choice::Everything; rows];
        of_row[rows - 1] = Choice::Listed(0);
        assert_eq!(run(3, &Choices::given(of_row.clone(), all, tokens), &cache), whole);

        let third: Vec<u32> = (0..tokens as u32).step_by(3).collect();
        let mut part = LatentCache::new(1, 8, width, dtype);
        for (slot, &token) in third.iter().enumerate() {
            part.write(0, pages[slot / PAGE_TOKENS], slot % PAGE_TOKENS, entry(token as usize));
        }
        let alone = Span { pages: &pages, position: third.len() - 1, count: 1, row: 0, prompt: 0 };
        let mut expected = vec![0f32; heads * latent];
        let query = &queries[(rows - 1) * heads * width..];
        attend(&mut Threads::new(1).unwrap(), &part, 0, shape, &[alone], query, &mut expected);
        let count = third.len();
        let chosen = run(2, &Choices::given(of_row.clone(), third, count), &cache);
        let expected: Vec<u32> = expected.into_iter().map(f32::to_bits).collect();
        assert_eq!(chosen[(rows - 1) * heads * latent..], expected);
        assert_eq!(chosen[..(rows - 1) * heads * latent], whole[..(rows - 1) * heads * latent]);

        // A score that was no number must not end in a plausible answer.
        of_row[rows - 1] = Choice::NotFinite;
        let poisoned = run(1, &Choices::given(of_row, Vec::new(), 0), &cache);
        assert!(poisoned[(rows - 1) * heads * latent..].iter().all(|&x| f32::from_bits(x).is_nan()));
    }
}

fn config(rope: usize) -> Config {
    let json = format!(
        r#"{{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 8, "hidden_size": 20,
        "num_hidden_layers": 1, "intermediate_size": 8, "num_attention_heads": 1, "kv_lora_rank": 8, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": {rope}, "v_head_dim": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "dtype": "float32",
        "rope_theta": 100}}"#
    );
    Config::from_json("config.json", json.as_bytes()).unwrap()
}

struct Case {
    shape: Shape,
    weights: Weights,
    normed: Vec<f32>,
    low: Vec<f32>,
    tokens: usize,
}

impl Case {
    fn new(interleaved: bool) -> Case {
        let (hidden, low, tokens) = (20, 12, 200);
        let shape = Shape { heads: 9, width: 14, rotated: 6, interleaved, most: 30 };
        let weights = Weights {
            wq_b: matrix(shape.heads * shape.width, low, 1),
            wk: matrix(shape.width, hidden, 2),
            k_norm: noise(shape.width, 3),
            k_norm_bias: noise(shape.width, 4),
            weights_proj: matrix(shape.heads, hidden, 5),
        };
        Case { shape, weights, normed: noise(tokens * hidden, 6), low: noise(tokens * low, 7), tokens }
    }

    /// In chunks of `chunk` tokens: every row's list, empty where a score was no number; none where there is nothing to choose.
    fn run(&self, chunk: usize, threads: usize) -> Vec<Option<Vec<u32>>> {
        let (hidden, low) = (self.weights.wk.cols, self.weights.wq_b.cols);
        let indexer = lucid_checkpoint::Indexer {
            index_n_heads: self.shape.heads,
            index_head_dim: self.shape.width,
            index_topk: self.shape.most,
            rope_interleave: self.shape.interleaved,
            layers: None,
        };
        let mut cache = IndexKeys::new(Some(&indexer), 1, 8, KvCacheDtype::F32);
        let rope = Rope::new(&config(self.shape.rotated), 256, true);
        let (pages, mut threads) = (pages(self.tokens), Threads::new(threads).unwrap());
        let (mut indexer, mut found) = (Indexer::default(), Vec::new());
        for start in (0..self.tokens).step_by(chunk) {
            let count = chunk.min(self.tokens - start);
            let span = Span { pages: &pages, position: start, count, row: 0, prompt: 0 };
            let step = Step {
                layer: 0,
                weights: &self.weights,
                normed: &self.normed[start * hidden..(start + count) * hidden],
                query_low: &self.low[start * low..(start + count) * low],
                spans: &[span],
                tokens: count,
            };
            indexer.run(&mut threads, self.shape, &rope, &step, &mut cache);
            found.extend((0..count).map(|row| match indexer.choices().of(row) {
                Choice::Everything => None,
                Choice::Listed(number) => Some(indexer.choices().list(number).to_vec()),
                Choice::NotFinite => Some(Vec::new()),
            }));
        }
        found
    }

    /// The formula, in f64.
    fn scores(&self, row: usize) -> Vec<f64> {
        let Shape { heads, width, rotated, interleaved, .. } = self.shape;
        let product = |m: &[Vec<f64>], x: &[f32]| -> Vec<f64> {
            m.iter().map(|row| row.iter().zip(x).map(|(a, &b)| a * f64::from(b)).sum()).collect()
        };
        let turn = |x: &mut [f64], position: usize| {
            for j in 0..rotated / 2 {
                let (a, b) = if interleaved { (2 * j, 2 * j + 1) } else { (j, j + rotated / 2) };
                let angle = position as f64 * 100f64.powf(-2.0 * j as f64 / rotated as f64);
                (x[a], x[b]) =
                    (x[a] * angle.cos() - x[b] * angle.sin(), x[b] * angle.cos() + x[a] * angle.sin());
            }
        };
        let (hidden, low) = (self.weights.wk.cols, self.weights.wq_b.cols);
        let (wk, wq_b, proj) = (&self.weights.wk, &self.weights.wq_b, &self.weights.weights_proj);
        let (wk, wq_b, proj) = (values(wk), values(wq_b), values(proj));
        let key = |token: usize| {
            let mut k = product(&wk, &self.normed[token * hidden..(token + 1) * hidden]);
            let mean = k.iter().sum::<f64>() / width as f64;
            let variance = k.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            for ((k, &w), &b) in k.iter_mut().zip(&self.weights.k_norm).zip(&self.weights.k_norm_bias) {
                *k = (*k - mean) / (variance + 1e-6).sqrt() * f64::from(w) + f64::from(b);
            }
            turn(&mut k, token);
            k
        };
        let mut queries = product(&wq_b, &self.low[row * low..(row + 1) * low]);
        queries.chunks_exact_mut(width).for_each(|head| turn(head, row));
        let weights = product(&proj, &self.normed[row * hidden..(row + 1) * hidden]);
        let score = |token: usize| {
            let key = key(token);
            let heads = queries.chunks_exact(width).zip(&weights).take(heads);
            heads.map(|(q, a)| a * q.iter().zip(&key).map(|(q, k)| q * k).sum::<f64>().max(0.0)).sum()
        };
        (0..=row).map(score).collect()
    }
}

/// Every chosen token has a score at least as high as every other's, by the formula.
#[test]
fn the_choice_is_that_of_the_formula_in_any_chunk() {
    for interleaved in [false, true] {
        let case = Case::new(interleaved);
        let found = case.run(case.tokens, 1);
        for (chunk, threads) in [(1, 2), (33, 3), (64, 1)] {
            assert!(case.run(chunk, threads) == found, "chunks of {chunk}");
        }
        for (row, list) in found.iter().enumerate() {
            let Some(list) = list else {
                assert!(row < case.shape.most);
                continue;
            };
            assert!(list.len() == case.shape.most && list.is_sorted_by(|a, b| a < b));
            if row % 17 != 0 {
                continue;
            }
            let scores = case.scores(row);
            let chosen = |token: usize| list.contains(&(token as u32));
            let worst = (0..=row).filter(|&t| chosen(t)).map(|t| scores[t]).fold(f64::INFINITY, f64::min);
            let best = (0..=row).filter(|&t| !chosen(t)).map(|t| scores[t]).fold(f64::NEG_INFINITY, f64::max);
            assert!(worst > best - 1e-4, "row {row}: {worst} was chosen, {best} was not");
        }
    }
}

#[test]
fn a_score_that_is_no_number_is_told() {
    let mut case = Case::new(true);
    let hidden = case.weights.wk.cols;
    // The key of token 50: all later ones see it.
    case.normed[50 * hidden] = f32::NAN;
    for (row, list) in case.run(64, 2).into_iter().enumerate().skip(case.shape.most) {
        assert_eq!(list.is_some_and(|list| list.is_empty()), row >= 50, "row {row}");
    }
}

/// Seconds that this thread has run (Linux): right on a busy machine too.
fn seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// One token of DeepSeek-V3.2 in one layer, on one thread: choosing, attending to the chosen, and what attending to all would take.
#[test]
#[ignore = "a benchmark"]
#[allow(clippy::print_stdout)]
fn decoding_at_full_width() {
    let (heads, latent, width, low, hidden) = (128, 512, 576, 64, 64);
    let shape = Shape { heads: 64, width: 128, rotated: 64, interleaved: false, most: 2048 };
    // Small inputs: their products are those of any layer, and not what is measured.
    let weights = Weights {
        wq_b: matrix(shape.heads * shape.width, low, 1),
        wk: matrix(shape.width, hidden, 2),
        k_norm: noise(shape.width, 3),
        k_norm_bias: noise(shape.width, 4),
        weights_proj: matrix(shape.heads, hidden, 5),
    };
    let rope = Rope::new(&config(shape.rotated), 1 << 17, true);
    let mut threads = Threads::new(1).unwrap();
    for tokens in [4096usize, 16_384, 65_536] {
        let pages = pages(tokens);
        let rules = lucid_checkpoint::Indexer {
            index_n_heads: shape.heads,
            index_head_dim: shape.width,
            index_topk: shape.most,
            rope_interleave: false,
            layers: None,
        };
        let dtype = KvCacheDtype::Bf16;
        let mut keys = IndexKeys::new(Some(&rules), 1, pages.len() + 3, dtype);
        let mut cache = LatentCache::new(1, pages.len() + 3, width, dtype);
        for token in 0..tokens {
            keys.write(0, &pages, token, &noise(shape.width, token as u32));
            cache.write(0, pages[token / PAGE_TOKENS], token % PAGE_TOKENS, &noise(width, token as u32));
        }
        let span = Span { pages: &pages, position: tokens - 1, count: 1, row: 0, prompt: 0 };
        let (normed, query_low) = (noise(hidden, 8), noise(low, 9));
        let queries = noise(heads * width, 10);
        let mut out = vec![0f32; heads * latent];
        let attention = attention::Shape { heads, latent, scale: 0.1 };
        let mut indexer = Indexer::default();
        // The clock goes in steps of some milliseconds, so many rounds together.
        const ROUNDS: usize = 20;
        let mut sums = [0f64; 3];
        for _ in 0..ROUNDS {
            let start = seconds();
            let step = Step {
                layer: 0,
                weights: &weights,
                normed: &normed,
                query_low: &query_low,
                spans: &[span],
                tokens: 1,
            };
            indexer.run(&mut threads, shape, &rope, &step, &mut keys);
            let chosen = seconds();
            attend_chosen(&mut threads, &cache, 0, attention, &[span], indexer.choices(), &queries, &mut out);
            let attended = seconds();
            attend(&mut threads, &cache, 0, attention, &[span], &queries, &mut out);
            let times = [chosen - start, attended - chosen, seconds() - attended];
            sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
        }
        let [choose, sparse, whole] = sums.map(|sum| sum * 1e3 / ROUNDS as f64);
        println!(
            "{tokens} tokens: choose {choose:.1} ms, attend {sparse:.1} ms; attend to all {whole:.1} ms"
        );
    }
}
