//! Completions as a stream of text.

use super::Completions;
use super::answer::Answer;
use crate::generation::{Generation, Step};
use crate::protocol::completions::{CompletionsChunk, CompletionsChunkChoice};
use crate::protocol::error::ApiError;
use crate::protocol::finish::Ending;
use crate::protocol::usage::Counts;
use crate::sse::{EventSource, Events};

/// Turns updates of the engine into chunks.
pub(crate) struct CompletionsStream {
    of: Completions,
    generation: Generation,
    answers: Vec<Streamed>,
    open: usize,
}

#[derive(Default)]
struct Streamed {
    answer: Answer,
    begun: bool,
}

impl CompletionsStream {
    pub(crate) fn new(of: Completions, generation: Generation) -> CompletionsStream {
        let open = of.answers();
        let answers = (0..open).map(|_| Streamed::default()).collect();
        CompletionsStream { of, generation, answers, open }
    }

    /// A choice with all that has not been sent; the first of an answer repeats the prompt's ids if asked for.
    fn choice(&mut self, index: usize) -> CompletionsChunkChoice {
        let ids = self.of.request.common.return_token_ids;
        let Some(streamed) = self.answers.get_mut(index) else { return CompletionsChunkChoice::default() };
        let first = !std::mem::replace(&mut streamed.begun, true);
        let prompt = self.of.prompt_of(index).filter(|_| ids && first);
        CompletionsChunkChoice {
            index,
            text: std::mem::take(&mut streamed.answer.text),
            logprobs: streamed.answer.take_logprobs(),
            finish_reason: None,
            stop_reason: None,
            prompt_token_ids: prompt.map(|prompt| prompt.tokens.clone()),
            token_ids: ids.then(|| std::mem::take(&mut streamed.answer.token_ids)),
        }
    }

    /// Sends what is new, if a reader can see it.
    fn flush(&mut self, index: usize, events: &mut Events) {
        if self.answers.get(index).is_some_and(|streamed| !streamed.answer.text.is_empty()) {
            let choice = self.choice(index);
            events.push(&self.chunk(vec![choice]));
        }
    }

    fn end(&mut self, index: usize, ending: Ending, events: &mut Events) {
        let choice = CompletionsChunkChoice {
            finish_reason: Some(ending.reason),
            stop_reason: ending.stop,
            ..self.choice(index)
        };
        self.open -= 1;
        let last = self.open == 0;
        let include_usage = self.of.request.common.stream.is_some_and(|options| options.include_usage);
        let fingerprint = Some(self.of.app.fingerprint.as_str());
        let chunk = self.chunk(vec![choice]);
        events.push(&CompletionsChunk {
            system_fingerprint: fingerprint.filter(|_| last && !include_usage),
            ..chunk
        });
        if last && include_usage {
            let usage = Some(self.counts().last());
            events.push(&CompletionsChunk {
                usage,
                system_fingerprint: fingerprint,
                ..self.chunk(Vec::new())
            });
        }
    }

    fn chunk(&self, choices: Vec<CompletionsChunkChoice>) -> CompletionsChunk<'_> {
        let continuous = self.of.request.common.stream.is_some_and(|options| options.continuous_usage);
        CompletionsChunk {
            id: &self.of.id,
            object: "text_completion",
            created: self.of.created,
            model: &self.of.app.facts.name,
            choices,
            usage: continuous.then(|| self.counts().so_far()),
            system_fingerprint: None,
        }
    }

    fn counts(&self) -> Counts {
        Counts {
            prompt: self.of.prompt_tokens(),
            cached: self.generation.cached_tokens(self.of.request.common.n),
            completion: self.answers.iter().map(|streamed| streamed.answer.tokens).sum(),
            reasoning: None,
        }
    }
}

impl EventSource for CompletionsStream {
    async fn advance(&mut self, events: &mut Events) -> Result<bool, ApiError> {
        let Some(update) = self.generation.next().await else { return Ok(false) };
        let update = update?;
        let Some(streamed) = self.answers.get_mut(update.index) else { return Ok(true) };
        match update.step {
            Step::Prompt(entries) => {
                streamed.answer.prompt(&self.of, update.index, entries.as_deref());
                self.flush(update.index, events);
            }
            Step::Token(token) => {
                streamed.answer.token(&self.of, &token);
                self.flush(update.index, events);
            }
            // Not asked for in streams.
            Step::Routes(_) => {}
            Step::End { rest, ending } => {
                streamed.answer.text.push_str(&rest);
                self.end(update.index, ending, events);
            }
        }
        Ok(true)
    }
}
