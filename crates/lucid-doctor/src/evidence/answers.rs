//! Answers of the ladder, and what became of each rung.

use lucid_client::ChatAnswer;
use serde::{Deserialize, Serialize};

use crate::statistics::Rate;

/// What an answer is, before its content is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    /// There is content.
    Content,
    /// The token budget ended it, and there is no content: the reasoning ate the budget.
    Cut,
    /// It ended by itself, and all of it is in the reasoning field.
    InsideReasoning,
    /// Nothing at all.
    Empty,
}

/// One answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) kind: AnswerKind,
    /// Number of the exchange, from 1.
    pub(crate) exchange: usize,
    pub(crate) content: String,
    pub(crate) reasoning: String,
    /// Whether `finish_reason` is `length`.
    pub(crate) length: bool,
    pub(crate) completion_tokens: Option<u64>,
    pub(crate) max_tokens: u32,
    /// Whether the judge found the right answer in it, in whichever field.
    pub(crate) right: bool,
    /// Whether it goes on without end: more budget would not have helped.
    pub(crate) endless: bool,
}

impl Answer {
    pub(crate) fn new(answer: &ChatAnswer, exchange: usize, max_tokens: u32) -> Answer {
        let content = answer.content().to_owned();
        let reasoning = answer.reasoning().unwrap_or_default().to_owned();
        let length = answer.finish_reason() == Some("length");
        let kind = match (content.trim().is_empty(), length, reasoning.trim().is_empty()) {
            (false, _, _) => AnswerKind::Content,
            (true, true, _) => AnswerKind::Cut,
            (true, false, false) => AnswerKind::InsideReasoning,
            (true, false, true) => AnswerKind::Empty,
        };
        let completion_tokens = answer.usage.map(|usage| usage.completion_tokens);
        Answer {
            kind,
            exchange,
            content,
            reasoning,
            length,
            completion_tokens,
            max_tokens,
            right: false,
            endless: false,
        }
    }

    /// The text that answers the question, wherever the server put it.
    pub(crate) fn text(&self) -> &str {
        let text = if self.content.trim().is_empty() { &self.reasoning } else { &self.content };
        text.rsplit_once("</think>").map_or(text.as_str(), |(_, answer)| answer)
    }

    /// Whether the end of the reasoning stands in the content for everybody to see.
    pub(crate) fn shows_think_tag(&self) -> bool {
        self.content.contains("</think>") || self.content.trim_start().starts_with("<think>")
    }

    /// Whether the server ended it earlier than was asked for.
    pub(crate) fn capped_by_server(&self) -> bool {
        self.length && self.completion_tokens.is_some_and(|tokens| tokens + 1 < u64::from(self.max_tokens))
    }

    /// One or two words, or one character, over and over: no reasoning that a larger budget would end.
    pub(crate) fn loops(&self) -> bool {
        let mut words: Vec<&str> =
            self.content.split_whitespace().chain(self.reasoning.split_whitespace()).collect();
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        self.is_one_character() || (count >= 24 && words.len() <= 2)
    }

    /// `!!!!!!!!`: one character over and over, the picture of NaN logits.
    pub(crate) fn is_one_character(&self) -> bool {
        let mut chars = self.content.chars().chain(self.reasoning.chars()).filter(|c| !c.is_whitespace());
        let Some(first) = chars.next() else { return false };
        let mut count = 1;
        for c in chars {
            if c != first {
                return false;
            }
            count += 1;
        }
        count >= 16
    }
}

/// A rung's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RungScore {
    /// Its name: `fact`.
    pub id: String,
    /// In words.
    pub title: String,
    /// What a pass covers.
    pub covers: String,
    /// Right answers out of the judged ones.
    pub rate: Rate,
    /// A healthy deployment reaches at least this share.
    pub floor: f64,
    /// What that means.
    pub state: RungState,
    /// Answers cut by the token budget; not judged.
    pub cut: u64,
    /// Answers that could not be judged, and requests that failed.
    pub unjudged: u64,
    /// Why the rung was not climbed, or an example of a wrong answer.
    pub note: Option<String>,
}

/// Where a rung stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RungState {
    /// The observed rate is at least the floor.
    Passed,
    /// Below the floor, by the whole interval.
    Failing,
    /// Below the floor, but it may be chance; or too little could be judged.
    Undecided,
    /// Not climbed.
    Skipped,
}
