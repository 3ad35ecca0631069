//! The statistics behind the verdicts. Each has its source, and is tested against published values.

mod bootstrap;
mod random;
mod sequential;
mod wilson;

pub use bootstrap::{Estimate, mean_with_interval};
pub use random::Random;
pub use sequential::{Decision, SequentialTest};
pub use wilson::{Rate, wilson};
