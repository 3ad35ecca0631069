//! The engine as its users see it: submit requests, receive events. One thread steps the model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

use lucid_checkpoint::Checkpoint;
use serde::Serialize;

use crate::backend::{Backend, Device, Load, LoadFormat};
use crate::kv_cache::{PAGE_TOKENS, PagePool};
use crate::parallel::ExpertSharing;
use crate::routes::StepRoutes;
use crate::sampler;
use crate::scheduler::{Limits, Scheduler};
use crate::stepper::{Command, Shared, Stepper};
use crate::world::World;
use crate::{Error, Event, Request, Semantics, SemanticsOptions};

/// Sizes and limits of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where the model runs.
    pub device: Device,
    /// Ranks that share the model (tensor parallelism): GPUs from `device` on, or groups of the processor's threads.
    pub ranks: usize,
    /// How ranks share the routed experts.
    pub experts: ExpertSharing,
    /// This process' place where ranks are in processes of their own; `None`: all are in this one.
    pub world: Option<World>,
    /// Where weights come from.
    pub load_format: LoadFormat,
    /// Told after each layer that has come to a GPU: how many, of how many.
    pub progress: Option<fn(usize, usize)>,
    /// Arithmetic.
    pub semantics: SemanticsOptions,
    /// Longest sequence, prompt and answer together; `None` takes the model's `max_position_embeddings`.
    pub max_model_len: Option<usize>,
    /// Tokens that the KV cache holds, over all requests.
    pub kv_cache_tokens: usize,
    /// Requests that decode together.
    pub max_running: usize,
    /// Requests that may wait; one more is refused.
    pub max_waiting: usize,
    /// Tokens that one step computes at the most (prompts are cut into chunks); `None` is 2,048. On a processor a quarter of it goes to
    /// prompts while answers wait for the step.
    pub max_step_tokens: Option<usize>,
    /// Whether requests may begin with pages that earlier ones with the same beginning computed. Answers are the same, to the bit.
    pub prefix_cache: bool,
    /// Worker threads of the processor; `None` takes the machine's cores.
    pub threads: Option<usize>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            device: Device::Cpu,
            ranks: 1,
            experts: ExpertSharing::Widths,
            world: None,
            load_format: LoadFormat::Checkpoint,
            progress: None,
            semantics: SemanticsOptions::default(),
            max_model_len: None,
            kv_cache_tokens: 65_536,
            max_running: 64,
            max_waiting: 1_024,
            max_step_tokens: None,
            prefix_cache: true,
            threads: None,
        }
    }
}

impl EngineOptions {
    /// What the model is loaded for.
    ///
    /// # Errors
    /// When an option makes no sense.
    pub(crate) fn load<'a>(&'a self, checkpoint: &'a Checkpoint) -> Result<Load<'a>, Error> {
        let most = checkpoint.config().max_position_embeddings;
        let positions = self.max_model_len.unwrap_or(most);
        if positions == 0 || positions > most {
            return Err(Error::Option {
                option: "max_model_len",
                value: positions.to_string(),
                expected: "it must be from 1 to the model's max_position_embeddings",
            });
        }
        let max_step_tokens = self.max_step_tokens.unwrap_or(2_048);
        for (option, value) in [
            ("max_running", self.max_running),
            ("max_waiting", self.max_waiting),
            ("max_step_tokens", max_step_tokens),
        ] {
            if value == 0 {
                return Err(Error::Option { option, value: "0".into(), expected: "it must be at least 1" });
            }
        }
        Ok(Load {
            checkpoint,
            format: self.load_format,
            semantics: &self.semantics,
            threads: self.threads,
            positions,
            max_step_tokens,
            ranks: self.ranks,
            experts: self.experts,
            progress: self.progress,
        })
    }
}

/// Names one request of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

/// Counters and gauges, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Requests that decode or prefill now.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// KV pages in use.
    pub kv_pages_used: usize,
    /// KV pages in all.
    pub kv_pages: usize,
    /// Prompt tokens computed since the start.
    pub prompt_tokens: u64,
    /// Prompt tokens that came from the prefix cache since the start.
    pub cached_prompt_tokens: u64,
    /// Tokens generated since the start.
    pub generated_tokens: u64,
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Empty prompt.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// Prompt, or prompt and answer, don't fit the context.
    #[error("the prompt has {prompt} tokens, the context holds {max_model_len}: shorten the prompt")]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// The context's length.
        max_model_len: usize,
    },
    /// A token outside of the vocabulary.
    #[error("token {token} is outside of the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// A sampling parameter out of range.
    #[error("{parameter} is {value}, {expected}")]
    BadParameter {
        /// Its name as in the API.
        parameter: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// Too many requests wait.
    #[error("{waiting} requests are waiting already: try again later")]
    Busy {
        /// How many wait.
        waiting: usize,
    },
    /// The engine stopped.
    #[error("the engine has stopped: {0}")]
    Stopped(String),
}

/// A running engine. Clones are handles of the same engine; it ends with the last one, or by [`Engine::shutdown`].
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    semantics: Semantics,
    memory: Vec<(usize, usize)>,
    max_model_len: usize,
    vocab_size: usize,
    max_waiting: usize,
    /// Whether it can be told where tokens go.
    routes: bool,
    next_id: AtomicU64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.commands.send(Command::Stop);
    }
}

impl Engine {
    /// Loads the model and starts its thread.
    ///
    /// # Errors
    /// When the checkpoint is incomplete or unsupported, an option makes no sense, threads can't be started, or the device
    /// can't be used.
    pub fn start(checkpoint: &Checkpoint, options: &EngineOptions) -> Result<Engine, Error> {
        let load = options.load(checkpoint)?;
        let Load { positions: max_model_len, max_step_tokens, .. } = load;
        // A processor reads a long prompt in as few steps as it can: each expands all earlier positions again.
        let parts = if options.device == Device::Cpu { 4 } else { 1 };
        let max_beside_answers = max_step_tokens.div_ceil(parts);
        let pool = PagePool::new(options.kv_cache_tokens);
        if pool.total() * PAGE_TOKENS < max_model_len {
            return Err(Error::Option {
                option: "kv_cache_tokens",
                value: options.kv_cache_tokens.to_string(),
                expected: "it must hold at least one sequence of max_model_len tokens",
            });
        }
        let mut model = match &options.world {
            Some(world) => Backend::lead(options.device, &load, world)?,
            None => Backend::load(options.device, &load)?,
        };
        model.set_cache(pool.total())?;
        let (semantics, memory) = (model.semantics().clone(), model.memory());
        let limits = Limits { max_running: options.max_running, max_step_tokens, max_beside_answers };
        let shared = Arc::new(Shared::new(pool.total()));
        let (commands, inbox) = channel();
        let scheduler = Scheduler::new(limits, pool);
        let stepper =
            Stepper::new(model, scheduler, Arc::clone(&shared), max_model_len, options.prefix_cache);
        std::thread::Builder::new()
            .name("lucid-engine".into())
            .spawn(move || stepper.run(&inbox))
            .map_err(Error::Threads)?;
        Ok(Engine {
            inner: Arc::new(Inner {
                commands,
                shared,
                semantics,
                memory,
                max_model_len,
                vocab_size: checkpoint.config().vocab_size,
                max_waiting: options.max_waiting,
                routes: StepRoutes::can_tell(checkpoint.config()),
                next_id: AtomicU64::new(0),
            }),
        })
    }

    /// Queues a request. `sink` receives its events on the engine's thread and must not block; returning false cancels.
    ///
    /// # Errors
    /// When the request can't be run, or too many wait.
    pub fn submit(
        &self,
        request: Request,
        sink: impl FnMut(Event) -> bool + Send + 'static,
    ) -> Result<RequestId, Rejected> {
        self.check(&request)?;
        let waiting = self.stats().waiting;
        if waiting >= self.inner.max_waiting {
            return Err(Rejected::Busy { waiting });
        }
        let id = RequestId(self.inner.next_id.fetch_add(1, Ordering::Relaxed));
        self.inner.shared.note_submitted();
        self.inner
            .commands
            .send(Command::Submit { id, request, sink: Box::new(sink) })
            .map_err(|_| Rejected::Stopped("its thread has ended".into()))?;
        Ok(id)
    }

    fn check(&self, request: &Request) -> Result<(), Rejected> {
        let (vocab_size, max_model_len) = (self.inner.vocab_size, self.inner.max_model_len);
        if request.routes && !self.inner.routes {
            return Err(Rejected::BadParameter {
                parameter: "routed_experts",
                value: "true".into(),
                expected: "but this model has no experts, or more than 65,536: leave it out",
            });
        }
        if request.prompt.is_empty() {
            return Err(Rejected::EmptyPrompt);
        }
        // A prompt that fills the context leaves no room for an answer, but can be scored.
        let room = usize::from(request.max_tokens > 0);
        if request.prompt.len() + room > max_model_len {
            return Err(Rejected::TooLong { prompt: request.prompt.len(), max_model_len });
        }
        if let Some(&token) =
            request.prompt.iter().chain(&request.stop_tokens).find(|token| token.row() >= vocab_size)
        {
            return Err(Rejected::UnknownToken { token: token.0, vocab_size });
        }
        sampler::check(&request.sampling, vocab_size)
    }

    /// Ends a request early, if it is still there; its last event is then `Finished(Cancelled)`.
    pub fn cancel(&self, id: RequestId) {
        // A stopped engine has no requests left to cancel.
        let _ = self.inner.commands.send(Command::Cancel(id));
    }

    /// What is computed, and how.
    #[must_use]
    pub fn semantics(&self) -> &Semantics {
        &self.inner.semantics
    }

    /// Bytes of memory taken and in all, of each GPU, once the model and its cache were there.
    #[must_use]
    pub fn memory(&self) -> &[(usize, usize)] {
        &self.inner.memory
    }

    /// Longest sequence, prompt and answer together.
    #[must_use]
    pub fn max_model_len(&self) -> usize {
        self.inner.max_model_len
    }

    /// Tokens of the vocabulary.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab_size
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.shared.stats()
    }

    /// `None` while all is well; else what happened.
    #[must_use]
    pub fn unhealthy(&self) -> Option<String> {
        self.inner.shared.unhealthy()
    }

    /// Empties the prefix cache: requests that come later begin with nothing that was computed until now. `done` is told on the engine's
    /// thread, and must not block.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub fn reset_prefix_cache(&self, done: impl FnOnce() + Send + 'static) -> Result<(), Rejected> {
        let command = Command::ResetPrefixCache(Box::new(done));
        self.inner.commands.send(command).map_err(|_| Rejected::Stopped("its thread has ended".into()))
    }

    /// Ends the engine; running and waiting requests end as cancelled.
    pub fn shutdown(&self) {
        // The thread may have ended already.
        let _ = self.inner.commands.send(Command::Stop);
    }
}
