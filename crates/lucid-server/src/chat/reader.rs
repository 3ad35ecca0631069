//! Splits one answer's text into reasoning, content and tool calls, and counts.

use std::sync::Arc;

use lucid_text::{OutputOptions, OutputParser, Piece};

use super::Chat;
use crate::app::Inner;
use crate::choice::TokenText;
use crate::protocol::finish::{Ending, FinishReason};

/// The parser of one answer.
pub(crate) struct Reader {
    parser: OutputParser,
    include_reasoning: bool,
    streamed: bool,
    app: Arc<Inner>,
    called: bool,
    pub(crate) tokens: usize,
    pub(crate) reasoning_tokens: usize,
}

impl Reader {
    pub(crate) fn new(chat: &Chat) -> Reader {
        let options = OutputOptions { thinking: chat.thinking, tools: chat.request.tools.parse };
        Reader {
            parser: OutputParser::new(options),
            include_reasoning: chat.request.include_reasoning,
            streamed: chat.request.common.stream.is_some(),
            app: chat.app.clone(),
            called: false,
            tokens: 0,
            reasoning_tokens: 0,
        }
    }

    /// The pieces that are certain after a token.
    pub(crate) fn token(&mut self, token: &TokenText) -> Vec<Piece> {
        let pieces = self.parser.push(&token.text);
        self.tokens += 1;
        // As vLLM counts: the token of `</think>` itself is none of the reasoning.
        self.reasoning_tokens += usize::from(self.parser.is_reasoning());
        self.keep(pieces)
    }

    /// The last pieces, and the final finish reason: `stop` is `tool_calls` if there are any.
    pub(crate) fn end(&mut self, rest: &str, ending: &mut Ending) -> Vec<Piece> {
        let mut pieces = self.parser.push(rest);
        pieces.extend(self.parser.finish());
        let pieces = self.keep(pieces);
        if self.called && ending.reason == FinishReason::Stop {
            ending.reason = FinishReason::ToolCalls;
        }
        pieces
    }

    fn keep(&mut self, mut pieces: Vec<Piece>) -> Vec<Piece> {
        self.called |= pieces.iter().any(|piece| matches!(piece, Piece::ToolCallStart { .. }));
        self.app.act.pieces(&mut pieces, self.streamed);
        if !self.include_reasoning {
            pieces.retain(|piece| !matches!(piece, Piece::Reasoning(_)));
        }
        pieces
    }
}
