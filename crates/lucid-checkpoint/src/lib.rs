//! Reads model checkpoints: config.json, safetensors, GGUF, the quantized layouts and their exact decoding.
//!
//! A [`Checkpoint`] is a folder as Hugging Face lays it out, the same files compiled into the binary, or a GGUF file.
//! Weights stay memory-mapped and packed; a [`Matrix`] says how to turn each row into `f32`.
//! Nothing here knows what a model does with its weights.

mod bytes;
mod checkpoint;
mod config;
mod dtype;
mod error;
mod files;
mod fingerprint;
pub mod float16;
pub mod float8;
mod generation;
pub mod gguf;
mod index;
mod inspect;
pub mod int4;
mod layout;
mod matrix;
pub mod nvfp4;
mod safetensors;
mod token;
mod unused;

pub use bytes::Bytes;
pub use checkpoint::{Checkpoint, Tensor};
pub use config::{Config, Indexer, IndexerLayer, MoE, Quantization, ScoringFunc, Yarn};
pub use dtype::Dtype;
pub use error::Error;
pub use files::Files;
pub use float8::{E4M3, e4m3_to_f32, e8m0_to_f32, f32_to_e4m3};
pub use float16::{bf16_to_f32, f16_to_f32};
pub use generation::Generation;
pub use inspect::{Inspection, LayoutTotal, ModuleGroup, TensorRow, inspect};
pub use layout::join_keys_and_values;
pub use matrix::{Layout, Matrix, Packed, ScaleType, Scales};
pub use token::TokenId;
