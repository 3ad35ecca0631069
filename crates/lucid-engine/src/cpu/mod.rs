//! The model on a processor.

mod activations;
mod aligned;
mod attention;
mod cache;
mod dot;
mod exp;
mod expanded;
mod experts;
mod forward;
mod indexer;
pub mod kernels;
mod matmul;
mod norm;
mod rope;
mod router;
mod row;
mod softmax;
mod threads;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod unit;
#[cfg(target_arch = "x86_64")]
mod unroll;
mod vectorize;
mod weighted_sum;

pub use aligned::Aligned;
pub use cache::{Cache, LatentCache};
pub use exp::exp;
pub use expanded::MOST_BYTES as MOST_EXPANDED;
pub use forward::{CpuModel, Observer, Span};
pub use indexer::MOST_SCORES;
pub use rope::{Rope, softmax_scale};
pub use router::Route;
#[cfg(test)]
pub use router::route;
pub use unit::Unit;
