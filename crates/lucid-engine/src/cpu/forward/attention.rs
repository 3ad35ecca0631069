//! Multi-head latent attention: projections, cache, and the two forms of the sum over positions.

use std::ops::Range;

use lucid_checkpoint::Matrix;

use super::{CpuModel, Span};
use crate::cpu::activations::{input_scale, round_to_nvfp4};
use crate::cpu::aligned::Aligned;
use crate::cpu::attention::{Shape, attend};
use crate::cpu::cache::{Cache, LatentCache};
use crate::cpu::expanded;
use crate::cpu::indexer::{self, attend_chosen};
use crate::cpu::matmul::{Inputs, OutputBuffer, Product, multiply};
use crate::cpu::norm::rms_norm_in_place;
use crate::kv_cache::PAGE_TOKENS;
use crate::plant::Attended;
use crate::recycled::recycled;
use crate::weights::{Attention, Query};

impl CpuModel {
    /// From `normed` to `output`: prompts in the expanded form, answers in the absorbed one.
    pub(super) fn attention(
        &mut self,
        layer: usize,
        weights: &Attention,
        tokens: usize,
        spans: &[Span<'_>],
        cache: &mut Cache,
    ) {
        self.queries_and_entries(weights, tokens);
        self.rotate_and_store(layer, weights, spans, &mut cache.latent);
        self.choose(layer, weights, tokens, spans, cache);

        let heads = self.part.num_attention_heads;
        self.scratch.heads.resize(tokens * heads * self.part.v_head_dim, 0.0);
        let attended = self.fault.as_ref().and_then(|fault| fault.attended(layer, spans));
        let attended = attended.as_ref().map(Attended::spans);
        let attended = attended.as_deref().unwrap_or(spans);
        // On the tile unit the absorbed form is the faster one for prompts too; chosen entries are attended to as they are.
        let expands = !self.threads.tiles() && self.part.indexer.is_none();
        let [mut prompts, mut answers] = std::mem::take(&mut self.scratch.spans).map(recycled);
        for (is_prompt, span) in attended.iter().flat_map(|span| span.split(expands)) {
            if is_prompt { prompts.push(span) } else { answers.push(span) }
        }
        if !prompts.is_empty() {
            self.attend_prompts(layer, weights, &prompts, &cache.latent);
        }
        if !answers.is_empty() {
            self.attend_answers(layer, weights, tokens, &answers, &cache.latent);
        }
        self.scratch.spans = [prompts, answers].map(recycled);
        self.project_heads(layer, weights, tokens);
    }

    /// Fills `query` and `entry`, neither of them rotated yet.
    fn queries_and_entries(&mut self, weights: &Attention, tokens: usize) {
        let config = &self.part;
        let head = config.qk_nope_head_dim + config.qk_rope_head_dim;
        let width = config.kv_lora_rank + config.qk_rope_head_dim;
        let (threads, s) = (&mut self.threads, &mut self.scratch);
        s.query.resize(tokens * config.num_attention_heads * head, 0.0);
        s.entry.resize(tokens * width, 0.0);
        let first = match &weights.query {
            Query::Latent { q_a, .. } => [&weights.kv_a, q_a],
            Query::Direct(q) => [&weights.kv_a, q],
        };
        let normed = match input_scale(&first).filter(|_| self.w4a4) {
            Some(scale) => rounded_copy(&s.normed, scale, &mut s.rounded),
            None => &s.normed,
        };
        let normed = Inputs::dense(normed, config.hidden_size);
        let entry = dense(&weights.kv_a, normed, tokens, &mut s.entry);
        match &weights.query {
            Query::Latent { q_a, q_a_norm, q_b } => {
                s.query_low.resize(tokens * q_a.rows, 0.0);
                multiply(threads, &[entry, dense(q_a, normed, tokens, &mut s.query_low)]);
                for row in s.query_low.chunks_exact_mut(q_a.rows) {
                    rms_norm_in_place(row, q_a_norm, self.semantics.latent_norm_eps as f32);
                }
                let low = match input_scale(&[q_b]).filter(|_| self.w4a4) {
                    Some(scale) => rounded_copy(&s.query_low, scale, &mut s.rounded),
                    None => &s.query_low,
                };
                let low = Inputs::dense(low, q_a.rows);
                multiply(threads, &[dense(q_b, low, tokens, &mut s.query)]);
            }
            Query::Direct(q) => multiply(threads, &[entry, dense(q, normed, tokens, &mut s.query)]),
        }
    }

    /// Normalizes and rotates entries and writes them to the cache, and rotates queries.
    fn rotate_and_store(
        &mut self,
        layer: usize,
        weights: &Attention,
        spans: &[Span<'_>],
        cache: &mut LatentCache,
    ) {
        let config = &self.part;
        let (latent, nope) = (config.kv_lora_rank, config.qk_nope_head_dim);
        let (head, width) = (nope + config.qk_rope_head_dim, latent + config.qk_rope_head_dim);
        let eps = self.semantics.latent_norm_eps as f32;
        let s = &mut self.scratch;
        for span in spans {
            for i in 0..span.count {
                let (row, position) = (span.row + i, span.position + i);
                let stands = self.fault.as_ref().map_or(position, |fault| {
                    fault.rotated_to(span, position, config.max_position_embeddings)
                });
                let entry = &mut s.entry[row * width..(row + 1) * width];
                // The norm is for the latent part only.
                rms_norm_in_place(&mut entry[..latent], &weights.kv_a_norm, eps);
                self.rope.rotate(&mut entry[latent..], stands);
                let row = row * config.num_attention_heads * head;
                let queries = &mut s.query[row..row + config.num_attention_heads * head];
                for query in queries.chunks_exact_mut(head) {
                    self.rope.rotate(&mut query[nope..], stands);
                }
                if let Some(fault) = &self.fault {
                    fault.entry_and_queries(span, position, entry, queries);
                }
                cache.write(layer, span.pages[position / PAGE_TOKENS], position % PAGE_TOKENS, entry);
            }
        }
    }

    /// Lets the indexer choose what rows attend to, if there is one.
    fn choose(
        &mut self,
        layer: usize,
        weights: &Attention,
        tokens: usize,
        spans: &[Span<'_>],
        cache: &mut Cache,
    ) {
        let (Some(rules), Some(weights)) = (&self.part.indexer, &weights.indexer) else { return };
        let shape = indexer::Shape {
            heads: rules.index_n_heads,
            width: rules.index_head_dim,
            rotated: self.part.qk_rope_head_dim,
            interleaved: rules.rope_interleave,
            most: rules.index_topk,
        };
        let s = &mut self.scratch;
        let (normed, query_low) = (&s.normed, &s.query_low);
        let step = indexer::Step { layer, weights, normed, query_low, spans, tokens };
        s.indexer.run(&mut self.threads, shape, &self.rope, &step, &mut cache.index_keys);
    }

    /// Fills `heads` for rows of prompts.
    fn attend_prompts(
        &mut self,
        layer: usize,
        weights: &Attention,
        prompts: &[Span<'_>],
        cache: &LatentCache,
    ) {
        let config = &self.part;
        let shape = expanded::Shape {
            heads: config.num_attention_heads,
            latent: config.kv_lora_rank,
            nope: config.qk_nope_head_dim,
            rope: config.qk_rope_head_dim,
            value: config.v_head_dim,
            scale: self.softmax_scale,
        };
        let (threads, s) = (&mut self.threads, &mut self.scratch);
        s.expanded.attend(
            threads,
            cache,
            layer,
            shape,
            &weights.keys_values,
            prompts,
            &s.query,
            &mut s.heads,
        );
    }

    /// Fills `heads` for rows of answers: `q̃_h = UK_hᵀ q_h`, then `Σ_t p_t c_t`, then `UV_h` of it.
    fn attend_answers(
        &mut self,
        layer: usize,
        weights: &Attention,
        tokens: usize,
        answers: &[Span<'_>],
        cache: &LatentCache,
    ) {
        let config = &self.part;
        let (heads, latent) = (config.num_attention_heads, config.kv_lora_rank);
        let (nope, rope, value) = (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim);
        let (head, width) = (nope + rope, latent + rope);
        let (threads, s) = (&mut self.threads, &mut self.scratch);
        s.absorbed.resize(tokens * heads * width, 0.0);
        s.latent.resize(tokens * heads * latent, 0.0);
        runs(answers, &mut s.runs);
        let mut products = recycled(std::mem::take(&mut s.products));

        let keys = |h: usize| h * latent..(h + 1) * latent;
        let (from, to) = ((&s.query[..], head), (&mut s.absorbed[..], width));
        by_heads(weights.keys_values.keys(), keys, heads, &s.runs, from, to, &mut products);
        multiply(threads, &products);
        let mut products = recycled(products);
        for rows in &s.runs {
            let range = rows.start * heads..rows.end * heads;
            let absorbed = s.absorbed[range.start * width..range.end * width].chunks_exact_mut(width);
            let queries = s.query[range.start * head..range.end * head].chunks_exact(head);
            for (absorbed, query) in absorbed.zip(queries) {
                absorbed[latent..].copy_from_slice(&query[nope..]);
            }
        }

        let shape = Shape { heads, latent, scale: self.softmax_scale };
        let (queries, out) = (&s.absorbed, &mut s.latent);
        match &config.indexer {
            None => attend(threads, cache, layer, shape, answers, queries, out),
            Some(_) => {
                attend_chosen(threads, cache, layer, shape, answers, s.indexer.choices(), queries, out);
            }
        }

        let (weight, values) = weights.keys_values.values(nope, value);
        let (from, to) = ((&s.latent[..], latent), (&mut s.heads[..], value));
        by_heads(weight, values, heads, &s.runs, from, to, &mut products);
        multiply(threads, &products);
        s.products = recycled(products);
    }

    /// From `heads` to `output`.
    fn project_heads(&mut self, layer: usize, weights: &Attention, tokens: usize) {
        let (hidden, s) = (self.part.hidden_size, &mut self.scratch);
        s.output.resize(tokens * hidden, 0.0);
        if let Some(fault) = &self.fault {
            fault.attended_heads(tokens, self.part.num_attention_heads, &mut s.heads);
        }
        if let Some(scale) = input_scale(&[&weights.o]).filter(|_| self.w4a4) {
            round_to_nvfp4(&mut s.heads, scale);
        }
        let values = Inputs::dense(&s.heads, self.part.num_attention_heads * self.part.v_head_dim);
        multiply(&mut self.threads, &[dense(&weights.o, values, tokens, &mut s.output)]);
        if let Some(fault) = &self.fault {
            fault.attention_output(layer, hidden, &mut s.output);
        }
    }
}

/// One product for each head and run of rows: the weight's rows `rows(head)`, from `[_, heads, from.1]` to `[_, heads, to.1]`.
fn by_heads<'a>(
    weight: &'a Matrix,
    rows: impl Fn(usize) -> Range<usize>,
    heads: usize,
    runs: &[Range<usize>],
    from: (&'a [f32], usize),
    to: (&'a mut [f32], usize),
    products: &mut Vec<Product<'a>>,
) {
    let ((values, from), (out, to)) = (from, to);
    let mut out = OutputBuffer::new(out);
    for run in runs {
        for h in 0..heads {
            let (first, count, rows) = (run.start * heads + h, run.len(), rows(h));
            // SAFETY: each row and head has its own columns.
            let outputs = unsafe { out.rows(first * to, heads * to, count, rows.len()) };
            let inputs = Inputs::Strided { values, start: first * from, stride: heads * from };
            products.push(Product { weight, rows, inputs, count, outputs });
        }
    }
}

/// Fills `runs` with the rows of `spans`, neighbours joined.
fn runs(spans: &[Span<'_>], runs: &mut Vec<Range<usize>>) {
    runs.clear();
    for span in spans {
        match runs.last_mut() {
            Some(run) if run.end == span.row => run.end += span.count,
            _ => runs.push(span.row..span.row + span.count),
        }
    }
}

/// `values`, rounded to NVFP4, in `buffer`.
fn rounded_copy<'a>(values: &[f32], scale: f32, buffer: &'a mut Aligned<f32>) -> &'a [f32] {
    buffer.clear();
    buffer.extend_from_slice(values);
    round_to_nvfp4(buffer, scale);
    buffer
}

/// A product over a whole weight into a dense buffer of its own.
fn dense<'a>(weight: &'a Matrix, inputs: Inputs<'a>, count: usize, out: &'a mut [f32]) -> Product<'a> {
    // SAFETY: one output, dense, in a buffer that stays borrowed until the product is computed.
    let outputs = unsafe { OutputBuffer::new(out).rows(0, weight.rows, count, weight.rows) };
    Product { weight, rows: 0..weight.rows, inputs, count, outputs }
}
