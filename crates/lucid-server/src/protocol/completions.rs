//! The answer of `POST /v1/completions`, whole and streamed.

use lucid_checkpoint::TokenId;
use serde::Serialize;

use super::finish::{FinishReason, StopReason};
use super::logprobs::{CompletionLogprobs, PromptLogprobs};
use super::usage::{StreamUsage, Usage};

/// The fields of type `()` are always null: vLLM has them.
#[derive(Debug, Serialize)]
pub(crate) struct CompletionsResponse<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<CompletionsChoice>,
    pub(crate) service_tier: (),
    pub(crate) system_fingerprint: &'a str,
    pub(crate) usage: Usage,
    pub(crate) kv_transfer_params: (),
    pub(crate) ec_transfer_params: (),
    pub(crate) metrics: (),
}

#[derive(Debug, Serialize)]
pub(crate) struct CompletionsChoice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<CompletionLogprobs>,
    pub(crate) finish_reason: FinishReason,
    pub(crate) stop_reason: Option<StopReason>,
    pub(crate) token_ids: Option<Vec<TokenId>>,
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
    pub(crate) prompt_token_ids: Option<Vec<TokenId>>,
    /// `[tokens - 1, layers, experts per token]` as the base64 of a NumPy file, if it was asked for.
    pub(crate) routed_experts: Option<String>,
    /// Only where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_text: Option<String>,
}

/// One event of a stream. In this endpoint unset fields of a choice are null.
#[derive(Debug, Serialize)]
pub(crate) struct CompletionsChunk<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    /// One, or none in the usage chunk.
    pub(crate) choices: Vec<CompletionsChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<StreamUsage>,
    /// In the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) system_fingerprint: Option<&'a str>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct CompletionsChunkChoice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<CompletionLogprobs>,
    pub(crate) finish_reason: Option<FinishReason>,
    pub(crate) stop_reason: Option<StopReason>,
    /// In the first chunk, if asked for.
    pub(crate) prompt_token_ids: Option<Vec<TokenId>>,
    pub(crate) token_ids: Option<Vec<TokenId>>,
}
