//! A whole answer, assembled from its pieces.

use super::Piece;

/// A whole answer: what a response without streaming carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The reasoning; `None` if there is none.
    pub reasoning: Option<String>,
    /// The content; `None` if there is none, as when the reasoning never ended.
    pub content: Option<String>,
    /// The tool calls in their order.
    pub tool_calls: Vec<ToolCall>,
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The id as the model wrote it: `functions.get_weather:0`.
    pub id: String,
    /// The function's name: `get_weather`.
    pub name: String,
    /// The arguments as the model wrote them. Not checked to be JSON.
    pub arguments: String,
}

impl Parsed {
    /// Joins the pieces of one answer.
    #[must_use]
    pub fn from_pieces(pieces: impl IntoIterator<Item = Piece>) -> Self {
        let mut parsed = Parsed::default();
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => parsed.reasoning.get_or_insert_default().push_str(&text),
                Piece::Content(text) => parsed.content.get_or_insert_default().push_str(&text),
                Piece::ToolCallStart { id, name, .. } => {
                    parsed.tool_calls.push(ToolCall { id, name, arguments: String::new() });
                }
                Piece::ToolCallArguments { index, fragment } => {
                    if let Some(call) = parsed.tool_calls.get_mut(index) {
                        call.arguments.push_str(&fragment);
                    }
                }
            }
        }
        parsed
    }
}
