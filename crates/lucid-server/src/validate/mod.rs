//! From a request's JSON to what the server will do. Every error names the field that is to blame.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod fields;
pub(crate) mod messages;
pub(crate) mod sampling;
pub(crate) mod structured;
pub(crate) mod tokenize;
pub(crate) mod tools;
mod unsupported;

use lucid_checkpoint::{Generation, TokenId};

use crate::protocol::error::ApiError;

/// Candidates that `top_logprobs`, `logprobs` and `prompt_logprobs` may ask for; vLLM's default as well.
pub(crate) const MAX_LOGPROBS: i64 = 20;

/// What a request is checked against.
#[derive(Clone, Debug)]
pub(crate) struct ModelFacts {
    /// The name that requests have to give.
    pub(crate) name: String,
    pub(crate) vocab_size: usize,
    pub(crate) max_model_len: usize,
    /// What `generation_config.json` says, for parameters that a request leaves out.
    pub(crate) defaults: Generation,
    /// Answers to one prompt.
    pub(crate) max_n: usize,
    /// Prompts in one completions request.
    pub(crate) max_prompts: usize,
    /// Whether requests may ask where their tokens went.
    pub(crate) tells_routes: bool,
}

impl ModelFacts {
    /// The token of that id, if the vocabulary has it.
    pub(crate) fn token(&self, id: u32) -> Option<TokenId> {
        ((id as usize) < self.vocab_size).then_some(TokenId(id))
    }

    pub(crate) fn unknown_token(&self, field: &str, id: &str) -> String {
        format!("{field}: {id:.20} is no token, ids go from 0 to {}", self.vocab_size.saturating_sub(1))
    }

    /// 404 unless the request names this model. Without a name, it means the one that is here (as vLLM does).
    pub(crate) fn check_name(&self, fields: &mut fields::Fields) -> Result<(), ApiError> {
        match fields.string("model")? {
            Some(name) if name != self.name => Err(ApiError {
                status: axum::http::StatusCode::NOT_FOUND,
                message: format!("The model `{name:.100}` does not exist. This server has: {}.", self.name),
                param: Some("model".to_owned()),
            }),
            _ => Ok(()),
        }
    }

    /// How many tokens to generate after a prompt of this length. `asked` is what the field `name` says.
    pub(crate) fn budget(&self, prompt: usize, asked: Option<usize>, name: &str) -> Result<usize, ApiError> {
        let most = self.max_model_len;
        let room = most.saturating_sub(prompt);
        if room == 0 && asked != Some(0) || prompt > most {
            let message = format!(
                "This model's maximum context length is {most} tokens, the prompt has {prompt} and leaves no room \
                 for an answer. Shorten the prompt."
            );
            return Err(ApiError::field("input_tokens", message));
        }
        match asked {
            Some(asked) if asked > room => {
                let message = format!(
                    "This model's maximum context length is {most} tokens, but the prompt has {prompt} and {name} \
                     asks for {asked} more. Ask for at most {room}, or shorten the prompt."
                );
                Err(ApiError::field(name, message))
            }
            asked => Ok(asked.unwrap_or(room)),
        }
    }
}

/// Says which fields had no effect; their names only, values may be private.
fn log_unknown(fields: &fields::Fields) {
    for name in fields.left() {
        tracing::debug!(field = %format_args!("{name:.64}"), "unknown request field has no effect");
    }
}

#[cfg(test)]
pub(crate) fn test_facts() -> ModelFacts {
    ModelFacts {
        name: "canary".into(),
        vocab_size: 4096,
        max_model_len: 4096,
        defaults: Generation { temperature: Some(0.6), top_p: Some(0.95), ..Generation::default() },
        max_n: 16,
        max_prompts: 8,
        tells_routes: false,
    }
}

#[cfg(test)]
mod tests;
