//! Checks that only ask the server.

mod batch;
mod budget;
mod cold_warm;
mod determinism;
mod ladder;
mod length_sweep;
mod liveness;
mod multi_turn;
mod requests;
mod schema;
mod soak;
mod streaming;
mod tools;

pub(super) use batch::Batch;
pub(super) use budget::Budget;
pub(super) use cold_warm::ColdWarm;
pub(super) use determinism::Determinism;
pub(super) use ladder::Ladder;
pub(super) use length_sweep::LengthSweep;
pub(super) use liveness::Liveness;
pub(super) use multi_turn::MultiTurn;
pub(super) use schema::Schema;
pub(super) use soak::Soak;
pub(super) use streaming::Streaming;
pub(super) use tools::Tools;
