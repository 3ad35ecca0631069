//! The model: configuration, weights, KV cache, forward pass, sampler, scheduler.
//!
//! [`Engine`] serves requests in one continuous batch; [`Scorer`] says what the model thinks of given tokens. Both run the same
//! forward pass, and a token's result does not depend on what else is in the batch, on chunks, or on threads.

mod backend;
mod choice;
mod cpu;
mod cuda;
mod dummy;
mod engine;
mod error;
mod guide;
mod kv_cache;
mod logprobs;
mod parallel;
mod plant;
mod prefix_cache;
mod recycled;
mod request;
mod routes;
mod sampler;
mod scheduler;
mod scorer;
mod semantics;
mod stepper;
mod streaming;
mod weights;
mod world;

pub use backend::{Device, LoadFormat};
#[doc(hidden)] // For benchmarks; nothing else needs single kernels.
pub use cpu::kernels;
pub use cpu::{Observer, Route};
pub use engine::{Engine, EngineOptions, Rejected, RequestId, Stats};
pub use error::Error;
pub use guide::Guide;
pub use logprobs::token_logprobs;
pub use parallel::ExpertSharing;
pub use plant::{Dosage, Plant, Planted, Projection};
pub use request::{Candidate, Event, Finish, Request, Routes, Sampling, TokenLogprobs};
pub use scorer::Scorer;
pub use semantics::{Activations, KvCacheDtype, KvScales, Mode, Semantics, SemanticsOptions};
pub use streaming::{Progress, Streaming, StreamingOptions, resident};
pub use world::{World, follow};
