//! The engine as its users see it: submit requests, receive events. One thread steps the model.

use std::sync::Arc;

use lucid_checkpoint::{Checkpoint, Config};
use serde::Serialize;

use crate::{Event, Request, Semantics, SemanticsOptions};

/// Sizes and limits of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Arithmetic.
    pub semantics: SemanticsOptions,
    /// Longest sequence, prompt and answer together; `None` takes the model's `max_position_embeddings`.
    pub max_model_len: Option<usize>,
    /// Tokens that the KV cache holds, over all requests.
    pub kv_cache_tokens: usize,
    /// Requests that decode together.
    pub max_running: usize,
    /// Requests that may wait; one more is refused.
    pub max_waiting: usize,
    /// Tokens that one step computes at the most (prompts are cut into chunks).
    pub max_step_tokens: usize,
    /// Worker threads; `None` takes the machine's cores.
    pub threads: Option<usize>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            semantics: SemanticsOptions::default(),
            max_model_len: None,
            kv_cache_tokens: 65_536,
            max_running: 64,
            max_waiting: 1_024,
            max_step_tokens: 512,
            threads: None,
        }
    }
}

/// Names one request of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

/// Counters and gauges, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Requests that decode or prefill now.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// KV pages in use.
    pub kv_pages_used: usize,
    /// KV pages in all.
    pub kv_pages: usize,
    /// Prompt tokens computed since the start.
    pub prompt_tokens: u64,
    /// Tokens generated since the start.
    pub generated_tokens: u64,
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Empty prompt.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// Prompt, or prompt and answer, don't fit the context.
    #[error("the prompt has {prompt} tokens, the context holds {max_model_len}: shorten the prompt")]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// The context's length.
        max_model_len: usize,
    },
    /// A token outside of the vocabulary.
    #[error("token {token} is outside of the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// A sampling parameter out of range.
    #[error("{parameter} is {value}, {expected}")]
    BadParameter {
        /// Its name as in the API.
        parameter: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// Too many requests wait.
    #[error("{waiting} requests are waiting already: try again later")]
    Busy {
        /// How many wait.
        waiting: usize,
    },
    /// The engine stopped.
    #[error("the engine has stopped: {0}")]
    Stopped(String),
}
