//! The fuzzers' seeds (`fuzz/seeds`): files that the formats' own Python packages wrote open, damaged ones are refused with an error that
//! names the file. Also findings of the fuzzers, once they are corrected.

#![allow(clippy::unwrap_used)] // A test fails by panicking, also in a function that is not marked as one.

mod folder;

use std::collections::BTreeMap;
use std::path::Path;

use folder::canary;
use lucid_checkpoint::{Bytes, Checkpoint, Error, Files, inspect};

/// Of every file in `fuzz/seeds/{target}`, by name, what opening it gave; `around` makes a model of it.
fn opened(
    target: &str,
    around: impl Fn(Vec<u8>) -> BTreeMap<String, Bytes>,
) -> BTreeMap<String, Result<Checkpoint, Error>> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let open = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let files = around(std::fs::read(&path).unwrap());
        let opened = Checkpoint::open(Files::Memory { name: "the-model".to_owned(), files });
        (path.file_name().unwrap().to_str().unwrap().to_owned(), opened)
    };
    std::fs::read_dir(place).unwrap().map(open).collect()
}

/// These open, in the order of their names, all others are refused.
#[track_caller]
fn assert_only(opened: &BTreeMap<String, Result<Checkpoint, Error>>, whole: &[&str]) {
    for error in opened.values().filter_map(|opened| opened.as_ref().err()) {
        assert!(error.to_string().contains("the-model"), "{error}");
    }
    let opened: Vec<&str> = opened.iter().filter(|(_, o)| o.is_ok()).map(|(name, _)| name.as_str()).collect();
    assert_eq!(opened, whole);
}

/// How the matrices of a model are stored.
fn layouts(checkpoint: &Checkpoint) -> Vec<String> {
    let mut layouts: Vec<String> = inspect(checkpoint).totals.into_iter().map(|total| total.layout).collect();
    layouts.sort();
    layouts
}

#[test]
fn shards() {
    let opened = opened("safetensors", |shard| {
        let config = std::fs::read(canary().join("config.json")).unwrap();
        [("config.json", config), ("model.safetensors", shard)]
            .map(|(name, bytes)| (name.to_owned(), Bytes::from(bytes)))
            .into()
    });
    assert_only(&opened, &["layouts.safetensors", "small.safetensors"]);
    let found = layouts(opened["layouts.safetensors"].as_ref().unwrap());
    let mut all = [
        "BF16",
        "F16",
        "F32",
        "F8_E4M3",
        "F8_E8M0",
        "F8_E4M3 blocks",
        "INT4",
        "NVFP4",
        "unsupported: GPTQ or AWQ",
    ];
    all.sort_unstable();
    assert_eq!(found, all);
}

#[test]
fn gguf_files() {
    let opened = opened("gguf", |file| [("model.gguf".to_owned(), Bytes::from(file))].into());
    let whole =
        ["block-types.gguf", "experts.gguf", "glm-dsa.gguf", "key-value-halves.gguf", "version-2.gguf"];
    assert_only(&opened, &whole);
    // Fourteen block types, and the norm.
    assert_eq!(layouts(opened["block-types.gguf"].as_ref().unwrap()).len(), 15);
    let sparse = opened["glm-dsa.gguf"].as_ref().unwrap();
    assert_eq!(sparse.config().architecture, "GlmMoeDsaForCausalLM");
    // The halves: 4-bit keys, 5-bit values.
    let halves = opened["key-value-halves.gguf"].as_ref().unwrap();
    assert!(halves.matrix("model.layers.0.self_attn.kv_b_proj", 128, 32).is_ok());
}
