//! GGUF files: blocks against llama.cpp's own Python package, the container against files that lie.

#![allow(clippy::unwrap_used)] // A test fails by panicking, also in a function that is not marked as one.

mod folder;

use folder::assert_says;
use folder::gguf::{Writer, text};
use lucid_checkpoint::{Bytes, Checkpoint, Dtype, Error, Files, Layout, Matrix, Packed, gguf};
use proptest::prelude::*;
use serde_json::Value;

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn open(files: &[(&str, &[u8])], path: &str) -> Result<Checkpoint, Error> {
    let place = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(place.path().join(name), bytes).unwrap();
    }
    Checkpoint::open(Files::open(&place.path().join(path))?)
}

fn one(writer: &Writer) -> Result<Checkpoint, Error> {
    open(&[("m.gguf", &writer.bytes())], "m.gguf")
}

/// The type of that number, by way of a file.
fn block_type(id: u32, elements: u64, size: usize) -> gguf::BlockType {
    let mut writer = Writer::model();
    writer.tensor("t", &[elements], id, vec![0; size]);
    match one(&writer).unwrap().tensor("t").unwrap().dtype {
        Dtype::Gguf(block) => block,
        ref other => panic!("{other}"),
    }
}

/// Random blocks as gguf-py decodes them (`gguf_blocks.json`, made by `gguf_blocks.py`).
#[test]
fn every_block_type_has_the_bits_of_gguf_py() {
    let golden: Value = serde_json::from_str(include_str!("gguf_blocks.json")).unwrap();
    assert_eq!(golden.as_object().unwrap().len(), 14);
    for (name, case) in golden.as_object().unwrap() {
        let number = |field: &str| case[field].as_u64().unwrap();
        let block = block_type(number("id") as u32, number("elements"), number("bytes") as usize);
        let (blocks, values) = (bytes(&case["blocks"]), bytes(&case["values"]));
        let want: Vec<u32> = values.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        assert_eq!(blocks.len() / block.bytes() * block.elements(), want.len(), "{name}");
        let mut got = vec![f32::NAN; want.len()];
        block.decode_row(&blocks, 1.0, &mut got);
        let got: Vec<u32> = got.iter().map(|x| x.to_bits()).collect();
        assert_eq!(got, want, "{name}");
    }
}

/// Blocks that a quantizer wrote, from the description of the format.
#[test]
fn every_block_type_of_the_description() {
    let golden: Value = serde_json::from_str(include_str!("decode_golden.json")).unwrap();
    let golden = golden["gguf_blocks"].as_object().unwrap();
    assert_eq!(golden.len(), 12);
    for (name, case) in golden {
        let blocks = bytes(&case["hex"]);
        let block = block_type(
            case["type_id"].as_u64().unwrap() as u32,
            case["block_elems"].as_u64().unwrap(),
            case["block_bytes"].as_u64().unwrap() as usize,
        );
        let want: Vec<f32> =
            case["values"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
        let mut got = vec![f32::NAN; want.len()];
        block.decode_row(&blocks, 1.0, &mut got);
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn rows_stacks_and_scales() {
    let mut writer = Writer::model();
    let f32s = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    // Q8_0 rows of 64: two blocks, the second with twice the scale. Row r holds r + 1.
    let row = |r: u8| {
        [[vec![0, 0x3c], vec![r + 1; 32]].concat(), [vec![0, 0x40], vec![r + 1; 32]].concat()].concat()
    };
    writer.tensor("blk.0.ffn_up.weight", &[64, 3], 8, (0..3).flat_map(row).collect());
    // Two experts of two rows.
    writer.tensor("blk.1.ffn_up_exps.weight", &[64, 2, 2], 8, (0..4).flat_map(row).collect());
    // Gate and up in one: expert 1 has rows 4 to 7.
    writer.tensor("blk.1.ffn_gate_up_exps.weight", &[64, 4, 2], 8, (0..8).flat_map(row).collect());
    // NVFP4: every code is 1 (0.5), every scale 1.
    let nvfp4 = [vec![0x38; 4], vec![0x11; 32]].concat();
    writer.tensor("blk.1.ffn_down_exps.weight", &[64, 1, 2], 40, [nvfp4.clone(), nvfp4].concat());
    writer.tensor("blk.1.ffn_down_exps.scale", &[2], 0, f32s(&[0.25, 3.0]));
    writer.tensors.retain(|t| t.0 != "blk.1.ffn_up_exps.weight");
    let checkpoint = one(&writer).unwrap();
    let first = |module: &str, rows: usize, row: usize| {
        let matrix = checkpoint.matrix(module, rows, 64).unwrap();
        let mut values = [f32::NAN; 64];
        matrix.decode_row(row, &mut values);
        (values[0], values[63], matrix.layout().as_str())
    };
    assert_eq!(first("model.layers.0.mlp.up_proj", 3, 2), (3.0, 6.0, "Q8_0"));
    assert_eq!(first("model.layers.1.mlp.experts.1.gate_proj", 2, 1), (6.0, 12.0, "Q8_0"));
    assert_eq!(first("model.layers.1.mlp.experts.1.up_proj", 2, 0), (7.0, 14.0, "Q8_0"));
    assert_eq!(first("model.layers.1.mlp.experts.1.down_proj", 1, 0), (1.5, 1.5, "NVFP4 (GGUF)"));
    assert_eq!(first("model.layers.1.mlp.experts.0.down_proj", 1, 0), (0.125, 0.125, "NVFP4 (GGUF)"));
    assert_says(checkpoint.matrix("model.layers.0.mlp.up_proj", 2, 64), &["m.gguf", "[3, 64]", "[2, 64]"]);
}

/// `kv_b[h (N + V) + d][c] = k_b[h][c][d]`, in F32 so that each value can name its place.
#[test]
fn split_keys_and_values_become_one_matrix() {
    let (heads, nope, value, latent) = (2, 32, 32, 32);
    let k = |h: usize, c: usize, d: usize| (h * 10_000 + c * 100 + d) as f32;
    let v = |h: usize, j: usize, c: usize| -((h * 10_000 + j * 100 + c) as f32);
    let stack = |f: &dyn Fn(usize, usize, usize) -> f32, rows: usize, cols: usize| -> Vec<u8> {
        let at = |i: usize| f(i / (rows * cols), i / cols % rows, i % cols).to_le_bytes();
        (0..heads * rows * cols).flat_map(at).collect()
    };
    let mut writer = Writer::model();
    writer.tensor("blk.0.attn_k_b.weight", &[32, 32, 2], 0, stack(&k, latent, nope));
    writer.tensor("blk.0.attn_v_b.weight", &[32, 32, 2], 0, stack(&v, value, latent));
    let checkpoint = one(&writer).unwrap();
    let kv_b = checkpoint.matrix("model.layers.0.self_attn.kv_b_proj", 128, 32).unwrap();
    let mut row = [f32::NAN; 32];
    for h in 0..heads {
        for d in 0..nope {
            kv_b.decode_row(h * (nope + value) + d, &mut row);
            assert_eq!(row[..], (0..latent).map(|c| k(h, c, d)).collect::<Vec<f32>>()[..]);
            kv_b.decode_row(h * (nope + value) + nope + d, &mut row);
            assert_eq!(row[..], (0..latent).map(|c| v(h, d, c)).collect::<Vec<f32>>()[..]);
        }
    }
    // Without values, and in a wrong shape.
    let mut alone = writer.clone();
    alone.tensors.truncate(1);
    let of = |writer: &Writer| one(writer).unwrap().matrix("model.layers.0.self_attn.kv_b_proj", 128, 32);
    assert_says(of(&alone), &["v_b_proj"]);
    writer.tensors[0].1 = vec![32, 64, 1];
    assert_says(of(&writer), &["k_b_proj", "[1, 64, 32]", "[2, 32, 32]"]);
    // The older form needs no putting together.
    let mut legacy = Writer::model();
    legacy.tensor("blk.0.attn_kv_b.weight", &[32, 128], 0, stack(&k, 64, 32));
    assert_eq!(of(&legacy).unwrap().layout(), Layout::F32);
}

#[test]
fn metadata_becomes_the_config() {
    let mut writer = Writer::model();
    writer.string("deepseek2.rope.scaling.type", "yarn");
    writer.f32("deepseek2.rope.scaling.factor", 4.0);
    writer.u32("deepseek2.rope.scaling.original_context_length", 16);
    writer.f32("deepseek2.rope.scaling.yarn_log_multiplier", 0.1);
    writer.u32("general.file_type", 15);
    writer.u32("tokenizer.ggml.eos_token_id", 3);
    writer.u32("tokenizer.ggml.eot_token_id", 4);
    writer.u32("tokenizer.ggml.eom_token_id", 5);
    let checkpoint = one(&writer).unwrap();
    let config = checkpoint.config();
    assert_eq!((config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim), (32, 16, 32));
    assert_eq!(config.rms_norm_eps, 1e-6, "the number that the converter was given, not its F32 neighbour");
    assert!(config.tie_word_embeddings, "there is no output.weight");
    let yarn = config.rope_scaling.unwrap();
    assert_eq!((yarn.factor, yarn.beta_fast, yarn.beta_slow), (4.0, 32.0, 1.0));
    assert_eq!((yarn.mscale, yarn.mscale_all_dim), (Some(1.0), Some(1.0)));
    assert!(checkpoint.notices().iter().any(|notice| notice.contains("YaRN betas")));
    assert_eq!(config.quantization.as_ref().unwrap().algorithm.as_deref(), Some("Q4_K_M"));
    assert_eq!(config.eos_token_ids[0].0, 3);
    let ends: Vec<u32> = checkpoint.generation().eos_token_ids.iter().map(|id| id.0).collect();
    assert_eq!(ends, [4, 5], "the ends of a turn and of a message that waits for a tool");

    let without = |key: &str| {
        let mut writer = Writer::model();
        writer.values.retain(|value| value.0 != key);
        one(&writer)
    };
    assert_says(without("general.architecture"), &["m.gguf", "general.architecture", "missing"]);
    assert_says(without("deepseek2.embedding_length"), &["deepseek2.embedding_length", "missing"]);
    let with = |key: &str, value: u32| {
        let mut writer = Writer::model();
        writer.values.retain(|value| value.0 != key);
        writer.u32(key, value);
        one(&writer)
    };
    assert_says(with("deepseek2.rope.dimension_count", 64), &["key_length_mla", "48", "64"]);
    assert_says(with("deepseek2.expert_gating_func", 9), &["expert_gating_func", "9"]);
    assert_says(with("deepseek2.rope.freq_base", 0), &["rope_theta", "above 0"]);
    let mut other = Writer::new();
    other.string("general.architecture", "llama");
    assert_says(one(&other), &["general.architecture", "llama", "deepseek2"]);
}

#[test]
fn parts_of_a_split_model() {
    let mut first = Writer::model();
    first.values.push(("split.count".to_owned(), 2, 2u16.to_le_bytes().to_vec()));
    first.values.push(("split.no".to_owned(), 2, 0u16.to_le_bytes().to_vec()));
    first.tensor("output_norm.weight", &[2], 0, vec![0; 8]);
    let mut second = Writer::new();
    second.values.push(("split.count".to_owned(), 2, 2u16.to_le_bytes().to_vec()));
    second.values.push(("split.no".to_owned(), 2, 1u16.to_le_bytes().to_vec()));
    second.tensor("output.weight", &[2, 1], 0, vec![0; 8]);
    let (first, second) = (first.bytes(), second.bytes());
    let names = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
    let both = [(names[0], &first[..]), (names[1], &second[..])];
    for path in [names[0], names[1], ""] {
        let checkpoint = open(&both, path).unwrap();
        assert_eq!(
            checkpoint.tensors().map(|t| t.name.as_str()).collect::<Vec<_>>(),
            ["lm_head.weight", "model.norm.weight"]
        );
        assert!(!checkpoint.config().tie_word_embeddings, "the head is in the second part");
    }
    assert_says(open(&both[..1], names[0]), &["m-00002-of-00002.gguf is missing"]);
    assert_says(open(&[("m.gguf", &first)], "m.gguf"), &["split.count", "2 files, found 1"]);
    let swapped = [(names[0], &second[..]), (names[1], &first[..])];
    assert_says(open(&swapped, names[0]), &["split.no", "part 1"]);
    let twice = [(names[0], &first[..]), (names[1], &second[..]), ("other.gguf", &second[..])];
    assert_says(open(&twice, ""), &["3 .gguf files", "give the path of one"]);
    assert!(open(&twice, names[0]).is_ok(), "files beside it don't matter");
}

#[test]
fn files_that_lie() {
    let good = {
        let mut writer = Writer::model();
        writer.tensor("output_norm.weight", &[8], 0, vec![0; 32]);
        writer.tensor("output.weight", &[4, 2], 0, vec![0; 32]);
        writer
    };
    assert!(one(&good).is_ok());
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.bytes();
        change(&mut bytes);
        open(&[("m.gguf", &bytes)], "m.gguf")
    };
    let put =
        |at: usize, value: u64| move |b: &mut Vec<u8>| b[at..at + 8].copy_from_slice(&value.to_le_bytes());
    assert_says(with(&|b| b[0] = b'X'), &["m.gguf", "begin with GGUF"]);
    assert_says(with(&|b| b[4..8].copy_from_slice(&1u32.to_le_bytes())), &["version 1"]);
    assert_says(with(&|b| b[4..8].copy_from_slice(&3u32.to_be_bytes())), &["big-endian"]);
    assert_says(with(&put(8, u64::MAX)), &["m.gguf"]);
    assert_says(with(&put(16, u64::MAX)), &["m.gguf"]);
    assert_says(with(&put(24, u64::MAX)), &["a key of 18446744073709551615 bytes"]);
    assert_says(
        with(&|b| b.truncate(b.len() - 40)),
        &["truncated", "40 bytes are missing", "output_norm.weight"],
    );
    assert_says(with(&|b| b.truncate(10)), &["damaged GGUF header at byte 8", "2 more"]);
    assert_says(open(&[("m.gguf", b"")], "m.gguf"), &["damaged GGUF header at byte 0"]);

    let tensor = |name: &str, dims: &[u64], kind: u32, bytes: usize| {
        let mut writer = Writer::model();
        writer.tensor(name, dims, kind, vec![0; bytes]);
        one(&writer)
    };
    assert_says(tensor("t", &[1; 5], 0, 4), &["tensor t", "5 dimensions"]);
    assert_says(tensor("t", &[u64::MAX, u64::MAX], 0, 4), &["tensor t", "no file can hold"]);
    assert_says(tensor("t", &[100], 12, 144), &["tensor t", "whole blocks of 256"]);
    assert_says(tensor("t", &[1 << 40], 0, 4), &["truncated", "t is cut"]);
    let stack = tensor("blk.1.ffn_up_exps.weight", &[64, 2, 9], 0, 64 * 2 * 9 * 4);
    assert_says(stack, &["blk.1.ffn_up_exps.weight", "[9, 2, 64]", "2 experts"]);
    // No bytes at all, and a name for each of as many experts as the file likes to claim.
    let mut none = Writer::model();
    none.values.retain(|value| value.0 != "deepseek2.expert_count");
    none.u32("deepseek2.expert_count", 1 << 16);
    none.tensor("blk.1.ffn_up_exps.weight", &[64, 0, 1 << 16], 0, vec![]);
    assert_says(one(&none), &["m.gguf", "blk.1.ffn_up_exps.weight", "[65536, 0, 64]", "without a value"]);
    // A type that is not decoded is listed, and refused only when its values are asked for.
    let unknown = tensor("blk.0.ffn_up.weight", &[256, 1], 19, 50).unwrap();
    assert_says(unknown.matrix("model.layers.0.mlp.up_proj", 1, 256), &["IQ1_S", "supported: BF16"]);

    let value = |kind: u32, bytes: Vec<u8>| {
        let mut writer = Writer::model();
        writer.values.push(("x".to_owned(), kind, bytes));
        one(&writer)
    };
    assert_says(value(13, vec![]), &["value type 13"]);
    assert_says(value(7, vec![2]), &["a flag is 2"]);
    assert_says(value(8, [&2u64.to_le_bytes()[..], &[0xff, 0xff]].concat()), &["not UTF-8"]);
    let list = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    assert_says(value(9, list(5, 1 << 60)), &["a list of"]);
    assert_says(value(9, list(11, u64::MAX)), &["a list of"]);
    assert_says(value(9, list(8, u64::MAX)), &["m.gguf"]);
    assert_says(value(9, (0..50).flat_map(|_| list(9, 1)).collect()), &["more than 4 deep"]);
    let mut twice = Writer::model();
    twice.u32("deepseek2.block_count", 2);
    assert_says(one(&twice), &["deepseek2.block_count is there twice"]);
    let mut odd = Writer::model();
    odd.u32("general.alignment", 24);
    assert_says(one(&odd), &["general.alignment", "power of two"]);
    let mut wide = Writer::model();
    wide.u32("general.alignment", 64);
    wide.alignment = 64;
    wide.tensor("a", &[1], 0, 1f32.to_le_bytes().to_vec());
    wide.tensor("b", &[1], 0, 2f32.to_le_bytes().to_vec());
    assert_eq!(one(&wide).unwrap().vector("b", 1).unwrap(), [2.0]);
    wide.version = 2;
    assert!(one(&wide).is_ok(), "version 2 differs only in its number");
    let mut same = good.clone();
    same.tensors[1].0 = "output_norm.weight".to_owned();
    assert_says(one(&same), &["model.norm.weight", "two"]);
}

/// Two tensors at one place.
#[test]
fn overlapping_tensors_are_refused() {
    let mut writer = Writer::model();
    writer.tensor("a", &[32], 0, vec![0; 128]);
    writer.tensor("b", &[32], 0, vec![0; 128]);
    let mut bytes = writer.bytes();
    // The offset of b follows its name, dimensions and type.
    let needle = [&text("b")[..], &1u32.to_le_bytes(), &32u64.to_le_bytes(), &0u32.to_le_bytes()].concat();
    let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap() + needle.len();
    for (offset, says) in
        [(32u64, "overlaps"), (1, "no multiple of the alignment"), (u64::MAX - 31, "beyond")]
    {
        bytes[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        assert_says(open(&[("m.gguf", &bytes)], "m.gguf"), &["m.gguf", says]);
    }
}

/// What llama.cpp wrote: every matrix in a type that is decoded, every byte counted, as many weights as in the original.
#[test]
fn inspection_of_a_real_file() {
    let models = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let path = models.join("canary-gguf/canary-q4_k_m.gguf");
    let checkpoint = Checkpoint::open(Files::open(&path).unwrap()).unwrap();
    assert_eq!(checkpoint.notices(), [] as [&str; 0]);
    let inspection = lucid_checkpoint::inspect(&checkpoint);
    assert_eq!(inspection.notices, [] as [&str; 0]);
    let layouts: Vec<&str> = inspection.totals.iter().map(|total| total.layout.as_str()).collect();
    assert!(layouts.iter().all(|name| ["Q4_K", "Q5_0", "Q6_K", "Q8_0", "F32"].contains(name)), "{layouts:?}");
    // The data is the file without its header, which the vocabulary makes long.
    let file = std::fs::metadata(&path).unwrap().len();
    assert!(inspection.bytes < file && inspection.bytes > file - 250_000, "{} of {file}", inspection.bytes);
    let original = Checkpoint::open(Files::open(&models.join("canary")).unwrap()).unwrap();
    assert_eq!(inspection.parameters, lucid_checkpoint::inspect(&original).parameters);
    let (ours, theirs) = (checkpoint.config(), original.config());
    let mut same = theirs.clone();
    // What the file doesn't say, or says otherwise.
    (same.dtype, same.quantization) = (ours.dtype.clone(), ours.quantization.clone());
    assert_eq!(*ours, same);
}

proptest! {
    /// Whatever bytes of a header are changed, the file opens or is refused; nothing panics or takes all memory.
    #[test]
    fn changed_headers_never_panic(changes in prop::collection::vec((0usize..1100, any::<u8>()), 1..6), cut in 0usize..3000) {
        let mut writer = Writer::model();
        writer.strings("tokenizer.ggml.tokens", &["a", "b"]);
        writer.tensor("blk.1.ffn_up_exps.weight", &[32, 2, 2], 8, vec![0; 136]);
        writer.tensor("blk.0.attn_k_b.weight", &[32, 32, 2], 2, vec![0; 1152]);
        let mut bytes = writer.bytes();
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        bytes.truncate(bytes.len() - cut.saturating_sub(2000).min(bytes.len()));
        if let Ok(checkpoint) = open(&[("m.gguf", &bytes)], "m.gguf") {
            drop(lucid_checkpoint::inspect(&checkpoint));
            drop(checkpoint.matrix("model.layers.0.self_attn.kv_b_proj", 128, 32));
        }
    }
}

#[test]
fn a_matrix_of_blocks_reads_any_row() {
    let bytes: Vec<u8> = [[&[0, 0x3c][..], &[1; 32]].concat(), [&[0, 0x3c][..], &[2; 32]].concat()].concat();
    let block = block_type(8, 32, 34);
    let packed = Packed::Gguf { block, bytes: Bytes::from(bytes), scale: 0.5 };
    let matrix = Matrix { name: "m".to_owned(), rows: 2, cols: 32, packed };
    let mut row = [f32::NAN; 32];
    matrix.decode_row(1, &mut row);
    assert_eq!(row, [1.0; 32]);
    assert_eq!(matrix.byte_len(), 68);
}
