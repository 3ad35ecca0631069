//! DeepSeek sparse attention (DSA): a small indexer scores all tokens before a query, and attention looks at the best alone.
//!
//! ```text
//! q_h = RoPE(wq_b · c_q)_h        c_q: the latent of the attention's own queries; index heads h
//! k   = RoPE(LayerNorm(wk · x))   one for all heads, kept in the pages of the KV cache
//! a   = weights_proj · x          one a head, of any sign
//! I_t = Σ_h a_h ReLU(q_h · k_t) / sqrt(heads · width)
//! ```
//!
//! RoPE turns the first part of queries and keys. Attention sees the `index_topk` tokens with the highest `I`, all of them where
//! there are no more than that; of equal ones the earlier. Layers that share take the choice of the last layer that chose.
//! Source: DeepSeek-V3.2 (arXiv:2512.02556), §2.1; transformers, `modular_deepseek_v32.py` and `modular_glm_moe_dsa.py`.
//!
//! **What is exact here.** Production kernels turn queries and keys by a Hadamard matrix and round them to FP8, with a scale a
//! vector. The turn changes no product (it is orthonormal) and only spreads outliers before the rounding; the rounding moves scores
//! and with them the last few choices. As in transformers, neither is done: reference mode keeps keys in f32, serving mode in bf16,
//! and scores are f32.
//!
//! **Batch invariance.** A score is one chain of products, as in `dot.rs`, added up head by head, so it depends on the two tokens
//! alone. The choice depends on the scores alone, and the attention over it (`sparse.rs`) on the choice alone.

mod keys;
mod scores;
mod sparse;
mod top;

use super::attention::Span;
use super::matmul::{Inputs, OutputBuffer, Product, multiply};
use super::norm::layer_norm_in_place;
use super::rope::Rope;
use super::threads::Threads;
use crate::cpu::aligned::Aligned;
use crate::weights::Indexer as Weights;

pub use keys::IndexKeys;
pub use scores::MOST_SCORES;
pub use sparse::attend_chosen;

/// Of the index keys' LayerNorm, whatever the config says of other norms.
const KEY_NORM_EPS: f32 = 1e-6;

/// Sizes and rules.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Index heads.
    pub heads: usize,
    /// Width of a head and of a key.
    pub width: usize,
    /// How much of it RoPE turns.
    pub rotated: usize,
    /// RoPE turns neighbours, not halves.
    pub interleaved: bool,
    /// Tokens that a query sees at the most.
    pub most: usize,
}

/// What a row of a step attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Every token up to its own: they are few enough.
    Everything,
    /// The list of this number.
    Listed(usize),
    /// A score was not a number. Attention must not be either, so that it is found in the logits.
    NotFinite,
}

/// The choices of a step.
#[derive(Default)]
pub struct Choices {
    /// `[rows]`
    of_row: Vec<Choice>,
    /// `[lists, most]`: positions, ascending.
    positions: Vec<u32>,
    most: usize,
}

impl Choices {
    /// What a row of the step attends to.
    pub fn of(&self, row: usize) -> Choice {
        self.of_row[row]
    }

    /// The positions of a list, ascending.
    pub fn list(&self, number: usize) -> &[u32] {
        &self.positions[number * self.most..(number + 1) * self.most]
    }

    /// Choices that are given.
    #[cfg(test)]
    pub fn given(of_row: Vec<Choice>, positions: Vec<u32>, most: usize) -> Choices {
        Choices { of_row, positions, most }
    }
}

/// What a layer's indexer reads.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    /// Number of the layer.
    pub layer: usize,
    /// Its weights.
    pub weights: &'a Weights,
    /// `[tokens, hidden_size]`: the layer's normalized input.
    pub normed: &'a [f32],
    /// `[tokens, Q]`: the normalized latent of queries.
    pub query_low: &'a [f32],
    /// The step's rows.
    pub spans: &'a [Span<'a>],
    /// Tokens of the step.
    pub tokens: usize,
}

/// A row that has more tokens before it than it may see.
#[derive(Clone, Copy)]
struct Query {
    /// In the step.
    row: usize,
    /// Number of its span.
    span: usize,
    position: usize,
}

/// Chooses; keeps its buffers and the last choice.
#[derive(Default)]
pub struct Indexer {
    keys: Aligned<f32>,    // [tokens, width]
    queries: Aligned<f32>, // [queries, heads, width]
    weights: Aligned<f32>, // [queries, heads]
    scores: Aligned<f32>,  // [queries of a group, positions]
    choices: Choices,
}

impl Indexer {
    /// The last choice: of this layer, or of the one that it shares with.
    pub fn choices(&self) -> &Choices {
        &self.choices
    }

    /// Takes it for the choice of a step of `tokens` tokens that nothing is left out.
    pub fn see_everything(&mut self, tokens: usize) {
        self.choices.of_row.clear();
        self.choices.of_row.resize(tokens, Choice::Everything);
    }

    /// Stores the step's index keys, then chooses for each of its rows.
    pub fn run(
        &mut self,
        threads: &mut Threads,
        shape: Shape,
        rope: &Rope,
        step: &Step<'_>,
        cache: &mut IndexKeys,
    ) {
        self.store_keys(threads, shape, rope, step, cache);
        let of_span = |(span, s): (usize, &Span<'_>)| {
            let (first, row) = (s.position, s.row);
            (0..s.count).map(move |i| Query { row: row + i, span, position: first + i })
        };
        let all = step.spans.iter().enumerate().flat_map(of_span);
        let queries: Vec<Query> = all.filter(|query| query.position >= shape.most).collect();
        self.see_everything(step.tokens);
        let choices = &mut self.choices;
        choices.most = shape.most;
        choices.positions.resize(queries.len() * shape.most, 0);
        if queries.is_empty() {
            return;
        }
        self.make_queries(threads, shape, rope, step, &queries);
        scores::choose(threads, shape, step, &queries, cache, self);
    }

    fn store_keys(
        &mut self,
        threads: &mut Threads,
        shape: Shape,
        rope: &Rope,
        step: &Step<'_>,
        cache: &mut IndexKeys,
    ) {
        let Step { layer, weights, tokens, .. } = *step;
        self.keys.resize(tokens * shape.width, 0.0);
        let normed = Inputs::dense(step.normed, weights.wk.cols);
        multiply(threads, &[dense(&weights.wk, normed, tokens, &mut self.keys)]);
        for span in step.spans {
            for i in 0..span.count {
                let (row, position) = (span.row + i, span.position + i);
                let key = &mut self.keys[row * shape.width..(row + 1) * shape.width];
                layer_norm_in_place(key, &weights.k_norm, &weights.k_norm_bias, KEY_NORM_EPS);
                rope.rotate_paired(&mut key[..shape.rotated], position, shape.interleaved);
                cache.write(layer, span.pages, position, key);
            }
        }
    }

    /// Queries and head weights of the rows that have to choose.
    fn make_queries(
        &mut self,
        threads: &mut Threads,
        shape: Shape,
        rope: &Rope,
        step: &Step<'_>,
        queries: &[Query],
    ) {
        let Step { weights, .. } = *step;
        let rows: Vec<usize> = queries.iter().map(|query| query.row).collect();
        let of_query = shape.heads * shape.width;
        self.queries.resize(rows.len() * of_query, 0.0);
        self.weights.resize(rows.len() * shape.heads, 0.0);
        let (low, hidden) = (weights.wq_b.cols, weights.weights_proj.cols);
        let low = Inputs::Gathered { values: step.query_low, stride: low, rows: &rows };
        let normed = Inputs::Gathered { values: step.normed, stride: hidden, rows: &rows };
        let products = [
            dense(&weights.wq_b, low, rows.len(), &mut self.queries),
            dense(&weights.weights_proj, normed, rows.len(), &mut self.weights),
        ];
        multiply(threads, &products);
        for (query, heads) in queries.iter().zip(self.queries.chunks_exact_mut(of_query)) {
            for head in heads.chunks_exact_mut(shape.width) {
                rope.rotate_paired(&mut head[..shape.rotated], query.position, shape.interleaved);
            }
        }
        let scale = 1.0 / (of_query as f32).sqrt();
        self.weights.iter_mut().for_each(|weight| *weight *= scale);
    }
}

/// A product over a whole weight into a dense buffer of its own.
fn dense<'a>(
    weight: &'a lucid_checkpoint::Matrix,
    inputs: Inputs<'a>,
    count: usize,
    out: &'a mut [f32],
) -> Product<'a> {
    // SAFETY: one output, dense, in a buffer that stays borrowed until the product is computed.
    let outputs = unsafe { OutputBuffer::new(out).rows(0, weight.rows, count, weight.rows) };
    Product { weight, rows: 0..weight.rows, inputs, count, outputs }
}

#[cfg(test)]
mod tests;
