//! Checks that only ask the server.

mod budget;
mod ladder;
mod liveness;

pub(super) use budget::Budget;
pub(super) use ladder::Ladder;
pub(super) use liveness::Liveness;
