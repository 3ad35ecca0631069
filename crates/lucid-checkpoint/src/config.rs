//! `config.json`: the model's sizes and rules, in every spelling that the published checkpoints use.

pub(crate) mod fields;
mod indexer;
mod moe;
mod quantization;
mod rope;

use serde::Serialize;

use crate::{Error, Files, TokenId};
use fields::Fields;
pub use indexer::{Indexer, IndexerLayer};
pub use moe::{MoE, ScoringFunc};
pub use quantization::Quantization;
pub use rope::Yarn;

/// The architectures whose config is understood. Which of them can be run is for the engine to say.
const ARCHITECTURES: [&str; 4] = [
    "DeepseekV3ForCausalLM",
    "KimiK25ForConditionalGeneration",
    "DeepseekV32ForCausalLM",
    "GlmMoeDsaForCausalLM",
];

/// The largest size of a tensor's dimension that is believed. Products of two of them fit in 64 bits.
const MAX_DIM: usize = 1 << 28;

/// The text model's part of `config.json`, checked. A multimodal config has it inside `text_config`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// `architectures[0]` of the whole model.
    pub architecture: String,
    /// `model_type` of the text model.
    pub model_type: String,
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Decoder layers, without multi-token-prediction layers.
    pub num_hidden_layers: usize,
    /// The first layers have a dense MLP.
    pub first_k_dense_replace: usize,
    /// Of the others, every so-many-th layer is a mixture of experts (1: all).
    pub moe_layer_freq: usize,
    /// Width of a dense layer's MLP.
    pub intermediate_size: usize,
    /// Attention heads.
    pub num_attention_heads: usize,
    /// Width of the compressed query; `None`: queries are projected directly.
    pub q_lora_rank: Option<usize>,
    /// Width of the latent that keys and values are expanded from, and that the KV cache holds.
    pub kv_lora_rank: usize,
    /// Per head, the part of queries and keys without positions.
    pub qk_nope_head_dim: usize,
    /// The part of queries and keys that is rotated; even. Keys share it among heads.
    pub qk_rope_head_dim: usize,
    /// Per head, the width of values.
    pub v_head_dim: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f64,
    /// RoPE base.
    pub rope_theta: f64,
    /// YaRN's parameters; `None`: plain RoPE.
    pub rope_scaling: Option<Yarn>,
    /// RoPE rotates neighbours (x0, x1) rather than halves (x0, x32). True in this family, also when not said.
    pub rope_interleave: bool,
    /// Longest context, in tokens.
    pub max_position_embeddings: usize,
    /// Multi-token-prediction layers, stored after the decoder layers.
    pub num_nextn_predict_layers: usize,
    /// The head uses the embedding's weights.
    pub tie_word_embeddings: bool,
    /// Begin of sequence.
    pub bos_token_id: Option<TokenId>,
    /// Tokens that end a generation; `generation_config.json` may name more.
    pub eos_token_ids: Vec<TokenId>,
    /// The mixture of experts; `None`: every layer is dense.
    pub moe: Option<MoE>,
    /// The sparse-attention indexer (DSA), if the model has one.
    pub indexer: Option<Indexer>,
    /// The type the model was trained in, as `bfloat16`.
    pub dtype: String,
    /// What the files say about quantization. The tensors decide, see [`Checkpoint::matrix`](crate::Checkpoint::matrix).
    pub quantization: Option<Quantization>,
}

impl Config {
    /// Reads `config.json` and, for quantization, `hf_quant_config.json`.
    ///
    /// # Errors
    /// When `config.json` is missing, or a field is missing, ill-typed, nonsensical or not supported.
    pub fn read(files: &Files, notices: &mut Vec<String>) -> Result<Config, Error> {
        let location = files.location("config.json");
        let Some(bytes) = files.find("config.json")? else {
            return Err(Error::MissingFile { location, hint: "a checkpoint folder holds config.json" });
        };
        let mut config = Config::from_json(&location, &bytes)?;
        const HF_QUANT: &str = "hf_quant_config.json";
        if let Some(bytes) = files.find(HF_QUANT)? {
            let declared = Quantization::from_hf_quant_config(&files.location(HF_QUANT), &bytes)?;
            config.quantization = Some(match config.quantization.take() {
                None => declared,
                Some(quantization) => quantization.filled_from(declared, notices),
            });
        }
        Ok(config)
    }

    /// Parses the text of a `config.json`; `location` is its name in messages.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn from_json(location: &str, json: &[u8]) -> Result<Config, Error> {
        let json = fields::parse(location, json)?;
        let top = Fields::root(location, &json)?;
        let architecture = architecture(&top)?;
        let nested = top.object("text_config")?;
        let text = nested.as_ref().unwrap_or(&top);
        if nested.is_some() && text.has("architectures") {
            self::architecture(text)?;
        }
        // What stands in either place; the text model's own word first.
        let either = |name: &str| if text.has(name) { text } else { &top };

        text.must_be("hidden_act", "silu")?;
        text.must_be("attention_bias", false)?;
        let vocab_size = text.size("vocab_size")?;
        let num_hidden_layers = text.size_up_to("num_hidden_layers", 10_000)?;
        let (rope_theta, rope_scaling) = rope::read(text)?;
        let (q_lora_rank, qk_rope_head_dim) =
            (text.optional_size("q_lora_rank")?, text.size("qk_rope_head_dim")?);
        let around =
            indexer::Around { architecture: &architecture, num_hidden_layers, q_lora_rank, qk_rope_head_dim };
        let indexer = indexer::read(text, &around)?;
        let config = Config {
            architecture,
            model_type: text.string("model_type")?,
            vocab_size,
            hidden_size: text.size("hidden_size")?,
            num_hidden_layers,
            first_k_dense_replace: text.count_or("first_k_dense_replace", 0)?,
            moe_layer_freq: text.size_or("moe_layer_freq", 1)?,
            intermediate_size: text.size("intermediate_size")?,
            num_attention_heads: text.size("num_attention_heads")?,
            q_lora_rank,
            kv_lora_rank: text.size("kv_lora_rank")?,
            qk_nope_head_dim: text.size("qk_nope_head_dim")?,
            qk_rope_head_dim,
            v_head_dim: text.size("v_head_dim")?,
            rms_norm_eps: text.positive("rms_norm_eps")?,
            rope_theta,
            rope_scaling,
            rope_interleave: text.flag_or("rope_interleave", true)?,
            max_position_embeddings: text.size("max_position_embeddings")?,
            num_nextn_predict_layers: text.count_or("num_nextn_predict_layers", 0)?,
            tie_word_embeddings: either("tie_word_embeddings").flag_or("tie_word_embeddings", false)?,
            bos_token_id: either("bos_token_id").token("bos_token_id", vocab_size)?,
            eos_token_ids: either("eos_token_id").tokens("eos_token_id", vocab_size)?,
            moe: moe::read(text)?,
            indexer,
            dtype: dtype(text, &top)?,
            quantization: quantization::read(either("quantization_config"))?,
        };
        config.check(text)?;
        Ok(config)
    }

    /// Whether layer `i` is a mixture of experts.
    #[must_use]
    pub fn is_moe_layer(&self, i: usize) -> bool {
        self.moe.is_some() && i >= self.first_k_dense_replace && i.is_multiple_of(self.moe_layer_freq)
    }

    /// What no field alone shows.
    fn check(&self, text: &Fields<'_>) -> Result<(), Error> {
        if !self.qk_rope_head_dim.is_multiple_of(2) {
            let problem = format!("{} is odd, but RoPE rotates pairs", self.qk_rope_head_dim);
            return Err(text.error("qk_rope_head_dim", problem));
        }
        let widest = self.qk_nope_head_dim + self.qk_rope_head_dim.max(self.v_head_dim);
        if self.num_attention_heads.checked_mul(widest).is_none_or(|rows| rows > MAX_DIM) {
            let problem = format!("{} heads of width {widest} are too many", self.num_attention_heads);
            return Err(text.error("num_attention_heads", problem));
        }
        // GLM-5.2 also lists the layers one by one.
        if let Some(types) = text.strings("mlp_layer_types")? {
            let agrees = types.len() == self.num_hidden_layers
                && types.iter().enumerate().all(|(i, kind)| (kind == "sparse") == self.is_moe_layer(i));
            if !agrees {
                let problem = format!(
                    "does not fit num_hidden_layers {}, first_k_dense_replace {} and moe_layer_freq {}",
                    self.num_hidden_layers, self.first_k_dense_replace, self.moe_layer_freq
                );
                return Err(text.error("mlp_layer_types", problem));
            }
        }
        Ok(())
    }
}

fn architecture(fields: &Fields<'_>) -> Result<String, Error> {
    const FIELD: &str = "architectures";
    let Some(first) = fields.strings(FIELD)?.and_then(|names| names.into_iter().next()) else {
        let problem = format!("missing; supported are {}", ARCHITECTURES.join(", "));
        return Err(fields.error(FIELD, problem));
    };
    if !ARCHITECTURES.contains(&first.as_str()) {
        let problem = format!("{first:?} is not supported; supported are {}", ARCHITECTURES.join(", "));
        return Err(fields.error(FIELD, problem));
    }
    Ok(first)
}

/// `dtype` since transformers 5, `torch_dtype` before; in either object.
fn dtype(text: &Fields<'_>, top: &Fields<'_>) -> Result<String, Error> {
    for fields in [text, top] {
        for name in ["dtype", "torch_dtype"] {
            if fields.has(name) {
                return fields.string(name);
            }
        }
    }
    Err(text.error("dtype", "missing (older spelling: torch_dtype)".to_owned()))
}
