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
