//! The mixture of experts.

use serde::Serialize;

use super::MAX_DIM;
use super::fields::Fields;
use crate::Error;

/// The mixture of experts, with DeepSeek-V3's routing: the correction bias chooses, the score weighs (`noaux_tc`).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MoE {
    /// Experts that the router chooses from.
    pub n_routed_experts: usize,
    /// Experts that see every token; stored as one MLP of their joint width.
    pub n_shared_experts: usize,
    /// Experts chosen per token.
    pub num_experts_per_tok: usize,
    /// Width of one expert's MLP.
    pub moe_intermediate_size: usize,
    /// Groups that the experts are divided into.
    pub n_group: usize,
    /// Groups that a token may choose from.
    pub topk_group: usize,
    /// How router logits become scores.
    pub scoring_func: ScoringFunc,
    /// The chosen scores are divided by their sum.
    pub norm_topk_prob: bool,
    /// The routed experts' sum is multiplied by this.
    pub routed_scaling_factor: f64,
}

/// How router logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ScoringFunc {
    /// Each expert for itself.
    Sigmoid,
    /// Over all experts.
    Softmax,
}

pub(super) fn read(text: &Fields<'_>) -> Result<Option<MoE>, Error> {
    let Some(n_routed_experts) = text.optional_integer("n_routed_experts", 1, 1 << 16)? else {
        return Ok(None);
    };
    text.must_be("topk_method", "noaux_tc")?;
    let moe = MoE {
        n_routed_experts,
        n_shared_experts: text.count_or("n_shared_experts", 0)?,
        num_experts_per_tok: text.size("num_experts_per_tok")?,
        moe_intermediate_size: text.size("moe_intermediate_size")?,
        n_group: text.size_or("n_group", 1)?,
        topk_group: text.size_or("topk_group", 1)?,
        scoring_func: match text.optional_string("scoring_func")?.as_deref() {
            None | Some("sigmoid") => ScoringFunc::Sigmoid,
            Some("softmax") => ScoringFunc::Softmax,
            Some(other) => {
                let problem = format!("{other:?} is not supported; supported are sigmoid and softmax");
                return Err(text.error("scoring_func", problem));
            }
        },
        norm_topk_prob: text.flag_or("norm_topk_prob", true)?,
        routed_scaling_factor: text.positive("routed_scaling_factor")?,
    };
    if !n_routed_experts.is_multiple_of(moe.n_group) {
        return Err(
            text.error("n_group", format!("{} does not divide {n_routed_experts} experts", moe.n_group))
        );
    }
    if moe.topk_group > moe.n_group {
        return Err(text.error("topk_group", format!("{} of {} groups", moe.topk_group, moe.n_group)));
    }
    let choice = n_routed_experts / moe.n_group * moe.topk_group;
    if moe.num_experts_per_tok > choice {
        let problem =
            format!("{} experts per token, but a token chooses from {choice}", moe.num_experts_per_tok);
        return Err(text.error("num_experts_per_tok", problem));
    }
    if moe.n_shared_experts.checked_mul(moe.moe_intermediate_size).is_none_or(|width| width > MAX_DIM) {
        let problem = format!("{} experts of width {}", moe.n_shared_experts, moe.moe_intermediate_size);
        return Err(text.error("n_shared_experts", problem));
    }
    Ok(Some(moe))
}
