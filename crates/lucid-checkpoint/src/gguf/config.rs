//! GGUF's metadata as a [`Config`]: through the spelling of config.json, so that the same rules check both.
//!
//! Source of the keys: llama.cpp, `gguf-py/gguf/constants.py`, `conversion/deepseek.py` and `conversion/glm.py`.

mod indexer;

use std::collections::BTreeSet;

use serde_json::{Map, Value as Json, json};

use super::metadata::Metadata;
use crate::{Config, Error, Generation};

/// llama.cpp's name of an architecture, and its name and model type in config.json.
struct Architecture {
    gguf: &'static str,
    name: &'static str,
    model_type: &'static str,
}

/// DeepSeek-V2/V3 and Kimi-K2; DeepSeek-V3.2; GLM-5, 5.1 and 5.2.
const ARCHITECTURES: [Architecture; 3] = [
    Architecture { gguf: "deepseek2", name: "DeepseekV3ForCausalLM", model_type: "deepseek_v3" },
    Architecture { gguf: "deepseek32", name: "DeepseekV32ForCausalLM", model_type: "deepseek_v32" },
    Architecture { gguf: "glm-dsa", name: "GlmMoeDsaForCausalLM", model_type: "glm_moe_dsa" },
];

pub(super) fn read(
    metadata: &Metadata,
    tensors: &BTreeSet<&str>,
    notices: &mut Vec<String>,
) -> Result<(Config, Generation), Error> {
    const KEY: &str = "general.architecture";
    let Some(name) = metadata.string(KEY)? else { return Err(metadata.error(KEY, "missing")) };
    let Some(architecture) = ARCHITECTURES.iter().find(|architecture| architecture.gguf == name) else {
        let supported = ARCHITECTURES.map(|architecture| architecture.gguf).join(", ");
        return Err(metadata.error(KEY, format!("{name:?} is not supported; supported are {supported}")));
    };
    let keys = Keys { metadata, architecture };
    let json = config(&keys, tensors, notices)?;
    let location = metadata.location();
    let config = Config::from_json(location, json.to_string().as_bytes())?;
    // The ends of a turn and of a message that waits for a tool's answer (GLM: `<|user|>` and `<|observation|>`).
    let ends =
        [metadata.integer("tokenizer.ggml.eot_token_id")?, metadata.integer("tokenizer.ggml.eom_token_id")?];
    let ends: Vec<u64> = ends.into_iter().flatten().collect();
    let generation = json!({
        "eos_token_id": if ends.is_empty() { Json::Null } else { json!(ends) },
        "temperature": metadata.number("general.sampling.temp")?,
        "top_p": metadata.number("general.sampling.top_p")?,
        "top_k": metadata.integer("general.sampling.top_k")?,
        "min_p": metadata.number("general.sampling.min_p")?,
    });
    let generation = Generation::from_json(location, generation.to_string().as_bytes(), config.vocab_size)?;
    Ok((config, generation))
}

/// The values under the architecture's prefix.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a Architecture,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.gguf)
    }

    fn missing(&self, name: &str) -> Error {
        self.metadata.error(&self.key(name), "missing")
    }

    fn integer(&self, name: &str) -> Result<Option<u64>, Error> {
        self.metadata.integer(&self.key(name))
    }

    fn size(&self, name: &str) -> Result<u64, Error> {
        self.integer(name)?.ok_or_else(|| self.missing(name))
    }

    fn number(&self, name: &str) -> Result<Option<f64>, Error> {
        self.metadata.number(&self.key(name))
    }

    fn required(&self, name: &str) -> Result<f64, Error> {
        self.number(name)?.ok_or_else(|| self.missing(name))
    }
}

fn config(keys: &Keys<'_>, tensors: &BTreeSet<&str>, notices: &mut Vec<String>) -> Result<Json, Error> {
    let metadata = keys.metadata;
    let rotated = keys.size("rope.dimension_count")?;
    // Before llama.cpp stored the latent as one head, these were the sizes of a head.
    let or_older = |new: &str, old: &str| match keys.integer(new)? {
        Some(size) => Ok(size),
        None => keys.size(old),
    };
    let key_length = or_older("attention.key_length_mla", "attention.key_length")?;
    let Some(unrotated) = key_length.checked_sub(rotated) else {
        let problem = format!("{key_length} is less than the {rotated} rotated dimensions");
        return Err(metadata.error(&keys.key("attention.key_length_mla"), problem));
    };
    let layers = keys.size("block_count")?;
    let extra = keys.integer("nextn_predict_layers")?.unwrap_or(0);
    let vocab_size = match keys.integer("vocab_size")? {
        Some(size) => size,
        None => match metadata.strings("tokenizer.ggml.tokens")? {
            Some(tokens) => tokens.len() as u64,
            None => return Err(keys.missing("vocab_size")),
        },
    };
    let mut json = json!({
        "architectures": [keys.architecture.name],
        "model_type": keys.architecture.model_type,
        "vocab_size": vocab_size,
        "hidden_size": keys.size("embedding_length")?,
        "num_hidden_layers": layers.saturating_sub(extra),
        "num_nextn_predict_layers": extra,
        "first_k_dense_replace": keys.integer("leading_dense_block_count")?,
        "intermediate_size": keys.size("feed_forward_length")?,
        "num_attention_heads": keys.size("attention.head_count")?,
        "q_lora_rank": keys.integer("attention.q_lora_rank")?,
        "kv_lora_rank": keys.size("attention.kv_lora_rank")?,
        "qk_nope_head_dim": unrotated,
        "qk_rope_head_dim": rotated,
        "v_head_dim": or_older("attention.value_length_mla", "attention.value_length")?,
        "rms_norm_eps": keys.required("attention.layer_norm_rms_epsilon")?,
        "rope_theta": keys.required("rope.freq_base")?,
        "rope_scaling": yarn(keys, notices)?,
        // The converter leaves the rows of q_b and kv_a in the order of neighbours.
        "rope_interleave": true,
        "max_position_embeddings": keys.size("context_length")?,
        "tie_word_embeddings": !tensors.contains("output.weight"),
        "bos_token_id": metadata.integer("tokenizer.ggml.bos_token_id")?,
        "eos_token_id": metadata.integer("tokenizer.ggml.eos_token_id")?,
        // The file does not say.
        "dtype": "unknown",
        "quantization_config": {"quant_method": "gguf", "quant_algo": file_type(metadata)?},
    });
    if let Some(map) = json.as_object_mut() {
        map.extend(experts(keys, notices)?);
        map.extend(indexer::read(keys, layers.saturating_sub(extra), notices)?);
    }
    Ok(json)
}

fn yarn(keys: &Keys<'_>, notices: &mut Vec<String>) -> Result<Json, Error> {
    const TYPE: &str = "rope.scaling.type";
    match keys.metadata.string(&keys.key(TYPE))? {
        None | Some("none") => return Ok(Json::Null),
        Some("yarn") => {}
        Some(other) => {
            let problem = format!("{other:?} is not supported; supported are yarn and none");
            return Err(keys.metadata.error(&keys.key(TYPE), problem));
        }
    }
    let fast = keys.number("rope.scaling.yarn_beta_fast")?;
    let slow = keys.number("rope.scaling.yarn_beta_slow")?;
    if fast.is_none() || slow.is_none() {
        notices.push(format!(
            "{}: no YaRN betas, so 32 and 1 are taken: wrong for Kimi-K2-Instruct (1 and 1), which older converters wrote \
             without them",
            keys.metadata.location()
        ));
    }
    // The converter writes 0.1 * mscale_all_dim. Both are F32, so dividing as f32 gives back the model's own number.
    let mscale = keys.number("rope.scaling.yarn_log_multiplier")?;
    let mscale = mscale.map(|multiplier| f64::from(multiplier as f32 / 0.1f32));
    Ok(json!({
        "type": "yarn",
        "factor": keys.required("rope.scaling.factor")?,
        "original_max_position_embeddings": keys.size("rope.scaling.original_context_length")?,
        "beta_fast": fast,
        "beta_slow": slow,
        // llama.cpp knows only one of the two, and the family's models have the same number for both.
        "mscale": mscale,
        "mscale_all_dim": mscale,
    }))
}

fn experts(keys: &Keys<'_>, notices: &mut Vec<String>) -> Result<Map<String, Json>, Error> {
    let mut map = Map::new();
    let Some(experts) = keys.integer("expert_count")?.filter(|experts| *experts > 0) else { return Ok(map) };
    const GATING: &str = "expert_gating_func";
    let scoring = match keys.integer(GATING)? {
        Some(1) => "softmax",
        Some(2) => "sigmoid",
        None => {
            let location = keys.metadata.location();
            notices
                .push(format!("{location}: no expert_gating_func, so sigmoid is taken, as in DeepSeek-V3"));
            "sigmoid"
        }
        Some(other) => {
            let problem = format!("{other} is not supported; supported are 1 (softmax) and 2 (sigmoid)");
            return Err(keys.metadata.error(&keys.key(GATING), problem));
        }
    };
    let pairs = [
        ("n_routed_experts", json!(experts)),
        ("n_shared_experts", json!(keys.integer("expert_shared_count")?)),
        ("num_experts_per_tok", json!(keys.size("expert_used_count")?)),
        ("moe_intermediate_size", json!(keys.size("expert_feed_forward_length")?)),
        ("n_group", json!(keys.integer("expert_group_count")?.filter(|n| *n > 0))),
        ("topk_group", json!(keys.integer("expert_group_used_count")?.filter(|n| *n > 0))),
        ("scoring_func", json!(scoring)),
        ("norm_topk_prob", json!(keys.metadata.flag(&keys.key("expert_weights_norm"))?)),
        ("routed_scaling_factor", json!(keys.number("expert_weights_scale")?.unwrap_or(1.0))),
    ];
    map.extend(pairs.map(|(name, value)| (name.to_owned(), value)));
    Ok(map)
}

/// `general.file_type` by llama.cpp's names (`llama_ftype`).
fn file_type(metadata: &Metadata) -> Result<Option<String>, Error> {
    let Some(number) = metadata.integer("general.file_type")? else { return Ok(None) };
    let name = match number {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        25 => "IQ4_NL",
        30 => "IQ4_XS",
        32 => "BF16",
        other => return Ok(Some(format!("file type {other}"))),
    };
    Ok(Some(name.to_owned()))
}
