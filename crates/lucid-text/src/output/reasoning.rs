//! Splits a model's text into reasoning and answer.
//!
//! Source of the rules: vLLM 0.33, `parser/kimi_k2.py` and the engine below it.

use super::markers::{Next, Scanner};

/// The strings that begin and end reasoning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Markers {
    /// Swallowed wherever it stands in the reasoning: some templates write it, some models write it again.
    pub(crate) begin: &'static str,
    /// Ends the reasoning. One that comes later is swallowed.
    pub(crate) end: &'static str,
    /// Ends the reasoning too, and stays in the answer for the tool-call parser.
    pub(crate) tools: &'static str,
}

/// A stretch of text and the side that it is on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Reasoning(String),
    Answer(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reasoning,
    /// After the reasoning: only stray ends are taken out.
    Answer,
    /// All text is the answer as it stands.
    Verbatim,
}

/// Splits text that comes in arbitrary pieces.
#[derive(Clone, Debug)]
pub(crate) struct Splitter {
    markers: Markers,
    state: State,
    /// Whether a tool-call parser follows. Its section is handed on untouched, stray ends inside included.
    tools: bool,
    scanner: Scanner,
    /// Whitespace at the end of the reasoning so far; it is dropped when the reasoning ends.
    held: String,
}

impl Splitter {
    /// With `thinking` the text starts inside the reasoning; without, markers of reasoning mean nothing.
    pub(crate) fn new(markers: Markers, thinking: bool, tools: bool) -> Self {
        let state = if thinking { State::Reasoning } else { State::Verbatim };
        Splitter { markers, state, tools, scanner: Scanner::default(), held: String::new() }
    }

    /// Whether the text so far ends inside the reasoning.
    pub(crate) fn is_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    pub(crate) fn push(&mut self, text: &str) -> Vec<Side> {
        self.scanner.push(text);
        let mut sides = Vec::new();
        while let Some(side) = self.step() {
            sides.extend(side);
        }
        sides
    }

    pub(crate) fn finish(&mut self) -> Option<Side> {
        let text = self.scanner.finish()?;
        self.text(text)
    }

    /// One step of the scanner; `None` when it needs more text, `Some(None)` for a step that shows nothing.
    fn step(&mut self) -> Option<Option<Side>> {
        let Markers { begin, end, tools } = self.markers;
        let next = match self.state {
            State::Reasoning => self.scanner.next(&[end, tools, begin])?,
            State::Answer if self.tools => self.scanner.next(&[end, tools])?,
            State::Answer => self.scanner.next(&[end])?,
            State::Verbatim => self.scanner.next(&[])?,
        };
        Some(match next {
            Next::Text(text) => self.text(text),
            Next::Marker(0) => {
                self.state = State::Answer;
                None
            }
            Next::Marker(1) => {
                self.state = if self.tools { State::Verbatim } else { State::Answer };
                Some(Side::Answer(tools.to_owned()))
            }
            Next::Marker(_) => None,
        })
    }

    fn text(&mut self, text: String) -> Option<Side> {
        if self.state != State::Reasoning {
            return Some(Side::Answer(text));
        }
        // Without looking at what is held: a model that writes newlines without end must not cost more with each.
        let end = text.trim_end().len();
        if end == 0 {
            self.held.push_str(&text);
            return None;
        }
        let mut reasoning = std::mem::take(&mut self.held);
        reasoning.push_str(&text[..end]);
        self.held.push_str(&text[end..]);
        Some(Side::Reasoning(reasoning))
    }
}
