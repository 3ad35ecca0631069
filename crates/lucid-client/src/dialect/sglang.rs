//! SGLang (0.5.23, from its sources): prompt log-probabilities exist only on its own `/generate`,
//! which Lucid doesn't speak yet; chat log-probabilities are OpenAI's.

use super::Capabilities;

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    token_prompts: true,
    prompt_logprobs: false,
    token_ids: false,
    chat_logprobs: true,
    tokenize_messages: false,
    max_logprobs: 20,
    flush: Some("/flush_cache"),
    reasoning_field: "reasoning_content",
};
