//! llama.cpp's `llama-server` (recorded): log-probabilities carry token ids, `echo` and `prompt_logprobs` are ignored.

use super::Capabilities;

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    token_prompts: true,
    prompt_logprobs: false,
    token_ids: false,
    chat_logprobs: true,
    tokenize_messages: false,
    max_logprobs: 20,
    flush: None,
    reasoning_field: "reasoning_content",
};
