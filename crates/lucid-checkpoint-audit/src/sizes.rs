//! What the config says: the model's sizes and its quantization.

use lucid_checkpoint::{Config, IndexerLayer};
use serde_json::Value;

use crate::evidence::{ModelSizes, QuantizationFacts, shortened};
use crate::groups::runs;

/// The sizes of a config.
pub(crate) fn sizes(config: &Config) -> ModelSizes {
    let wide = |size: usize| size as u64;
    let narrow = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
    let layers = narrow(config.num_hidden_layers);
    let moe = config.moe.as_ref();
    let full = config.indexer.as_ref().and_then(|indexer| indexer.layers.as_ref());
    ModelSizes {
        architecture: config.architecture.clone(),
        vocab: wide(config.vocab_size),
        hidden: wide(config.hidden_size),
        layers,
        moe_layers: runs((0..layers).filter(|layer| config.is_moe_layer(*layer as usize))),
        nextn: narrow(config.num_nextn_predict_layers),
        intermediate: wide(config.intermediate_size),
        moe_intermediate: moe.map_or(0, |moe| wide(moe.moe_intermediate_size)),
        experts: moe.map_or(0, |moe| narrow(moe.n_routed_experts)),
        shared_experts: moe.map_or(0, |moe| wide(moe.n_shared_experts)),
        experts_per_token: moe.map_or(0, |moe| narrow(moe.num_experts_per_tok)),
        heads: wide(config.num_attention_heads),
        q_lora: config.q_lora_rank.map_or(0, wide),
        kv_lora: wide(config.kv_lora_rank),
        nope: wide(config.qk_nope_head_dim),
        rope: wide(config.qk_rope_head_dim),
        value: wide(config.v_head_dim),
        indexer: config.indexer.as_ref().map(|i| (wide(i.index_n_heads), wide(i.index_head_dim))),
        indexer_layers: full.map_or_else(Vec::new, |layers| {
            let full = layers.iter().zip(0u32..).filter(|(kind, _)| **kind == IndexerLayer::Full);
            runs(full.map(|(_, layer)| layer))
        }),
        tied: config.tie_word_embeddings,
    }
}

/// The declaration of quantization, in any of the places where files put it.
pub(crate) fn quantization(config: Option<&Value>, hf_quant: Option<&Value>) -> Option<QuantizationFacts> {
    let in_config = config.and_then(|config| {
        let nested = config.get("text_config").and_then(|text| text.get("quantization_config"));
        config.get("quantization_config").or(nested).filter(|q| q.is_object())
    });
    let in_hf = hf_quant.and_then(|json| json.get("quantization")).filter(|q| q.is_object());
    if in_config.is_none() && in_hf.is_none() {
        return None;
    }
    let mut facts = QuantizationFacts::default();
    let text = |value: &Value, names: &[&str]| {
        names.iter().find_map(|name| value.get(*name)?.as_str()).map(|text| shortened(text, 100))
    };
    for (source, q) in [("config.json", in_config), ("hf_quant_config.json", in_hf)] {
        let Some(q) = q else { continue };
        facts.sources.push(source.to_owned());
        let algorithm = text(q, &["quant_algo", "format", "fmt"]);
        if let (Some(one), Some(other)) = (&facts.algorithm, &algorithm)
            && !one.eq_ignore_ascii_case(other)
        {
            facts.contradiction =
                Some(format!("config.json declares {one}, hf_quant_config.json declares {other}"));
        }
        facts.method = facts.method.take().or_else(|| text(q, &["quant_method"]));
        facts.algorithm = facts.algorithm.take().or(algorithm);
        let scheme = q.get("kv_cache_scheme").filter(|scheme| scheme.is_object()).map(|scheme| {
            let bits = scheme.get("num_bits").and_then(Value::as_u64).unwrap_or(8);
            let kind = scheme.get("type").and_then(Value::as_str).unwrap_or("float");
            format!("{}{bits}", if kind == "int" { "INT" } else { "FP" })
        });
        facts.kv_cache = facts.kv_cache.take().or_else(|| text(q, &["kv_cache_quant_algo"])).or(scheme);
        let group =
            q.get("config_groups").and_then(Value::as_object).and_then(|groups| groups.values().next());
        let activations = group.and_then(|group| group.get("input_activations"));
        if let Some(dynamic) = activations.and_then(|a| a.get("dynamic")).and_then(Value::as_bool) {
            facts.static_input_scales = Some(!dynamic);
        } else if activations.is_some_and(Value::is_null) {
            facts.static_input_scales = Some(false);
        }
        if facts.ignore.is_empty() {
            let list = ["ignore", "exclude_modules", "modules_to_not_convert"]
                .iter()
                .find_map(|name| q.get(*name)?.as_array());
            for pattern in list.into_iter().flatten().filter_map(Value::as_str) {
                facts.ignore.push(4096, shortened(pattern, 200));
            }
        }
    }
    facts.method = facts.method.take().or_else(|| in_hf.map(|_| "modelopt".to_owned()));
    Some(facts)
}
