//! `/v1/chat/completions`: request and answer. Unknown fields are kept.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// One message of a conversation that is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// The text.
    pub content: String,
    /// Whatever else the message carries (`tool_calls`, `tool_call_id`, `name`).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of that role.
    #[must_use]
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_owned(), content: content.into(), extra: Map::new() }
    }

    /// A message of the user.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Message {
        Message::new("user", content)
    }

    /// A system message.
    #[must_use]
    pub fn system(content: impl Into<String>) -> Message {
        Message::new("system", content)
    }
}

/// A chat request. Fields that are `None` are not sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatRequest {
    /// The model's name; empty takes the endpoint's.
    pub model: String,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Tokens of the answer, reasoning included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// 0 is greedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Makes sampling repeatable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Ask for the log-probabilities of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// How many candidates beside each token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<u32>,
    /// Streaming.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Whatever else (`chat_template_kwargs`, `return_token_ids`, `tools`).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl ChatRequest {
    /// A request with these messages and nothing else set.
    #[must_use]
    pub fn new(messages: Vec<Message>) -> ChatRequest {
        ChatRequest { messages, ..ChatRequest::default() }
    }
}

/// The message of an answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct AnswerMessage {
    /// What the user sees. `null` and `""` both occur for "nothing".
    #[serde(default)]
    pub content: Option<String>,
    /// vLLM, Lucid.
    #[serde(default)]
    reasoning: Option<String>,
    /// SGLang, llama.cpp, DeepSeek's own API.
    #[serde(default)]
    reasoning_content: Option<String>,
    /// Unknown fields, `tool_calls` among them.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl AnswerMessage {
    /// The reasoning, under either name; an empty one is `None`.
    #[must_use]
    pub fn reasoning(&self) -> Option<&str> {
        let filled = |text: &'_ Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        if filled(&self.reasoning) {
            self.reasoning.as_deref()
        } else if filled(&self.reasoning_content) {
            self.reasoning_content.as_deref()
        } else {
            None
        }
    }

    /// The content, or `""`.
    #[must_use]
    pub fn content(&self) -> &str {
        self.content.as_deref().unwrap_or_default()
    }

    /// The tool calls, in their order; what a call lacks is empty.
    #[must_use]
    pub fn tool_calls(&self) -> Vec<ToolCall> {
        let calls = self.extra.get("tool_calls").and_then(Value::as_array);
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let call = |call: &Value| {
            let function = call.get("function");
            ToolCall {
                id: text(call.get("id")),
                name: text(function.and_then(|function| function.get("name"))),
                arguments: text(function.and_then(|function| function.get("arguments"))),
            }
        };
        calls.map(|calls| calls.iter().map(call).collect()).unwrap_or_default()
    }

    /// Joins the fragments of a stream's tool calls: names and ids come once, arguments piece by piece.
    fn push_calls(&mut self, fragments: &[Value]) {
        let calls = self.extra.entry("tool_calls").or_insert_with(|| Value::Array(Vec::new()));
        let Some(calls) = calls.as_array_mut() else { return };
        for fragment in fragments {
            let last = calls.len().saturating_sub(1);
            let index = fragment.get("index").and_then(Value::as_u64).map_or(last, |index| index as usize);
            // Calls are numbered without gaps; a number far ahead is no reason to reserve memory.
            if index > calls.len() || index >= MOST_CALLS {
                continue;
            }
            if index == calls.len() {
                calls.push(json!({"id": "", "type": "function", "function": {"name": "", "arguments": ""}}));
            }
            let Some(call) = calls.get_mut(index) else { continue };
            let append = |to: &mut Value, from: Option<&Value>| {
                if let (Value::String(to), Some(Value::String(from))) = (to, from) {
                    to.push_str(from);
                }
            };
            let function = fragment.get("function");
            append(&mut call["id"], fragment.get("id"));
            append(&mut call["function"]["name"], function.and_then(|function| function.get("name")));
            append(
                &mut call["function"]["arguments"],
                function.and_then(|function| function.get("arguments")),
            );
        }
    }

    pub(crate) fn push_delta(&mut self, delta: &AnswerMessage) {
        if let Some(fragments) = delta.extra.get("tool_calls").and_then(Value::as_array) {
            self.push_calls(fragments);
        }
        for (to, from) in [
            (&mut self.content, &delta.content),
            (&mut self.reasoning, &delta.reasoning),
            (&mut self.reasoning_content, &delta.reasoning_content),
        ] {
            if let Some(text) = from {
                to.get_or_insert_default().push_str(text);
            }
        }
    }
}

/// Calls of one answer that are kept.
const MOST_CALLS: usize = 128;

/// A call of a function, as the server delivers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments: a text that should be JSON.
    pub arguments: String,
}

/// One of the answers to a request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ChatChoice {
    /// The message.
    #[serde(default)]
    pub message: AnswerMessage,
    /// `stop`, `length`, `tool_calls`.
    #[serde(default)]
    pub finish_reason: Option<String>,
    /// As the server sent it; read it with `Endpoint::chat_logprobs`.
    #[serde(default)]
    pub logprobs: Option<Value>,
    /// Ids of the answer's tokens, if the server returns them.
    #[serde(default)]
    pub token_ids: Option<Vec<u32>>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Token counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Tokens of the answer, reasoning included.
    #[serde(default)]
    pub completion_tokens: u64,
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ChatAnswer {
    /// The answers; at least one (checked when reading).
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// Ids of the prompt's tokens, if the server returns them.
    #[serde(default)]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// The model's name as the server says it.
    #[serde(default)]
    pub model: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl ChatAnswer {
    /// The first choice's content, or `""`.
    #[must_use]
    pub fn content(&self) -> &str {
        self.choices.first().map_or("", |choice| choice.message.content())
    }

    /// The first choice's reasoning.
    #[must_use]
    pub fn reasoning(&self) -> Option<&str> {
        self.choices.first().and_then(|choice| choice.message.reasoning())
    }

    /// Why the first choice ended.
    #[must_use]
    pub fn finish_reason(&self) -> Option<&str> {
        self.choices.first().and_then(|choice| choice.finish_reason.as_deref())
    }
}
