//! Checks that compare the server with the checkpoint.

mod epsilon;
mod hypotheses;
mod logprobs;
mod places;
mod prompt_tokens;
mod witness;

pub(super) use hypotheses::Hypotheses;
pub(super) use logprobs::Logprobs;
pub(super) use prompt_tokens::PromptTokens;
pub(crate) use witness::prompts;
