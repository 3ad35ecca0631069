//! Planted faults, and how well the doctor finds them.
//!
//! Each [`Case`] of the [`CATALOGUE`] is a server of our own with one known mistake (or none); [`run`] lets the doctor examine it as
//! it would examine any other server, and [`Score`] counts.

mod catalogue;
mod learn;
mod ledger;
mod machine;
mod outcome;
mod page;
mod run;
mod score;

pub use catalogue::{CATALOGUE, Case, Setup, find};
pub use learn::{Fitness, Learned, Lesson, learn};
pub use ledger::{Ledger, LedgerError};
pub use machine::Machine;
pub use outcome::{CheckCost, Outcome};
pub use page::html;
pub use run::{Place, Run, RunError, run, run_on, serve};
pub use score::{Calibration, Confusion, Score, Summary, heading, line};
