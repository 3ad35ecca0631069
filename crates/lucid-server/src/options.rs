//! What a server is told: its model's name, its limits, a planted fault.

use std::time::Duration;

use crate::{Guise, Plant};

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The name that requests give and `/v1/models` lists.
    pub model_name: String,
    /// A mistake to make on purpose. The engine's own faults are planted when the engine is started; they stand here
    /// only to be reported.
    pub plant: Option<Plant>,
    /// Draws the fault's place and strength; `None` makes it as it is usually made.
    pub plant_seed: Option<u64>,
    /// Another server's surface, for drills.
    pub guise: Option<Guise>,
    /// Requests may ask where their tokens went (`return_routed_experts`). Those that do begin with nothing from the prefix cache.
    pub return_routed_experts: bool,
    /// Whoever reaches the server may empty its prefix cache.
    pub dev_mode: bool,
    /// Bounds of what clients may ask for.
    pub limits: Limits,
}

impl ServerOptions {
    /// The default limits and no fault.
    #[must_use]
    pub fn new(model_name: impl Into<String>) -> ServerOptions {
        ServerOptions {
            model_name: model_name.into(),
            plant: None,
            plant_seed: None,
            guise: None,
            return_routed_experts: false,
            dev_mode: false,
            limits: Limits::default(),
        }
    }
}

/// Bounds of what clients may ask for. Whatever a client does, memory and time stay below what these add up to.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request's body; more is 413. A prompt of 262,144 token ids takes 2 MB.
    pub body_bytes: usize,
    /// Time for a request's head, and again for its body.
    pub read_timeout: Duration,
    /// Open connections; further clients wait in the operating system's queue.
    pub connections: usize,
    /// Answers to one prompt (`n`).
    pub n: usize,
    /// Prompts in one completions request.
    pub prompts: usize,
    /// After a stop was asked for, running requests may go on for so long; then they are cancelled.
    pub shutdown_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 16 << 20,
            read_timeout: Duration::from_secs(30),
            connections: 1_024,
            n: 16,
            prompts: 64,
            shutdown_grace: Duration::from_secs(10),
        }
    }
}
