//! A model's text into reasoning, content and tool calls.
//!
//! Two parsers in a row: [`reasoning`] splits off the reasoning, a dialect of [`tool_calls`] reads the rest. Both take text in
//! arbitrary pieces, hold back what may become a marker, and give the same result however the text was cut.

mod markers;
mod parsed;
mod reasoning;
mod tool_calls;

pub use parsed::{Parsed, ToolCall};
use reasoning::{Markers, Side, Splitter};
use tool_calls::kimi;

/// What the text of a request can contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputOptions {
    /// The text starts inside the reasoning (the prompt ended in `<think>`, or the model writes it). If not, `<think>` and
    /// `</think>` mean nothing, and all is content.
    pub thinking: bool,
    /// Tool calls are looked for. If not, what a model writes of them stays in the content, for everybody to see.
    pub tools: bool,
}

/// A stretch of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// More reasoning.
    Reasoning(String),
    /// More content.
    Content(String),
    /// A tool call begins. Calls are numbered from 0 without gaps.
    ToolCallStart {
        /// Which call of this answer.
        index: usize,
        /// The id as the model wrote it: `functions.get_weather:0`.
        id: String,
        /// The function's name: `get_weather`. It is not checked against the request's tools.
        name: String,
    },
    /// More of the arguments of a call. The fragments of a call, joined, are never empty, and are JSON if the model
    /// wrote JSON.
    ToolCallArguments {
        /// Which call of this answer.
        index: usize,
        /// The next part of the text.
        fragment: String,
    },
}

/// Splits a model's text (special tokens of the turn's end already removed) into reasoning, content and tool calls.
///
/// Kimi's grammar, with the rules of vLLM's `kimi_k2` parser:
///
/// - Reasoning goes to the first `</think>` or tool section; whitespace at its end is dropped.
/// - If neither comes, all is reasoning, and there is no content.
/// - `<think>` in the reasoning and stray `</think>` in the content are swallowed.
/// - After a tool section began, text outside calls is dropped; whitespace alone before the first call too.
/// - A call whose header isn't `name:number` is dropped. Arguments are the model's text, stripped; `{}` if empty.
#[derive(Clone, Debug)]
pub struct OutputParser {
    reasoning: Splitter,
    tools: Option<kimi::ToolCalls>,
}

impl OutputParser {
    /// Starts an answer.
    #[must_use]
    pub fn new(options: OutputOptions) -> Self {
        let markers = Markers { begin: "<think>", end: "</think>", tools: kimi::SECTION_BEGIN };
        OutputParser {
            reasoning: Splitter::new(markers, options.thinking, options.tools),
            tools: options.tools.then(kimi::ToolCalls::new),
        }
    }

    /// Takes more text and gives what is certain of it: text that may become a marker is held back.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for side in self.reasoning.push(text) {
            self.side(side, &mut pieces);
        }
        pieces
    }

    /// Ends the answer and gives what was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if let Some(side) = self.reasoning.finish() {
            self.side(side, &mut pieces);
        }
        if let Some(tools) = &mut self.tools {
            tools.finish(&mut pieces);
        }
        pieces
    }

    /// Parses a whole text.
    #[must_use]
    pub fn parse(text: &str, options: OutputOptions) -> Parsed {
        let mut parser = OutputParser::new(options);
        let mut pieces = parser.push(text);
        pieces.extend(parser.finish());
        Parsed::from_pieces(pieces)
    }

    /// Whether the text so far ends inside the reasoning. A token after which this holds is one of vLLM's
    /// `reasoning_tokens`.
    #[must_use]
    pub fn is_reasoning(&self) -> bool {
        self.reasoning.is_reasoning()
    }

    fn side(&mut self, side: Side, pieces: &mut Vec<Piece>) {
        match (side, &mut self.tools) {
            (Side::Reasoning(text), _) => pieces.push(Piece::Reasoning(text)),
            (Side::Answer(text), Some(tools)) => tools.push(&text, pieces),
            (Side::Answer(text), None) => pieces.push(Piece::Content(text)),
        }
    }
}
