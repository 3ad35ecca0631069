//! DeepSeek sparse attention: the indexer that chooses which tokens are attended to.
//!
//! Source of the fields and their defaults: transformers, `configuration_deepseek_v32.py` and `configuration_glm_moe_dsa.py`.

use serde::Serialize;

use super::MAX_DIM;
use super::fields::Fields;
use crate::Error;

/// The sparse-attention indexer (DeepSeek-V3.2, GLM-5).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Indexer {
    /// The indexer's heads.
    pub index_n_heads: usize,
    /// Width of one of them. Its first `qk_rope_head_dim` values are rotated.
    pub index_head_dim: usize,
    /// Tokens that each query may attend to.
    pub index_topk: usize,
    /// The indexer rotates neighbours (GLM-5) or halves (DeepSeek-V3.2, unlike the attention itself).
    pub rope_interleave: bool,
    /// What each layer does, where the config lists it or gives a rule; `None`: every layer has its own indexer.
    pub layers: Option<Vec<IndexerLayer>>,
}

impl Indexer {
    /// Whether layer `i` chooses for itself; if not, it takes the choice of the last layer before it that does.
    #[must_use]
    pub fn is_full(&self, i: usize) -> bool {
        self.layers.as_ref().is_none_or(|layers| layers.get(i) == Some(&IndexerLayer::Full))
    }
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

/// What of the rest of the config the indexer depends on.
pub(super) struct Around<'a> {
    pub(super) architecture: &'a str,
    pub(super) num_hidden_layers: usize,
    pub(super) q_lora_rank: Option<usize>,
    pub(super) qk_rope_head_dim: usize,
}

pub(super) fn read(text: &Fields<'_>, around: &Around<'_>) -> Result<Option<Indexer>, Error> {
    let sparse = ["DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"].contains(&around.architecture);
    if !sparse && !text.has("index_topk") {
        return Ok(None);
    }
    let indexer = Indexer {
        index_n_heads: text.size("index_n_heads")?,
        index_head_dim: text.size("index_head_dim")?,
        index_topk: text.size("index_topk")?,
        // Of the two, only GLM's configs have the flag; their code doesn't look at it.
        rope_interleave: text
            .flag_or("indexer_rope_interleave", around.architecture == "GlmMoeDsaForCausalLM")?,
        layers: layers(text, around.num_hidden_layers)?,
    };
    let (heads, width) = (indexer.index_n_heads, indexer.index_head_dim);
    if heads.checked_mul(width).is_none_or(|rows| rows > MAX_DIM) {
        return Err(text.error("index_n_heads", format!("{heads} heads of width {width} are too many")));
    }
    if width < around.qk_rope_head_dim {
        let problem = format!("{width} is less than the {} rotated dimensions", around.qk_rope_head_dim);
        return Err(text.error("index_head_dim", problem));
    }
    if around.q_lora_rank.is_none() {
        let problem = "missing, but the indexer's queries are made from the compressed query";
        return Err(text.error("q_lora_rank", problem.to_owned()));
    }
    Ok(Some(indexer))
}

/// A list of words, a pattern of letters, or a frequency: in this order.
fn layers(text: &Fields<'_>, count: usize) -> Result<Option<Vec<IndexerLayer>>, Error> {
    const TYPES: &str = "indexer_types";
    const PATTERN: &str = "index_topk_pattern";
    use IndexerLayer::{Full, Shared};
    let (name, layers) = if let Some(types) = text.strings(TYPES)? {
        let layer = |kind: &String| match kind.as_str() {
            "full" => Ok(Full),
            "shared" => Ok(Shared),
            other => Err(text.error(TYPES, format!("expected full or shared, found {other:?}"))),
        };
        (TYPES, types.iter().map(layer).collect::<Result<Vec<_>, _>>()?)
    } else if let Some(pattern) = text.optional_string(PATTERN)? {
        let layer = |letter| match letter {
            'F' => Ok(Full),
            'S' => Ok(Shared),
            other => Err(text.error(PATTERN, format!("expected letters F and S, found {other:?}"))),
        };
        (PATTERN, pattern.chars().map(layer).collect::<Result<Vec<_>, _>>()?)
    } else {
        const FREQUENCY: &str = "index_topk_freq";
        let frequency = text.count_or(FREQUENCY, 1)?.max(1);
        let offset = text.count_or("index_skip_topk_offset", 2)?;
        let full = |i: usize| (i + 1).saturating_sub(offset).is_multiple_of(frequency);
        if frequency == 1 {
            return Ok(None);
        }
        (FREQUENCY, (0..count).map(|i| if full(i) { Full } else { Shared }).collect())
    };
    if layers.len() != count {
        return Err(text.error(name, format!("{} entries for {count} layers", layers.len())));
    }
    if layers.first() == Some(&Shared) {
        return Err(text.error(name, "the first layer has no choice before it to share".to_owned()));
    }
    Ok(Some(layers))
}
