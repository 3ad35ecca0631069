//! DeepSeek sparse attention: the indexer that chooses which tokens are attended to.

use serde::Serialize;

use super::fields::Fields;
use crate::Error;

/// The sparse-attention indexer (DeepSeek-V3.2, GLM-5).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Indexer {
    /// The indexer's heads.
    pub index_n_heads: usize,
    /// Width of one of them.
    pub index_head_dim: usize,
    /// Tokens that each query may attend to.
    pub index_topk: usize,
    /// The indexer rotates neighbours; when not said, halves (unlike the attention itself).
    pub rope_interleave: bool,
    /// What each layer does, where the config lists it; `None`: every layer has its own indexer.
    pub layers: Option<Vec<IndexerLayer>>,
}

/// Where a layer's choice of tokens comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexerLayer {
    /// The layer runs its indexer.
    Full,
    /// The layer takes the last choice.
    Shared,
}

pub(super) fn read(text: &Fields<'_>, num_hidden_layers: usize) -> Result<Option<Indexer>, Error> {
    let Some(index_topk) = text.optional_size("index_topk")? else { return Ok(None) };
    const TYPES: &str = "indexer_types";
    let layers = text.strings(TYPES)?.map(|types| {
        let layers = types.iter().map(|kind| match kind.as_str() {
            "full" => Ok(IndexerLayer::Full),
            "shared" => Ok(IndexerLayer::Shared),
            other => Err(text.error(TYPES, format!("expected full or shared, found {other:?}"))),
        });
        layers.collect::<Result<Vec<_>, _>>()
    });
    let layers = layers.transpose()?;
    if let Some(layers) = &layers
        && layers.len() != num_hidden_layers
    {
        return Err(text.error(TYPES, format!("{} entries for {num_hidden_layers} layers", layers.len())));
    }
    Ok(Some(Indexer {
        index_n_heads: text.size("index_n_heads")?,
        index_head_dim: text.size("index_head_dim")?,
        index_topk,
        rope_interleave: text.flag_or("indexer_rope_interleave", false)?,
        layers,
    }))
}
