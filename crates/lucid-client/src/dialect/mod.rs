//! The dialects: what each server calls things, and what it can return.

mod llama_cpp;
mod lucid;
mod sglang;
mod unknown;
mod vllm;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{CompletionChoice, ScoredToken, logprobs};

/// Which server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's `llama-server`.
    LlamaCpp,
    /// Lucid's own server.
    Lucid,
    /// Anything else: only what OpenAI's API has.
    Unknown,
}

/// What a dialect can return beyond OpenAI's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// `/v1/completions` takes token ids as its prompt.
    pub token_prompts: bool,
    /// `prompt_logprobs` on `/v1/completions`.
    pub prompt_logprobs: bool,
    /// `return_token_ids`: the ids that were read and written.
    pub token_ids: bool,
    /// Log-probabilities of generated tokens in chat answers.
    pub chat_logprobs: bool,
    /// `/tokenize` takes messages and applies the chat template.
    pub tokenize_messages: bool,
    /// Largest `logprobs` that the server allows by default.
    pub max_logprobs: u32,
    /// Path of the request that empties the prefix cache.
    pub flush: Option<&'static str>,
    /// Field of the reasoning in chat answers.
    pub reasoning_field: &'static str,
}

impl Dialect {
    /// The server's name as people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Vllm => "vLLM",
            Dialect::Sglang => "SGLang",
            Dialect::LlamaCpp => "llama.cpp",
            Dialect::Lucid => "Lucid",
            Dialect::Unknown => "unknown server",
        }
    }

    /// What it can return.
    #[must_use]
    pub fn capabilities(self) -> Capabilities {
        match self {
            Dialect::Vllm => vllm::CAPABILITIES,
            Dialect::Sglang => sglang::CAPABILITIES,
            Dialect::LlamaCpp => llama_cpp::CAPABILITIES,
            Dialect::Lucid => lucid::CAPABILITIES,
            Dialect::Unknown => unknown::CAPABILITIES,
        }
    }

    /// The dialect going by `owned_by` of `/v1/models`, the field in which each server names itself.
    #[must_use]
    pub fn from_owned_by(owned_by: &str) -> Option<Dialect> {
        match owned_by {
            "vllm" => Some(Dialect::Vllm),
            "sglang" => Some(Dialect::Sglang),
            "llamacpp" => Some(Dialect::LlamaCpp),
            "lucid" => Some(Dialect::Lucid),
            _ => None,
        }
    }

    /// Fields that ask `/v1/completions` for everything that can be compared.
    pub(crate) fn scoring_fields(self, top: u32) -> Map<String, Value> {
        match self {
            Dialect::Vllm => vllm::scoring_fields(top),
            Dialect::Lucid => lucid::scoring_fields(top),
            Dialect::Sglang | Dialect::LlamaCpp | Dialect::Unknown => Map::new(),
        }
    }

    /// Log-probabilities of the generated tokens of a completion.
    ///
    /// # Errors
    /// Why they can't be read.
    pub fn completion_logprobs(self, choice: &CompletionChoice) -> Result<Vec<ScoredToken>, String> {
        let value = choice.logprobs.as_ref().ok_or("the answer has no `logprobs`")?;
        // llama.cpp answers completions in the chat form; either is told by its own field.
        let mut scored = if value.get("content").is_some() {
            logprobs::from_content(value)?
        } else {
            logprobs::from_lists(value)?
        };
        if let Some(ids) = &choice.token_ids {
            vllm::name_by_ids(&mut scored, ids)?;
        }
        Ok(scored)
    }
}
