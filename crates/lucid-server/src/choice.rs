//! One answer while it comes: tokens become text, and the text may end at a stop string.

use std::collections::VecDeque;

use lucid_checkpoint::TokenId;
use lucid_engine::TokenLogprobs;
use lucid_text::{Detokenizer, Tokenizer};

use crate::protocol::finish::{Ending, FinishReason, StopReason};
use crate::stop_strings::{Scan, StopStrings};

/// How an answer is to be read.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) skip_special_tokens: bool,
    pub(crate) stop: Vec<String>,
    pub(crate) include_stop: bool,
    /// Text of this many tokens cannot stop the answer.
    pub(crate) min_tokens: usize,
    /// All tokens that end the answer.
    pub(crate) stop_tokens: Vec<TokenId>,
    /// The stop token that is the normal end and gives no `stop_reason`.
    pub(crate) primary_eos: Option<TokenId>,
    /// A token whose text is lost on purpose (planted fault).
    pub(crate) lost_token: Option<TokenId>,
    /// Every token is decoded alone (planted fault).
    pub(crate) splits_characters: bool,
}

/// One generated token, and the text that is certain after it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenText {
    pub(crate) id: TokenId,
    /// Empty while the text waits for the rest of a character or of a stop string.
    pub(crate) text: String,
    pub(crate) logprobs: Option<TokenLogprobs>,
}

/// What happened to an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Token(TokenText),
    /// The end, with the text that was still held back.
    End {
        rest: String,
        ending: Ending,
    },
}

/// One answer.
pub(crate) struct Choice {
    reading: Reading,
    detokenizer: Detokenizer,
    /// Decodes tokens one by one (planted fault).
    alone: Option<Tokenizer>,
    stops: StopStrings,
    tokens: usize,
    /// A stop token whose text is part of the answer only if the engine goes on after it.
    pending: Option<(TokenId, Option<TokenLogprobs>)>,
    ended: bool,
}

impl Choice {
    pub(crate) fn new(tokenizer: &Tokenizer, reading: Reading) -> Choice {
        Choice {
            alone: reading.splits_characters.then(|| tokenizer.clone()),
            detokenizer: Detokenizer::new(tokenizer.clone(), reading.skip_special_tokens),
            stops: StopStrings::new(reading.stop.clone(), reading.include_stop),
            reading,
            tokens: 0,
            pending: None,
            ended: false,
        }
    }

    /// After the end, nothing changes any more.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// The engine generated a token.
    pub(crate) fn token(
        &mut self,
        id: TokenId,
        logprobs: Option<TokenLogprobs>,
        changes: &mut VecDeque<Change>,
    ) {
        self.settle(changes);
        if self.ended {
            return;
        }
        self.tokens += 1;
        if self.reading.stop_tokens.contains(&id) && !self.reading.include_stop {
            self.pending = Some((id, logprobs));
            return;
        }
        self.visible(id, logprobs, changes);
    }

    /// The engine ended the answer, at `token` if it was a stop token.
    pub(crate) fn finish(&mut self, token: Option<TokenId>, changes: &mut VecDeque<Change>) {
        match (token, self.pending.take()) {
            (Some(_), Some((id, logprobs))) => {
                changes.push_back(Change::Token(TokenText { id, text: String::new(), logprobs }));
            }
            (None, Some((id, logprobs))) => self.visible(id, logprobs, changes),
            (_, None) => {}
        }
        if self.ended {
            return;
        }
        let tail = self.detokenizer.finish();
        let (mut rest, stopped) = self.scan(&tail);
        let ending = match (stopped, token) {
            (Some(stop), _) => Ending { reason: FinishReason::Stop, stop: Some(StopReason::Text(stop)) },
            (None, Some(token)) => {
                let named = (self.reading.primary_eos != Some(token)).then_some(StopReason::Token(token));
                Ending { reason: FinishReason::Stop, stop: named }
            }
            (None, None) => Ending { reason: FinishReason::Length, stop: None },
        };
        if !matches!(ending.stop, Some(StopReason::Text(_))) {
            rest.push_str(&self.stops.finish());
        }
        self.end(rest, ending, changes);
    }

    /// The engine went on after a stop token (`min_tokens`): its text counts after all.
    fn settle(&mut self, changes: &mut VecDeque<Change>) {
        if let Some((id, logprobs)) = self.pending.take() {
            self.visible(id, logprobs, changes);
        }
    }

    fn visible(&mut self, id: TokenId, logprobs: Option<TokenLogprobs>, changes: &mut VecDeque<Change>) {
        let piece = match &self.alone {
            _ if self.reading.lost_token == Some(id) => String::new(),
            Some(tokenizer) => tokenizer.decode(&[id], self.reading.skip_special_tokens),
            None => self.detokenizer.push(id),
        };
        let (text, stopped) = self.scan(&piece);
        changes.push_back(Change::Token(TokenText { id, text, logprobs }));
        if let Some(stop) = stopped {
            let ending = Ending { reason: FinishReason::Stop, stop: Some(StopReason::Text(stop)) };
            self.end(String::new(), ending, changes);
        }
    }

    fn scan(&mut self, piece: &str) -> (String, Option<String>) {
        if self.tokens <= self.reading.min_tokens && self.reading.min_tokens > 0 {
            return (self.stops.pass(piece), None);
        }
        match self.stops.push(piece) {
            Scan::Open(text) => (text, None),
            Scan::Stopped { text, stop } => (text, Some(stop)),
        }
    }

    fn end(&mut self, rest: String, ending: Ending, changes: &mut VecDeque<Change>) {
        self.ended = true;
        changes.push_back(Change::End { rest, ending });
    }
}
