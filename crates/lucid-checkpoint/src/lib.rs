//! Reads model checkpoints: config.json, safetensors, the quantized layouts and their exact decoding.

mod token;

pub use token::TokenId;
