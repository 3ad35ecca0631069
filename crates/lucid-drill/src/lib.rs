//! Planted faults, and how well the doctor finds them.
//!
//! Each [`Case`] of the [`CATALOGUE`] is a server of our own with one known mistake (or none); [`run`] lets the doctor examine it as
//! it would examine any other server, and [`Score`] counts.

mod catalogue;
mod run;
mod score;

pub use catalogue::{CATALOGUE, Case, find};
pub use run::{Outcome, run, serve};
pub use score::Score;

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum Error {
    /// The checkpoint can't be read.
    Checkpoint(#[from] lucid_checkpoint::Error),
    /// The model can't be loaded.
    Engine(#[from] lucid_engine::Error),
    /// The tokenizer or the template can't be read.
    Text(#[from] lucid_text::Error),
    /// The server can't be started or stopped.
    Server(#[from] lucid_server::Error),
}
