//! What a check may do: read the evidence, and ask for more of it through the client and the reference.

use lucid_client::{ChatAnswer, ChatRequest, Endpoint, Error, Exchange, Reply, Usage};

use super::{Answer, Divergence, Observed, PromptScore, Reference, RungScore};
use crate::diagnose::Progress;
use crate::report::{Cost, KeptExchange};
use crate::subject::Subject;

/// Bytes of a body that the report keeps of each exchange.
const KEPT_BODY: usize = 16 * 1024;

/// Everything that was gathered so far.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) exchanges: Vec<KeptExchange>,
    pub(crate) cost: Cost,
    pub(crate) answers: Vec<Answer>,
    pub(crate) ladder: Vec<RungScore>,
    /// Compared answers, and how far each is from the reference.
    pub(crate) observed: Vec<(Observed, PromptScore)>,
    pub(crate) divergence: Option<Divergence>,
    /// What stood in the way of the diagnosis itself.
    pub(crate) obstacles: Vec<String>,
}

/// A diagnosis under way.
pub(crate) struct Examination<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) reference: Option<Reference>,
    pub(crate) evidence: Evidence,
    /// The check that runs.
    pub(crate) check: &'static str,
    pub(crate) progress: &'a mut dyn FnMut(Progress),
}

impl Examination<'_> {
    /// The server; checks that need one run only when it is there.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, String> {
        self.endpoint.clone().ok_or_else(|| "no server answers".to_owned())
    }

    /// Tells how far the check is.
    pub(crate) fn step(&mut self, done: usize, of: usize, text: &str) {
        (self.progress)(Progress::Step { check: self.check, done, of, text: text.to_owned() });
    }

    /// Keeps an exchange; gives its number, from 1.
    pub(crate) fn keep(&mut self, mut exchange: Exchange) -> usize {
        if exchange.body.len() > KEPT_BODY {
            exchange.body.truncate(exchange.body.floor_char_boundary(KEPT_BODY));
            exchange.truncated = true;
        }
        self.evidence.cost.requests += 1;
        self.evidence.exchanges.push(KeptExchange { check: self.check.to_owned(), exchange });
        self.evidence.exchanges.len()
    }

    /// Keeps a reply's exchange and adds up its tokens.
    pub(crate) fn take<T>(&mut self, reply: Reply<T>) -> (usize, Result<T, Error>) {
        let usage = serde_json::from_str::<serde_json::Value>(&reply.exchange.body)
            .ok()
            .and_then(|body| serde_json::from_value::<Usage>(body.get("usage")?.clone()).ok());
        if let Some(usage) = usage {
            self.evidence.cost.prompt_tokens += usage.prompt_tokens;
            self.evidence.cost.completion_tokens += usage.completion_tokens;
        }
        (self.keep(reply.exchange), reply.outcome)
    }

    /// Asks in chat form.
    pub(crate) fn chat(
        &mut self,
        endpoint: &Endpoint,
        request: &ChatRequest,
    ) -> (usize, Result<ChatAnswer, Error>) {
        self.take(endpoint.chat(request))
    }
}
