//! The audit on real files: the canary whole, and the canary damaged in every way that a check names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod architecture;
mod broken;
mod cases;
mod clean;
mod digest;
mod extents;
mod gguf;
mod index;
mod kinds;
mod layouts;
mod patient;
mod published;
mod scales;
mod state;
mod tokenizer;
