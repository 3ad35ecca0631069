//! What all targets share: a bound on memory, and a walk through everything that a checkpoint that opened says of itself.

mod audited;
mod memory;
mod walk;

pub use audited::Audited;
pub use memory::{Bounded, bounded};
pub use walk::{MODEL, open, walk};
