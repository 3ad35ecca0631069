//! The answer of `POST /v1/chat/completions`, whole.

use lucid_checkpoint::TokenId;
use lucid_text::{Parsed, ToolCall};
use serde::Serialize;

use super::finish::{FinishReason, StopReason};
use super::logprobs::{ChatLogprobs, PromptLogprobs};
use super::usage::Usage;

/// The fields of type `()` are always null: vLLM has them, and clients that know vLLM may look for them.
#[derive(Debug, Serialize)]
pub(crate) struct ChatResponse<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<ChatChoice>,
    pub(crate) service_tier: (),
    pub(crate) system_fingerprint: &'a str,
    pub(crate) usage: Usage,
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
    pub(crate) prompt_token_ids: Option<&'a [TokenId]>,
    pub(crate) prompt_text: Option<&'a str>,
    pub(crate) kv_transfer_params: (),
    pub(crate) ec_transfer_params: (),
    pub(crate) metrics: (),
}

#[derive(Debug, Serialize)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: Message,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: FinishReason,
    pub(crate) stop_reason: Option<StopReason>,
    pub(crate) token_ids: Option<Vec<TokenId>>,
    /// `[tokens - 1, layers, experts per token]` as the base64 of a NumPy file, if it was asked for.
    pub(crate) routed_experts: Option<String>,
}

/// The reasoning stands under both of its names: vLLM's and that of SGLang and DeepSeek.
#[derive(Debug, Serialize)]
pub(crate) struct Message {
    role: &'static str,
    content: Option<String>,
    refusal: (),
    annotations: (),
    audio: (),
    function_call: (),
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
    reasoning: Option<String>,
    reasoning_content: Option<String>,
}

#[derive(Debug, Serialize)]
struct Call {
    id: String,
    r#type: &'static str,
    function: Function,
}

#[derive(Debug, Serialize)]
struct Function {
    name: String,
    arguments: String,
}

impl Message {
    pub(crate) fn new(parsed: Parsed) -> Message {
        let call = |ToolCall { id, name, arguments }| Call {
            id,
            r#type: "function",
            function: Function { name, arguments },
        };
        Message {
            role: "assistant",
            content: parsed.content,
            refusal: (),
            annotations: (),
            audio: (),
            function_call: (),
            tool_calls: parsed.tool_calls.into_iter().map(call).collect(),
            reasoning_content: parsed.reasoning.clone(),
            reasoning: parsed.reasoning,
        }
    }
}
