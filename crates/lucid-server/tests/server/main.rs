//! The server over real sockets, with the bundled model: against the recordings of a real vLLM, against the goldens, and
//! against itself.

// clippy.toml allows `unwrap` in test functions; here the functions around them are tests as well.
#![allow(clippy::unwrap_used)]

mod broken_model;
mod concurrency;
mod development;
mod errors;
mod fixture;
mod generation;
mod goldens;
mod lifecycle;
mod plants;
mod recorded;
mod structured;
