//! Chat answers: a conversation in; reasoning, content and tool calls out.

mod reader;
mod stream;
mod whole;

use std::sync::Arc;

use lucid_checkpoint::TokenId;
use lucid_engine::Request;

pub(crate) use stream::ChatStream;
pub(crate) use whole::collect;

use crate::app::{Inner, unix_seconds};
use crate::choice::Reading;
use crate::generation::{Generation, Job};
use crate::protocol::error::ApiError;
use crate::structured::Guidance;
use crate::validate::chat::{self, ChatRequest};

/// A chat request on its way: what its answer's shape depends on.
pub(crate) struct Chat {
    pub(crate) app: Arc<Inner>,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) request: ChatRequest,
    pub(crate) prompt_text: String,
    pub(crate) prompt: Vec<TokenId>,
    max_tokens: usize,
    /// The answer begins inside the reasoning.
    thinking: bool,
}

impl Chat {
    /// Checks a body, renders the conversation, encodes it and compiles what the answer is held to. Takes time in proportion to these.
    pub(crate) fn prepare(app: Arc<Inner>, body: &[u8]) -> Result<(Chat, Guidance), ApiError> {
        let request = chat::parse(body, &app.facts)?;
        let prompt_text = app.act.rendered(app.render(&request.prompt, request.tools.declared.as_ref())?);
        let prompt = app.encode(&prompt_text, "messages")?;
        let (asked, field) = match request.max_tokens {
            Some((asked, field)) => (Some(asked), field),
            None => (None, "max_tokens"),
        };
        let max_tokens = app.act.budget(app.facts.budget(prompt.len(), asked, field)?);
        let thinking = app.thinks(&prompt_text, request.prompt.thinking());
        let guide = app.chat_guide(&request, thinking)?;
        let id = app.request_id("chatcmpl");
        let created = unix_seconds();
        Ok((Chat { app, id, created, request, prompt_text, prompt, max_tokens, thinking }, guide))
    }

    /// Hands the request to the engine.
    pub(crate) fn start(&self, guide: &Guidance) -> Result<Generation, ApiError> {
        let common = &self.request.common;
        let stop_tokens = self.app.stop_tokens(&common.stop_token_ids, common.ignore_eos);
        let act = &self.app.act;
        let stop_tokens = act.stop_tokens(&self.prompt, stop_tokens, self.app.tokenizer.vocab_size());
        let lost_token = act.drops_think_end().then(|| self.app.tokenizer.id("</think>")).flatten();
        let jobs = (0..common.n).map(|index| Job {
            request: Request {
                prompt: self.prompt.clone(),
                max_tokens: self.max_tokens,
                min_tokens: common.min_tokens,
                sampling: act.sampling(common.sampling_of(index)),
                stop_tokens: stop_tokens.clone(),
                logprobs: self.request.logprobs,
                // The same for every answer: once is enough.
                prompt_logprobs: common.prompt_logprobs.filter(|_| index == 0),
                routes: common.routes,
                guide: guide.clone(),
            },
            reading: Reading {
                skip_special_tokens: common.skip_special_tokens,
                stop: common.stop.clone(),
                include_stop: common.include_stop,
                min_tokens: common.min_tokens,
                stop_tokens: stop_tokens.clone(),
                primary_eos: self.app.primary_eos,
                lost_token,
                splits_characters: common.stream.is_some() && act.splits_characters(),
            },
            streams: common.stream.is_some(),
        });
        Generation::start(self.app.clone(), self.id.clone(), jobs.collect(), "messages")
    }
}
