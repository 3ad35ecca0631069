//! A chat answer as a stream: a role chunk, deltas, a chunk with the finish reason, perhaps a chunk with the usage.

use lucid_checkpoint::TokenId;
use lucid_text::Piece;

use super::Chat;
use super::reader::Reader;
use crate::choice::TokenText;
use crate::generation::{Generation, Step};
use crate::protocol::chat_chunk::{ChatChunk, ChunkChoice, Delta, PromptEcho};
use crate::protocol::error::ApiError;
use crate::protocol::finish::Ending;
use crate::protocol::logprobs::{ChatEntry, ChatLogprobs, TokenNames};
use crate::protocol::usage::Counts;
use crate::sse::{EventSource, Events};

/// Turns updates of the engine into chunks.
pub(crate) struct ChatStream {
    chat: Chat,
    generation: Generation,
    answers: Vec<Answer>,
    open: usize,
}

/// Tokens whose text is held back wait here, so that every chunk's ids and log-probabilities come with their text
/// or later, and none is lost.
struct Answer {
    reader: Reader,
    token_ids: Vec<TokenId>,
    logprobs: Vec<ChatEntry>,
}

impl ChatStream {
    pub(crate) fn new(chat: Chat, generation: Generation) -> ChatStream {
        let answer = || Answer { reader: Reader::new(&chat), token_ids: Vec::new(), logprobs: Vec::new() };
        let answers: Vec<Answer> = (0..chat.request.common.n).map(|_| answer()).collect();
        let open = answers.len();
        ChatStream { chat, generation, answers, open }
    }

    fn role(&self, index: usize, events: &mut Events) {
        let common = &self.chat.request.common;
        let choice = ChunkChoice {
            index,
            delta: Delta::role(),
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
            token_ids: None,
        };
        let prompt = PromptEcho {
            prompt_token_ids: common.return_token_ids.then_some(&self.chat.prompt),
            prompt_text: self.chat.request.return_prompt_text.then_some(&self.chat.prompt_text),
        };
        events.push(&ChatChunk { prompt: Some(prompt), ..self.chunk(vec![choice]) });
    }

    fn token(&mut self, index: usize, token: &TokenText, events: &mut Events) {
        let names = TokenNames {
            tokenizer: &self.chat.app.tokenizer,
            as_ids: self.chat.request.common.tokens_as_ids,
        };
        let Some(answer) = self.answers.get_mut(index) else { return };
        answer.token_ids.push(token.id);
        answer.logprobs.extend(token.logprobs.iter().map(|entry| ChatEntry::new(entry, names)));
        let pieces = answer.reader.token(token);
        self.deltas(index, pieces, events);
    }

    fn end(&mut self, index: usize, rest: &str, mut ending: Ending, events: &mut Events) {
        let Some(answer) = self.answers.get_mut(index) else { return };
        let pieces = answer.reader.end(rest, &mut ending);
        self.deltas(index, pieces, events);
        let choice = ChunkChoice {
            finish_reason: Some(ending.reason),
            stop_reason: Some(ending.stop),
            ..self.choice(index, Delta::default())
        };
        self.open -= 1;
        let last = self.open == 0;
        let usage_follows = self.include_usage();
        let chunk = self.chunk(vec![choice]);
        let system_fingerprint = (last && !usage_follows).then_some(self.chat.app.fingerprint.as_str());
        events.push(&ChatChunk { system_fingerprint, ..chunk });
        if last && usage_follows {
            let usage = Some(self.counts().last());
            let system_fingerprint = Some(self.chat.app.fingerprint.as_str());
            events.push(&ChatChunk { usage, system_fingerprint, ..self.chunk(Vec::new()) });
        }
    }

    fn deltas(&mut self, index: usize, pieces: Vec<Piece>, events: &mut Events) {
        for delta in Delta::from_pieces(pieces) {
            let choice = self.choice(index, delta);
            events.push(&self.chunk(vec![choice]));
        }
    }

    /// A choice with what has waited for it.
    fn choice(&mut self, index: usize, delta: Delta) -> ChunkChoice {
        let (token_ids, logprobs) = match self.answers.get_mut(index) {
            Some(answer) => (std::mem::take(&mut answer.token_ids), std::mem::take(&mut answer.logprobs)),
            None => Default::default(),
        };
        ChunkChoice {
            index,
            delta,
            logprobs: (!logprobs.is_empty()).then_some(ChatLogprobs { content: logprobs }),
            finish_reason: None,
            stop_reason: None,
            token_ids: Some(self.chat.request.common.return_token_ids.then_some(token_ids)),
        }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>) -> ChatChunk<'_> {
        let continuous = self.chat.request.common.stream.is_some_and(|options| options.continuous_usage);
        ChatChunk {
            id: &self.chat.id,
            object: "chat.completion.chunk",
            created: self.chat.created,
            model: &self.chat.app.facts.name,
            choices,
            prompt: None,
            usage: continuous.then(|| self.counts().so_far()),
            system_fingerprint: None,
        }
    }

    fn counts(&self) -> Counts {
        Counts {
            prompt: self.chat.prompt.len(),
            cached: self.generation.cached_tokens(self.chat.request.common.n),
            completion: self.answers.iter().map(|answer| answer.reader.tokens).sum(),
            reasoning: Some(self.answers.iter().map(|answer| answer.reader.reasoning_tokens).sum()),
        }
    }

    fn include_usage(&self) -> bool {
        self.chat.request.common.stream.is_some_and(|options| options.include_usage)
    }
}

impl EventSource for ChatStream {
    async fn advance(&mut self, events: &mut Events) -> Result<bool, ApiError> {
        let Some(update) = self.generation.next().await else { return Ok(false) };
        let update = update?;
        match update.step {
            // Not asked for in streams.
            Step::Routes(_) => {}
            Step::Prompt(_) => self.role(update.index, events),
            Step::Token(token) => self.token(update.index, &token, events),
            Step::End { rest, ending } => self.end(update.index, &rest, ending, events),
        }
        Ok(true)
    }
}
