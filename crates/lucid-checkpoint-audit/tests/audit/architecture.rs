//! The tensors against the config.

use lucid_findings::Deployment;
use serde_json::json;

use crate::patient::{Audit, INDEX, Patient, Random, SHARDS};

/// Takes tensors out of both shards and the index.
pub(crate) fn without(drop: impl Fn(&str) -> bool + Copy) -> Patient {
    let patient = Patient::canary();
    for name in SHARDS {
        patient.edit_shard(name, |shard| shard.retain(|tensor| !drop(tensor)));
    }
    patient.edit_json(INDEX, |json| {
        json["weight_map"].as_object_mut().unwrap().retain(|tensor, _| !drop(tensor));
    });
    patient
}

#[test]
fn a_tensor_that_the_model_needs_is_missed() {
    let mut random = Random::new();
    let names = [
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.2.self_attn.kv_a_layernorm.weight",
        "model.layers.1.mlp.gate.e_score_correction_bias",
        "model.layers.3.mlp.experts.17.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.2.mlp.shared_experts.gate_proj.weight",
    ];
    for _ in 0..4 {
        let name = *random.pick(&names);
        let audit = without(|tensor| tensor == name).audit();
        audit.convicts("checkpoint.architecture/missing-tensor", "checkpoint-corrupt");
        let module = name.trim_end_matches(".weight").rsplit('.').next().unwrap();
        assert!(
            audit.find("checkpoint.architecture/missing-tensor").title.contains(module),
            "{}",
            audit.titles()
        );
    }
}

#[test]
fn experts_that_were_pruned_are_counted() {
    for keep in [16u32, 8, 31] {
        let expert = |tensor: &str| -> Option<u32> {
            tensor.split_once(".experts.")?.1.split('.').next()?.parse().ok()
        };
        let audit = without(|tensor| expert(tensor).is_some_and(|expert| expert >= keep)).audit();
        audit.convicts("checkpoint.architecture/pruned-experts", "wrong-checkpoint");
        assert!(audit.find("checkpoint.architecture/pruned-experts").title.contains(&keep.to_string()));
    }
}

#[test]
fn a_config_of_another_model_has_other_shapes() {
    for (field, value) in [
        ("kv_lora_rank", 256),
        ("num_attention_heads", 16),
        ("v_head_dim", 192),
        ("moe_intermediate_size", 256),
        ("vocab_size", 8192),
    ] {
        let patient = Patient::canary();
        patient.edit_json("config.json", |json| json[field] = json!(value));
        patient.audit().convicts("checkpoint.architecture/wrong-shape", "wrong-checkpoint");
    }
}

#[test]
fn a_wrong_shape_in_a_header_is_found_where_the_bytes_still_fit() {
    let cases: [(&str, &[u64]); 4] = [
        ("model.layers.1.self_attn.kv_b_proj.weight", &[1024, 1024]),
        ("model.layers.0.mlp.gate_proj.weight_scale", &[256, 32]),
        ("model.layers.2.mlp.experts.3.down_proj.weight", &[64, 256]),
        ("model.layers.1.input_layernorm.weight", &[16, 16]),
    ];
    for (tensor, shape) in cases {
        let patient = Patient::canary();
        patient.edit_shard(patient.shard_of(tensor), |shard| shard.header[tensor]["shape"] = json!(shape));
        let audit = patient.audit();
        audit.convicts("checkpoint.architecture/wrong-shape", "wrong-checkpoint");
    }
}

pub(crate) fn with_tensor(name: &str, shape: &[u64]) -> Patient {
    let patient = Patient::canary();
    patient.edit_shard(SHARDS[0], |shard| {
        let begin = shard.data.len();
        let bytes = shape.iter().product::<u64>() as usize * 2;
        shard.data.extend((0..bytes).map(|i| if i % 2 == 1 { 0x3c } else { i as u8 }));
        shard.header.insert(
            name.to_owned(),
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, begin + bytes]}),
        );
    });
    patient
}

#[test]
fn names_that_the_model_does_not_know_are_told_from_those_that_engines_pass_over() {
    for name in [
        "model.layers.1.self_attn.qkv_proj.weight",
        "transformer.wte.weight",
        "model.layers.0.mlp.gate_proj.lora_A.weight",
    ] {
        with_tensor(name, &[8, 8])
            .audit()
            .convicts("checkpoint.architecture/unknown-tensor", "quantization-loader");
    }
    for name in [
        "vision_tower.encoder.blocks.0.wo.weight",
        "mm_projector.proj.0.weight",
        "model.layers.1.self_attn.rotary_emb.inv_freq",
        "model.layers.4.eh_proj.weight",
    ] {
        with_tensor(name, &[8, 8]).audit().is_clean();
    }
}

#[test]
fn more_layers_or_experts_than_the_config_says_are_found() {
    for name in [
        "model.layers.4.input_layernorm.weight",
        "model.layers.60.self_attn.o_proj.weight",
        "model.layers.7.mlp.gate.weight",
    ] {
        with_tensor(name, &[8, 8])
            .audit()
            .convicts("checkpoint.architecture/extra-layers", "wrong-checkpoint");
    }
    for experts in [16, 8, 31] {
        let patient = Patient::canary();
        patient.edit_json("config.json", |json| json["n_routed_experts"] = json!(experts));
        patient.audit().convicts("checkpoint.architecture/extra-experts", "wrong-checkpoint");
    }
}

pub(crate) fn renamed(change: impl Fn(&str) -> String) -> Patient {
    let patient = Patient::canary();
    for name in SHARDS {
        patient
            .edit_shard(name, |shard| shard.rebuild(|name, entry, bytes| Some((change(name), entry, bytes))));
    }
    patient.edit_json(INDEX, |json| {
        let map = json["weight_map"].as_object().unwrap();
        let map = map.iter().map(|(name, shard)| (change(name), shard.clone())).collect();
        json["weight_map"] = serde_json::Value::Object(map);
    });
    patient
}

#[test]
fn prefixes_of_multimodal_checkpoints_are_known_and_the_early_one_is_told() {
    let audit = renamed(|name| format!("language_model.{name}")).audit();
    // The canary's list says model.layers; that is another prefix than the tensors'.
    audit.convicts("checkpoint.architecture/prefix", "quantization-loader");
    let set_list = |patient: &Patient, prefix: &str| {
        let list = json!(["language_model.lm_head", format!("{prefix}layers.*.self_attn*")]);
        patient.edit_json("config.json", |json| json["quantization_config"]["ignore"] = list.clone());
        patient
            .edit_json("hf_quant_config.json", |json| json["quantization"]["exclude_modules"] = list.clone());
    };
    let patient = renamed(|name| format!("language_model.{name}"));
    set_list(&patient, "language_model.model.");
    patient.audit().is_clean();
    let early = |name: &str| format!("language_model.{}", name.strip_prefix("model.").unwrap_or(name));
    for list in ["language_model.model.", "model.", "language_model."] {
        let patient = renamed(early);
        set_list(&patient, list);
        patient.audit().convicts("checkpoint.architecture/prefix", "quantization-loader");
    }
    let half = |name: &str| {
        if name.contains("layers.2") { format!("language_model.{name}") } else { name.to_owned() }
    };
    renamed(half).audit().find("checkpoint.architecture/mixed-prefixes");
}

#[test]
fn the_list_of_unquantized_modules_must_be_true() {
    let with_list = |list: serde_json::Value| {
        let patient = Patient::canary();
        patient.edit_json("config.json", |json| json["quantization_config"]["ignore"] = list.clone());
        patient
            .edit_json("hf_quant_config.json", |json| json["quantization"]["exclude_modules"] = list.clone());
        patient.audit()
    };
    for list in [
        json!(["lm_head"]),
        json!(["lm_head", "model.layers.0.self_attn*"]),
        json!(["lm_head", "re:.*self_attn\\.o_proj"]),
    ] {
        with_list(list).convicts("checkpoint.architecture/unquantized-unlisted", "quantization-loader");
    }
    for also in ["model.layers.2*", "*.mlp.shared_experts*", "re:.*mlp.experts.*"] {
        with_list(json!(["lm_head", "model.layers.*.self_attn*", also]))
            .convicts("checkpoint.architecture/quantized-listed", "quantization-loader");
    }
    for list in [
        json!(["lm_head", "*self_attn*"]),
        json!(["lm_head", "re:.*self_attn.*"]),
        json!(["lm_head", "model.layers.?.self_attn.*"]),
        json!([]),
    ] {
        with_list(list).is_clean();
    }
}

#[test]
fn two_declarations_that_differ_are_told() {
    for algorithm in ["FP8", "W4A8_AWQ", "NVFP4_AWQ"] {
        let patient = Patient::canary();
        patient
            .edit_json("hf_quant_config.json", |json| json["quantization"]["quant_algo"] = json!(algorithm));
        patient.audit().convicts("checkpoint.architecture/two-quantizations", "quantization-loader");
    }
}

#[test]
fn missing_mtp_layers_matter_only_to_speculative_decoding() {
    let patient = Patient::canary();
    patient.edit_json("config.json", |json| json["num_nextn_predict_layers"] = json!(1));
    let evidence = patient.gather(&Default::default());
    Audit::of(&evidence, &Deployment::default()).is_clean();
    for flags in [
        &["vllm", "serve", "m", "--speculative-config", "{\"method\": \"mtp\"}"][..],
        &["python", "-m", "sglang.launch_server", "--speculative-algorithm", "NEXTN"],
        &["vllm", "serve", "m", "--speculative_config={\"method\":\"deepseek_mtp\"}"],
    ] {
        let command = flags.iter().map(ToString::to_string).collect();
        let audit = Audit::of(&evidence, &Deployment { command, ..Deployment::default() });
        audit.convicts("checkpoint.architecture/mtp-missing", "speculative-decoding");
    }
}
