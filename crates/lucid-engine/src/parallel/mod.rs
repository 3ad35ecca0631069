//! Tensor parallelism: a model on several ranks, each with a part of every layer (Shoeybi et al. 2019, arXiv:1909.08053).
//!
//! A rank has whole heads, an equal part of each MLP's width (every expert's too), and a part of the vocabulary. What it adds to the
//! residual stream is summed over the ranks twice a layer, in the order of the ranks, so that all have the same bits.
//!
//! Instead of a part of every routed expert, a rank can have some experts whole ([`ExpertSharing::Whole`]: expert parallelism, Lepikhin et
//! al. 2020, arXiv:2006.16668). Every rank has all tokens anyway, so no token is sent to its experts: a rank computes the visits to its own,
//! and the same sum brings them together.
//!
//! Ranks are threads on a processor ([`Meeting`]) or GPUs. Norms, router and the latent projections are small, and every rank
//! computes them whole.

pub mod cut;
mod experts;
mod meeting;
mod rank;
mod shard;

pub use experts::{ExpertSharing, rank_of_shared};
pub use meeting::{Collective, Meeting};
pub use rank::Rank;
pub use shard::Shard;
