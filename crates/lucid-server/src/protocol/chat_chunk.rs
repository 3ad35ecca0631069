//! One event of a streamed chat answer. Fields that are not set are absent, not null, with the exceptions that vLLM makes.

use lucid_checkpoint::TokenId;
use lucid_text::Piece;
use serde::Serialize;

use super::finish::{FinishReason, StopReason};
use super::logprobs::ChatLogprobs;
use super::usage::StreamUsage;

#[derive(Debug, Serialize)]
pub(crate) struct ChatChunk<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    /// One, or none in the usage chunk.
    pub(crate) choices: Vec<ChunkChoice>,
    /// In the first chunk of a choice.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) prompt: Option<PromptEcho<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<StreamUsage>,
    /// In the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) system_fingerprint: Option<&'a str>,
}

/// The prompt as the model saw it, where it was asked for.
#[derive(Debug, Serialize)]
pub(crate) struct PromptEcho<'a> {
    pub(crate) prompt_token_ids: Option<&'a [TokenId]>,
    pub(crate) prompt_text: Option<&'a str>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: Delta,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<FinishReason>,
    /// In the chunk with the finish reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop_reason: Option<Option<StopReason>>,
    /// In all but the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Option<Vec<TokenId>>>,
}

/// What is new.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallDelta>,
}

/// A call's id, type and name come with its first delta, fragments of its arguments with every one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct CallDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    index: usize,
    function: FunctionDelta,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl Delta {
    /// Opens a choice.
    pub(crate) fn role() -> Delta {
        Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() }
    }

    /// One delta for each change of kind: a delta carries reasoning, or content, or parts of tool calls.
    pub(crate) fn from_pieces(pieces: Vec<Piece>) -> Vec<Delta> {
        let mut deltas: Vec<Delta> = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => match deltas.last_mut() {
                    Some(Delta { reasoning: Some(a), reasoning_content: Some(b), .. }) => {
                        a.push_str(&text);
                        b.push_str(&text);
                    }
                    _ => deltas.push(Delta {
                        reasoning: Some(text.clone()),
                        reasoning_content: Some(text),
                        ..Delta::default()
                    }),
                },
                Piece::Content(text) => match deltas.last_mut() {
                    Some(Delta { content: Some(content), .. }) => content.push_str(&text),
                    _ => deltas.push(Delta { content: Some(text), ..Delta::default() }),
                },
                Piece::ToolCallStart { index, id, name } => deltas.push(Delta::call(CallDelta {
                    id: Some(id),
                    r#type: Some("function"),
                    index,
                    function: FunctionDelta { name: Some(name), arguments: String::new() },
                })),
                Piece::ToolCallArguments { index, fragment } => {
                    match deltas.last_mut().and_then(|delta| delta.tool_calls.last_mut()) {
                        Some(call) if call.index == index => call.function.arguments.push_str(&fragment),
                        _ => deltas.push(Delta::call(CallDelta {
                            id: None,
                            r#type: None,
                            index,
                            function: FunctionDelta { name: None, arguments: fragment },
                        })),
                    }
                }
            }
        }
        deltas
    }

    fn call(call: CallDelta) -> Delta {
        Delta { tool_calls: vec![call], ..Delta::default() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pieces_of_a_kind_become_one_delta() {
        let pieces = vec![
            Piece::Reasoning("a".into()),
            Piece::Reasoning("b".into()),
            Piece::Content("c".into()),
            Piece::ToolCallStart { index: 0, id: "functions.f:0".into(), name: "f".into() },
            Piece::ToolCallArguments { index: 0, fragment: "{".into() },
            Piece::ToolCallArguments { index: 0, fragment: "}".into() },
            Piece::ToolCallStart { index: 1, id: "functions.g:1".into(), name: "g".into() },
        ];
        let deltas = serde_json::to_value(Delta::from_pieces(pieces)).unwrap();
        assert_eq!(
            deltas,
            json!([
                {"reasoning": "ab", "reasoning_content": "ab"},
                {"content": "c"},
                {"tool_calls": [{"id": "functions.f:0", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}]},
                {"tool_calls": [{"id": "functions.g:1", "type": "function", "index": 1, "function": {"name": "g", "arguments": ""}}]},
            ])
        );
        let later = Delta::from_pieces(vec![Piece::ToolCallArguments { index: 0, fragment: "x".into() }]);
        let later = serde_json::to_value(later).unwrap();
        assert_eq!(later, json!([{"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]}]));
    }
}
