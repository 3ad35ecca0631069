//! What is new in one answer: text, token ids, log-probabilities.

use lucid_checkpoint::TokenId;
use lucid_engine::TokenLogprobs;

use super::Completions;
use crate::choice::TokenText;
use crate::protocol::logprobs::{CompletionLogprobs, TokenNames};

/// Collects what has not been sent yet.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) token_ids: Vec<TokenId>,
    logprobs: CompletionLogprobs,
    /// Characters of all tokens so far; goes on over the chunks of a stream.
    offset: usize,
    pub(crate) tokens: usize,
}

impl Answer {
    /// The echoed prompt.
    pub(crate) fn prompt(
        &mut self,
        of: &Completions,
        index: usize,
        entries: Option<&[Option<TokenLogprobs>]>,
    ) {
        let Some(prompt) = of.prompt_of(index).filter(|_| of.request.echo) else { return };
        self.text.push_str(&prompt.text);
        if let Some(entries) = entries.filter(|_| of.request.logprobs.is_some()) {
            for (&id, entry) in prompt.tokens.iter().zip(entries) {
                self.logprobs.push(id, entry.as_ref(), names(of), &mut self.offset);
            }
        }
    }

    pub(crate) fn token(&mut self, of: &Completions, token: &TokenText) {
        self.tokens += 1;
        self.text.push_str(&token.text);
        self.token_ids.push(token.id);
        if let Some(entry) = &token.logprobs {
            self.logprobs.push(token.id, Some(entry), names(of), &mut self.offset);
        }
    }

    /// The log-probabilities that have not been sent; `None` if there are none.
    pub(crate) fn take_logprobs(&mut self) -> Option<CompletionLogprobs> {
        let logprobs = std::mem::take(&mut self.logprobs);
        (!logprobs.is_empty()).then_some(logprobs)
    }
}

fn names(of: &Completions) -> TokenNames<'_> {
    TokenNames { tokenizer: &of.app.tokenizer, as_ids: of.request.common.tokens_as_ids }
}
