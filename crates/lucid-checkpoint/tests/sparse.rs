//! Sparse attention in configs: which layers choose, what is refused; and tensors that nobody uses.

#![allow(clippy::unwrap_used)] // A test fails by panicking, also in a function that is not marked as one.

mod folder;

use std::path::Path;

use folder::gguf::Writer;
use folder::{assert_says, shard};
use lucid_checkpoint::{Checkpoint, Config, Error, Files};
use serde_json::{Value, json};

/// A published config with some fields changed; null takes one out.
fn changed(file: &str, changes: &[(&str, Value)]) -> Result<Config, Error> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs");
    let bytes = std::fs::read(folder.join(format!("{file}_config.json"))).unwrap();
    let mut json: Value = serde_json::from_slice(&bytes).unwrap();
    for (field, value) in changes {
        json[field] = value.clone();
    }
    Config::from_json("config.json", json.to_string().as_bytes())
}

fn full(config: &Config) -> Vec<usize> {
    let indexer = config.indexer.as_ref().unwrap();
    (0..config.num_hidden_layers).filter(|&i| indexer.is_full(i)).collect()
}

/// GLM-5.2's list says what its frequency says, as its makers' code derives it.
#[test]
fn layers_by_list_pattern_and_frequency() {
    const GLM: &str = "zai-org--GLM-5.2";
    let listed = full(&changed(GLM, &[]).unwrap());
    assert_eq!(listed[..5], [0, 1, 2, 6, 10]);
    let derived = changed(GLM, &[("indexer_types", Value::Null)]).unwrap();
    assert_eq!(full(&derived), listed);
    let letters: String = (0..78).map(|i| if listed.contains(&i) { 'F' } else { 'S' }).collect();
    // The pattern goes before the frequency.
    let pattern = [
        ("indexer_types", Value::Null),
        ("index_topk_pattern", json!(letters)),
        ("index_topk_freq", json!(2)),
    ];
    assert_eq!(full(&changed(GLM, &pattern).unwrap()), listed);
    // Without the offset it is 2.
    let every_third = [
        ("indexer_types", Value::Null),
        ("index_topk_freq", json!(3)),
        ("index_skip_topk_offset", Value::Null),
    ];
    assert_eq!(full(&changed(GLM, &every_third).unwrap())[..5], [0, 1, 4, 7, 10]);
    assert_eq!(full(&changed("zai-org--GLM-5", &[]).unwrap()).len(), 78);
    assert_eq!(full(&changed("deepseek-ai--DeepSeek-V3.2", &[]).unwrap()).len(), 61);
}

/// Neither transformers' code of GLM nor that of DeepSeek looks at the flag.
#[test]
fn the_pairing_is_that_of_the_architecture_when_the_config_is_silent() {
    let interleaved = |file: &str| {
        let config = changed(file, &[("indexer_rope_interleave", Value::Null)]).unwrap();
        config.indexer.unwrap().rope_interleave
    };
    assert!(interleaved("zai-org--GLM-5"));
    assert!(!interleaved("deepseek-ai--DeepSeek-V3.2"));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let glm = |changes: &[(&str, Value)]| changed("zai-org--GLM-5.2", changes);
    let none = Value::Null;
    assert_says(glm(&[("index_topk", none.clone())]), &["config.json", "index_topk", "missing"]);
    assert_says(glm(&[("index_topk", json!(0))]), &["index_topk", "from 1"]);
    assert_says(glm(&[("index_head_dim", json!(32))]), &["index_head_dim", "32", "64 rotated"]);
    assert_says(glm(&[("index_n_heads", json!(1 << 27))]), &["index_n_heads", "too many"]);
    assert_says(glm(&[("q_lora_rank", none.clone())]), &["q_lora_rank", "missing", "compressed query"]);
    assert_says(glm(&[("indexer_types", json!(["full"]))]), &["indexer_types", "1 entries for 78 layers"]);
    assert_says(glm(&[("indexer_types", json!(["half"]))]), &["indexer_types", "half"]);
    let types: Vec<&str> = std::iter::once("shared").chain(std::iter::repeat_n("full", 77)).collect();
    assert_says(glm(&[("indexer_types", json!(types))]), &["indexer_types", "first layer"]);
    let pattern = |pattern: &str| [("indexer_types", Value::Null), ("index_topk_pattern", json!(pattern))];
    assert_says(glm(&pattern("FX")), &["index_topk_pattern", "'X'"]);
    assert_says(glm(&pattern("FS")), &["index_topk_pattern", "2 entries for 78 layers"]);
    let offset = [("indexer_types", Value::Null), ("index_skip_topk_offset", json!(0))];
    assert_says(glm(&offset), &["index_topk_freq", "first layer"]);
}

/// The notices of a checkpoint with GLM-5.2's config, or Kimi-K2.5's, and tensors of these names.
fn notices(config: &str, names: &[&str]) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/configs/{config}_config.json"));
    std::fs::copy(config, place.path().join("config.json")).unwrap();
    let tensors: Vec<_> = names.iter().map(|name| (*name, "BF16", &[1usize][..], vec![0u8; 2])).collect();
    std::fs::write(place.path().join("model.safetensors"), shard(&tensors)).unwrap();
    Checkpoint::open(Files::open(place.path()).unwrap()).unwrap().notices().to_vec()
}

#[test]
fn unused_tensors_are_named_by_kind() {
    let used = [
        "model.norm.weight",
        "model.layers.77.input_layernorm.weight",
        "model.layers.6.self_attn.indexer.wk.weight",
    ];
    assert_eq!(notices("zai-org--GLM-5.2", &used), Vec::<String>::new());
    let unused = [
        "model.layers.78.enorm.weight",
        "model.layers.78.self_attn.indexer.wk.weight",
        "model.layers.79.enorm.weight",
        "model.layers.3.self_attn.indexer.wk.weight",
        "model.layers.3.self_attn.indexer.k_norm.bias",
        "model.layers.77.self_attn.indexer.wk.weight",
    ];
    let found = notices("zai-org--GLM-5.2", &unused);
    for (notice, part) in found.iter().zip([
        "2 tensors of multi-token prediction (from layer 78 on)",
        "1 tensors of layers up to 79 are not used: config.json says 78 layers",
        "3 tensors of sparse-attention indexers are not used: 2 layers share",
    ]) {
        assert!(notice.contains(part), "{part} is not in: {notice}");
    }
    assert_eq!(found.len(), 3);
    let kimi = [
        "language_model.model.norm.weight",
        "vision_tower.patch_embed.pos_emb.weight",
        "mm_projector.proj.0.weight",
    ];
    let found = notices("moonshotai--Kimi-K2.5", &kimi);
    assert!(found.len() == 1 && found[0].contains("2 tensors of the vision part"), "{found:?}");
}

/// Metadata of a small `glm-dsa` model with this context.
fn glm(context: u32) -> Writer {
    let mut writer = Writer::model();
    for (key, kind, value) in &mut writer.values {
        *key = key.replace("deepseek2.", "glm-dsa.");
        if key == "general.architecture" {
            *value = folder::gguf::text("glm-dsa");
        } else if key == "glm-dsa.context_length" {
            *value = context.to_le_bytes().to_vec();
        } else if key == "glm-dsa.block_count" {
            (*kind, *value) = (4, 12u32.to_le_bytes().to_vec());
        }
    }
    for (key, value) in [("head_count", 2), ("key_length", 16), ("top_k", 5)] {
        writer.u32(&format!("glm-dsa.attention.indexer.{key}"), value);
    }
    writer.u32("glm-dsa.nextn_predict_layers", 1);
    writer
}

fn open(writer: &Writer) -> Result<Checkpoint, Error> {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("m.gguf");
    std::fs::write(&path, writer.bytes()).unwrap();
    Checkpoint::open(Files::open(&path)?)
}

/// A list of type `kind` with these bytes.
fn list(kind: u32, count: u64, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), bytes].concat()
}

/// As llama.cpp reads them: a list, or all layers, or from a million tokens of context on the layers of GLM-5.2.
#[test]
fn gguf_says_which_layers_choose_or_leaves_it_to_the_context() {
    let config = |writer: &Writer| open(writer).unwrap().config().clone();
    let short = config(&glm(200_000));
    assert_eq!((short.architecture.as_str(), short.num_hidden_layers), ("GlmMoeDsaForCausalLM", 11));
    let indexer = short.indexer.as_ref().unwrap();
    assert_eq!((indexer.index_n_heads, indexer.index_head_dim, indexer.index_topk), (2, 16, 5));
    assert!(indexer.rope_interleave && full(&short).len() == 11);

    let long = open(&glm(1 << 20)).unwrap();
    assert_eq!(full(long.config()), [0, 1, 2, 6, 10]);
    assert!(long.notices().iter().any(|notice| notice.contains("GLM-5.2")), "{:?}", long.notices());

    const TYPES: &str = "glm-dsa.attention.indexer.types";
    let flags = [1u8, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1];
    let words: Vec<u8> = flags.iter().flat_map(|&flag| u32::from(flag).to_le_bytes()).collect();
    // With or without the layer of multi-token prediction, as flags or as numbers.
    for value in [list(7, 11, &flags[..11]), list(7, 12, &flags), list(4, 12, &words)] {
        let mut writer = glm(1 << 20);
        writer.values.push((TYPES.to_owned(), 9, value));
        let checkpoint = open(&writer).unwrap();
        assert_eq!(full(checkpoint.config()), [0, 3, 10]);
        assert_eq!(checkpoint.notices(), Vec::<String>::new());
    }
    for (value, problem) in [
        (list(7, 3, &flags[..3]), "3 flags for 11 layers"),
        (list(0, 11, &[2; 11]), "a list of flags"),
        (list(7, 11, &[&[0u8][..], &flags[..10]].concat()), "first layer"),
    ] {
        let mut writer = glm(200_000);
        writer.values.push((TYPES.to_owned(), 9, value));
        assert_says(open(&writer), &["m.gguf", "indexer", problem]);
    }
    let mut writer = glm(200_000);
    writer.values.retain(|(key, ..)| !key.ends_with("top_k"));
    assert_says(open(&writer), &["glm-dsa.attention.indexer.top_k", "missing"]);
}

/// A file may claim any number of layers; nothing is made by it.
#[test]
fn gguf_that_claims_a_billion_layers() {
    let mut writer = glm(1 << 20);
    for (key, kind, value) in &mut writer.values {
        if key == "glm-dsa.block_count" {
            (*kind, *value) = (10, (1u64 << 60).to_le_bytes().to_vec());
        }
    }
    assert_says(open(&writer), &["num_hidden_layers"]);
}
