//! Another server's surface over this one: what a client learns of it is reduced to what that server tells.
//!
//! The drill's healthy servers wear it, so that the doctor is also scored where nobody declares an arithmetic, where prompts are not
//! scored, and where there is no tokenizer to ask. The model behind it is Lucid's, in every bit.

use axum::Json;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::routes::not_found;

/// A server whose surface is worn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guise {
    /// vLLM: scores prompts and takes token ids; no `/server_info`.
    Vllm,
    /// SGLang: takes token ids; scores no prompts on OpenAI's paths, and has no `/tokenize` for messages.
    Sglang,
    /// llama.cpp's `llama-server`: as SGLang, with `/props`.
    LlamaCpp,
}

impl Guise {
    /// `owned_by` in `/v1/models`, by which each server names itself.
    pub(crate) fn owned_by(self) -> &'static str {
        match self {
            Guise::Vllm => "vllm",
            Guise::Sglang => "sglang",
            Guise::LlamaCpp => "llamacpp",
        }
    }

    /// Whether that server has nothing at a path where this one has.
    fn hides(self, path: &str) -> bool {
        match self {
            Guise::Vllm => path == "/server_info",
            Guise::Sglang | Guise::LlamaCpp => {
                matches!(path, "/server_info" | "/version" | "/tokenize" | "/detokenize")
            }
        }
    }

    /// Answers as that server would, or passes the request on.
    pub(crate) async fn wear(self, positions: usize, request: Request, next: Next) -> Response {
        let path = request.uri().path();
        if self.hides(path) {
            return not_found(request.uri().clone()).await.into_response();
        }
        if self == Guise::LlamaCpp && path == "/props" {
            return Json(json!({ "default_generation_settings": { "n_ctx": positions } })).into_response();
        }
        next.run(request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_that_server_lacks_is_hidden() {
        for guise in [Guise::Vllm, Guise::Sglang, Guise::LlamaCpp] {
            assert!(guise.hides("/server_info"), "{guise:?}: nobody else declares its arithmetic");
            assert!(
                !guise.hides("/v1/models")
                    && !guise.hides("/v1/chat/completions")
                    && !guise.hides("/metrics")
            );
        }
        assert!(!Guise::Vllm.hides("/tokenize") && Guise::Sglang.hides("/tokenize"));
        assert_ne!(Guise::Vllm.owned_by(), Guise::Sglang.owned_by());
    }
}
