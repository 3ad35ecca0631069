//! Checks that compare the server with the checkpoint.

mod epsilon;
mod hypotheses;
mod logprobs;
mod places;
mod prompt_tokens;
mod routes;
mod sizes;
mod witness;

pub(super) use hypotheses::Hypotheses;
pub(super) use logprobs::Logprobs;
pub(super) use prompt_tokens::PromptTokens;
pub(super) use routes::Routes;
pub(super) use sizes::Sizes;
pub(crate) use witness::prompts;
