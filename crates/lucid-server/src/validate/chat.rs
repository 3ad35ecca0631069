//! `POST /v1/chat/completions`.

use serde_json::{Map, Value};

use super::fields::Fields;
use super::sampling::Common;
use super::structured::{self, Structured};
use super::tools::{self, Tools};
use super::{MAX_LOGPROBS, ModelFacts, log_unknown, messages, unsupported};
use crate::protocol::error::ApiError;

/// A chat request that makes sense.
#[derive(Clone, Debug)]
pub(crate) struct ChatRequest {
    pub(crate) prompt: ChatPrompt,
    pub(crate) tools: Tools,
    /// What the content is held to.
    pub(crate) structured: Option<Structured>,
    pub(crate) common: Common,
    /// The limit, and the field that set it.
    pub(crate) max_tokens: Option<(usize, &'static str)>,
    /// `Some(k)`: report each token's log-probability, and those of the `k` likeliest.
    pub(crate) logprobs: Option<usize>,
    pub(crate) include_reasoning: bool,
    pub(crate) return_prompt_text: bool,
}

/// What the chat template renders; `/tokenize` takes it as well.
#[derive(Clone, Debug)]
pub(crate) struct ChatPrompt {
    pub(crate) messages: Vec<Value>,
    pub(crate) template_kwargs: Map<String, Value>,
    pub(crate) add_generation_prompt: bool,
}

impl ChatPrompt {
    pub(crate) fn take(fields: &mut Fields) -> Result<ChatPrompt, ApiError> {
        let messages = match fields.list("messages")? {
            None => return Err(ApiError::field("messages", "messages is missing")),
            Some(list) => messages::normalize(list)?,
        };
        let mut template_kwargs = fields.object("chat_template_kwargs")?.unwrap_or_default();
        // The template's own arguments: taking them from here would change the conversation behind the checks above.
        for reserved in ["messages", "tools", "add_generation_prompt"] {
            if template_kwargs.contains_key(reserved) {
                let message =
                    format!("chat_template_kwargs must not contain {reserved}: it is a field of the request");
                return Err(ApiError::field(format!("chat_template_kwargs.{reserved}"), message));
            }
        }
        for thinking in ["thinking", "enable_thinking"] {
            if let Some(other) = template_kwargs.get(thinking).filter(|value| !value.is_boolean()) {
                return Err(super::fields::wrong_type(
                    &format!("chat_template_kwargs.{thinking}"),
                    "true or false",
                    other,
                ));
            }
        }
        if let Some(effort) = fields.string("reasoning_effort")? {
            if effort == "none" {
                let why = "turn reasoning off with `chat_template_kwargs`: {\"thinking\": false}";
                return Err(ApiError::unsupported("reasoning_effort", why));
            }
            // Templates that know the variable use it; for the others it has no meaning.
            template_kwargs.entry("reasoning_effort").or_insert(effort.into());
        }
        Ok(ChatPrompt {
            messages,
            template_kwargs,
            add_generation_prompt: fields.boolean("add_generation_prompt")?.unwrap_or(true),
        })
    }

    /// Calls that the conversation holds already: Kimi numbers them from its beginning.
    pub(crate) fn calls(&self) -> usize {
        let of_message =
            |message: &Value| message.get("tool_calls").and_then(Value::as_array).map_or(0, Vec::len);
        self.messages.iter().map(of_message).sum()
    }

    /// Whether the request wants reasoning: yes, unless the template was told otherwise.
    pub(crate) fn thinking(&self) -> bool {
        let flag = |name: &str| self.template_kwargs.get(name).and_then(Value::as_bool);
        match (flag("thinking"), flag("enable_thinking")) {
            (None, None) => true,
            (a, b) => a == Some(true) || b == Some(true),
        }
    }
}

/// Parses and checks a request body.
pub(crate) fn parse(body: &[u8], model: &ModelFacts) -> Result<ChatRequest, ApiError> {
    let mut fields = Fields::parse(body)?;
    model.check_name(&mut fields)?;
    unsupported::refuse_in_chat(&mut fields)?;
    let prompt = ChatPrompt::take(&mut fields)?;
    let tools = tools::take(&mut fields)?;
    let structured = structured::take(&mut fields)?;
    if let (Some(structured), Some(_)) = (&structured, &tools.forced) {
        let message = format!(
            "{} says what the answer is, and tool_choice that it is a call: give one",
            structured.field
        );
        return Err(ApiError::field("tool_choice", message));
    }
    let mut common = Common::take(&mut fields, model)?;
    // A parser has to see every marker of a call.
    common.skip_special_tokens &= !tools.parse;
    // `max_completion_tokens` is OpenAI's newer name, and wins.
    let older = fields.count("max_tokens", 1..=i64::MAX)?.map(|n| (n, "max_tokens"));
    let newer = fields.count("max_completion_tokens", 1..=i64::MAX)?.map(|n| (n, "max_completion_tokens"));
    let request = ChatRequest {
        prompt,
        tools,
        structured,
        common,
        max_tokens: newer.or(older),
        logprobs: logprobs(&mut fields)?,
        include_reasoning: fields.boolean("include_reasoning")?.unwrap_or(true),
        return_prompt_text: fields.boolean("return_prompt_text")?.unwrap_or(false),
    };
    log_unknown(&fields);
    Ok(request)
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=MAX_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::field("top_logprobs", "top_logprobs needs `logprobs`: true")),
    }
}
