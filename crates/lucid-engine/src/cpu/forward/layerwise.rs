//! The forward pass turned around: one layer for many tokens, then the next, for models whose layers come and go.
//!
//! Results have the bits of [`CpuModel::forward`]: no sum depends on what else is computed together.

use lucid_checkpoint::Matrix;

use super::{Cache, CpuModel, IndexKeys, LatentCache, Span};
use crate::cpu::experts::swiglu;
use crate::cpu::matmul::{Inputs, OutputBuffer, Product, multiply};
use crate::cpu::norm::rms_norm_in_place;
use crate::weights::{Experts, Layer, Mlp};

impl CpuModel {
    /// A cache of one layer, number 0 in it, which is the model's layer `layer`.
    #[must_use]
    pub fn new_layer_cache(&self, layer: usize, pages: usize) -> Cache {
        let width = self.part.kv_lora_rank + self.part.qk_rope_head_dim;
        let dtype = self.semantics.kv_cache;
        let latent = LatentCache::new(1, pages, width, dtype).with_scales(&self.kv_scales[layer..=layer]);
        let indexer = self.part.indexer.as_ref().filter(|indexer| indexer.is_full(layer));
        Cache { latent, index_keys: IndexKeys::new(indexer, 1, pages, self.semantics.mode.kv_cache()) }
    }

    /// `hidden += Attn(RMSNorm(hidden))` for `hidden` `[tokens, hidden_size]`: `spans` cover it, row by row in order.
    ///
    /// A layer that shares its choice of tokens with an earlier one sees everything: the caller has no passages that are longer
    /// than what is chosen.
    pub fn attend_layer(&mut self, layer: &Layer, spans: &[Span<'_>], cache: &mut Cache, hidden: &mut [f32]) {
        let tokens = hidden.len() / self.part.hidden_size;
        self.take(hidden);
        self.norm(&layer.input_layernorm);
        if layer.attention.indexer.is_none() {
            self.scratch.indexer.see_everything(tokens);
        }
        self.attention(0, &layer.attention, tokens, spans, cache);
        self.add();
        hidden.copy_from_slice(&self.scratch.hidden);
    }

    /// `hidden += MLP(RMSNorm(hidden))` in a dense layer.
    pub fn feed_dense(&mut self, layer: &Layer, mlp: &Mlp, hidden: &mut [f32]) {
        let tokens = self.prepare_feed(layer, hidden);
        let s = &mut self.scratch;
        swiglu(&mut self.threads, mlp, tokens, &s.normed, &mut s.experts, &mut s.output);
        self.add();
        hidden.copy_from_slice(&self.scratch.hidden);
    }

    /// Begins the second half of a mixture-of-experts layer. Returns the experts whose visits have to be computed, in order.
    pub fn begin_experts(&mut self, layer: &Layer, experts: &Experts, hidden: &[f32]) -> Vec<usize> {
        let tokens = self.prepare_feed(layer, hidden);
        let s = &mut self.scratch;
        match &self.part.moe {
            Some(moe) => s.experts.begin(&mut self.threads, moe, experts, tokens, &s.normed, &mut s.output),
            // The config has the section, or no layer would have been loaded as experts.
            None => Vec::new(),
        }
    }

    /// Computes all visits to one of them.
    pub fn visit_expert(&mut self, expert: usize, mlp: &Mlp) {
        let s = &mut self.scratch;
        s.experts.visit(&mut self.threads, expert, mlp, &s.normed);
    }

    /// Ends it: `hidden += Σ_e w_e · Expert_e(RMSNorm(hidden)) + Shared(RMSNorm(hidden))`.
    pub fn end_experts(&mut self, hidden: &mut [f32]) {
        let width = self.part.hidden_size;
        let s = &mut self.scratch;
        s.experts.end(hidden.len() / width, width, &mut s.output);
        self.add();
        hidden.copy_from_slice(&self.scratch.hidden);
    }

    /// Gives the memory of all buffers back.
    pub fn forget_scratch(&mut self) {
        let experts = crate::cpu::experts::Experts::new(self.w4a4);
        self.scratch = super::Scratch { experts, ..super::Scratch::default() };
    }

    /// The final norm, in place.
    pub fn final_norm(&self, hidden: &mut [f32]) {
        for row in hidden.chunks_exact_mut(self.part.hidden_size) {
            rms_norm_in_place(row, &self.weights.norm, self.part.rms_norm_eps as f32);
        }
    }

    /// Logits for the tokens of some rows of the output matrix: `panel` `[count, hidden_size]` is its rows from `first` on.
    /// `normed` `[rows, hidden_size]`, `logits` `[rows, vocab_size]`.
    pub fn logits_panel(&mut self, panel: &Matrix, first: usize, normed: &[f32], logits: &mut [f32]) {
        let (hidden, vocab) = (self.part.hidden_size, self.part.vocab_size);
        let rows = normed.len() / hidden;
        // SAFETY: one output; its columns are this panel's own.
        let outputs = unsafe { OutputBuffer::new(logits).rows(first, vocab, rows, panel.rows) };
        let inputs = Inputs::dense(normed, hidden);
        multiply(
            &mut self.threads,
            &[Product { weight: panel, rows: 0..panel.rows, inputs, count: rows, outputs }],
        );
    }

    /// The output matrix and the embedding, as they are stored.
    pub fn ends(&self) -> (&Matrix, &Matrix) {
        (&self.weights.embed_tokens, &self.weights.lm_head)
    }

    fn take(&mut self, hidden: &[f32]) {
        self.scratch.hidden.clear();
        self.scratch.hidden.extend_from_slice(hidden);
    }

    /// Takes `hidden` in and normalizes it; returns how many tokens it is.
    fn prepare_feed(&mut self, layer: &Layer, hidden: &[f32]) -> usize {
        self.take(hidden);
        self.norm(&layer.post_attention_layernorm);
        self.scratch.output.resize(hidden.len(), 0.0);
        hidden.len() / self.part.hidden_size
    }
}
