//! The server over real sockets, with the bundled model: against the recordings of a real vLLM, against the goldens, and
//! against itself.

mod concurrency;
mod errors;
mod fixture;
mod generation;
mod goldens;
mod lifecycle;
mod plants;
mod recorded;
