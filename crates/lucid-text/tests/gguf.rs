//! The tokenizer and the template in a GGUF file that llama.cpp's converter wrote, against transformers' ids of the same
//! model and against the files that it was converted from.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};

use lucid_checkpoint::{Files, TokenId};
use lucid_text::{ChatTemplate, Specials, Tokenizer};
use proptest::prelude::*;
use serde_json::{Map, Value};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

fn gguf() -> Files {
    Files::open(&models().join("canary-gguf/canary-q4_k_m.gguf")).unwrap()
}

fn original() -> Files {
    Files::open(&models().join("canary")).unwrap()
}

#[test]
fn rendered_prompts_and_their_ids_are_those_of_transformers() {
    let golden = std::fs::read(models().join("canary-golden/golden.json")).unwrap();
    let golden: Map<String, Value> = serde_json::from_slice(&golden).unwrap();
    let (tokenizer, template) =
        (Tokenizer::open(&gguf()).unwrap(), ChatTemplate::open(&gguf()).unwrap().unwrap());
    assert_eq!(golden.len(), 14);
    for (name, case) in &golden {
        let mut kwargs = Map::new();
        if let Some(thinking) = case.get("thinking").filter(|thinking| !thinking.is_null()) {
            kwargs.insert("thinking".to_owned(), thinking.clone());
        }
        let tools = case.get("tools").filter(|tools| !tools.is_null());
        let prompt = template.render(&case["messages"], tools, &kwargs, true).unwrap();
        assert_eq!(prompt, case["prompt"].as_str().unwrap(), "{name}");
        let want: Vec<TokenId> = serde_json::from_value(case["prompt_ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(&prompt, Specials::Recognize).unwrap(), want, "{name}");
    }
}

#[test]
fn every_token_is_that_of_the_original() {
    let (ours, original) = (Tokenizer::open(&gguf()).unwrap(), Tokenizer::open_json(&original()).unwrap());
    assert_eq!(ours.vocab_size(), original.vocab_size());
    for id in (0..ours.vocab_size()).map(|id| TokenId(id as u32)) {
        assert_eq!(ours.bytes(id), original.bytes(id), "{id}");
        assert_eq!(ours.is_special(id), original.is_special(id), "{id}");
    }
    assert_eq!(ours.id("<|im_end|>"), original.id("<|im_end|>"));
    assert!(ours.source().ends_with("canary-q4_k_m.gguf"));
}

proptest! {
    #[test]
    fn any_text_has_the_ids_of_the_original(text in "(?s).{0,60}|[a-zA-Z0-9 \\n']{0,80}|(<think>|<\\|im_end\\|>| the|\\n){0,8}") {
        use std::sync::LazyLock;
        static OURS: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::open(&gguf()).unwrap());
        static ORIGINAL: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::open_tiktoken(&original()).unwrap());
        for specials in [Specials::Recognize, Specials::AsText] {
            prop_assert_eq!(OURS.encode(&text, specials).unwrap(), ORIGINAL.encode(&text, specials).unwrap());
        }
    }
}

/// A flipped byte in a name of a key, so that the key is not there.
#[test]
fn a_file_without_what_is_needed_is_refused_by_name() {
    let whole = std::fs::read(models().join("canary-gguf/canary-q4_k_m.gguf")).unwrap();
    let place = tempfile::tempdir().unwrap();
    let changed = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = whole.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        let mut bytes = whole.clone();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        let path = place.path().join("m.gguf");
        std::fs::write(&path, bytes).unwrap();
        Files::open(&path).unwrap()
    };
    let refusal = |from: &str, to: &str| Tokenizer::open(&changed(from, to)).unwrap_err().to_string();
    let text = refusal("kimi-k2", "qwen-k2");
    assert!(
        text.contains("m.gguf") && text.contains("tokenizer.ggml.pre") && text.contains("qwen-k2"),
        "{text}"
    );
    let text = refusal("tokenizer.ggml.token_type", "tokenizer.ggml.token_tYpe");
    assert!(text.contains("tokenizer.ggml.token_type: missing"), "{text}");
    let none = changed("tokenizer.chat_template", "tokenizer.chat_templatX");
    assert!(ChatTemplate::open(&none).unwrap().is_none());
}
