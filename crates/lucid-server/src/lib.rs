//! The OpenAI-compatible HTTP surface on a Lucid engine, in the dialect of vLLM.
//!
//! An [`App`] is a model that can be asked: engine, tokenizer, chat template. A [`Server`] listens for it; [`spawn`] does the
//! same on a thread of its own. Requests go through `validate` (JSON into what it means, errors that name the field), `chat` or
//! `completions` (text into tokens, updates into answers), `generation` (the engine's events), and `protocol` (the shapes). `examples/serve.rs` is the shortest program that
//! serves a model.

mod app;
mod chat;
mod choice;
mod completions;
mod error;
mod generation;
mod guise;
mod lifecycle;
mod metrics;
mod options;
mod plant;
mod prompt;
mod protocol;
mod routes;
mod running;
mod sse;
mod stop_strings;
mod structured;
mod validate;

pub use app::App;
pub use error::Error;
pub use guise::Guise;
pub use lifecycle::Server;
pub use options::{Limits, ServerOptions};
pub use plant::Plant;
pub use running::{RunningServer, spawn};
