//! The buffers of a step.

use lucid_checkpoint::Config;

use super::LOGIT_ROWS;
use crate::Error;
use crate::cuda::driver::{Buffer, Gpu};

/// Buffers of the largest step. f32, or split form (one or three bf16 a value).
pub struct Scratch {
    pub hidden: Buffer,       // [tokens, hidden] f32: the residual stream
    pub normed: Buffer, // [tokens, terms, hidden], natural order; after the last layer the final norm's output
    pub normed_nvfp4: Buffer, // the same in NVFP4's order
    pub query_low: Buffer, // [tokens, Q] f32
    pub query_low_split: Buffer,
    pub query: Buffer,      // [tokens, A, N + R] f32
    pub nope: Buffer,       // [tokens, terms, A N]
    pub entry: Buffer,      // [tokens, L + R] f32: what the cache receives
    pub absorbed: Buffer,   // [tokens, A, L + R] f32
    pub latent: Buffer,     // [tokens, terms, A L]: attention's sums
    pub heads: Buffer,      // [tokens, terms, A V]
    pub logits: Buffer,     // [LOGIT_ROWS, vocab] f32
    pub logit_rows: Buffer, // [LOGIT_ROWS] u32
}

impl Scratch {
    /// For steps of up to so many tokens.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn new(gpu: &Gpu, config: &Config, terms: usize, tokens: usize) -> Result<Scratch, Error> {
        let (hidden, heads, latent) = (config.hidden_size, config.num_attention_heads, config.kv_lora_rank);
        let (nope, rope, value) = (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim);
        let low = config.q_lora_rank.unwrap_or(0);
        let f32s = |width: usize| gpu.allocate(tokens * width * 4);
        let split = |width: usize| gpu.allocate(tokens * width * terms * 2);
        Ok(Scratch {
            hidden: f32s(hidden)?,
            normed: split(hidden)?,
            normed_nvfp4: split(hidden)?,
            query_low: f32s(low)?,
            query_low_split: split(low)?,
            query: f32s(heads * (nope + rope))?,
            nope: split(heads * nope)?,
            entry: f32s(latent + rope)?,
            absorbed: f32s(heads * (latent + rope))?,
            latent: split(heads * latent)?,
            heads: split(heads * value)?,
            logits: gpu.allocate(LOGIT_ROWS * config.vocab_size * 4)?,
            logit_rows: gpu.allocate(LOGIT_ROWS * 4)?,
        })
    }
}
