//! The engine's thread: takes commands, steps the model, hands out events.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

use lucid_checkpoint::TokenId;

use crate::Error;
use crate::backend::{Backend, Drawing, Drawn};
use crate::choice::Choice;
use crate::cpu::Span;
use crate::engine::{RequestId, Stats};
use crate::logprobs::{all_finite, score};
use crate::recycled::recycled;
use crate::request::{Event, Finish, Request, TokenLogprobs};
use crate::routes::StepRoutes;
use crate::sampler::Sampler;
use crate::scheduler::{Scheduler, Work};

/// What other threads ask of the engine.
pub enum Command {
    /// A new request.
    Submit {
        /// Its name.
        id: RequestId,
        /// What is asked.
        request: Request,
        /// Who wants to know.
        sink: Sink,
    },
    /// End a request.
    Cancel(RequestId),
    /// Empty the prefix cache, and tell.
    ResetPrefixCache(Box<dyn FnOnce() + Send>),
    /// End the engine.
    Stop,
}

/// What other threads may look at.
pub struct Shared {
    state: Mutex<(Stats, Option<String>)>,
}

impl Shared {
    pub fn new(kv_pages: usize) -> Shared {
        Shared { state: Mutex::new((Stats { kv_pages, ..Stats::default() }, None)) }
    }

    pub fn stats(&self) -> Stats {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    pub fn unhealthy(&self) -> Option<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Counts a request as waiting before the engine's thread has seen it, so that a burst can't pass the bound.
    pub fn note_submitted(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0.waiting += 1;
    }

    fn update(&self, change: impl FnOnce(&mut Stats)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner).0);
    }

    fn mark_unhealthy(&self, reason: String) {
        // The first reason is the one to look at.
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1.get_or_insert(reason);
    }
}

/// Who wants to know about a request; false is "no longer".
type Sink = Box<dyn FnMut(Event) -> bool + Send>;

/// A request that is waiting or running.
struct Active {
    request: Request,
    sampler: Sampler,
    max_tokens: usize,
    generated: usize,
    /// Collected while the prompt is computed; taken when `Event::Prompt` is sent.
    prompt_logprobs: Vec<Option<TokenLogprobs>>,
    prompt_sent: bool,
    /// `[tokens, layers, top_k]` of the tokens computed so far, if wanted.
    routes: Vec<u16>,
}

impl Active {
    /// The next draw, if it is from the logits as they are.
    fn choice(&mut self) -> Option<Choice> {
        let free = self.request.guide.as_ref().is_none_or(|guide| guide.is_idle());
        let anything = free && forbidden(&self.request, self.generated).is_empty();
        if anything { self.sampler.plain() } else { None }
    }

    /// Draws from finite `logits` `[vocab_size]`, which are changed.
    ///
    /// # Errors
    /// When what the answer is held to fails.
    fn draw(&mut self, logits: &mut [f32], raw: &mut Vec<f32>) -> Result<Drawn, String> {
        if self.request.logprobs.is_some() {
            raw.clear();
            raw.extend_from_slice(logits);
        }
        if let Some(guide) = &mut self.request.guide {
            guide.restrict(logits)?;
        }
        let mut not_yet = forbidden(&self.request, self.generated);
        if self.request.guide.is_some() && !not_yet.is_empty() && !anything_else(logits, not_yet) {
            // A complete answer ends, however few tokens it took: nothing else may follow.
            not_yet = &[];
        }
        let token = self.sampler.draw(logits, not_yet);
        // Finite, as was seen.
        Ok((token, self.request.logprobs.and_then(|top| score(raw, token, top).ok())))
    }
}

/// Whether a token is allowed that is none of `tokens`.
fn anything_else(logits: &[f32], tokens: &[TokenId]) -> bool {
    let allowed = |(row, logit): (usize, &f32)| {
        *logit > f32::NEG_INFINITY && !tokens.iter().any(|token| token.row() == row)
    };
    logits.iter().enumerate().any(allowed)
}

/// Tokens that must not come yet.
fn forbidden(request: &Request, generated: usize) -> &[TokenId] {
    if generated < request.min_tokens { &request.stop_tokens } else { &[] }
}

/// What a sequence's next token comes from.
enum Next {
    /// Nothing is drawn: only the prompt was asked for.
    Nothing,
    /// Drawn on the GPU; `None` where a logit was not finite.
    Drawn(Option<Drawn>),
    /// A row of the logits that came to the host.
    Logits(usize),
}

/// The thread's state.
pub struct Stepper {
    model: Backend,
    scheduler: Scheduler,
    shared: Arc<Shared>,
    active: HashMap<RequestId, Active>,
    max_model_len: usize,
    prefix_cache: bool,
    /// Source of seeds for requests without one.
    entropy: RandomState,
    plan: Vec<Work>,
    tokens: Vec<TokenId>,
    spans: Vec<Span<'static>>,
    /// Rows of a step after which a token is drawn here.
    rows: Vec<usize>,
    /// For each sequence that draws in this step, in the order of the plan.
    next: Vec<Next>,
    /// The rows of those that draw here.
    next_logits: Vec<f32>,
    /// Told until the last event of a request.
    sinks: HashMap<RequestId, Sink>,
    /// Events that nobody was told yet: while a GPU computes a step, those of the last one are handed out.
    outbox: Vec<(RequestId, Event)>,
    /// Of one sequence, before bias and penalties.
    raw_logits: Vec<f32>,
    /// Where a step's tokens go, in steps in which somebody wants to know.
    step_routes: StepRoutes,
}

impl Stepper {
    pub fn new(
        model: Backend,
        scheduler: Scheduler,
        shared: Arc<Shared>,
        max_model_len: usize,
        prefix_cache: bool,
    ) -> Stepper {
        let step_routes = StepRoutes::new(model.config());
        Stepper {
            model,
            scheduler,
            shared,
            active: HashMap::new(),
            max_model_len,
            prefix_cache,
            entropy: RandomState::new(),
            plan: Vec::new(),
            tokens: Vec::new(),
            spans: Vec::new(),
            rows: Vec::new(),
            next: Vec::new(),
            next_logits: Vec::new(),
            sinks: HashMap::new(),
            outbox: Vec::new(),
            raw_logits: Vec::new(),
            step_routes,
        }
    }

    /// Runs until told to stop or every handle is gone.
    pub fn run(mut self, inbox: &Receiver<Command>) {
        while self.take_commands(inbox) {
            // A panic here is a bug; it must not leave callers waiting for events that never come.
            let reason = match catch_unwind(AssertUnwindSafe(|| self.step())) {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(_) => {
                    "the engine's thread panicked: please report this with the server's output".to_owned()
                }
            };
            self.shared.mark_unhealthy(reason.clone());
            self.end_all(&Finish::Failed(reason));
            return;
        }
        self.end_all(&Finish::Cancelled);
    }

    /// Takes all commands that are there; waits for one when there is nothing else to do. False means stop.
    fn take_commands(&mut self, inbox: &Receiver<Command>) -> bool {
        loop {
            let command = if self.active.is_empty() {
                self.deliver();
                // What is shown while nothing happens must be that nothing happens.
                self.publish();
                match inbox.recv() {
                    Ok(command) => command,
                    Err(_) => return false,
                }
            } else {
                match inbox.try_recv() {
                    Ok(command) => command,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return false,
                }
            };
            match command {
                Command::Submit { id, request, sink } => self.accept(id, request, sink),
                Command::Cancel(id) => self.finish(id, Finish::Cancelled),
                Command::ResetPrefixCache(done) => {
                    self.scheduler.forget_prefixes();
                    self.model.forget_pages();
                    done();
                }
                Command::Stop => return false,
            }
        }
        self.publish();
        true
    }

    fn accept(&mut self, id: RequestId, request: Request, sink: Sink) {
        let entropy = self.entropy.hash_one(id);
        let sampler = Sampler::new(request.sampling.clone(), &request.prompt, entropy);
        let max_tokens = request.max_tokens.min(self.max_model_len - request.prompt.len());
        // A prompt is scored from its logits, and they are not in the cache; nor is where it went.
        let reuse = self.prefix_cache && request.prompt_logprobs.is_none() && !request.routes;
        self.scheduler.add(id, request.prompt.clone(), reuse);
        let prompt_logprobs = if request.prompt_logprobs.is_some() { vec![None] } else { Vec::new() };
        self.active.insert(
            id,
            Active {
                request,
                sampler,
                max_tokens,
                generated: 0,
                prompt_logprobs,
                prompt_sent: false,
                routes: Vec::new(),
            },
        );
        self.sinks.insert(id, sink);
    }

    fn publish(&self) {
        let (running, waiting) = (self.scheduler.running().len(), self.scheduler.waiting());
        let kv_pages_used = self.scheduler.pool().used();
        self.shared.update(|stats| {
            (stats.running, stats.waiting, stats.kv_pages_used) = (running, waiting, kv_pages_used);
        });
    }

    /// One step of the model, and its events.
    ///
    /// # Errors
    /// When the device fails.
    fn step(&mut self) -> Result<(), Error> {
        let mut plan = std::mem::take(&mut self.plan);
        self.scheduler.plan(&mut plan);
        self.forward(&plan)?;
        // A GPU is at it now. Who is gone stays to the end of the step, for the plan names places.
        let mut finished = self.deliver();
        self.scheduler.computed(&plan);
        self.compute_next(&plan)?;
        let (mut first_row, mut drawing) = (0, 0);
        for work in &plan {
            self.prompt_logprobs(work, first_row, &mut finished)?;
            if self.is_complete(work) {
                self.next_token(work, drawing, &mut finished);
                drawing += 1;
            }
            first_row += work.count;
        }
        for (id, finish) in finished {
            self.finish(id, finish);
        }
        self.plan = plan;
        if !self.model.goes_on() {
            // A processor's next step would make them wait.
            let gone = self.deliver();
            for (id, finish) in gone {
                self.finish(id, finish);
            }
            self.deliver();
        }
        Ok(())
    }

    /// Hands out the events that wait; gives the requests of those who don't listen any more.
    fn deliver(&mut self) -> Vec<(RequestId, Finish)> {
        let mut gone = Vec::new();
        for (id, event) in self.outbox.drain(..) {
            let last = matches!(event, Event::Finished(_));
            if !last && gone.iter().any(|&(other, _)| other == id) {
                continue;
            }
            let listening = self.sinks.get_mut(&id).is_some_and(|sink| sink(event));
            if last {
                self.sinks.remove(&id);
            } else if !listening && self.active.contains_key(&id) {
                gone.push((id, Finish::Cancelled));
            }
        }
        gone
    }

    /// Whether all tokens of a sequence are computed, so that the next one can be drawn.
    fn is_complete(&self, work: &Work) -> bool {
        let sequence = &self.scheduler.running()[work.running];
        sequence.computed == sequence.tokens.len()
    }

    /// All sequences at once: the output matrix is the largest of the model, and is read once. Where the device can draw, logits come to
    /// the host only for those whose draw changes them.
    fn compute_next(&mut self, plan: &[Work]) -> Result<(), Error> {
        let mut drawing = Vec::new();
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        self.next.clear();
        let mut next_row = 0;
        for work in plan {
            next_row += work.count;
            if !self.is_complete(work) {
                continue;
            }
            let id = self.scheduler.running()[work.running].id;
            let (row, active) = (next_row - 1, self.active.get_mut(&id));
            if active.as_ref().is_some_and(|active| active.max_tokens == 0) {
                self.next.push(Next::Nothing);
                continue;
            }
            let top = active.as_ref().and_then(|active| active.request.logprobs);
            match active.filter(|_| self.model.can_draw(top)).and_then(Active::choice) {
                Some(choice) => {
                    self.next.push(Next::Drawn(None));
                    drawing.push(Drawing { row, choice, top });
                }
                None => {
                    self.next.push(Next::Logits(rows.len()));
                    rows.push(row);
                }
            }
        }
        self.model.logits(&rows, &mut self.next_logits)?;
        self.rows = rows;
        if !drawing.is_empty() {
            let mut drawn = self.model.draw(&drawing)?.into_iter();
            for next in &mut self.next {
                if let Next::Drawn(one) = next {
                    *one = drawn.next().flatten();
                }
            }
        }
        Ok(())
    }

    fn forward(&mut self, plan: &[Work]) -> Result<(), Error> {
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.clear();
        let mut spans = recycled(std::mem::take(&mut self.spans));
        for work in plan {
            let sequence = &self.scheduler.running()[work.running];
            let row = tokens.len();
            tokens.extend_from_slice(&sequence.tokens[work.first..work.first + work.count]);
            spans.push(Span {
                pages: &sequence.pages,
                position: work.first,
                count: work.count,
                row,
                prompt: sequence.prompt,
            });
        }
        let wanted = |work: &Work| {
            let id = self.scheduler.running()[work.running].id;
            self.active.get(&id).is_some_and(|active| active.request.routes)
        };
        if plan.iter().any(wanted) {
            self.step_routes.begin(tokens.len());
            self.model.forward(&tokens, &spans, Some(&mut self.step_routes))?;
            for (work, span) in plan.iter().zip(&spans) {
                let id = self.scheduler.running()[work.running].id;
                if let Some(active) = self.active.get_mut(&id).filter(|active| active.request.routes) {
                    self.step_routes.keep(&mut active.routes, span);
                }
            }
        } else {
            self.model.forward(&tokens, &spans, None::<&mut ()>)?;
        }
        (self.tokens, self.spans) = (tokens, recycled(spans));
        Ok(())
    }

    /// Scores the prompt tokens that follow the computed ones, if the request wants that.
    fn prompt_logprobs(
        &mut self,
        work: &Work,
        first_row: usize,
        finished: &mut Vec<(RequestId, Finish)>,
    ) -> Result<(), Error> {
        let sequence = &self.scheduler.running()[work.running];
        let Some(active) = self.active.get_mut(&sequence.id) else { return Ok(()) };
        let Some(top) = active.request.prompt_logprobs else { return Ok(()) };
        let prompt = &active.request.prompt;
        // A preempted request computes its prompt again, but has these already.
        let wanted =
            active.prompt_logprobs.len().max(work.first + 1)..prompt.len().min(work.first + work.count + 1);
        if active.prompt_sent || wanted.is_empty() {
            return Ok(());
        }
        let rows: Vec<(usize, TokenId)> =
            wanted.clone().map(|next| (first_row + next - 1 - work.first, prompt[next])).collect();
        for (entry, next) in self.model.score(&rows, top)?.into_iter().zip(wanted) {
            if entry.is_none() {
                finished.push((sequence.id, not_finite(&self.shared, sequence.id, next - 1)));
                return Ok(());
            }
            active.prompt_logprobs.push(entry);
        }
        Ok(())
    }

    /// A sequence's next token; it is the `drawing`-th of this step.
    fn next_token(&mut self, work: &Work, drawing: usize, finished: &mut Vec<(RequestId, Finish)>) {
        let sequence = &self.scheduler.running()[work.running];
        let (id, position) = (sequence.id, sequence.computed - 1);
        if finished.iter().any(|(done, _)| *done == id) {
            return;
        }
        let Some(active) = self.active.get_mut(&id) else { return };
        if !active.prompt_sent {
            active.prompt_sent = true;
            let logprobs = std::mem::take(&mut active.prompt_logprobs);
            let logprobs = active.request.prompt_logprobs.map(|_| logprobs);
            let (prompt_tokens, cached_tokens) = (active.request.prompt.len(), sequence.cached);
            self.shared.update(|stats| {
                stats.prompt_tokens += (prompt_tokens - cached_tokens) as u64;
                stats.cached_prompt_tokens += cached_tokens as u64;
            });
            self.outbox.push((id, Event::Prompt { cached_tokens, logprobs }));
        }
        if active.max_tokens == 0 {
            return finished.push((id, Finish::Length));
        }
        let vocab = self.model.config().vocab_size;
        let drawn = match std::mem::replace(&mut self.next[drawing], Next::Nothing) {
            // Who wants no token was told above.
            Next::Nothing => return,
            Next::Drawn(drawn) => drawn,
            Next::Logits(row) => {
                let logits = &mut self.next_logits[row * vocab..(row + 1) * vocab];
                match all_finite(logits).then(|| active.draw(logits, &mut self.raw_logits)).transpose() {
                    Ok(drawn) => drawn,
                    Err(why) => return finished.push((id, Finish::Failed(why))),
                }
            }
        };
        let Some((token, logprobs)) = drawn else {
            return finished.push((id, not_finite(&self.shared, id, position)));
        };
        if let Some(Err(why)) = active.request.guide.as_mut().map(|guide| guide.accept(token)) {
            return finished.push((id, Finish::Failed(why)));
        }
        if self.prefix_cache {
            // A NaN in any of the prompt's cache entries would have reached these logits.
            self.scheduler.share(work.running);
        }
        active.generated += 1;
        self.shared.update(|stats| stats.generated_tokens += 1);
        self.scheduler.push(work.running, token);
        self.outbox.push((id, Event::Token { id: token, logprobs }));
        if active.request.stop_tokens.contains(&token) {
            finished.push((id, Finish::Stop(token)));
        } else if active.generated >= active.max_tokens {
            finished.push((id, Finish::Length));
        }
    }

    fn finish(&mut self, id: RequestId, finish: Finish) {
        match finish {
            Finish::Failed(_) => self.scheduler.remove_unsound(id),
            _ => self.scheduler.remove(id),
        };
        if let Some(active) = self.active.remove(&id) {
            if active.request.routes && matches!(finish, Finish::Stop(_) | Finish::Length) {
                self.outbox.push((id, Event::Routes(self.step_routes.of(active.routes))));
            }
            self.outbox.push((id, Event::Finished(finish)));
        }
    }

    fn end_all(&mut self, finish: &Finish) {
        let mut ids: Vec<RequestId> = self.active.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.finish(id, finish.clone());
        }
        self.deliver();
        self.publish();
    }
}

fn not_finite(shared: &Shared, id: RequestId, position: usize) -> Finish {
    let reason = format!("the logits at position {position} are not finite (request {})", id.0);
    shared.mark_unhealthy(reason.clone());
    Finish::Failed(reason)
}
