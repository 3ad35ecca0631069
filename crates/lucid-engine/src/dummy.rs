//! Random weights of the shapes that a config implies: for benchmarks of models that nobody wants to download.
//!
//! Values are uniform, as large as trained ones in effect: a product keeps the size of its vector. The router's are too, so every
//! token chooses its experts for itself and nearly uniformly, as a text's tokens do; for that, embeddings are larger than
//! what layers add to them. Matrices are windows of a few shared buffers, so that a trillion parameters need no memory here.

use lucid_checkpoint::{Bytes, Config, Matrix, MoE, Packed};

use crate::Error;
use crate::weights::{
    Attention, Experts, FeedForward, Layer, Mlp, Query, Weights, check_supported, transpose_keys,
};

/// Values after which noise repeats: no matrix's size is a multiple, so rows differ.
const PERIOD: usize = 8_388_593;

impl Weights {
    /// Random weights for `config`. MLPs are NVFP4 if the config says so, everything else is bf16.
    ///
    /// # Errors
    /// When the model is not supported, or NVFP4 doesn't fit its widths.
    pub fn dummy(config: &Config) -> Result<Weights, Error> {
        check_supported(config)?;
        let noise = Noise::new(config)?;
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let loud = bf16_noise(vocab * hidden, 16.0, 2);
        let matrix = |bytes: Bytes| Matrix {
            name: "dummy".into(),
            rows: vocab,
            cols: hidden,
            packed: Packed::Bf16(bytes),
        };
        let embed_tokens = matrix(loud);
        let lm_head = match config.tie_word_embeddings {
            true => embed_tokens.clone(),
            false => noise.bf16(0, vocab, hidden)?,
        };
        let layers = (0..config.num_hidden_layers).map(|i| noise.layer(i)).collect::<Result<_, _>>()?;
        Ok(Weights { embed_tokens, layers, norm: vec![1.0; hidden], lm_head })
    }
}

struct Noise<'a> {
    config: &'a Config,
    bf16: Bytes,
    codes: Bytes,
    scales: Bytes,
}

impl<'a> Noise<'a> {
    fn new(config: &'a Config) -> Result<Noise<'a>, Error> {
        let hidden = config.hidden_size;
        let moe = config.moe.as_ref();
        let nvfp4 = config.quantization.as_ref().is_some_and(|quantization| {
            quantization.algorithm.as_deref().is_some_and(|algorithm| algorithm.eq_ignore_ascii_case("nvfp4"))
        });
        let width = config
            .intermediate_size
            .max(moe.map_or(0, |moe| moe.moe_intermediate_size * moe.n_shared_experts.max(1)));
        let widths = [hidden, config.intermediate_size, moe.map_or(0, |moe| moe.moe_intermediate_size)];
        if nvfp4 && widths.iter().any(|width| !width.is_multiple_of(16)) {
            return Err(Error::Unsupported {
                what: format!("NVFP4 with widths of {widths:?}"),
                hint: "multiples of 16 are",
            });
        }
        let heads = config.num_attention_heads;
        let attention = [
            config.vocab_size * hidden,
            heads
                * (config.qk_nope_head_dim + config.qk_rope_head_dim)
                * config.q_lora_rank.unwrap_or(hidden),
            heads * config.v_head_dim * hidden,
            heads * (config.qk_nope_head_dim + config.v_head_dim) * config.kv_lora_rank,
            moe.map_or(0, |moe| moe.n_routed_experts * hidden),
        ];
        let largest = attention.into_iter().max().unwrap_or(0).max(if nvfp4 { 0 } else { width * hidden });
        // Room for windows that begin at different places.
        let codes = if nvfp4 { width * hidden / 2 + PERIOD } else { 0 };
        let mut random = Random(7);
        Ok(Noise {
            config,
            bf16: bf16_noise(largest + PERIOD, (3.0 / hidden as f32).sqrt(), 1),
            codes: repeated(codes, || random.word() as u8),
            scales: repeated(codes / 8 + PERIOD, || 0x30 + (random.word() % 16) as u8),
        })
    }

    fn bf16(&self, seed: usize, rows: usize, cols: usize) -> Result<Matrix, Error> {
        let start = 2 * (seed * 7_919 % (PERIOD / 2));
        let bytes = window(&self.bf16, start, 2 * rows * cols)?;
        Ok(Matrix { name: "dummy".into(), rows, cols, packed: Packed::Bf16(bytes) })
    }

    fn mlp_matrix(&self, seed: usize, rows: usize, cols: usize) -> Result<Matrix, Error> {
        if self.codes.is_empty() {
            return self.bf16(seed, rows, cols);
        }
        let start = seed * 7_919 % (PERIOD / 2);
        let packed = Packed::Nvfp4 {
            codes: window(&self.codes, start, rows * cols / 2)?,
            scales: window(&self.scales, start, rows * cols / 16)?,
            // Codes have a standard deviation of 2.9, scales of about 1.1.
            global_scale: 1.0 / (3.2 * (cols as f32).sqrt()),
            input_scale: None,
        };
        Ok(Matrix { name: "dummy".into(), rows, cols, packed })
    }

    fn mlp(&self, seed: usize, width: usize) -> Result<Mlp, Error> {
        let hidden = self.config.hidden_size;
        Ok(Mlp {
            gate: self.mlp_matrix(3 * seed, width, hidden)?,
            up: self.mlp_matrix(3 * seed + 1, width, hidden)?,
            down: self.mlp_matrix(3 * seed + 2, hidden, width)?,
        })
    }

    fn layer(&self, i: usize) -> Result<Layer, Error> {
        let (config, seed) = (self.config, 1_000 * i);
        let (hidden, heads, latent) = (config.hidden_size, config.num_attention_heads, config.kv_lora_rank);
        let (nope, rope, value) = (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim);
        let kv_b = self.bf16(seed + 3, heads * (nope + value), latent)?;
        let query = match config.q_lora_rank {
            Some(rank) => Query::Latent {
                q_a: self.bf16(seed, rank, hidden)?,
                q_a_norm: vec![1.0; rank],
                q_b: self.bf16(seed + 1, heads * (nope + rope), rank)?,
            },
            None => Query::Direct(self.bf16(seed, heads * (nope + rope), hidden)?),
        };
        Ok(Layer {
            input_layernorm: vec![1.0; hidden],
            attention: Attention {
                query,
                kv_a: self.bf16(seed + 2, latent + rope, hidden)?,
                kv_a_norm: vec![1.0; latent],
                k_b_transposed: transpose_keys(&kv_b, heads, nope, value),
                kv_b,
                o: self.bf16(seed + 4, hidden, heads * value)?,
            },
            post_attention_layernorm: vec![1.0; hidden],
            feed_forward: match config.moe.as_ref().filter(|_| config.is_moe_layer(i)) {
                Some(moe) => FeedForward::Experts(self.experts(seed, moe)?),
                None => FeedForward::Dense(self.mlp(seed, config.intermediate_size)?),
            },
        })
    }

    fn experts(&self, seed: usize, moe: &MoE) -> Result<Experts, Error> {
        let width = moe.moe_intermediate_size;
        Ok(Experts {
            router: self.bf16(seed + 5, moe.n_routed_experts, self.config.hidden_size)?,
            bias: Some(vec![0.0; moe.n_routed_experts]),
            bias_in_weights: false,
            routed: (0..moe.n_routed_experts)
                .map(|expert| self.mlp(seed + 1 + expert, width))
                .collect::<Result<_, _>>()?,
            shared: match moe.n_shared_experts {
                0 => None,
                shared => Some(self.mlp(seed, shared * width)?),
            },
        })
    }
}

fn window(bytes: &Bytes, start: usize, len: usize) -> Result<Bytes, Error> {
    bytes.slice(start..start + len).ok_or_else(|| Error::Unsupported {
        what: format!("a dummy matrix of {len} bytes"),
        hint: "check the widths in config.json",
    })
}

fn bf16_noise(len: usize, spread: f32, seed: u64) -> Bytes {
    let mut random = Random(seed);
    let mut high = 0;
    let mut is_low = true;
    // Little-endian: the low byte of a value, then the high one.
    repeated(2 * len, || {
        if is_low {
            let bits = (random.number() * spread).to_bits();
            high = (bits >> 24) as u8;
            is_low = false;
            (bits >> 16) as u8
        } else {
            is_low = true;
            high
        }
    })
}

/// `len` bytes that repeat after twice the period.
fn repeated(len: usize, mut byte: impl FnMut() -> u8) -> Bytes {
    let mut bytes: Vec<u8> = (0..len.min(2 * PERIOD)).map(|_| byte()).collect();
    while bytes.len() < len {
        let more = (len - bytes.len()).min(bytes.len());
        bytes.extend_from_within(..more);
    }
    Bytes::from(bytes)
}

/// A small generator (Steele et al. 2014, SplitMix64).
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From -1 to 1.
    fn number(&mut self) -> f32 {
        (self.word() >> 40) as f32 / 8_388_608.0 - 1.0
    }
}
