//! The statistics behind the verdicts. Each has its source, and is tested against published values.

mod bootstrap;
mod change_point;
mod draws;
mod periodic;
mod random;
mod ranks;
mod sequential;
mod wilson;

pub use bootstrap::{Estimate, mean_with_interval};
pub use change_point::{Change, change_point};
pub use draws::DrawTest;
pub use periodic::periodic;
pub use random::Random;
pub use ranks::mann_whitney;
pub use sequential::{Decision, SequentialTest};
pub use wilson::{Rate, wilson};
