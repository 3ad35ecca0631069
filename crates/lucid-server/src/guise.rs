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
    /// Every surface that can be worn.
    pub const ALL: [Guise; 3] = [Guise::Vllm, Guise::Sglang, Guise::LlamaCpp];

    /// Its name on the command line and in outcomes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Guise::Vllm => "vllm",
            Guise::Sglang => "sglang",
            Guise::LlamaCpp => "llama-cpp",
        }
    }

    /// The surface of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Guise> {
        Guise::ALL.into_iter().find(|guise| guise.name() == name)
    }

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
            Guise::Vllm => matches!(path, "/server_info" | "/flush_cache"),
            Guise::Sglang if path == "/reset_prefix_cache" => true,
            Guise::LlamaCpp if matches!(path, "/reset_prefix_cache" | "/flush_cache") => true,
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
        for guise in Guise::ALL {
            assert_eq!(Guise::from_name(guise.name()), Some(guise));
            assert!(guise.hides("/server_info"), "{guise:?}: nobody else declares its arithmetic");
            assert!(
                !guise.hides("/v1/models")
                    && !guise.hides("/v1/chat/completions")
                    && !guise.hides("/metrics")
            );
        }
        assert!(!Guise::Vllm.hides("/tokenize") && Guise::Sglang.hides("/tokenize"));
        assert!(Guise::Vllm.hides("/flush_cache") && !Guise::Vllm.hides("/reset_prefix_cache"));
        assert!(Guise::Sglang.hides("/reset_prefix_cache") && !Guise::Sglang.hides("/flush_cache"));
        assert_ne!(Guise::Vllm.owned_by(), Guise::Sglang.owned_by());
    }
}
