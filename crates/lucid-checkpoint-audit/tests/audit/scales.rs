//! Weights and scales that are wrong while every length is right.

use lucid_checkpoint_audit::{CheckpointEvidence, Options};
use lucid_findings::{Deployment, GpuModel, Severity};
use serde_json::json;

use crate::patient::{Audit, INDEX, Patient, Random, SHARDS};

const CORRUPT: &str = "checkpoint-corrupt";
const SCALES: &str = "checkpoint-scales";

pub(crate) fn set(patient: &Patient, tensor: &str, value: f32) {
    patient.edit_tensor(tensor, |bytes| bytes.copy_from_slice(&value.to_le_bytes()));
}

pub(crate) fn get(patient: &Patient, tensor: &str) -> f32 {
    let mut value = 0.0;
    patient.edit_tensor(tensor, |bytes| value = f32::from_le_bytes(bytes.try_into().unwrap()));
    value
}

/// A module path of the canary's quantized MLPs.
fn some_mlp(random: &mut Random) -> String {
    match random.below(3) {
        0 => "model.layers.0.mlp".to_owned(),
        1 => format!("model.layers.{}.mlp.experts.{}", 1 + random.below(3), random.below(32)),
        _ => format!("model.layers.{}.mlp.shared_experts", 1 + random.below(3)),
    }
}

#[test]
fn gate_and_up_must_have_one_global_scale() {
    let mut random = Random::new();
    for factor in [2.0, 0.25, 1.1] {
        let patient = Patient::canary();
        let tensor = format!("{}.up_proj.weight_scale_2", some_mlp(&mut random));
        let value = get(&patient, &tensor);
        set(&patient, &tensor, value * factor);
        let audit = patient.audit();
        audit.convicts("checkpoint.scales/gate-up-differ", SCALES);
        assert_eq!(audit.find("checkpoint.scales/gate-up-differ").severity, Severity::Error);
    }
    let patient = Patient::canary();
    let tensor = format!("{}.gate_proj.input_scale", some_mlp(&mut random));
    let value = get(&patient, &tensor);
    set(&patient, &tensor, value * 1.5);
    patient.audit().convicts("checkpoint.scales/gate-up-input-differ", SCALES);
}

#[test]
fn an_engine_that_keeps_gate_and_up_apart_is_not_blamed_as_much() {
    let patient = Patient::canary();
    let tensor = "model.layers.1.mlp.experts.3.up_proj.weight_scale_2";
    let value = get(&patient, tensor);
    set(&patient, tensor, value * 2.0);
    let evidence = patient.gather(&Options { statistics: true, ..Options::default() });
    let deployment = Deployment { engine: Some(lucid_findings::EngineKind::Lucid), ..Deployment::default() };
    assert_eq!(
        Audit::of(&evidence, &deployment).find("checkpoint.scales/gate-up-differ").severity,
        Severity::Warning
    );
}

#[test]
fn a_reciprocal_global_scale_is_known_by_its_size() {
    let mut random = Random::new();
    for _ in 0..3 {
        let patient = Patient::canary();
        let mlp = some_mlp(&mut random);
        for projection in ["gate_proj", "up_proj"] {
            let tensor = format!("{mlp}.{projection}.weight_scale_2");
            let value = get(&patient, &tensor);
            set(&patient, &tensor, 1.0 / value);
        }
        patient.audit().convicts("checkpoint.scales/global-reciprocal", SCALES);
    }
}

/// The canary as compressed-tensors would store it; `divides` false forgets to take the reciprocal.
pub(crate) fn compressed_tensors(divides: bool) -> Patient {
    let patient = Patient::canary();
    for name in SHARDS {
        patient.edit_shard(name, |shard| {
            shard.rebuild(|name, mut entry, mut bytes| {
                let invert = |bytes: &mut Vec<u8>| {
                    let value = f32::from_le_bytes(bytes[..].try_into().unwrap());
                    *bytes = if divides { 1.0 / value } else { value }.to_le_bytes().to_vec();
                };
                let name = if let Some(module) = name.strip_suffix(".weight_scale_2") {
                    invert(&mut bytes);
                    entry["shape"] = json!([1]);
                    format!("{module}.weight_global_scale")
                } else if let Some(module) = name.strip_suffix(".input_scale") {
                    invert(&mut bytes);
                    entry["shape"] = json!([1]);
                    format!("{module}.input_global_scale")
                } else if entry["dtype"] == "U8" {
                    name.replace(".weight", ".weight_packed")
                } else {
                    name.to_owned()
                };
                Some((name, entry, bytes))
            });
        });
    }
    patient.remove(INDEX);
    patient.remove("hf_quant_config.json");
    patient.edit_json("config.json", |json| {
        json["quantization_config"] = json!({
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "ignore": ["lm_head", "re:.*self_attn.*"],
            "config_groups": {"group_0": {"input_activations": {"dynamic": false}, "weights": {"group_size": 16}}},
        });
    });
    patient
}

#[test]
fn the_two_conventions_are_told_apart() {
    let audit = compressed_tensors(true).audit();
    audit.is_clean();
    audit.find("checkpoint.scales/global-divides");
    audit.find("checkpoint.scales/usual");
    compressed_tensors(false).audit().convicts("checkpoint.scales/global-reciprocal", SCALES);
}

#[test]
fn a_global_scale_that_is_no_scale_is_invalid() {
    let mut random = Random::new();
    for value in [f32::NAN, f32::INFINITY, 0.0, -0.001] {
        let patient = Patient::canary();
        let mlp = some_mlp(&mut random);
        set(&patient, &format!("{mlp}.down_proj.weight_scale_2"), value);
        patient.audit().convicts("checkpoint.scales/global-invalid", SCALES);
        let patient = Patient::canary();
        set(&patient, &format!("{mlp}.down_proj.input_scale"), value);
        patient.audit().convicts("checkpoint.scales/input-invalid", SCALES);
    }
}

#[test]
fn one_nan_among_block_scales_is_enough() {
    let mut random = Random::new();
    for code in [0x7f, 0xff] {
        for _ in 0..2 {
            let patient = Patient::canary();
            let tensor = format!("{}.down_proj.weight_scale", some_mlp(&mut random));
            patient.edit_tensor(&tensor, |bytes| {
                let at = random.below(bytes.len());
                bytes[at] = code;
            });
            patient.audit().convicts("checkpoint.scales/scale-not-finite", SCALES);
        }
    }
}

#[test]
fn block_scales_in_the_subnormal_range_lose_quality() {
    let mut random = Random::new();
    for range in [1..8u8, 3..5, 7..8] {
        let patient = Patient::canary();
        let mlp = some_mlp(&mut random);
        patient.edit_tensor(&format!("{mlp}.up_proj.weight_scale"), |bytes| {
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte = range.start + (i as u8) % (range.end - range.start);
            }
        });
        patient.audit().convicts("checkpoint.scales/scale-subnormal", SCALES);
    }
}

#[test]
fn negative_and_zero_block_scales_are_no_scales() {
    let mut random = Random::new();
    for _ in 0..3 {
        let patient = Patient::canary();
        let tensor = format!("{}.gate_proj.weight_scale", some_mlp(&mut random));
        patient.edit_tensor(&tensor, |bytes| {
            let at = random.below(bytes.len());
            bytes[at] |= 0x80;
        });
        let audit = patient.audit();
        assert_eq!(audit.find("checkpoint.scales/scale-negative").severity, Severity::Error);
        let patient = Patient::canary();
        patient.edit_tensor(&tensor, |bytes| {
            let half = bytes.len() / 2;
            bytes[..half].fill(0);
        });
        patient.audit().convicts("checkpoint.scales/scale-zero", CORRUPT);
    }
}

#[test]
fn values_that_are_no_numbers_are_found_in_every_float_type() {
    let mut random = Random::new();
    for (tensor, bits) in [
        ("model.layers.1.self_attn.o_proj.weight", vec![0xc0u8, 0x7f]),
        ("model.layers.2.input_layernorm.weight", vec![0x80, 0xff]),
        ("lm_head.weight", vec![0x80, 0x7f]),
        ("model.layers.3.mlp.gate.e_score_correction_bias", vec![0, 0, 0xc0, 0x7f]),
    ] {
        let patient = Patient::canary();
        patient.edit_tensor(tensor, |bytes| {
            let at = random.below(bytes.len() / bits.len()) * bits.len();
            bytes[at..at + bits.len()].copy_from_slice(&bits);
        });
        let audit = patient.audit();
        audit.convicts("checkpoint.scales/not-finite", CORRUPT);
    }
}

#[test]
fn zeros_where_values_were_are_found_at_any_place() {
    let mut random = Random::new();
    for length in [4096, 5000, 70_000] {
        let patient = Patient::canary();
        let tensor = *random.pick(&[
            "model.layers.0.self_attn.kv_b_proj.weight",
            "model.layers.2.self_attn.q_b_proj.weight",
            "model.layers.1.self_attn.o_proj.weight",
        ]);
        patient.edit_tensor(tensor, |bytes| {
            let at = random.below(bytes.len() - length);
            bytes[at..at + length].fill(0);
        });
        let audit = patient.audit();
        audit.convicts("checkpoint.scales/zero-run", CORRUPT);
        assert!(audit.find("checkpoint.scales/zero-run").title.contains(tensor), "{}", audit.titles());
    }
    for tensor in [
        "model.layers.1.self_attn.o_proj.weight",
        "model.layers.3.mlp.experts.9.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
    ] {
        let patient = Patient::canary();
        patient.edit_tensor(tensor, |bytes| bytes.fill(0));
        patient.audit().convicts("checkpoint.scales/all-zero", CORRUPT);
        let patient = Patient::canary();
        patient.edit_tensor(tensor, |bytes| bytes.fill(0x3c));
        patient.audit().convicts("checkpoint.scales/constant", CORRUPT);
    }
}

#[test]
fn unused_rows_of_a_vocabulary_are_no_damage() {
    for (tensor, rows) in
        [("lm_head.weight", 200..300), ("model.embed_tokens.weight", 4000..4096), ("lm_head.weight", 0..64)]
    {
        let patient = Patient::canary();
        patient.edit_tensor(tensor, |bytes| bytes[rows.start * 512..rows.end * 512].fill(0));
        let audit = patient.audit();
        audit.is_clean();
        audit.find("checkpoint.scales/zero-rows");
    }
}

#[test]
fn a_table_of_positions_may_be_zero() {
    let patient = Patient::canary();
    for (i, name) in
        ["vision_tower.patch_embed.pos_emb.weight", "vision_tower.patch_embed.pos_emb.time_weight"]
            .iter()
            .enumerate()
    {
        patient.edit_shard(SHARDS[i], |shard| {
            let begin = shard.data.len();
            shard.data.extend(std::iter::repeat_n(0u8, 16_384));
            let entry = json!({"dtype": "BF16", "shape": [64, 128], "data_offsets": [begin, begin + 16_384]});
            shard.header.insert((*name).to_owned(), entry);
        });
    }
    patient.audit().is_clean();
}

#[test]
fn bytes_of_something_else_are_no_weights() {
    let mut random = Random::new();
    for tensor in [
        "lm_head.weight",
        "model.layers.0.self_attn.kv_b_proj.weight",
        "model.layers.3.self_attn.q_b_proj.weight",
    ] {
        let patient = Patient::canary();
        patient.edit_tensor(tensor, |bytes| {
            let at = random.below(bytes.len() / 4) * 2;
            bytes[at..at + 20_000].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        });
        let audit = patient.audit();
        audit.convicts("checkpoint.scales/implausible", CORRUPT);
    }
    for bits in [0x0001u16, 0x0011, 0x8010] {
        let patient = Patient::canary();
        patient.edit_tensor("model.layers.1.self_attn.q_a_proj.weight", |bytes| {
            for (i, two) in bytes.chunks_mut(2).enumerate() {
                two.copy_from_slice(&(bits + (i % 7) as u16).to_le_bytes());
            }
        });
        patient.audit().convicts("checkpoint.scales/subnormal", CORRUPT);
    }
}

#[test]
fn a_layer_that_jumps_is_off_its_neighbours() {
    for (layer, exponent) in [(1, 5i16), (2, -5), (0, 6)] {
        let patient = Patient::canary();
        patient.edit_tensor(&format!("model.layers.{layer}.self_attn.o_proj.weight"), |bytes| {
            for two in bytes.chunks_mut(2) {
                let bits = u16::from_le_bytes([two[0], two[1]]);
                if bits & 0x7f80 != 0 {
                    // The exponent: a factor of 32 or 64.
                    let scaled = bits.wrapping_add_signed(exponent << 7);
                    two.copy_from_slice(&scaled.to_le_bytes());
                }
            }
        });
        patient.audit().convicts("checkpoint.scales/layer-outlier", SCALES);
    }
    for (expert, factor) in [(0, 32.0), (17, 1.0 / 32.0), (31, 64.0)] {
        let patient = Patient::canary();
        for projection in ["gate_proj", "up_proj"] {
            let tensor = format!("model.layers.2.mlp.experts.{expert}.{projection}.weight_scale_2");
            let value = get(&patient, &tensor);
            set(&patient, &tensor, value * factor);
        }
        patient.audit().convicts("checkpoint.scales/expert-outlier", SCALES);
    }
}

#[test]
fn scales_that_don_t_belong_to_their_codes_decode_to_impossible_sizes() {
    for value in [1e-9f32, 9.0e-9, 4e-10] {
        let patient = Patient::canary();
        for projection in ["gate_proj", "up_proj"] {
            set(&patient, &format!("model.layers.1.mlp.experts.6.{projection}.weight_scale_2"), value * 1e-3);
        }
        patient.audit().convicts("checkpoint.scales/decoded-magnitude", SCALES);
    }
}

fn without(drop: impl Fn(&str) -> bool + Copy) -> Audit {
    let patient = Patient::canary();
    for name in SHARDS {
        patient.edit_shard(name, |shard| shard.retain(|tensor| !drop(tensor)));
    }
    patient.edit_json(INDEX, |json| {
        json["weight_map"].as_object_mut().unwrap().retain(|tensor, _| !drop(tensor))
    });
    patient.audit()
}

#[test]
fn scales_that_are_absent_are_missed() {
    let mut random = Random::new();
    for part in ["weight_scale", "weight_scale_2", "weight_scale"] {
        let tensor = format!("{}.down_proj.{part}", some_mlp(&mut random));
        without(|name| name == tensor).convicts("checkpoint.scales/scale-missing", SCALES);
    }
    for expert in [3, 4, 30] {
        let tensor = format!("model.layers.1.mlp.experts.{expert}.down_proj.input_scale");
        without(|name| name == tensor).convicts("checkpoint.scales/input-missing", SCALES);
    }
    // Weight-only exports have none at all.
    assert!(without(|name| name.ends_with("input_scale")).grave().is_empty());
}

#[test]
fn an_activation_scale_beyond_all_activations_is_saturated() {
    for value in [1e4f32, 3e38, 2688.0 * 4.0] {
        let patient = Patient::canary();
        set(&patient, "model.layers.2.mlp.experts.1.down_proj.input_scale", value);
        patient.audit().convicts("checkpoint.scales/input-saturated", SCALES);
    }
}

pub(crate) fn fp8_cache(scales: Option<f32>) -> CheckpointEvidence {
    let patient = Patient::canary();
    patient
        .edit_json("config.json", |json| json["quantization_config"]["kv_cache_quant_algo"] = json!("FP8"));
    if let Some(value) = scales {
        patient.edit_shard(SHARDS[0], |shard| {
            for layer in 0..4 {
                for part in ["k_proj.k_scale", "v_proj.v_scale"] {
                    let begin = shard.data.len();
                    shard.data.extend_from_slice(&value.to_le_bytes());
                    let entry = json!({"dtype": "F32", "shape": [], "data_offsets": [begin, begin + 4]});
                    shard.header.insert(format!("model.layers.{layer}.self_attn.{part}"), entry);
                }
            }
        });
    }
    patient.gather(&Options { statistics: true, ..Options::default() })
}

fn command(arguments: &[&str]) -> Deployment {
    Deployment { command: arguments.iter().map(ToString::to_string).collect(), ..Deployment::default() }
}

#[test]
fn an_fp8_cache_without_scales_is_a_hint_only_where_it_is_used() {
    let absent = fp8_cache(None);
    for used in [
        command(&["vllm", "serve", "m"]),
        command(&["vllm", "serve", "m", "--kv-cache-dtype", "fp8"]),
        command(&["vllm", "serve", "m", "--kv-cache-dtype=fp8_e4m3"]),
    ] {
        Audit::of(&absent, &used).convicts("checkpoint.scales/kv-scales-absent", "kv-cache-scales");
        Audit::of(&fp8_cache(Some(1.0)), &used)
            .convicts("checkpoint.scales/kv-scales-one", "kv-cache-scales");
        Audit::of(&fp8_cache(Some(0.07)), &used).is_clean();
    }
    for unused in [
        command(&["vllm", "serve", "m", "--kv-cache-dtype", "bfloat16"]),
        command(&["vllm", "serve", "m", "--kv-cache-dtype=auto16"]),
    ] {
        Audit::of(&absent, &unused).is_clean();
    }
    // Nothing is known of the command.
    Audit::of(&absent, &Deployment::default()).is_clean();
}

#[test]
fn an_fp8_cache_on_an_old_gpu_is_only_told_for_sparse_attention() {
    let gpu =
        GpuModel { name: "NVIDIA A800".to_owned(), compute_capability: Some((8, 0)), memory_bytes: None };
    let deployment = Deployment { gpus: vec![gpu], ..command(&["vllm", "serve", "m"]) };
    let audit = Audit::of(&fp8_cache(Some(0.07)), &deployment);
    audit.is_clean();
    audit.find("checkpoint.scales/kv-fp8-requested");
}

#[test]
fn weights_that_are_not_loaded_are_not_blamed() {
    let patient = Patient::canary();
    set(&patient, "model.layers.1.mlp.experts.3.up_proj.weight_scale_2", 1e5);
    let evidence = patient.gather(&Options { statistics: true, ..Options::default() });
    let deployment =
        Deployment { load_format: Some(lucid_findings::LoadFormat::Gguf), ..Deployment::default() };
    let audit = Audit::of(&evidence, &deployment);
    let finding = audit.find("checkpoint.scales/global-reciprocal");
    assert_eq!(finding.active, Some(false));
    assert!(finding.detail.contains("GGUF"), "{}", finding.detail);
}
