//! A server that we don't know: nothing beyond OpenAI's API is asked for.

use super::Capabilities;

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    token_prompts: false,
    prompt_logprobs: false,
    token_ids: false,
    chat_logprobs: true,
    tokenize_messages: false,
    // OpenAI's own limit.
    max_logprobs: 20,
    flush: None,
    reasoning_field: "reasoning_content",
};
