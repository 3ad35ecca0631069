//! The model on an NVIDIA GPU: the files of `cpu/` again, each queueing the kernels of the same name under `kernels/`.
//!
//! Everything of a step runs in order on one stream. The host sends the step's tokens, positions and pages, and waits once, for
//! the logits. Activations are f32: products on tensor cores take them as three bf16 terms, which lose nothing
//! (see `kernels/numerics.cuh`). Every sum's order depends on the weight's shape or the token's position alone, so batches and
//! chunks don't change a bit.

mod arguments;
mod attention;
mod cache;
mod compile;
mod driver;
mod embedding;
mod expanded;
mod experts;
mod form_kernels;
mod forward;
mod graph;
mod indexer;
mod kernels;
mod layout;
mod matmul;
mod nccl;
mod norm;
mod packing;
mod ranks;
mod rope;
mod router;
mod sampling;
mod scoring;
mod step;
#[cfg(test)]
mod tests;
mod weights;

pub use forward::{All, CudaModel};
pub use nccl::{new_meeting as nccl_meeting, present as nccl_present};
pub use scoring::MOST_LISTED;
