//! The audit on real files: the canary whole, and the canary damaged in every way that a check names.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod architecture;
mod broken;
mod cases;
mod clean;
mod digest;
mod extents;
mod gguf;
mod index;
mod patient;
mod published;
mod scales;
mod state;
mod tokenizer;
