//! The sparse-attention indexer of a layer.

use lucid_checkpoint::Matrix;

use super::Loader;
use crate::Error;

/// Chooses the tokens that a layer attends to. I = index heads, D = their width, Q = the attention's query rank.
#[derive(Clone)]
pub struct Indexer {
    /// `[I D, Q]`
    pub wq_b: Matrix,
    /// `[D, hidden_size]`
    pub wk: Matrix,
    /// `[D]`
    pub k_norm: Vec<f32>,
    /// `[D]`
    pub k_norm_bias: Vec<f32>,
    /// `[I, hidden_size]`
    pub weights_proj: Matrix,
}

impl Indexer {
    pub(super) fn matrices(&self) -> [&Matrix; 3] {
        [&self.wq_b, &self.wk, &self.weights_proj]
    }

    pub(super) fn matrices_mut(&mut self) -> [&mut Matrix; 3] {
        [&mut self.wq_b, &mut self.wk, &mut self.weights_proj]
    }
}

impl Loader<'_> {
    /// The indexer of layer `i`, whose attention's tensors are at `at`. Layers that share a choice have none, also where the
    /// checkpoint holds tensors for it (GLM-5.2 does).
    pub(super) fn indexer(&self, i: usize, at: &str) -> Result<Option<Indexer>, Error> {
        let rules = self.config.indexer.as_ref().filter(|rules| rules.is_full(i));
        // The config has a query rank, or it would have no indexer.
        let (Some(rules), Some(rank)) = (rules, self.config.q_lora_rank) else { return Ok(None) };
        let (heads, width, hidden) = (rules.index_n_heads, rules.index_head_dim, self.config.hidden_size);
        Ok(Some(Indexer {
            wq_b: self.matrix(&format!("{at}.indexer.wq_b"), heads * width, rank)?,
            wk: self.matrix(&format!("{at}.indexer.wk"), width, hidden)?,
            k_norm: self.vector(&format!("{at}.indexer.k_norm.weight"), width)?,
            k_norm_bias: self.vector(&format!("{at}.indexer.k_norm.bias"), width)?,
            weights_proj: self.matrix(&format!("{at}.indexer.weights_proj"), heads, hidden)?,
        }))
    }
}
