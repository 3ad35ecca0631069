//! One answer on its way through a grammar.

use std::fmt;

use llguidance::Matcher;
use lucid_checkpoint::TokenId;
use lucid_engine::Guide;
use lucid_text::Tokenizer;

use crate::tools::SECTION_BEGIN;

/// What an answer begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// With reasoning, which is free; the grammar begins behind `</think>`.
    Reasoning,
    /// With what the grammar says.
    Answer,
}

/// A grammar, and where in it the answer is.
#[derive(Clone)]
pub(crate) struct Guided {
    matcher: Matcher,
    /// What ends the reasoning, while the answer is in it.
    reasoning: Option<Ends>,
}

/// Tokens that end a reasoning.
#[derive(Clone, Copy, Debug)]
struct Ends {
    /// `</think>`: the grammar begins behind it.
    think: TokenId,
    /// Calls that begin within the reasoning end it, and belong to the grammar, if it has any.
    calls: Option<TokenId>,
}

impl Guided {
    /// A fresh answer. A vocabulary without `</think>` has no reasoning.
    pub(crate) fn new(matcher: Matcher, beginning: Beginning, tokenizer: &Tokenizer) -> Guided {
        let ends = tokenizer.id("</think>").map(|think| Ends { think, calls: tokenizer.id(SECTION_BEGIN) });
        Guided { matcher, reasoning: ends.filter(|_| beginning == Beginning::Reasoning) }
    }
}

impl fmt::Debug for Guided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guided").field("reasoning", &self.reasoning).finish_non_exhaustive()
    }
}

impl Guide for Guided {
    fn is_idle(&self) -> bool {
        self.reasoning.is_some()
    }

    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), String> {
        if self.reasoning.is_some() {
            return Ok(());
        }
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| failed(&error))?;
        for (row, logit) in logits.iter_mut().enumerate() {
            // Rows that the trie does not know are no tokens.
            if u32::try_from(row).is_ok_and(|token| row >= mask.len() || !mask.is_allowed(token)) {
                *logit = f32::NEG_INFINITY;
            }
        }
        if logits.iter().all(|&logit| logit == f32::NEG_INFINITY) {
            return Err("the grammar allows no token of this vocabulary here".to_owned());
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<(), String> {
        if let Some(ends) = self.reasoning {
            if token == ends.think {
                self.reasoning = None;
            } else if Some(token) == ends.calls {
                // Only a grammar of calls begins so; in any other answer it is a slip of the reasoning.
                if self.matcher.try_consume_tokens(&[token.0]).map_err(|error| failed(&error))? == 1 {
                    self.reasoning = None;
                }
            }
            return Ok(());
        }
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            // Behind the end there is only the end, for those who ask for tokens beyond it.
            return Ok(());
        }
        self.matcher.consume_token(token.0).map_err(|error| failed(&error))
    }

    fn duplicate(&self) -> Box<dyn Guide> {
        Box::new(Guided { matcher: self.matcher.deep_clone(), reasoning: self.reasoning })
    }
}

fn failed(error: &impl fmt::Display) -> String {
    format!("the answer can't be held to its grammar any further: {error}")
}
