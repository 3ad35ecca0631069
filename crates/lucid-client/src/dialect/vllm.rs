//! vLLM (0.32 recorded): the richest of the surfaces.

use serde_json::{Map, Value};

use super::Capabilities;
use crate::{ScoredToken, TokenName};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    token_prompts: true,
    prompt_logprobs: true,
    token_ids: true,
    chat_logprobs: true,
    tokenize_messages: true,
    // `--max-logprobs`, default 20.
    max_logprobs: 20,
    flush: Some("/reset_prefix_cache"),
    reasoning_field: "reasoning",
};

pub(super) fn scoring_fields(top: u32) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("prompt_logprobs".into(), top.into());
    fields.insert("return_token_ids".into(), true.into());
    // Without it candidates are keyed by their text, and two tokens with the same text collide.
    fields.insert("return_tokens_as_token_ids".into(), true.into());
    fields
}

/// Names the standing tokens by the ids of `token_ids`.
pub(super) fn name_by_ids(scored: &mut [ScoredToken], ids: &[u32]) -> Result<(), String> {
    if scored.len() != ids.len() {
        return Err(format!("{} token ids but {} log-probabilities", ids.len(), scored.len()));
    }
    for (token, &id) in scored.iter_mut().zip(ids) {
        token.token = TokenName::Id(id);
    }
    Ok(())
}
