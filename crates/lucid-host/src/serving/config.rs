//! The facts of `config.json` and `hf_quant_config.json` that flags are checked against.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a checkpoint's config says; of a multimodal one, its text model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelConfig {
    /// `KimiK25ForConditionalGeneration`.
    pub architectures: Vec<String>,
    /// `kimi_k25`.
    pub model_type: Option<String>,
    /// `bfloat16`.
    pub dtype: Option<String>,
    /// Query heads.
    pub heads: Option<u64>,
    /// Key-value heads.
    pub kv_heads: Option<u64>,
    /// Width of one head, where it is said.
    pub head_width: Option<u64>,
    /// Layers.
    pub layers: Option<u64>,
    /// Layers that predict further tokens (MTP).
    pub next_token_layers: Option<u64>,
    /// Width of the residual stream.
    pub hidden: Option<u64>,
    /// Width of dense feed-forward layers.
    pub feed_forward: Option<u64>,
    /// Width of one expert.
    pub expert_feed_forward: Option<u64>,
    /// Routed experts.
    pub experts: Option<u64>,
    /// Width of the cached latent; `Some` means multi-head latent attention.
    pub latent: Option<u64>,
    /// Width of the cached rotated part.
    pub rotated: Option<u64>,
    /// Tokens that sparse attention keeps; `Some` means sparse attention.
    pub sparse_top_k: Option<u64>,
    /// Some layers are state-space or linear-attention layers.
    pub hybrid: bool,
    /// Longest context.
    pub context: Option<u64>,
    /// Scaling of positions.
    pub rope: Option<Rope>,
    /// How weights are stored.
    pub quantization: Option<Quantization>,
    /// The checkpoint brings code of its own (`auto_map`).
    pub own_code: bool,
    /// What was odd.
    pub notes: Vec<String>,
}

/// Scaling of rotary positions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rope {
    /// `yarn`, `linear`, `default`.
    pub kind: String,
    /// Context is stretched by this.
    pub factor: Option<f64>,
    /// Context before stretching.
    pub original_context: Option<u64>,
}

/// How weights are stored, as the config says it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quantization {
    /// `fp8`, `modelopt`, `compressed-tensors`, `gptq`, …
    pub method: Option<String>,
    /// `NVFP4`, `FP8`, `pack-quantized`, `mxfp4-pack-quantized`.
    pub format: Option<String>,
    /// Bits of a weight.
    pub bits: Option<u64>,
    /// Whether weights are floats.
    pub float: Option<bool>,
    /// Weights that share a scale.
    pub group: Option<u64>,
    /// Rows and columns that share a scale.
    pub block: Option<(u64, u64)>,
    /// `ue8m0`: scales are powers of two.
    pub scale_format: Option<String>,
    /// What the config asks for the KV cache.
    pub kv_cache: Option<KvCacheScheme>,
}

/// What a checkpoint asks for its KV cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvCacheScheme {
    /// Bits: 8.
    pub bits: Option<u64>,
    /// As it is written: `FP8`, `float 8`.
    pub text: String,
}

/// The layout of the quantized weights, whatever the spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WeightLayout {
    /// 4-bit floats in groups of 16 with FP8 scales.
    Nvfp4,
    /// 4-bit floats in groups of 32 with power-of-two scales.
    Mxfp4,
    /// 8-bit floats with a scale for each block.
    Fp8Block,
    /// 8-bit floats with a scale for each tensor or channel.
    Fp8,
    /// 4-bit integers in groups.
    Int4,
    /// 8-bit integers.
    Int8,
    /// Not quantized.
    Plain,
}

impl ModelConfig {
    /// Reads `config.json`, and `hf_quant_config.json` beside it if there is one.
    ///
    /// # Errors
    /// If `config.json` is no JSON object; a broken `hf_quant_config.json` becomes a note.
    pub fn read(config: &str, quantization: Option<&str>) -> Result<ModelConfig, serde_json::Error> {
        let whole: serde_json::Map<String, Value> = serde_json::from_str(config)?;
        let whole = Value::Object(whole);
        let text = ["text_config", "language_config", "llm_config"]
            .iter()
            .find_map(|key| whole.get(*key).filter(|inner| inner.is_object()))
            .unwrap_or(&whole);
        let number = |keys: &[&str]| keys.iter().find_map(|key| text.get(*key)?.as_u64());
        let string = |key: &str| {
            text.get(key).or_else(|| whole.get(key)).and_then(Value::as_str).map(ToOwned::to_owned)
        };
        let mut read = ModelConfig {
            architectures: texts(whole.get("architectures").or_else(|| text.get("architectures"))),
            model_type: whole
                .get("model_type")
                .or_else(|| text.get("model_type"))
                .and_then(Value::as_str)
                .map(ToOwned::to_owned),
            dtype: string("dtype").or_else(|| string("torch_dtype")),
            heads: number(&["num_attention_heads"]),
            kv_heads: number(&["num_key_value_heads"]),
            head_width: number(&["head_dim"]),
            layers: number(&["num_hidden_layers"]),
            next_token_layers: number(&["num_nextn_predict_layers"]),
            hidden: number(&["hidden_size"]),
            feed_forward: number(&["intermediate_size"]),
            expert_feed_forward: number(&["moe_intermediate_size"]),
            experts: number(&["n_routed_experts", "num_experts", "num_local_experts"]),
            latent: number(&["kv_lora_rank"]),
            rotated: number(&["qk_rope_head_dim"]),
            sparse_top_k: number(&["index_topk"]),
            hybrid: [
                "mamba_num_heads",
                "ssm_state_size",
                "linear_num_value_heads",
                "linear_attn_config",
                "hybrid_override_pattern",
            ]
            .iter()
            .any(|key| text.get(*key).is_some_and(|value| !value.is_null())),
            context: number(&["max_position_embeddings"]),
            rope: text
                .get("rope_scaling")
                .filter(|rope| rope.is_object())
                .or_else(|| text.get("rope_parameters"))
                .and_then(read_rope),
            quantization: whole
                .get("quantization_config")
                .or_else(|| text.get("quantization_config"))
                .and_then(read_quantization),
            own_code: whole.get("auto_map").is_some(),
            notes: Vec::new(),
        };
        match quantization.map(serde_json::from_str::<Value>) {
            Some(Ok(document)) => {
                let said = document.get("quantization").and_then(read_modelopt);
                read.quantization = read.quantization.take().or(said);
            }
            Some(Err(error)) => read.notes.push(format!("hf_quant_config.json: {error}: not read")),
            None => {}
        }
        Ok(read)
    }

    /// How the weights are stored.
    #[must_use]
    pub fn layout(&self) -> WeightLayout {
        self.quantization.as_ref().map_or(WeightLayout::Plain, Quantization::layout)
    }

    /// Bytes of KV cache that one token takes over all layers of one rank, at `bytes` a number. With latent attention every
    /// rank of tensor parallelism holds the whole latent: (latent + rotated) × layers; otherwise 2 × heads × width × layers.
    #[must_use]
    pub fn kv_bytes_per_token(&self, bytes: f64, tensor_parallel: u64) -> Option<f64> {
        let layers = self.layers? as f64;
        let numbers = match (self.latent, self.rotated) {
            (Some(latent), Some(rotated)) => latent as f64 + rotated as f64,
            _ => {
                let heads = self.kv_heads.or(self.heads)?;
                let width = self.head_width.or_else(|| self.hidden?.checked_div(self.heads?))?;
                2.0 * width as f64 * heads.div_ceil(tensor_parallel.max(1)) as f64
            }
        };
        Some(numbers * layers * bytes)
    }
}

impl Quantization {
    /// The layout behind the spelling.
    #[must_use]
    pub fn layout(&self) -> WeightLayout {
        let format = self.format.as_deref().unwrap_or("").to_ascii_lowercase();
        let method = self.method.as_deref().unwrap_or("").to_ascii_lowercase();
        let float = self.float != Some(false);
        if format.contains("mxfp4") || method.contains("mxfp4") {
            WeightLayout::Mxfp4
        } else if format.contains("nvfp4") || (self.bits == Some(4) && self.float == Some(true)) {
            WeightLayout::Nvfp4
        } else if self.block.is_some() && (method.contains("fp8") || format.contains("fp8")) {
            WeightLayout::Fp8Block
        } else if method.contains("fp8")
            || format.contains("fp8")
            || format.contains("float-quantized")
            || (self.bits == Some(8) && self.float == Some(true))
        {
            WeightLayout::Fp8
        } else if self.bits == Some(8) && !float {
            WeightLayout::Int8
        } else if self.bits == Some(4)
            || format == "pack-quantized"
            || matches!(method.as_str(), "awq" | "gptq")
        {
            WeightLayout::Int4
        } else {
            WeightLayout::Plain
        }
    }

    /// The name that engines give it: `modelopt_fp4` of a ModelOpt NVFP4 checkpoint.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        let method = self.method.clone()?;
        Some(match (method.as_str(), self.layout()) {
            ("modelopt", WeightLayout::Nvfp4) => "modelopt_fp4".to_owned(),
            _ => method,
        })
    }
}

pub(crate) fn texts(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).take(8).map(ToOwned::to_owned).collect()
}

fn read_rope(rope: &Value) -> Option<Rope> {
    let kind = rope.get("type").or_else(|| rope.get("rope_type"))?.as_str()?.to_owned();
    Some(Rope {
        kind,
        factor: rope.get("factor").and_then(Value::as_f64),
        original_context: rope
            .get("original_max_position_embeddings")
            .and_then(Value::as_f64)
            .map(|n| n as u64),
    })
}

/// `quantization_config`: FP8, compressed-tensors, ModelOpt's later form, GPTQ, AWQ.
fn read_quantization(config: &Value) -> Option<Quantization> {
    let text = |key: &str| config.get(key).and_then(Value::as_str).map(ToOwned::to_owned);
    let group = config.get("config_groups").and_then(|groups| groups.as_object()?.values().next().cloned());
    let weights = group.as_ref().and_then(|group| group.get("weights"));
    let member = |key: &str| weights.and_then(|weights| weights.get(key)).or_else(|| config.get(key));
    let block =
        config.get("weight_block_size").and_then(Value::as_array).and_then(|block| match block.as_slice() {
            [rows, columns] => Some((rows.as_u64()?, columns.as_u64()?)),
            _ => None,
        });
    let kv = config.get("kv_cache_scheme").filter(|scheme| scheme.is_object()).map(|scheme| KvCacheScheme {
        bits: scheme.get("num_bits").and_then(Value::as_u64),
        text: scheme.get("type").and_then(Value::as_str).unwrap_or("").to_owned(),
    });
    Some(Quantization {
        method: text("quant_method").or_else(|| text("quant_type")),
        format: text("quant_algo").or_else(|| text("format")).or_else(|| text("fmt")),
        bits: member("num_bits").or_else(|| config.get("bits")).and_then(Value::as_u64),
        float: member("type").and_then(Value::as_str).map(|kind| kind == "float"),
        group: member("group_size").and_then(Value::as_u64),
        block,
        scale_format: text("scale_fmt"),
        kv_cache: kv
            .or_else(|| text("kv_cache_quant_algo").map(|text| KvCacheScheme { bits: bits_of(&text), text })),
    })
    .filter(|read| read.method.is_some() || read.format.is_some())
}

/// `hf_quant_config.json` of ModelOpt.
fn read_modelopt(quantization: &Value) -> Option<Quantization> {
    let text = |key: &str| quantization.get(key).and_then(Value::as_str).map(ToOwned::to_owned);
    let format = text("quant_algo")?;
    Some(Quantization {
        method: Some("modelopt".to_owned()),
        bits: bits_of(&format),
        float: Some(format.contains("FP")),
        group: quantization.get("group_size").and_then(Value::as_u64),
        kv_cache: text("kv_cache_quant_algo").map(|text| KvCacheScheme { bits: bits_of(&text), text }),
        format: Some(format),
        ..Quantization::default()
    })
}

fn bits_of(algorithm: &str) -> Option<u64> {
    algorithm.find(['8', '4']).and_then(|at| algorithm[at..].chars().next()?.to_digit(10)).map(u64::from)
}

/// The layout that a `--quantization` value stands for, if it stands for one.
pub(crate) fn normal_layout(flag: &str) -> Option<&'static [WeightLayout]> {
    use WeightLayout::{Fp8, Fp8Block, Int4, Int8, Mxfp4, Nvfp4, Plain};
    Some(match flag {
        "modelopt_fp4" | "petit_nvfp4" => &[Nvfp4],
        "modelopt_fp8" => &[Fp8],
        "modelopt" => &[Nvfp4, Fp8, Fp8Block],
        // Of bf16 weights both engines make FP8 themselves.
        "fp8" => &[Fp8, Fp8Block, Plain],
        "awq" | "awq_marlin" | "gptq" | "gptq_marlin" | "auto_awq" | "auto_gptq" | "moe_wna16" => {
            &[Int4, Int8]
        }
        "mxfp4" => &[Mxfp4, Plain],
        _ => return None,
    })
}
