//! Random weights of the shapes that a config implies: for benchmarks of models that nobody wants to download.
//!
//! Values are uniform, as large as trained ones in effect: a product keeps the size of its vector. The router's are too, so every
//! token chooses its experts for itself and nearly uniformly, as a text's tokens do; for that, embeddings are larger than
//! what layers add to them. Matrices are windows of a few shared buffers, so that a trillion parameters need no memory here.

use std::collections::BTreeMap;

use lucid_checkpoint::{Bytes, Config, Matrix, MoE, Packed, ScaleType, Scales};

use crate::Error;
use crate::weights::{Attention, Experts, FeedForward, Indexer, KeysAndValues, Layer, Mlp, Query, Weights};

/// Values after which noise repeats: no matrix's size is a multiple, so rows differ.
const PERIOD: usize = 8_388_593;

impl Weights {
    /// Random weights for `config`, in the form that it names (see [`Form`]); everything else is bf16.
    ///
    /// # Errors
    /// When the form doesn't fit its widths.
    pub fn dummy(config: &Config) -> Result<Weights, Error> {
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

/// What published checkpoints quantize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Nothing.
    Bf16,
    /// ModelOpt: every MLP.
    Nvfp4,
    /// Native Kimi-K2 Thinking and K2.5: routed experts.
    Int4,
    /// DeepSeek-V3: every linear layer but the router and the head.
    F8Blocks,
}

impl Form {
    fn of(config: &Config) -> Form {
        let Some(quantization) = &config.quantization else { return Form::Bf16 };
        match quantization.algorithm.as_deref().map(str::to_ascii_lowercase).as_deref() {
            Some("nvfp4") => Form::Nvfp4,
            Some("pack-quantized") => Form::Int4,
            Some("e4m3") => Form::F8Blocks,
            _ => Form::Bf16,
        }
    }

    /// Columns that share a scale.
    fn group(self) -> usize {
        match self {
            Form::Bf16 => 1,
            Form::Nvfp4 => 16,
            Form::Int4 => INT4_GROUP,
            // Blocks at the edge may be smaller.
            Form::F8Blocks => 1,
        }
    }
}

const INT4_GROUP: usize = 32;
const F8_BLOCK: usize = 128;

struct Noise<'a> {
    config: &'a Config,
    form: Form,
    bf16: Bytes,
    codes: Bytes,
    /// NVFP4's E4M3 scales.
    scales: Bytes,
    /// For matrices with so many columns: INT4's bf16 scales, FP8's f32 ones.
    sized_scales: BTreeMap<usize, Bytes>,
}

impl<'a> Noise<'a> {
    fn new(config: &'a Config) -> Result<Noise<'a>, Error> {
        let hidden = config.hidden_size;
        let moe = config.moe.as_ref();
        let form = Form::of(config);
        let width = config
            .intermediate_size
            .max(moe.map_or(0, |moe| moe.moe_intermediate_size * moe.n_shared_experts.max(1)));
        let widths = [hidden, config.intermediate_size, moe.map_or(0, |moe| moe.moe_intermediate_size)];
        if widths.iter().any(|width| !width.is_multiple_of(form.group())) {
            return Err(Error::Unsupported {
                what: format!("{form:?} with widths of {widths:?}"),
                hint: "multiples of the columns that share a scale are",
            });
        }
        let heads = config.num_attention_heads;
        let linear = [
            heads
                * (config.qk_nope_head_dim + config.qk_rope_head_dim)
                * config.q_lora_rank.unwrap_or(hidden),
            heads * config.v_head_dim * hidden,
            heads * (config.qk_nope_head_dim + config.v_head_dim) * config.kv_lora_rank,
            (config.kv_lora_rank + config.qk_rope_head_dim).max(config.q_lora_rank.unwrap_or(0)) * hidden,
            width * hidden,
        ];
        let linear = linear.into_iter().max().unwrap_or(0);
        let largest =
            linear.max(config.vocab_size * hidden).max(moe.map_or(0, |moe| moe.n_routed_experts * hidden));
        // Room for windows that begin at different places.
        let codes = match form {
            Form::Bf16 => 0,
            Form::Nvfp4 | Form::Int4 => width * hidden / 2 + PERIOD,
            Form::F8Blocks => linear + PERIOD,
        };
        let mut random = Random(7);
        // E4M3 codes below two, so never NaN.
        let mask = if form == Form::F8Blocks { 0xbf } else { 0xff };
        let block_scales = if form == Form::Nvfp4 { codes / 8 + PERIOD } else { 0 };
        Ok(Noise {
            config,
            form,
            bf16: bf16_noise(largest + PERIOD, (3.0 / hidden as f32).sqrt(), 1),
            codes: repeated(codes, || random.word() as u8 & mask),
            scales: repeated(block_scales, || 0x30 + (random.word() % 16) as u8),
            sized_scales: sized_scales(config, form, linear),
        })
    }

    fn bf16(&self, seed: usize, rows: usize, cols: usize) -> Result<Matrix, Error> {
        let start = 2 * (seed * 7_919 % (PERIOD / 2));
        let bytes = window(&self.bf16, start, 2 * rows * cols)?;
        Ok(Matrix { name: "dummy".into(), rows, cols, packed: Packed::Bf16(bytes) })
    }

    /// A matrix that the form quantizes.
    fn packed(&self, seed: usize, rows: usize, cols: usize) -> Result<Matrix, Error> {
        let start = seed * 7_919 % (PERIOD / 2);
        let sized = |kind, len: usize| {
            let all = self.sized_scales.get(&cols).cloned().unwrap_or_else(|| Bytes::from(Vec::new()));
            Ok::<Scales, Error>(Scales { kind, bytes: window(&all, 0, len)? })
        };
        let packed = match self.form {
            Form::Bf16 => return self.bf16(seed, rows, cols),
            Form::Nvfp4 => Packed::Nvfp4 {
                codes: window(&self.codes, start, rows * cols / 2)?,
                scales: window(&self.scales, start, rows * cols / 16)?,
                // Codes have a standard deviation of 2.9, scales of about 1.1.
                global_scale: 1.0 / (3.2 * (cols as f32).sqrt()),
                input_scale: None,
            },
            Form::Int4 => Packed::Int4 {
                codes: window(&self.codes, start, rows * cols / 2)?,
                scales: sized(ScaleType::Bf16, 2 * rows * cols / INT4_GROUP)?,
                group_size: INT4_GROUP,
            },
            Form::F8Blocks => Packed::F8Blocks {
                codes: window(&self.codes, start, rows * cols)?,
                scales: sized(ScaleType::F32, 4 * rows.div_ceil(F8_BLOCK) * cols.div_ceil(F8_BLOCK))?,
                block: [F8_BLOCK; 2],
            },
        };
        Ok(Matrix { name: "dummy".into(), rows, cols, packed })
    }

    /// A linear layer of attention.
    fn linear(&self, seed: usize, rows: usize, cols: usize) -> Result<Matrix, Error> {
        match self.form {
            Form::F8Blocks => self.packed(seed, rows, cols),
            _ => self.bf16(seed, rows, cols),
        }
    }

    /// One of an MLP that is no routed expert's.
    fn mlp_matrix(&self, seed: usize, rows: usize, cols: usize) -> Result<Matrix, Error> {
        match self.form {
            Form::Int4 => self.bf16(seed, rows, cols),
            _ => self.packed(seed, rows, cols),
        }
    }

    fn mlp(&self, seed: usize, width: usize) -> Result<Mlp, Error> {
        self.mlp_of(|i, rows, cols| self.mlp_matrix(3 * seed + i, rows, cols), width)
    }

    fn expert(&self, seed: usize, width: usize) -> Result<Mlp, Error> {
        self.mlp_of(|i, rows, cols| self.packed(3 * seed + i, rows, cols), width)
    }

    fn mlp_of(
        &self,
        matrix: impl Fn(usize, usize, usize) -> Result<Matrix, Error>,
        width: usize,
    ) -> Result<Mlp, Error> {
        let hidden = self.config.hidden_size;
        Ok(Mlp {
            gate: matrix(0, width, hidden)?,
            up: matrix(1, width, hidden)?,
            down: matrix(2, hidden, width)?,
        })
    }

    fn layer(&self, i: usize) -> Result<Layer, Error> {
        let (config, seed) = (self.config, 1_000 * i);
        let (hidden, heads, latent) = (config.hidden_size, config.num_attention_heads, config.kv_lora_rank);
        let (nope, rope, value) = (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim);
        let kv_b = self.linear(seed + 3, heads * (nope + value), latent)?;
        let query = match config.q_lora_rank {
            Some(rank) => Query::Latent {
                q_a: self.linear(seed, rank, hidden)?,
                q_a_norm: vec![1.0; rank],
                q_b: self.linear(seed + 1, heads * (nope + rope), rank)?,
            },
            None => Query::Direct(self.linear(seed, heads * (nope + rope), hidden)?),
        };
        Ok(Layer {
            input_layernorm: vec![1.0; hidden],
            attention: Attention {
                query,
                kv_a: self.linear(seed + 2, latent + rope, hidden)?,
                kv_a_norm: vec![1.0; latent],
                keys_values: KeysAndValues::joined(kv_b, heads, nope, value),
                indexer: self.indexer(seed, i)?,
                o: self.linear(seed + 4, hidden, heads * value)?,
            },
            post_attention_layernorm: vec![1.0; hidden],
            feed_forward: match config.moe.as_ref().filter(|_| config.is_moe_layer(i)) {
                Some(moe) => FeedForward::Experts(Box::new(self.experts(seed, moe)?)),
                None => FeedForward::Dense(Box::new(self.mlp(seed, config.intermediate_size)?)),
            },
        })
    }

    fn indexer(&self, seed: usize, layer: usize) -> Result<Option<Indexer>, Error> {
        let rules = self.config.indexer.as_ref().filter(|rules| rules.is_full(layer));
        let (Some(rules), Some(rank)) = (rules, self.config.q_lora_rank) else { return Ok(None) };
        let (heads, width, hidden) = (rules.index_n_heads, rules.index_head_dim, self.config.hidden_size);
        Ok(Some(Indexer {
            wq_b: self.bf16(seed + 6, heads * width, rank)?,
            wk: self.bf16(seed + 7, width, hidden)?,
            k_norm: vec![1.0; width],
            k_norm_bias: vec![0.0; width],
            weights_proj: self.bf16(seed + 8, heads, hidden)?,
        }))
    }

    fn experts(&self, seed: usize, moe: &MoE) -> Result<Experts, Error> {
        let width = moe.moe_intermediate_size;
        Ok(Experts {
            router: self.bf16(seed + 5, moe.n_routed_experts, self.config.hidden_size)?,
            bias: Some(vec![0.0; moe.n_routed_experts]),
            mistake: None,
            first: 0,
            routed: (0..moe.n_routed_experts)
                .map(|expert| self.expert(seed + 1 + expert, width))
                .collect::<Result<_, _>>()?,
            shared: match moe.n_shared_experts {
                0 => None,
                shared => Some(self.mlp(seed, shared * width)?),
            },
            shared_by: None,
        })
    }
}

/// Scales for matrices of up to `most` values, by their columns: a product keeps the size of its vector.
fn sized_scales(config: &Config, form: Form, most: usize) -> BTreeMap<usize, Bytes> {
    let moe = config.moe.as_ref();
    let heads = config.num_attention_heads;
    let columns = [
        config.hidden_size,
        config.intermediate_size,
        moe.map_or(0, |moe| moe.moe_intermediate_size),
        moe.map_or(0, |moe| moe.moe_intermediate_size * moe.n_shared_experts),
        config.q_lora_rank.unwrap_or(0),
        config.kv_lora_rank,
        heads * config.v_head_dim,
    ];
    let scales = |cols: usize| {
        let size = (cols as f32).sqrt();
        match form {
            Form::Bf16 | Form::Nvfp4 => Bytes::from(Vec::new()),
            // Codes have a standard deviation of 4.6.
            Form::Int4 => bf16_constant(most / INT4_GROUP, 1.0 / (4.6 * size)),
            // Codes have one of 0.62.
            Form::F8Blocks => {
                let count = (most / cols).div_ceil(F8_BLOCK) * cols.div_ceil(F8_BLOCK);
                Bytes::from((1.0 / (0.62 * size)).to_le_bytes().repeat(count))
            }
        }
    };
    columns.into_iter().filter(|cols| *cols > 0).map(|cols| (cols, scales(cols))).collect()
}

fn bf16_constant(len: usize, value: f32) -> Bytes {
    Bytes::from(((value.to_bits() >> 16) as u16).to_le_bytes().repeat(len))
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

#[cfg(test)]
mod tests {
    use lucid_checkpoint::Layout;

    use super::*;

    /// The form decides what is packed, and products keep the size of their vectors.
    #[test]
    fn weights_take_the_form_that_the_config_names() {
        let nvfp4 = r#"{"quant_method": "modelopt", "quant_algo": "NVFP4"}"#;
        let int4 = r#"{"quant_method": "compressed-tensors", "format": "pack-quantized"}"#;
        let f8 = r#"{"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}"#;
        for (quantization, attention, expert, shared) in [
            ("null", Layout::Bf16, Layout::Bf16, Layout::Bf16),
            (nvfp4, Layout::Bf16, Layout::Nvfp4, Layout::Nvfp4),
            (int4, Layout::Bf16, Layout::Int4, Layout::Bf16),
            (f8, Layout::F8Blocks, Layout::F8Blocks, Layout::F8Blocks),
        ] {
            let json = format!(
                r#"{{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 512,
                    "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 2,
                    "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": 96, "kv_lora_rank": 128,
                    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 4,
                    "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 160, "n_group": 1,
                    "topk_group": 1, "scoring_func": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 1.0,
                    "rms_norm_eps": 1e-6, "rope_theta": 10000, "max_position_embeddings": 4096,
                    "tie_word_embeddings": false, "hidden_act": "silu", "torch_dtype": "bfloat16", "quantization_config": {quantization}}}"#
            );
            let config = Config::from_json("config.json", json.as_bytes()).unwrap();
            let weights = Weights::dummy(&config).unwrap();
            let layer = &weights.layers[1];
            let FeedForward::Experts(experts) = &layer.feed_forward else { panic!("a dense layer") };
            let found = [&layer.attention.o, &experts.routed[0].down, &experts.shared.as_ref().unwrap().up];
            assert_eq!(found.map(Matrix::layout), [attention, expert, shared], "{quantization}");
            assert_eq!(layer.attention.keys_values.keys().layout(), attention);
            assert_eq!(weights.lm_head.layout(), Layout::Bf16);
            for matrix in found {
                let mut row = vec![0f32; matrix.cols];
                matrix.decode_row(3, &mut row);
                let square = row.iter().map(|x| x * x).sum::<f32>();
                assert!((0.2..5.0).contains(&square), "{quantization} {}: {square}", matrix.layout());
            }
        }
    }
}
