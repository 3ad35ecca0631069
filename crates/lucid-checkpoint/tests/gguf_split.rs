//! A model in several GGUF files that llama.cpp's Python package split, and every matrix in it as that package decodes it
//! (`gguf_files/make.py`).

#![allow(clippy::unwrap_used)] // A test fails by panicking, also in a function that is not marked as one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lucid_checkpoint::{Bytes, Checkpoint, Files, Layout, gguf::BlockType};
use serde_json::Value;

const PARTS: [&str; 3] =
    ["split-00001-of-00003.gguf", "split-00002-of-00003.gguf", "split-00003-of-00003.gguf"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf_files")
}

fn values() -> Value {
    serde_json::from_slice(&std::fs::read(folder().join("values.json")).unwrap()).unwrap()
}

#[track_caller]
fn check(checkpoint: &Checkpoint) {
    let values = values();
    let values = values.as_object().unwrap();
    assert_eq!(values.len(), 11);
    for (module, case) in values {
        let size = |field: &str| case[field].as_u64().unwrap() as usize;
        let (rows, cols) = (size("rows"), size("cols"));
        let hex = case["values"].as_str().unwrap();
        let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len() / 2).map(byte).collect();
        let want: Vec<u32> = bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let matrix = checkpoint.matrix(module, rows, cols).unwrap();
        let mut got = vec![f32::NAN; rows * cols];
        for (row, got) in got.chunks_exact_mut(cols).enumerate() {
            matrix.decode_row(row, got);
        }
        assert_eq!(got.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), want, "{module}");
    }
}

#[test]
fn every_matrix_has_the_bits_of_gguf_py() {
    let checkpoint = Checkpoint::open(Files::open(&folder().join(PARTS[1])).unwrap()).unwrap();
    check(&checkpoint);
    let layout =
        |module: &str, rows: usize, cols: usize| checkpoint.matrix(module, rows, cols).unwrap().layout();
    assert_eq!(layout("model.embed_tokens", 10, 64), Layout::F16);
    assert_eq!(layout("lm_head", 10, 64), Layout::Bf16);
    assert_eq!(layout("model.layers.0.mlp.up_proj", 3, 64), Layout::F32);
    assert_eq!(layout("model.layers.1.mlp.experts.1.gate_proj", 3, 64), Layout::Gguf(BlockType::Q5_1));
    assert_eq!(layout("model.layers.1.mlp.experts.1.down_proj", 2, 128), Layout::Gguf(BlockType::NVFP4));
    let shards: Vec<&str> = checkpoint.tensors().map(|tensor| tensor.shard.as_str()).collect();
    assert!(PARTS.iter().all(|part| shards.contains(part)), "{shards:?}");
}

/// The halves of layer 0 and the whole of layer 1 are the same matrix.
#[test]
fn key_value_halves_are_the_older_whole() {
    let checkpoint = Checkpoint::open(Files::open(&folder().join(PARTS[0])).unwrap()).unwrap();
    assert!(checkpoint.find("model.layers.0.self_attn.kv_b_proj.weight").is_none());
    assert!(checkpoint.find("model.layers.1.self_attn.k_b_proj.weight").is_none());
    let rows = |layer: usize| -> Vec<f32> {
        let matrix =
            checkpoint.matrix(&format!("model.layers.{layer}.self_attn.kv_b_proj"), 128, 32).unwrap();
        let mut values = vec![f32::NAN; 128 * 32];
        values.chunks_exact_mut(32).enumerate().for_each(|(row, values)| matrix.decode_row(row, values));
        values
    };
    assert_eq!(rows(0), rows(1));
}

/// Version 2 has the same bytes but for its number (gguf.md: version 3 added big-endian files), and gguf-py reads both as one.
#[test]
fn version_2_is_read_alike() {
    let part = |name: &str| {
        let mut bytes = std::fs::read(folder().join(name)).unwrap();
        assert_eq!(bytes[4..8], 3u32.to_le_bytes());
        bytes[4..8].copy_from_slice(&2u32.to_le_bytes());
        (name.to_owned(), Bytes::from(bytes))
    };
    let files: BTreeMap<String, Bytes> = PARTS.into_iter().map(part).collect();
    check(&Checkpoint::open(Files::Memory { name: "version 2".to_owned(), files }).unwrap());
}
