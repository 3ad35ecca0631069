//! Kimi's tool calls.
//!
//! ```text
//! <|tool_calls_section_begin|>
//!   <|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|>
//! <|tool_calls_section_end|>
//! ```
//!
//! Source of the rules: vLLM 0.33, `parser/kimi_k2.py` and the engine below it.

use std::sync::LazyLock;

use regex::Regex;

use crate::output::Piece;
use crate::output::markers::{Next, Scanner};

pub(crate) const SECTION_BEGIN: &str = "<|tool_calls_section_begin|>";
const SECTION_END: &str = "<|tool_calls_section_end|>";
const CALL_BEGIN: &str = "<|tool_call_begin|>";
const ARGUMENTS_BEGIN: &str = "<|tool_call_argument_begin|>";
const CALL_END: &str = "<|tool_call_end|>";

/// The id of a call: `functions.get_weather:0`.
static ID: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^.+:\d+").expect("the pattern is a constant, and tests use it"));

#[derive(Clone, Debug)]
enum State {
    /// Before the section: text is content.
    Content,
    /// In the section but in no call, or after the section: text is dropped, another call may come.
    Between,
    /// In a call, before its arguments. Holds what came of the header.
    Header(String),
    Arguments(Arguments),
}

#[derive(Clone, Debug)]
struct Arguments {
    /// `None` if the header was no id: the call is dropped.
    index: Option<usize>,
    /// Something was emitted.
    begun: bool,
    /// Whitespace that is dropped if the arguments end with it.
    held: String,
}

/// Finds tool calls in an answer that comes in arbitrary pieces.
#[derive(Clone, Debug)]
pub(crate) struct ToolCalls {
    scanner: Scanner,
    state: State,
    /// Whitespace at the beginning of the content; it is dropped if a tool call is all that follows.
    held: String,
    /// Content other than whitespace was emitted.
    content: bool,
    /// Calls begun so far, dropped ones not counted.
    calls: usize,
}

impl ToolCalls {
    pub(crate) fn new() -> Self {
        ToolCalls {
            scanner: Scanner::default(),
            state: State::Content,
            held: String::new(),
            content: false,
            calls: 0,
        }
    }

    pub(crate) fn push(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        self.scanner.push(text);
        loop {
            let markers: &[&str] = match self.state {
                State::Content => &[SECTION_BEGIN],
                State::Between => &[CALL_BEGIN],
                State::Header(_) => &[ARGUMENTS_BEGIN],
                State::Arguments(_) => &[CALL_END, SECTION_END],
            };
            match self.scanner.next(markers) {
                None => return,
                Some(Next::Text(text)) => self.text(&text, pieces),
                Some(Next::Marker(_)) => self.marker(pieces),
            }
        }
    }

    /// Ends the text. A call that was cut off is closed as it stands.
    pub(crate) fn finish(&mut self, pieces: &mut Vec<Piece>) {
        if let Some(text) = self.scanner.finish() {
            self.text(&text, pieces);
        }
        // A cut header closes into empty arguments, cut arguments into what came of them.
        while matches!(self.state, State::Header(_) | State::Arguments(_)) {
            self.marker(pieces);
        }
        if !self.held.is_empty() {
            pieces.push(Piece::Content(std::mem::take(&mut self.held)));
        }
    }

    fn text(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        match &mut self.state {
            State::Content => {
                self.held.push_str(text);
                self.content |= !text.trim().is_empty();
                if self.content {
                    pieces.push(Piece::Content(std::mem::take(&mut self.held)));
                }
            }
            State::Between => {}
            State::Header(header) => header.push_str(text),
            State::Arguments(arguments) => arguments.text(text, pieces),
        }
    }

    /// The marker that ends the present state was seen.
    fn marker(&mut self, pieces: &mut Vec<Piece>) {
        self.state = match std::mem::replace(&mut self.state, State::Between) {
            State::Content => State::Between,
            State::Between => {
                self.held.clear();
                State::Header(String::new())
            }
            State::Header(header) => {
                let index = id_and_name(&header).map(|(id, name)| {
                    let index = self.calls;
                    self.calls += 1;
                    pieces.push(Piece::ToolCallStart { index, id, name });
                    index
                });
                State::Arguments(Arguments { index, begun: false, held: String::new() })
            }
            State::Arguments(arguments) => {
                arguments.finish(pieces);
                State::Between
            }
        };
    }
}

impl Arguments {
    fn text(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        let Some(index) = self.index else { return };
        let text = if self.begun { text } else { text.trim_start() };
        let end = text.trim_end().len();
        if end > 0 {
            let mut fragment = std::mem::take(&mut self.held);
            fragment.push_str(&text[..end]);
            self.begun = true;
            pieces.push(Piece::ToolCallArguments { index, fragment });
        }
        self.held.push_str(&text[end..]);
    }

    fn finish(self, pieces: &mut Vec<Piece>) {
        if let Some(index) = self.index
            && !self.begun
        {
            pieces.push(Piece::ToolCallArguments { index, fragment: "{}".to_owned() });
        }
    }
}

/// `functions.get_weather:0` is the id as the model wrote it, and `get_weather` the name. `None` if it isn't an id.
fn id_and_name(header: &str) -> Option<(String, String)> {
    let id = ID.find(header.trim())?.as_str().trim();
    let function = id.split(':').next()?;
    let name = function.strip_prefix("functions.").unwrap_or(function);
    (!name.is_empty()).then(|| (id.to_owned(), name.to_owned()))
}
