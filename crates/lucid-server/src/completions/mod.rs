//! Plain completions: text or tokens in, text out, no template and no parser.

mod answer;
mod stream;
mod whole;

use std::sync::Arc;

use lucid_checkpoint::TokenId;
use lucid_engine::Request;
use lucid_grammar::Beginning;

pub(crate) use stream::CompletionsStream;
pub(crate) use whole::collect;

use crate::app::{Inner, unix_seconds};
use crate::choice::Reading;
use crate::generation::{Generation, Job};
use crate::protocol::error::ApiError;
use crate::structured::Guidance;
use crate::validate::completions::{self, CompletionsRequest, Prompt};

/// A completions request on its way.
pub(crate) struct Completions {
    pub(crate) app: Arc<Inner>,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) request: CompletionsRequest,
    pub(crate) prompts: Vec<Encoded>,
}

/// A prompt in both of its forms.
pub(crate) struct Encoded {
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenId>,
    max_tokens: usize,
}

impl Completions {
    /// Checks a body and encodes its prompts. Takes time in proportion to them.
    pub(crate) fn prepare(app: Arc<Inner>, body: &[u8]) -> Result<(Completions, Guidance), ApiError> {
        let mut request = completions::parse(body, &app.facts)?;
        let prompts = std::mem::take(&mut request.prompts)
            .into_iter()
            .map(|prompt| {
                let (text, tokens) = match prompt {
                    Prompt::Text(text) => {
                        let tokens = app.encode(&text, "prompt")?;
                        (text, tokens)
                    }
                    Prompt::Tokens(tokens) => (app.tokenizer.decode(&tokens, false), tokens),
                };
                let max_tokens = app.facts.budget(tokens.len(), Some(request.max_tokens), "max_tokens")?;
                let max_tokens = app.act.budget(max_tokens);
                Ok(Encoded { text, tokens, max_tokens })
            })
            .collect::<Result<_, ApiError>>()?;
        let guide = request
            .structured
            .as_ref()
            .map(|structured| app.guide(&structured.grammar, &structured.field, Beginning::Answer))
            .transpose()?;
        let id = app.request_id("cmpl");
        Ok((Completions { app, id, created: unix_seconds(), request, prompts }, guide))
    }

    /// Hands the request to the engine: `n` answers to the first prompt, then to the second…
    pub(crate) fn start(&self, guide: &Guidance) -> Result<Generation, ApiError> {
        let common = &self.request.common;
        let stop_tokens = self.app.stop_tokens(&common.stop_token_ids, common.ignore_eos);
        let jobs = self.prompts.iter().flat_map(|prompt| {
            let vocabulary = self.app.tokenizer.vocab_size();
            let stop_tokens = self.app.act.stop_tokens(&prompt.tokens, stop_tokens.clone(), vocabulary);
            (0..common.n).map(move |index| Job {
                request: Request {
                    prompt: prompt.tokens.clone(),
                    max_tokens: prompt.max_tokens,
                    min_tokens: common.min_tokens,
                    sampling: self.app.act.sampling(common.sampling_of(index)),
                    stop_tokens: stop_tokens.clone(),
                    logprobs: self.request.logprobs,
                    prompt_logprobs: self.prompt_logprobs(),
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
                    lost_token: None,
                    splits_characters: common.stream.is_some() && self.app.act.splits_characters(),
                },
                streams: common.stream.is_some(),
            })
        });
        Generation::start(self.app.clone(), self.id.clone(), jobs.collect(), "prompt")
    }

    /// An echoed prompt is reported like the answer.
    pub(crate) fn prompt_logprobs(&self) -> Option<usize> {
        let common = &self.request.common;
        common.prompt_logprobs.or(if self.request.echo { self.request.logprobs } else { None })
    }

    /// Answers in all.
    pub(crate) fn answers(&self) -> usize {
        self.prompts.len() * self.request.common.n
    }

    /// The prompt that the `index`th answer belongs to.
    pub(crate) fn prompt_of(&self, index: usize) -> Option<&Encoded> {
        self.prompts.get(index.checked_div(self.request.common.n)?)
    }

    fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.tokens.len()).sum()
    }
}
