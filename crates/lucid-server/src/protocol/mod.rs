//! The shapes of answers, key by key as vLLM sends them. `null` and absent are different, and both are kept.

pub(crate) mod chat;
pub(crate) mod chat_chunk;
pub(crate) mod completions;
pub(crate) mod error;
pub(crate) mod finish;
pub(crate) mod logprobs;
pub(crate) mod models;
pub(crate) mod routes;
pub(crate) mod tokenize;
pub(crate) mod usage;
