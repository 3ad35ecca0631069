//! FP8 blocks and INT4 groups: the canary's own values in those layouts, whole and damaged.

use lucid_checkpoint::{bf16_to_f32, e4m3_to_f32};
use serde_json::{Value, json};

use crate::patient::{INDEX, Patient, Random, SHARDS};

const CORRUPT: &str = "checkpoint-corrupt";
const SCALES: &str = "checkpoint-scales";

/// Side of a block.
const BLOCK: usize = 128;

/// The nearest E4M3 code.
fn e4m3(value: f32) -> u8 {
    let sign = if value < 0.0 { 0x80 } else { 0 };
    let distance = |code: &u8| (e4m3_to_f32(*code) - value.abs()).abs();
    (0..0x7f).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap() | sign
}

type Tensors = Vec<(String, Value, Vec<u8>)>;

/// A BF16 matrix as DeepSeek stores it.
fn fp8(name: &str, entry: &Value, bytes: &[u8]) -> Tensors {
    let dim = |i: usize| entry["shape"][i].as_u64().unwrap() as usize;
    let (rows, cols) = (dim(0), dim(1));
    let values: Vec<f32> =
        bytes.chunks(2).map(|two| bf16_to_f32(u16::from_le_bytes(two.try_into().unwrap()))).collect();
    let (block_rows, block_cols) = (rows.div_ceil(BLOCK), cols.div_ceil(BLOCK));
    let mut amax = vec![0f32; block_rows * block_cols];
    let block = |i: usize| (i / cols / BLOCK) * block_cols + i % cols / BLOCK;
    for (i, value) in values.iter().enumerate() {
        amax[block(i)] = amax[block(i)].max(value.abs());
    }
    let codes = values.iter().enumerate().map(|(i, value)| e4m3(value * 448.0 / amax[block(i)])).collect();
    let scales = amax.iter().flat_map(|amax| (amax / 448.0).to_le_bytes()).collect();
    vec![
        (name.to_owned(), json!({"dtype": "F8_E4M3", "shape": [rows, cols]}), codes),
        (format!("{name}_scale_inv"), json!({"dtype": "F32", "shape": [block_rows, block_cols]}), scales),
    ]
}

/// The codes of an NVFP4 matrix taken for integers, with scales of their own.
fn int4(name: &str, entry: &Value, bytes: &[u8]) -> Tensors {
    let module = name.strip_suffix(".weight").unwrap();
    let rows = entry["shape"][0].as_u64().unwrap();
    let cols = entry["shape"][1].as_u64().unwrap() * 2;
    let scales = (0..rows * cols / 32).flat_map(|i| (0x3c20u16 + (i % 90) as u16).to_le_bytes()).collect();
    let shape = [rows, cols].into_iter().flat_map(u64::to_le_bytes).collect();
    vec![
        (
            format!("{module}.weight_packed"),
            json!({"dtype": "I32", "shape": [rows, cols / 8]}),
            bytes.to_vec(),
        ),
        (format!("{module}.weight_scale"), json!({"dtype": "BF16", "shape": [rows, cols / 32]}), scales),
        (format!("{module}.weight_shape"), json!({"dtype": "I64", "shape": [2]}), shape),
    ]
}

/// Attention in FP8 blocks, experts in INT4 groups.
pub(crate) fn requantized() -> Patient {
    let patient = Patient::canary();
    for name in SHARDS {
        patient.edit_shard(name, |shard| {
            shard.rebuild_many(|name, entry, bytes| {
                let attention = name.contains("self_attn") && entry["shape"].as_array().unwrap().len() == 2;
                let expert = name.contains(".experts.");
                match () {
                    () if attention => fp8(name, &entry, &bytes),
                    () if expert && name.ends_with(".weight") => int4(name, &entry, &bytes),
                    () if expert => Vec::new(),
                    () => vec![(name.to_owned(), entry, bytes)],
                }
            });
        });
    }
    patient.remove(INDEX);
    patient.remove("hf_quant_config.json");
    patient.edit_json("config.json", |json| {
        json["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    });
    patient
}

#[test]
fn fp8_blocks_and_int4_groups_are_whole_until_they_are_damaged() {
    let whole = requantized();
    let audit = whole.audit();
    audit.is_clean();
    audit.find("checkpoint.architecture/complete");
    audit.find("checkpoint.scales/usual");

    let mut random = Random::new();
    let attention = [
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.2.self_attn.kv_b_proj.weight",
        "model.layers.3.self_attn.q_a_proj.weight",
    ];
    let expert = |random: &mut Random| {
        format!("model.layers.{}.mlp.experts.{}.up_proj", 1 + random.below(3), random.below(32))
    };
    let damage = |tensor: &str, edit: &dyn Fn(&mut [u8])| {
        // Only the shard that is damaged becomes a file of its own.
        let patient = Patient::of(whole.folder.path());
        patient.edit_tensor(tensor, edit);
        patient.audit()
    };
    for (i, tensor) in attention.into_iter().enumerate() {
        let scales = format!("{tensor}_scale_inv");
        let single = |value: f32| move |bytes: &mut [u8]| bytes[4..8].copy_from_slice(&value.to_le_bytes());
        let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][i];
        damage(&scales, &single(bad)).convicts("checkpoint.scales/scale-not-finite", SCALES);
        damage(&scales, &single(-0.01)).convicts("checkpoint.scales/scale-negative", SCALES);
        damage(&scales, &single(0.0)).convicts("checkpoint.scales/scale-zero", CORRUPT);
        let at = random.below(10_000);
        damage(tensor, &|bytes| bytes[at] = 0x7f).convicts("checkpoint.scales/not-finite", CORRUPT);
        let factor = [1e5f32, 1e7, 1e-12][i];
        let all = |bytes: &mut [u8]| {
            for four in bytes.chunks_mut(4) {
                let value = f32::from_le_bytes(four.try_into().unwrap()) * factor;
                four.copy_from_slice(&value.to_le_bytes());
            }
        };
        damage(&scales, &all).convicts("checkpoint.scales/decoded-magnitude", SCALES);
    }
    for bits in [0x7fc0u16, 0x7f80, 0xff80] {
        let tensor = format!("{}.weight_scale", expert(&mut random));
        damage(&tensor, &|bytes| bytes[10..12].copy_from_slice(&bits.to_le_bytes()))
            .convicts("checkpoint.scales/scale-not-finite", SCALES);
    }
    for length in [4096, 5000, 8192] {
        let tensor = format!("{}.weight_packed", expert(&mut random));
        let at = random.below(16_384 - length);
        damage(&tensor, &|bytes| bytes[at..at + length].fill(0))
            .convicts("checkpoint.scales/zero-run", CORRUPT);
    }
    let tensor = format!("{}.weight_scale", expert(&mut random));
    damage(&tensor, &|bytes| bytes.fill(0)).convicts("checkpoint.scales/scale-zero", CORRUPT);
}
