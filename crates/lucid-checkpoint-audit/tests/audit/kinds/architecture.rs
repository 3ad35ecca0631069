//! `checkpoint.architecture`: tensors, shapes, experts, names and lists.

use lucid_checkpoint_audit::Options;
use serde_json::{Value, json};

use super::{Kind, command, evidence, headers};
use crate::architecture::{renamed, with_tensor, without};
use crate::patient::{Audit, Patient};

fn config(edit: impl FnOnce(&mut Value)) -> Audit {
    headers(|p| p.edit_json("config.json", edit))
}

fn looked(patient: &Patient) -> Audit {
    patient.audit_with(&Options::default())
}

fn lacking(name: &'static str) -> Audit {
    looked(&without(|tensor| tensor == name))
}

fn experts(keep: u32) -> Audit {
    let expert =
        |tensor: &str| -> Option<u32> { tensor.split_once(".experts.")?.1.split('.').next()?.parse().ok() };
    looked(&without(|tensor| expert(tensor).is_some_and(|expert| expert >= keep)))
}

fn known(name: &str) -> Audit {
    looked(&with_tensor(name, &[8, 8]))
}

/// The sizes of a published model, and how many experts it has and chooses; the tensors stay the canary's.
fn sizes(hidden: u64, layers: u32, vocab: u64, heads: u64, experts: u32, chosen: u32) -> Audit {
    evidence(|e| {
        let sizes = e.sizes.as_mut().unwrap();
        (sizes.hidden, sizes.layers, sizes.vocab, sizes.heads) = (hidden, layers, vocab, heads);
        (sizes.moe_intermediate, sizes.experts, sizes.experts_per_token) = (2048, experts, chosen);
        // As if most shards were elsewhere: then the experts that are not here say nothing.
        e.missing_shards.push(64, "model-00003-of-00064.safetensors".to_owned());
    })
}

/// The list of unquantized modules, in both files.
fn ignored(list: Value) -> Audit {
    headers(|p| {
        p.edit_json("config.json", |json| json["quantization_config"]["ignore"] = list.clone());
        p.edit_json("hf_quant_config.json", |json| json["quantization"]["exclude_modules"] = list.clone());
    })
}

/// The multimodal export of a name, with the list that says another.
fn prefixed(list: &'static str, change: fn(&str) -> String) -> Audit {
    let patient = renamed(change);
    let list = json!(["language_model.lm_head", format!("{list}layers.*.self_attn*")]);
    patient.edit_json("config.json", |json| json["quantization_config"]["ignore"] = list.clone());
    patient.edit_json("hf_quant_config.json", |json| json["quantization"]["exclude_modules"] = list.clone());
    looked(&patient)
}

fn multimodal(name: &str) -> String {
    format!("language_model.{name}")
}

fn early(name: &str) -> String {
    format!("language_model.{}", name.strip_prefix("model.").unwrap_or(name))
}

fn speculating(line: &str, nextn: u32) -> Audit {
    let patient = Patient::canary();
    patient.edit_json("config.json", |json| json["num_nextn_predict_layers"] = json!(nextn));
    Audit::of(&patient.gather(&Options::default()), &command(line))
}

fn algorithm(name: &'static str) -> Audit {
    headers(|p| p.edit_json("hf_quant_config.json", |json| json["quantization"]["quant_algo"] = json!(name)))
}

pub(super) const KINDS: &[Kind] = &[
    (
        "architecture/complete",
        &[|| headers(|_| {}), || known("vision_tower.encoder.blocks.0.wo.weight"), || ignored(json!([]))],
        &[|| lacking("model.norm.weight"), || config(|json| json["kv_lora_rank"] = json!(256))],
    ),
    (
        "architecture/experts-per-token",
        &[
            || sizes(7168, 61, 163_840, 64, 384, 6),
            || sizes(7168, 61, 129_280, 128, 256, 4),
            || sizes(6144, 78, 154_880, 64, 256, 16),
        ],
        &[|| sizes(7168, 61, 163_840, 64, 384, 8), || sizes(7168, 30, 163_840, 64, 384, 6)],
    ),
    (
        "architecture/extra-experts",
        &[
            || config(|json| json["n_routed_experts"] = json!(16)),
            || config(|json| json["n_routed_experts"] = json!(31)),
            || config(|json| json["n_routed_experts"] = json!(8)),
        ],
        &[|| headers(|_| {}), || config(|json| json["n_routed_experts"] = json!(32))],
    ),
    (
        "architecture/extra-layers",
        &[
            || known("model.layers.4.input_layernorm.weight"),
            || known("model.layers.60.self_attn.o_proj.weight"),
            || config(|json| json["num_hidden_layers"] = json!(3)),
        ],
        // An MTP layer is one layer beyond.
        &[|| known("model.layers.4.eh_proj.weight"), || headers(|_| {})],
    ),
    (
        "architecture/missing-tensor",
        &[
            || lacking("model.norm.weight"),
            || lacking("model.layers.1.mlp.gate.e_score_correction_bias"),
            || config(|json| json["num_hidden_layers"] = json!(5)),
        ],
        &[|| lacking("vision_tower.x"), || headers(|_| {})],
    ),
    (
        "architecture/mixed-prefixes",
        &[
            || {
                looked(&renamed(
                    |name| if name.contains("layers.2") { multimodal(name) } else { name.to_owned() },
                ))
            },
            || {
                looked(&renamed(
                    |name| if name.contains("self_attn") { multimodal(name) } else { name.to_owned() },
                ))
            },
            || {
                looked(&renamed(
                    |name| if name.contains("experts.3.") { multimodal(name) } else { name.to_owned() },
                ))
            },
        ],
        &[|| prefixed("language_model.model.", multimodal), || headers(|_| {})],
    ),
    (
        "architecture/mtp-missing",
        &[
            || speculating("vllm serve m --speculative-config {\"method\":\"mtp\"}", 1),
            || speculating("python -m sglang.launch_server --speculative-algorithm NEXTN", 2),
            || speculating("vllm serve m --speculative_config={\"method\":\"deepseek_mtp\"}", 1),
            || speculating("vllm serve m -sc.method=mtp", 1),
        ],
        &[|| speculating("vllm serve m --speculative-config {\"method\":\"ngram\"}", 0)],
    ),
    (
        "architecture/prefix",
        &[
            || looked(&renamed(multimodal)),
            || prefixed("language_model.model.", early),
            || prefixed("model.", early),
        ],
        &[|| prefixed("language_model.model.", multimodal), || headers(|_| {})],
    ),
    (
        "architecture/pruned-experts",
        &[|| experts(16), || experts(31), || sizes(7168, 61, 163_840, 64, 256, 8)],
        &[|| headers(|_| {}), || sizes(7168, 61, 163_840, 64, 384, 8)],
    ),
    (
        "architecture/quantized-listed",
        &[
            || ignored(json!(["lm_head", "model.layers.*.self_attn*", "model.layers.2*"])),
            || ignored(json!(["lm_head", "model.layers.*.self_attn*", "*.mlp.shared_experts*"])),
            || ignored(json!(["lm_head", "model.layers.*.self_attn*", "re:.*mlp.experts.*"])),
        ],
        &[|| ignored(json!(["lm_head", "re:.*self_attn.*"])), || headers(|_| {})],
    ),
    (
        "architecture/two-quantizations",
        &[|| algorithm("FP8"), || algorithm("W4A8_AWQ"), || algorithm("NVFP4_AWQ")],
        &[|| algorithm("nvfp4"), || headers(|p| p.remove("hf_quant_config.json"))],
    ),
    (
        "architecture/unknown-tensor",
        &[
            || known("model.layers.1.self_attn.qkv_proj.weight"),
            || known("transformer.wte.weight"),
            || known("model.layers.0.mlp.gate_proj.lora_A.weight"),
        ],
        &[|| known("mm_projector.proj.0.weight"), || known("model.layers.1.self_attn.rotary_emb.inv_freq")],
    ),
    (
        "architecture/unquantized-unlisted",
        &[
            || ignored(json!(["lm_head"])),
            || ignored(json!(["lm_head", "model.layers.0.self_attn*"])),
            || ignored(json!(["lm_head", "re:.*self_attn\\.o_proj"])),
        ],
        &[|| ignored(json!(["lm_head", "*self_attn*"])), || ignored(json!([]))],
    ),
    (
        "architecture/wrong-shape",
        &[
            || config(|json| json["kv_lora_rank"] = json!(256)),
            || config(|json| json["vocab_size"] = json!(8192)),
            || {
                headers(|p| {
                    let tensor = "model.layers.1.input_layernorm.weight";
                    p.edit_shard(p.shard_of(tensor), |shard| shard.header[tensor]["shape"] = json!([16, 16]));
                })
            },
        ],
        &[|| headers(|_| {}), || config(|json| json["rms_norm_eps"] = json!(1e-5))],
    ),
];
