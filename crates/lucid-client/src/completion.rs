//! `/v1/completions`: raw prompts, by text or by token ids.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Usage;

/// A raw prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Text that the server tokenizes.
    Text(String),
    /// Token ids: the server's tokenizer and template have no part in it.
    Tokens(Vec<u32>),
}

/// A completion request. Fields that are `None` are not sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletionRequest {
    /// The model's name; empty takes the endpoint's.
    pub model: String,
    /// The prompt.
    pub prompt: Prompt,
    /// Tokens to generate.
    pub max_tokens: u32,
    /// 0 is greedy.
    pub temperature: f64,
    /// Candidates beside each generated token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u32>,
    /// Whatever else (`prompt_logprobs`, `return_token_ids`).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl CompletionRequest {
    /// Greedy, nothing else set.
    #[must_use]
    pub fn greedy(prompt: Prompt, max_tokens: u32) -> CompletionRequest {
        CompletionRequest {
            model: String::new(),
            prompt,
            max_tokens,
            temperature: 0.0,
            logprobs: None,
            extra: Map::new(),
        }
    }
}

/// One completion.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct CompletionChoice {
    /// The text.
    #[serde(default)]
    pub text: String,
    /// `stop`, `length`.
    #[serde(default)]
    pub finish_reason: Option<String>,
    /// As the server sent it.
    #[serde(default)]
    pub logprobs: Option<Value>,
    /// As the server sent it: a list with an entry a prompt token.
    #[serde(default)]
    pub prompt_logprobs: Option<Value>,
    /// Ids of the generated tokens.
    #[serde(default)]
    pub token_ids: Option<Vec<u32>>,
    /// Ids of the prompt's tokens.
    #[serde(default)]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct CompletionAnswer {
    /// The completions; at least one (checked when reading).
    pub choices: Vec<CompletionChoice>,
    /// Token counts.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}
