//! `checkpoint.scales`: weights and scales that are wrong while every length is right.

use std::sync::LazyLock;

use lucid_checkpoint_audit::Options;
use lucid_findings::{Deployment, GpuModel};
use serde_json::{Value, json};

use super::{Kind, command, whole};
use crate::layouts::requantized;
use crate::patient::{Audit, INDEX, Patient, SHARDS};
use crate::scales::{compressed_tensors, fp8_cache, get, set};

const EXPERT: &str = "model.layers.2.mlp.experts.9";
const DENSE: &str = "model.layers.0.mlp";
const SHARED: &str = "model.layers.1.mlp.shared_experts";
const O_PROJ: &str = "model.layers.1.self_attn.o_proj.weight";

fn scalar(tensor: &str, value: f32) -> Audit {
    whole(|p| set(p, tensor, value))
}

/// Scales become so many times what they were.
fn scaled(modules: &[&str], part: &str, factor: f32) -> Audit {
    whole(|p| {
        for module in modules {
            let tensor = format!("{module}.{part}");
            let value = get(p, &tensor);
            set(p, &tensor, value * factor);
        }
    })
}

fn bytes(tensor: &str, edit: impl FnOnce(&mut [u8])) -> Audit {
    whole(|p| p.edit_tensor(tensor, edit))
}

/// The same of the canary in FP8 blocks and INT4 groups.
fn blocks(tensor: &str, edit: impl FnOnce(&mut [u8])) -> Audit {
    // Made once: only the shard that is damaged becomes a file of its own.
    static WHOLE: LazyLock<Patient> = LazyLock::new(requantized);
    let patient = Patient::of(WHOLE.folder.path());
    patient.edit_tensor(tensor, edit);
    patient.audit()
}

/// A pattern of 16-bit numbers over a matrix.
fn numbers(tensor: &str, number: impl Fn(usize) -> u16) -> Audit {
    bytes(tensor, |bytes| {
        for (i, two) in bytes.chunks_mut(2).enumerate() {
            two.copy_from_slice(&number(i).to_le_bytes());
        }
    })
}

/// Exponents of a BF16 matrix move.
fn louder(tensor: &str, exponent: i16) -> Audit {
    bytes(tensor, |bytes| {
        for two in bytes.chunks_mut(2) {
            let bits = u16::from_le_bytes([two[0], two[1]]);
            if bits & 0x7f80 != 0 {
                two.copy_from_slice(&bits.wrapping_add_signed(exponent << 7).to_le_bytes());
            }
        }
    })
}

fn without(drop: impl Fn(&str) -> bool + Copy) -> Audit {
    whole(|p| {
        for name in SHARDS {
            p.edit_shard(name, |shard| shard.retain(|tensor| !drop(tensor)));
        }
        p.edit_json(INDEX, |json| {
            json["weight_map"].as_object_mut().unwrap().retain(|tensor, _| !drop(tensor));
        });
    })
}

/// Served with this command, of a checkpoint that asks for an FP8 cache and has these scales.
fn cached(scales: Option<f32>, line: &str) -> Audit {
    Audit::of(&fp8_cache(scales), &command(line))
}

/// The checkpoint asks for the cache in this spelling.
fn asked(edit: impl FnOnce(&mut Value), line: &str) -> Audit {
    let patient = Patient::canary();
    patient.edit_json("config.json", edit);
    let evidence = patient.gather(&Options { statistics: true, ..Options::default() });
    Audit::of(&evidence, &if line.is_empty() { Deployment::default() } else { command(line) })
}

/// A sparse model on a GPU, asked to cache as the checkpoint says.
fn sparse(gpu: &str, capability: (u32, u32), line: &str) -> Audit {
    let mut evidence = fp8_cache(Some(0.07));
    evidence.sizes.as_mut().unwrap().indexer = Some((64, 128));
    let gpu = GpuModel { name: gpu.to_owned(), compute_capability: Some(capability), memory_bytes: None };
    Audit::of(&evidence, &Deployment { gpus: vec![gpu.clone(), gpu], ..command(line) })
}

/// Two tensors share bytes, or bytes are missing: then neither can be read.
fn overlapping(tensor: &'static str, by: u64) -> Audit {
    whole(|p| {
        p.edit_shard(p.shard_of(tensor), |shard| {
            let range = shard.range(tensor);
            shard.header[tensor]["data_offsets"] = json!([range.start as u64 - by, range.end as u64 - by]);
        });
    })
}

pub(super) const KINDS: &[Kind] = &[
    (
        "scales/all-zero",
        &[
            || bytes(O_PROJ, |b| b.fill(0)),
            || bytes(&format!("{EXPERT}.up_proj.weight"), |b| b.fill(0)),
            || bytes(&format!("{DENSE}.down_proj.weight"), |b| b.fill(0)),
        ],
        &[|| bytes(O_PROJ, |b| b[..9000].fill(0)), || whole(|_| {})],
    ),
    (
        "scales/constant",
        &[
            || bytes(O_PROJ, |b| b.fill(0x3c)),
            || bytes(&format!("{EXPERT}.up_proj.weight"), |b| b.fill(0x22)),
            || numbers("model.layers.2.self_attn.q_a_proj.weight", |_| 0x3f80),
        ],
        &[|| bytes("model.layers.1.input_layernorm.weight", |b| b.fill(0x3f)), || whole(|_| {})],
    ),
    (
        "scales/decoded-magnitude",
        &[
            || whole(|p| pair(p, "model.layers.1.mlp.experts.6", 1e-12)),
            || whole(|p| pair(p, SHARED, 4e-13)),
            || blocks(&format!("{O_PROJ}_scale_inv"), |b| floats(b, |value| value * 1e7)),
        ],
        &[|| whole(|_| {}), || blocks(&format!("{O_PROJ}_scale_inv"), |b| floats(b, |value| value * 1.5))],
    ),
    (
        "scales/expert-outlier",
        &[
            || {
                scaled(
                    &[&format!("{EXPERT}.gate_proj"), &format!("{EXPERT}.up_proj")],
                    "weight_scale_2",
                    32.0,
                )
            },
            || scaled(&[&format!("{EXPERT}.down_proj")], "weight_scale_2", 1.0 / 32.0),
            || {
                let first = "model.layers.3.mlp.experts.0";
                scaled(&[&format!("{first}.gate_proj"), &format!("{first}.up_proj")], "weight_scale_2", 64.0)
            },
        ],
        &[
            || scaled(&[&format!("{EXPERT}.gate_proj"), &format!("{EXPERT}.up_proj")], "weight_scale_2", 2.0),
            || whole(|_| {}),
        ],
    ),
    (
        "scales/gate-up-differ",
        &[
            || scaled(&[&format!("{EXPERT}.up_proj")], "weight_scale_2", 2.0),
            || scaled(&[&format!("{DENSE}.gate_proj")], "weight_scale_2", 0.25),
            || scaled(&[&format!("{SHARED}.up_proj")], "weight_scale_2", 1.1),
        ],
        &[
            || scaled(&[&format!("{EXPERT}.up_proj"), &format!("{EXPERT}.gate_proj")], "weight_scale_2", 2.0),
            || scaled(&[&format!("{EXPERT}.down_proj")], "weight_scale_2", 2.0),
        ],
    ),
    (
        "scales/gate-up-input-differ",
        &[
            || scaled(&[&format!("{EXPERT}.up_proj")], "input_scale", 1.5),
            || scaled(&[&format!("{DENSE}.gate_proj")], "input_scale", 0.5),
            || scaled(&[&format!("{SHARED}.up_proj")], "input_scale", 3.0),
        ],
        &[
            || scaled(&[&format!("{EXPERT}.up_proj"), &format!("{EXPERT}.gate_proj")], "input_scale", 1.5),
            || whole(|_| {}),
        ],
    ),
    (
        "scales/global-divides",
        &[
            || compressed_tensors(true).audit(),
            || {
                let patient = compressed_tensors(true);
                patient.edit_json("config.json", |json| {
                    json["quantization_config"]["format"] = json!("mixed-precision");
                });
                patient.audit()
            },
            || {
                let patient = compressed_tensors(true);
                patient.edit_json("config.json", |json| {
                    drop(json.as_object_mut().unwrap().remove("quantization_config"))
                });
                patient.audit()
            },
        ],
        &[|| whole(|_| {}), || compressed_tensors(false).audit()],
    ),
    (
        "scales/global-invalid",
        &[
            || scalar(&format!("{EXPERT}.down_proj.weight_scale_2"), f32::NAN),
            || scalar(&format!("{DENSE}.up_proj.weight_scale_2"), 0.0),
            || scalar(&format!("{SHARED}.down_proj.weight_scale_2"), -0.001),
            || scalar(&format!("{SHARED}.down_proj.weight_scale_2"), f32::INFINITY),
        ],
        &[|| scalar(&format!("{EXPERT}.down_proj.input_scale"), f32::NAN), || whole(|_| {})],
    ),
    (
        "scales/global-reciprocal",
        &[
            || whole(|p| reciprocal(p, EXPERT)),
            || whole(|p| reciprocal(p, DENSE)),
            || compressed_tensors(false).audit(),
        ],
        &[|| compressed_tensors(true).audit(), || whole(|_| {})],
    ),
    (
        "scales/implausible",
        &[
            || bytes("lm_head.weight", noise),
            || bytes("model.layers.0.self_attn.kv_b_proj.weight", noise),
            || numbers("model.layers.3.self_attn.q_b_proj.weight", |i| 0x5a00 + (i % 90) as u16),
        ],
        &[|| whole(|_| {})],
    ),
    (
        "scales/input-invalid",
        &[
            || scalar(&format!("{EXPERT}.down_proj.input_scale"), f32::NAN),
            || scalar(&format!("{DENSE}.down_proj.input_scale"), 0.0),
            || scalar(&format!("{SHARED}.down_proj.input_scale"), f32::NEG_INFINITY),
        ],
        &[|| scalar(&format!("{EXPERT}.down_proj.weight_scale_2"), f32::NAN), || whole(|_| {})],
    ),
    (
        "scales/input-missing",
        &[
            || without(|name| name == "model.layers.1.mlp.experts.3.down_proj.input_scale"),
            || without(|name| name == "model.layers.2.mlp.experts.0.gate_proj.input_scale"),
            || without(|name| name.contains("layers.3.mlp.experts.30.") && name.ends_with("input_scale")),
        ],
        // Weight-only exports have none at all.
        &[|| without(|name| name.ends_with("input_scale")), || whole(|_| {})],
    ),
    (
        "scales/input-saturated",
        &[
            || scalar(&format!("{EXPERT}.down_proj.input_scale"), 1e4),
            || scalar(&format!("{DENSE}.down_proj.input_scale"), 3e38),
            || scalar(&format!("{SHARED}.down_proj.input_scale"), 2688.0 * 4.0),
        ],
        &[|| scalar(&format!("{EXPERT}.down_proj.input_scale"), 0.5), || whole(|_| {})],
    ),
    (
        "scales/kv-fp8-requested",
        &[
            || {
                asked(
                    |json| json["quantization_config"]["kv_cache_quant_algo"] = json!("FP8"),
                    "vllm serve m",
                )
            },
            || {
                asked(
                    |json| {
                        json["quantization_config"]["kv_cache_scheme"] =
                            json!({"num_bits": 8, "type": "float", "dynamic": false})
                    },
                    "vllm serve m --kv-cache-dtype auto",
                )
            },
            || asked(|json| json["quantization_config"]["kv_cache_quant_algo"] = json!("fp8"), ""),
        ],
        &[
            || {
                asked(
                    |json| json["quantization_config"]["kv_cache_quant_algo"] = json!("FP8"),
                    "vllm serve m --kv_cache_dtype=bfloat16",
                )
            },
            || {
                asked(
                    |json| {
                        json["quantization_config"]["kv_cache_scheme"] = json!({"num_bits": 8, "type": "int"})
                    },
                    "vllm serve m",
                )
            },
        ],
    ),
    (
        "scales/kv-fp8-unsupported",
        &[
            || sparse("NVIDIA A800", (8, 0), "vllm serve m"),
            || sparse("NVIDIA A10", (8, 6), "python3 -m sglang.launch_server --model-path m"),
            || sparse("Tesla V100", (7, 0), "vllm serve m --kv_cache_dtype=auto"),
        ],
        &[
            || sparse("NVIDIA H200", (9, 0), "vllm serve m"),
            || sparse("NVIDIA A800", (8, 0), "vllm serve m --kv-cache-dtype bfloat16"),
        ],
    ),
    (
        "scales/kv-scales-absent",
        &[
            || cached(None, "vllm serve m"),
            || cached(None, "vllm serve m --kv-cache-dtype fp8"),
            || cached(None, "vllm serve m --kv_cache_dtype=fp8_e4m3"),
            || asked(|_| {}, "sglang serve --model-path m --kv_cache_dtype fp8_e5m2"),
        ],
        &[|| cached(None, "vllm serve m --kv_cache_dtype=bfloat16"), || cached(Some(0.07), "vllm serve m")],
    ),
    (
        "scales/kv-scales-one",
        &[
            || cached(Some(1.0), "vllm serve m"),
            || cached(Some(1.0), "vllm serve m --kv_cache_dtype fp8"),
            || cached(Some(1.0), "vllm serve m --kv-cache-dtype=fp8_e4m3"),
        ],
        &[
            || cached(Some(0.07), "vllm serve m"),
            || cached(Some(1.0), "vllm serve m --kv-cache-dtype bfloat16"),
        ],
    ),
    (
        "scales/layer-outlier",
        &[
            || louder(O_PROJ, 5),
            || louder("model.layers.2.self_attn.q_a_proj.weight", -5),
            || louder("model.layers.0.self_attn.kv_b_proj.weight", 6),
        ],
        &[|| louder(O_PROJ, 1), || whole(|_| {})],
    ),
    (
        "scales/not-finite",
        &[
            || bytes(O_PROJ, |b| b[1000..1002].copy_from_slice(&[0xc0, 0x7f])),
            || bytes("lm_head.weight", |b| b[0..2].copy_from_slice(&[0x80, 0xff])),
            || {
                bytes("model.layers.3.mlp.gate.e_score_correction_bias", |b| {
                    b[4..8].copy_from_slice(&[0, 0, 0xc0, 0x7f])
                })
            },
            || blocks(O_PROJ, |b| b[77] = 0x7f),
        ],
        &[|| bytes(O_PROJ, |b| b[1000..1002].copy_from_slice(&[0x80, 0x3f])), || whole(|_| {})],
    ),
    (
        "scales/scale-missing",
        &[
            || without(|name| name == "model.layers.2.mlp.experts.9.down_proj.weight_scale"),
            || without(|name| name == "model.layers.0.mlp.up_proj.weight_scale_2"),
            || without(|name| name.contains("shared_experts.gate_proj") && name.ends_with("weight_scale")),
        ],
        &[|| without(|name| name.ends_with("input_scale")), || whole(|_| {})],
    ),
    (
        "scales/scale-negative",
        &[
            || bytes(&format!("{EXPERT}.gate_proj.weight_scale"), |b| b[9] |= 0x80),
            || {
                bytes(&format!("{DENSE}.down_proj.weight_scale"), |b| {
                    b.iter_mut().for_each(|byte| *byte |= 0x80)
                })
            },
            || blocks(&format!("{O_PROJ}_scale_inv"), |b| floats(b, |value| -value)),
        ],
        &[|| whole(|_| {})],
    ),
    (
        "scales/scale-not-finite",
        &[
            || bytes(&format!("{EXPERT}.down_proj.weight_scale"), |b| b[3] = 0x7f),
            || bytes(&format!("{DENSE}.up_proj.weight_scale"), |b| b[0] = 0xff),
            || {
                blocks(&format!("{O_PROJ}_scale_inv"), |b| {
                    b[4..8].copy_from_slice(&f32::INFINITY.to_le_bytes())
                })
            },
            || {
                blocks(&format!("{EXPERT}.up_proj.weight_scale"), |b| {
                    b[10..12].copy_from_slice(&0x7fc0u16.to_le_bytes())
                })
            },
        ],
        &[|| bytes(&format!("{EXPERT}.down_proj.weight_scale"), |b| b[3] = 0x7e), || whole(|_| {})],
    ),
    (
        "scales/scale-subnormal",
        &[
            || bytes(&format!("{EXPERT}.up_proj.weight_scale"), |b| spread(b, 1, 7)),
            || bytes(&format!("{DENSE}.up_proj.weight_scale"), |b| spread(b, 3, 2)),
            || bytes(&format!("{SHARED}.down_proj.weight_scale"), |b| spread(b, 7, 1)),
        ],
        &[
            // Few of them are ordinary.
            || bytes(&format!("{EXPERT}.up_proj.weight_scale"), |b| spread(&mut b[..40], 1, 7)),
            || whole(|_| {}),
        ],
    ),
    (
        "scales/scale-zero",
        &[
            || bytes(&format!("{EXPERT}.gate_proj.weight_scale"), |b| zero(b, 2)),
            || bytes(&format!("{DENSE}.down_proj.weight_scale"), |b| b.fill(0)),
            || blocks(&format!("{O_PROJ}_scale_inv"), |b| b[4..8].fill(0)),
            || blocks(&format!("{EXPERT}.up_proj.weight_scale"), |b| b.fill(0)),
        ],
        &[|| bytes(&format!("{EXPERT}.gate_proj.weight_scale"), |b| b[..4].fill(0)), || whole(|_| {})],
    ),
    (
        "scales/subnormal",
        &[
            || numbers("model.layers.1.self_attn.q_a_proj.weight", |i| 1 + (i % 7) as u16),
            || numbers("model.layers.2.self_attn.kv_b_proj.weight", |i| 0x8010 + (i % 9) as u16),
            || numbers("model.layers.0.self_attn.o_proj.weight", |i| 0x0040 + (i % 30) as u16),
        ],
        &[
            || numbers("model.layers.1.self_attn.q_a_proj.weight", |i| 0x3c00 + (i % 70) as u16),
            || whole(|_| {}),
        ],
    ),
    (
        "scales/unread",
        &[
            || overlapping("model.layers.0.self_attn.o_proj.weight", 512),
            || overlapping("model.layers.1.self_attn.o_proj.weight", 20_000),
            || whole(|p| p.write(SHARDS[0], &p.read(SHARDS[0])[..4_000_000])),
        ],
        &[|| whole(|_| {})],
    ),
    (
        "scales/usual",
        &[|| whole(|_| {}), || requantized().audit(), || compressed_tensors(true).audit()],
        &[
            || bytes(O_PROJ, |b| b.fill(0)),
            || scalar(&format!("{EXPERT}.down_proj.weight_scale_2"), f32::NAN),
        ],
    ),
    (
        "scales/zero-rows",
        &[
            || bytes("lm_head.weight", |b| b[200 * 512..300 * 512].fill(0)),
            || bytes("model.embed_tokens.weight", |b| b[4000 * 512..4096 * 512].fill(0)),
            || bytes("lm_head.weight", |b| b[..64 * 512].fill(0)),
        ],
        &[|| bytes(O_PROJ, |b| b[..9000].fill(0)), || whole(|_| {})],
    ),
    (
        "scales/zero-run",
        &[
            || bytes(O_PROJ, |b| b[3000..8000].fill(0)),
            || bytes("model.layers.0.self_attn.kv_b_proj.weight", |b| b[..70_000].fill(0)),
            || blocks(&format!("{EXPERT}.up_proj.weight_packed"), |b| b[100..6000].fill(0)),
        ],
        &[|| bytes(O_PROJ, |b| b[3000..3200].fill(0)), || whole(|_| {})],
    ),
];

/// Gate's and up's global scale.
fn pair(patient: &Patient, mlp: &str, value: f32) {
    for projection in ["gate_proj", "up_proj"] {
        set(patient, &format!("{mlp}.{projection}.weight_scale_2"), value);
    }
}

fn reciprocal(patient: &Patient, mlp: &str) {
    for projection in ["gate_proj", "up_proj"] {
        let tensor = format!("{mlp}.{projection}.weight_scale_2");
        let value = get(patient, &tensor);
        set(patient, &tensor, 1.0 / value);
    }
}

fn floats(bytes: &mut [u8], change: impl Fn(f32) -> f32) {
    for four in bytes.chunks_mut(4) {
        let value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        four.copy_from_slice(&change(value).to_le_bytes());
    }
}

/// Bytes without any order: a linear congruence's high bits.
fn noise(bytes: &mut [u8]) {
    let mut state = 1u32;
    for byte in &mut bytes[5000..25_000] {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
}

/// `count` codes from `first` on, again and again.
fn spread(bytes: &mut [u8], first: u8, count: u8) {
    bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = first + (i % usize::from(count)) as u8);
}

/// The first of so many parts.
fn zero(bytes: &mut [u8], parts: usize) {
    let length = bytes.len() / parts;
    bytes[..length].fill(0);
}
