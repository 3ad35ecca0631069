//! `POST /v1/completions`.

use lucid_checkpoint::TokenId;
use serde_json::Value;

use super::fields::{Fields, wrong_type};
use super::sampling::{Common, token};
use super::structured::{self, Structured};
use super::{MAX_LOGPROBS, ModelFacts, log_unknown, unsupported};
use crate::protocol::error::ApiError;

/// OpenAI's and vLLM's default for this endpoint.
const DEFAULT_MAX_TOKENS: usize = 16;

/// A completions request that makes sense.
#[derive(Clone, Debug)]
pub(crate) struct CompletionsRequest {
    /// At least one.
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) common: Common,
    /// What the answer is held to.
    pub(crate) structured: Option<Structured>,
    /// 0 only scores the prompt, and is allowed only where that shows.
    pub(crate) max_tokens: usize,
    pub(crate) logprobs: Option<usize>,
    /// The answer begins with the prompt.
    pub(crate) echo: bool,
    pub(crate) return_prompt_text: bool,
}

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    /// Special tokens in it are recognized.
    Text(String),
    /// As it is.
    Tokens(Vec<TokenId>),
}

/// Parses and checks a request body.
pub(crate) fn parse(body: &[u8], model: &ModelFacts) -> Result<CompletionsRequest, ApiError> {
    let mut fields = Fields::parse(body)?;
    model.check_name(&mut fields)?;
    unsupported::refuse_in_completions(&mut fields)?;
    let prompts = prompts(&mut fields, model)?;
    let structured = structured::take(&mut fields)?;
    let common = Common::take(&mut fields, model)?;
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let max_tokens = fields.count("max_tokens", 0..=i64::MAX)?.unwrap_or(DEFAULT_MAX_TOKENS);
    if max_tokens == 0 && !echo && common.prompt_logprobs.is_none() {
        let message = "max_tokens is 0: that is allowed only with `echo` or `prompt_logprobs`";
        return Err(ApiError::field("max_tokens", message));
    }
    let request = CompletionsRequest {
        prompts,
        common,
        structured,
        max_tokens,
        logprobs: fields.count("logprobs", 0..=MAX_LOGPROBS)?,
        echo,
        return_prompt_text: fields.boolean("return_prompt_text")?.unwrap_or(false),
    };
    log_unknown(&fields);
    Ok(request)
}

/// A string, strings, token ids, or lists of token ids.
fn prompts(fields: &mut Fields, model: &ModelFacts) -> Result<Vec<Prompt>, ApiError> {
    let list = match fields.take("prompt") {
        None => return Err(ApiError::field("prompt", "prompt is missing")),
        Some(Value::String(text)) => return Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(list)) => list,
        Some(other) => {
            return Err(wrong_type("prompt", "a string, strings, token ids or lists of them", &other));
        }
    };
    if list.is_empty() {
        return Err(ApiError::field("prompt", "prompt is empty"));
    }
    if list.iter().all(Value::is_number) {
        return Ok(vec![tokens(&list, "prompt", model)?]);
    }
    if list.len() > model.max_prompts {
        let message = format!("prompt has {} prompts, at most {} are allowed", list.len(), model.max_prompts);
        return Err(ApiError::field("prompt", message));
    }
    list.into_iter()
        .enumerate()
        .map(|(i, item)| match item {
            Value::String(text) => Ok(Prompt::Text(text)),
            Value::Array(ids) => tokens(&ids, &format!("prompt[{i}]"), model),
            other => Err(wrong_type(&format!("prompt[{i}]"), "a string or a list of token ids", &other)),
        })
        .collect()
}

fn tokens(ids: &[Value], field: &str, model: &ModelFacts) -> Result<Prompt, ApiError> {
    if ids.is_empty() {
        return Err(ApiError::field(field, "the prompt has no tokens"));
    }
    ids.iter().map(|id| token(id, field, model)).collect::<Result<_, _>>().map(Prompt::Tokens)
}
