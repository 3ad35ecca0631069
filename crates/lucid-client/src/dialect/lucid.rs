//! Lucid's own server: speaks vLLM's surface.

use serde_json::{Map, Value};

use super::{Capabilities, vllm};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    token_prompts: true,
    prompt_logprobs: true,
    token_ids: true,
    chat_logprobs: true,
    tokenize_messages: true,
    max_logprobs: 20,
    // Where it was started with `--server-dev-mode`.
    flush: Some("/reset_prefix_cache"),
    reasoning_field: "reasoning",
};

pub(super) fn scoring_fields(top: u32) -> Map<String, Value> {
    vllm::scoring_fields(top)
}
