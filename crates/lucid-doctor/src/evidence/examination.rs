//! What a check may do: read the evidence, and ask for more of it through the client and the reference.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lucid_checkpoint::TokenId;
use lucid_client::{ChatAnswer, ChatRequest, Endpoint, Error, Exchange, Reply, TokenName, Usage};

use super::{Answer, Claim, Divergence, Observed, PromptScore, Reference, RungScore, Sample};
use crate::diagnose::Progress;
use crate::report::{Cost, KeptExchange, ProbeTable};
use crate::subject::{Depth, Subject};

/// Bytes of a body that the report keeps of each exchange.
const KEPT_BODY: usize = 16 * 1024;

/// After so many answers that don't end, no probe waits for another.
const PATIENCE: usize = 2;
/// No answer is waited for less than this.
const LEAST_WAIT: Duration = Duration::from_secs(30);
/// How many times as long as the slowest answer took for each of its tokens; less after an answer that was late.
const WAIT: [f64; 2] = [10.0, 5.0];
/// Bytes of a prompt that are surely a token.
const BYTES_OF_A_TOKEN: usize = 3;
/// Requests that are under way at a time, at the most.
const MOST_TOGETHER: usize = 64;

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
    /// The arithmetic that the server declares, if the reference has it.
    pub(crate) claim: Option<Claim>,
    /// Whether what was compared is what a server of that arithmetic says; `None` where nothing is declared, or undecided.
    pub(crate) exact: Option<bool>,
    /// Tables of the probes.
    pub(crate) probes: Vec<ProbeTable>,
    /// Calls that the server itself failed: the exchange, and what it said. Refusals (4xx) are not among them.
    pub(crate) failures: Vec<(usize, String)>,
    /// Calls that did not come to an end in time.
    pub(crate) timeouts: usize,
    /// Of the answers that came, the most seconds for each token.
    pub(crate) slowest_token: Option<f64>,
    /// Long answers were late, and short ones came.
    pub(crate) slow: bool,
    /// Whether the same request, alone, gets answers from different distributions: then a change in company proves nothing.
    pub(crate) unstable: bool,
    /// Something is wrong beyond a number of tokens: company makes longer steps, and shows it too.
    pub(crate) threshold: bool,
    /// Something is wrong up to a number of tokens: company makes longer steps, which are right.
    pub(crate) short_steps: bool,
    /// The life of the service, as its log tells it.
    pub(crate) timeline: Option<lucid_logs::Timeline>,
    /// What stood in the way of the diagnosis itself.
    pub(crate) obstacles: Vec<String>,
}

/// A diagnosis under way.
pub(crate) struct Examination<'a> {
    pub(crate) subject: &'a Subject,
    /// How much a check may spend: the subject's depth, and more when a cause's own test is run.
    pub(crate) depth: Depth,
    /// Seeds what is asked.
    pub(crate) seed: u64,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) reference: Option<Reference>,
    pub(crate) evidence: Evidence,
    /// When the server has been asked for long enough.
    pub(crate) deadline: Instant,
    /// The check that runs.
    pub(crate) check: &'static str,
    pub(crate) progress: &'a mut dyn FnMut(Progress),
}

impl Examination<'_> {
    /// The server; checks that need one run only when it is there.
    ///
    /// # Errors
    /// There is none, or nobody waits for its answers any more.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, String> {
        if let Some(reason) = self.out_of_patience() {
            return Err(reason);
        }
        self.endpoint.clone().ok_or_else(|| "no server answers".to_owned())
    }

    /// Why the server is asked nothing more: a bad one would keep the examination busy for ever.
    pub(crate) fn out_of_patience(&self) -> Option<String> {
        if self.evidence.timeouts >= PATIENCE {
            let late = self.evidence.timeouts;
            return Some(format!("{late} answers did not come to an end in time: the server stalls"));
        }
        (Instant::now() >= self.deadline).then(|| {
            format!("the server was asked for {} s, and that is the limit", self.subject.patience().as_secs())
        })
    }

    /// The token that the server means: without a checkpoint's tokenizer, only what is named by its id.
    pub(crate) fn id(&self, name: &TokenName) -> Option<TokenId> {
        match (&self.reference, name) {
            (_, TokenName::Id(id)) => Some(TokenId(*id)),
            (Some(reference), name) => reference.id(name),
            (None, _) => None,
        }
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
        let number = self.keep(reply.exchange);
        match &reply.outcome {
            Err(Error::Timeout { .. }) => self.evidence.timeouts += 1,
            Err(error) if is_failure(error) => self.evidence.failures.push((number, error.to_string())),
            _ => {}
        }
        (number, reply.outcome)
    }

    /// Asks in chat form.
    pub(crate) fn chat(
        &mut self,
        endpoint: &Endpoint,
        request: &ChatRequest,
    ) -> (usize, Result<ChatAnswer, Error>) {
        let reply = endpoint.waiting(self.patience_for(request)).chat(request);
        if let Ok(answer) = &reply.outcome {
            self.note_pace(reply.exchange.seconds, answer.usage.map_or(0, |usage| usage.completion_tokens));
        }
        self.take(reply)
    }

    /// An answer of so many tokens came after so many seconds.
    #[allow(clippy::cast_precision_loss)] // tokens of an answer
    pub(crate) fn note_pace(&mut self, seconds: f64, tokens: u64) {
        let pace = seconds / tokens.max(1) as f64;
        let slowest = &mut self.evidence.slowest_token;
        *slowest = Some(slowest.map_or(pace, |slowest| slowest.max(pace)));
    }

    /// How long an answer is waited for: many times as long as the slowest so far needed for as many tokens, and never longer than the user
    /// says. Whoever stands still is not given minutes for it.
    pub(crate) fn patience_for(&self, request: &ChatRequest) -> Duration {
        let limit = self.subject.timeout;
        let (Some(pace), Some(most)) = (self.evidence.slowest_token, request.max_tokens) else {
            return limit;
        };
        let bytes: usize = request.messages.iter().map(|message| message.content.len()).sum();
        let tokens = u32::try_from(bytes / BYTES_OF_A_TOKEN).unwrap_or(u32::MAX).saturating_add(most);
        wait(pace, tokens, self.evidence.timeouts > 0).min(limit)
    }

    /// Asks in chat form, and keeps the log-probabilities.
    ///
    /// # Errors
    /// Why there is no answer. A server that stalls is not asked again and again.
    pub(crate) fn sample(&mut self, endpoint: &Endpoint, request: &ChatRequest) -> Result<Sample, String> {
        self.samples(endpoint, std::slice::from_ref(request), 1)?
            .pop()
            .unwrap_or_else(|| Err("no answer".to_owned()))
    }

    /// The same for several requests, of which `together` are under way at any time; the first of them begin at the same moment, so that
    /// a server can read their prompts together. The answers come in the order of the requests.
    ///
    /// # Errors
    /// The server stalls.
    pub(crate) fn samples(
        &mut self,
        endpoint: &Endpoint,
        requests: &[ChatRequest],
        together: usize,
    ) -> Result<Vec<Result<Sample, String>>, String> {
        if let Some(reason) = self.out_of_patience() {
            return Err(reason);
        }
        let next = AtomicUsize::new(0);
        let replies = Mutex::new(Vec::with_capacity(requests.len()));
        let together = together.clamp(1, MOST_TOGETHER).min(requests.len());
        let start = Barrier::new(together);
        std::thread::scope(|scope| {
            for _ in 0..together {
                scope.spawn(|| {
                    start.wait();
                    while let Some((i, request)) = {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        requests.get(i).map(|request| (i, request))
                    } {
                        let reply = endpoint.chat(request);
                        replies.lock().unwrap_or_else(PoisonError::into_inner).push((i, reply));
                    }
                });
            }
        });
        let mut replies = replies.into_inner().unwrap_or_else(PoisonError::into_inner);
        replies.sort_by_key(|(i, _)| *i);
        let read = |(_, reply): (usize, Reply<ChatAnswer>)| {
            let exchange = reply.exchange.clone();
            let (number, outcome) = self.take(reply);
            outcome.map(|answer| Sample::new(&answer, &exchange, number)).map_err(|error| error.to_string())
        };
        Ok(replies.into_iter().map(read).collect())
    }
}

/// `pace` is in seconds a token.
fn wait(pace: f64, tokens: u32, was_late: bool) -> Duration {
    let seconds = WAIT[usize::from(was_late)] * pace * f64::from(tokens);
    // A pace that is no number of seconds has no limit of its own.
    LEAST_WAIT + Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(u64::from(u32::MAX)))
}

/// Whether the server failed a call. What it says it has not got (501: llama-server's `/metrics`, unless it was asked for) is no failure.
fn is_failure(error: &Error) -> bool {
    match error {
        Error::Broken { .. } => true,
        Error::Status { status, .. } => *status >= 500 && *status != 501,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_stands_still_is_waited_for_by_its_own_pace() {
        assert_eq!(wait(0.01, 600, false), Duration::from_secs(90));
        assert_eq!(wait(0.01, 600, true), Duration::from_secs(60));
        assert!(wait(2.0, 600, true) > Duration::from_secs(3_600), "a slow one has the user's limit");
        assert!(wait(f64::INFINITY, 1, false) > Duration::from_secs(3_600));
    }

    #[test]
    fn what_a_server_has_not_got_is_no_failure() {
        let error = |status| Error::Status {
            url: "http://127.0.0.1:8200/metrics".into(),
            status,
            message: "This server does not support metrics endpoint. Start it with `--metrics`".into(),
            param: None,
        };
        assert!([404, 405, 429, 501].into_iter().all(|status| !is_failure(&error(status))));
        assert!([500, 502, 503].into_iter().all(|status| is_failure(&error(status))));
    }
}
