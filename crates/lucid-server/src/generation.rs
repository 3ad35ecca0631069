//! Drives the answers to one HTTP request: submits them to the engine, and cancels them when the client goes away.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lucid_engine::{Event, Finish, Request, RequestId, Routes, TokenLogprobs};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::app::Inner;
use crate::choice::{Change, Choice, Reading, TokenText};
use crate::metrics::Finished;
use crate::protocol::error::ApiError;
use crate::protocol::finish::{Ending, FinishReason};

/// One answer to be generated.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) reading: Reading,
    /// Whether somebody looks at the tokens as they come.
    pub(crate) streams: bool,
}

/// Tokens that an answer nobody looks at may have waiting: waking the server's thread for each of them takes a core from the engine's
/// threads, at 2,500 tokens a second a sixth of the time.
const MOST_HELD: usize = 64;

/// What happened to which answer.
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) index: usize,
    pub(crate) step: Step,
}

#[derive(Debug)]
pub(crate) enum Step {
    /// The prompt was read; log-probabilities if they were asked for.
    Prompt(Option<Vec<Option<TokenLogprobs>>>),
    Token(TokenText),
    /// Which experts the tokens went to, if that was asked for.
    Routes(Routes),
    End {
        rest: String,
        ending: Ending,
    },
}

/// All answers to one HTTP request. Dropping it cancels what still runs.
pub(crate) struct Generation {
    app: Arc<Inner>,
    /// For the log.
    id: String,
    answers: Vec<Answer>,
    events: UnboundedReceiver<Vec<Arrival>>,
    arrived: VecDeque<Arrival>,
    updates: VecDeque<Update>,
    started: Instant,
    first_token: Option<Duration>,
    prompt_tokens: usize,
}

/// An event of one answer, and when the engine gave it: a slow reader must not look like a slow engine.
struct Arrival {
    index: usize,
    at: Instant,
    event: Event,
}

struct Answer {
    engine_id: RequestId,
    choice: Choice,
    prompt_tokens: usize,
    cached_tokens: usize,
    tokens: usize,
    /// Tokens after which nothing more comes (planted fault).
    stall: Option<usize>,
    last_token: Option<Instant>,
    finished: Option<Finished>,
}

impl Generation {
    /// Submits all jobs, or none. `prompt_field` is what an error calls the prompt.
    ///
    /// The events wait in an unbounded queue, so that a slow reader never holds up the engine. What can come into the
    /// queue is bounded by `max_tokens`.
    pub(crate) fn start(
        app: Arc<Inner>,
        id: String,
        jobs: Vec<Job>,
        prompt_field: &str,
    ) -> Result<Generation, ApiError> {
        let (sender, events) = unbounded_channel();
        app.act.request();
        let mut generation = Generation {
            app,
            id,
            answers: Vec::with_capacity(jobs.len()),
            events,
            arrived: VecDeque::new(),
            updates: VecDeque::new(),
            started: Instant::now(),
            first_token: None,
            prompt_tokens: 0,
        };
        for (index, Job { request, reading, streams }) in jobs.into_iter().enumerate() {
            let prompt_tokens = request.prompt.len();
            let sender = sender.clone();
            // A stop string ends the answer in the engine too, as soon as it is there.
            let most = if streams || !reading.stop.is_empty() { 1 } else { MOST_HELD };
            let mut held = Vec::new();
            // The receiver is gone when the client is: then the answer is not wanted any more.
            let sink = move |event| {
                let waits = matches!(event, Event::Token { .. });
                held.push(Arrival { index, at: Instant::now(), event });
                if waits && held.len() < most {
                    return !sender.is_closed();
                }
                sender.send(std::mem::take(&mut held)).is_ok()
            };
            let engine_id = generation
                .app
                .engine
                .submit(request, sink)
                .map_err(|rejected| ApiError::rejected(&rejected, prompt_field))?;
            generation.prompt_tokens += prompt_tokens;
            let choice = Choice::new(&generation.app.tokenizer, reading);
            generation.answers.push(Answer {
                engine_id,
                choice,
                prompt_tokens,
                cached_tokens: 0,
                tokens: 0,
                stall: generation.app.act.stall(),
                last_token: None,
                finished: None,
            });
        }
        Ok(generation)
    }

    /// The next thing that happens; `None` when all answers have ended.
    ///
    /// # Errors
    /// When an answer failed. The others are cancelled when the generation is dropped.
    pub(crate) async fn next(&mut self) -> Option<Result<Update, ApiError>> {
        loop {
            if let Some(update) = self.updates.pop_front() {
                return Some(Ok(update));
            }
            if self.answers.iter().all(|answer| answer.finished.is_some()) {
                return None;
            }
            if self.answers.iter().any(|answer| answer.stall.is_some_and(|after| answer.tokens >= after)) {
                std::future::pending::<()>().await;
            }
            if let Some(arrival) = self.arrived.pop_front() {
                match self.take(arrival) {
                    Ok(()) => continue,
                    Err(error) => return Some(Err(error)),
                }
            }
            match self.events.recv().await {
                Some(arrivals) => self.arrived.extend(arrivals),
                // The engine dropped every sink without a last event: it is gone.
                None => return Some(Err(stopped(&self.app))),
            }
        }
    }

    /// Prompt tokens that came from the prefix cache. Every prompt has `n` answers and counts once, as its first answer found it.
    pub(crate) fn cached_tokens(&self, n: usize) -> usize {
        self.answers.iter().step_by(n.max(1)).map(|answer| answer.cached_tokens).sum()
    }

    fn take(&mut self, Arrival { index, at, event }: Arrival) -> Result<(), ApiError> {
        let Some(answer) = self.answers.get_mut(index) else { return Ok(()) };
        if answer.finished.is_some() {
            return Ok(());
        }
        let mut changes = VecDeque::new();
        match event {
            Event::Prompt { logprobs, cached_tokens } => {
                answer.cached_tokens = cached_tokens;
                self.updates.push_back(Update { index, step: Step::Prompt(logprobs) });
            }
            Event::Token { id, logprobs } => {
                match answer.last_token.replace(at) {
                    Some(last) => self.app.metrics.observe_next_token(at - last),
                    None => {
                        let waited = at - self.started;
                        self.first_token.get_or_insert(waited);
                        self.app.metrics.observe_first_token(waited);
                    }
                }
                answer.choice.token(id, logprobs, &mut changes);
                if answer.choice.ended() {
                    self.app.engine.cancel(answer.engine_id);
                }
            }
            Event::Routes(routes) => self.updates.push_back(Update { index, step: Step::Routes(routes) }),
            Event::Finished(Finish::Stop(token)) => answer.choice.finish(Some(token), &mut changes),
            Event::Finished(Finish::Length) => answer.choice.finish(None, &mut changes),
            Event::Finished(Finish::Cancelled) => {
                answer.finished = Some(Finished::Abort);
                return Err(stopped(&self.app));
            }
            Event::Finished(Finish::Failed(why)) => {
                answer.finished = Some(Finished::Error);
                tracing::error!(request = %self.id, %why, "the engine could not finish a request");
                let message = format!("the engine could not finish this request: {why}");
                return Err(ApiError::status(axum::http::StatusCode::INTERNAL_SERVER_ERROR, message));
            }
        }
        for change in changes {
            let step = match change {
                Change::Token(token) => {
                    answer.tokens += 1;
                    Step::Token(token)
                }
                Change::End { rest, ending } => {
                    answer.finished = Some(match ending.reason {
                        FinishReason::Length => Finished::Length,
                        FinishReason::Stop | FinishReason::ToolCalls => Finished::Stop,
                    });
                    Step::End { rest, ending }
                }
            };
            self.updates.push_back(Update { index, step });
        }
        Ok(())
    }
}

fn stopped(app: &Inner) -> ApiError {
    let why = app.engine.unhealthy().unwrap_or_else(|| "it is shutting down".to_owned());
    ApiError::status(axum::http::StatusCode::SERVICE_UNAVAILABLE, format!("the engine has stopped: {why}"))
}

/// Whatever the end was (an answer, an error, a client that went away): cancel, count, and one line in the log.
impl Drop for Generation {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        let mut generated = 0;
        let mut finish = Vec::new();
        for answer in &self.answers {
            if answer.finished.is_none() {
                self.app.engine.cancel(answer.engine_id);
            }
            let how = answer.finished.unwrap_or(Finished::Abort);
            self.app.metrics.observe_end(how, took, answer.prompt_tokens, answer.tokens);
            finish.push(how.name());
            generated += answer.tokens;
        }
        tracing::info!(
            request = %self.id,
            answers = self.answers.len(),
            prompt_tokens = self.prompt_tokens,
            cached_tokens = self.answers.iter().map(|answer| answer.cached_tokens).sum::<usize>(),
            generated_tokens = generated,
            first_token_s = self.first_token.map(|waited| waited.as_secs_f64()),
            seconds = took.as_secs_f64(),
            finish = %finish.join(","),
            "request"
        );
    }
}
