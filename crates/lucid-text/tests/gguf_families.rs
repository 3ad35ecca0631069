//! The tokenizers of DeepSeek and GLM models in GGUF files that llama.cpp's Python package wrote, against Hugging Face's `tokenizers` on the
//! tokenizer.json that they come from (`data/gguf/make.py`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lucid_checkpoint::{Bytes, Files, TokenId};
use lucid_text::{Specials, Tokenizer};
use proptest::prelude::*;
use serde::Deserialize;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf")
}

#[derive(Deserialize)]
struct Golden {
    texts: Vec<String>,
    deepseek: Ids,
    glm: Ids,
}

/// What the other implementation says, text by text.
#[derive(Deserialize)]
struct Ids {
    recognized: Vec<Vec<TokenId>>,
    as_text: Vec<Vec<TokenId>>,
    /// Names of added tokens: id, and whether the file calls it special.
    added: BTreeMap<String, (TokenId, bool)>,
}

fn golden() -> Golden {
    serde_json::from_slice(&std::fs::read(data().join("golden.json")).unwrap()).unwrap()
}

fn open(name: &str) -> Tokenizer {
    Tokenizer::open(&Files::open(&data().join(name)).unwrap()).unwrap()
}

#[track_caller]
fn check(tokenizer: &Tokenizer, texts: &[String], ids: &Ids) {
    assert_eq!((texts.len(), ids.recognized.len(), ids.as_text.len()), (29, 29, 29));
    for (text, (recognized, plain)) in texts.iter().zip(ids.recognized.iter().zip(&ids.as_text)) {
        assert_eq!(tokenizer.encode(text, Specials::Recognize).unwrap(), *recognized, "{text:?}");
        assert_eq!(tokenizer.encode(text, Specials::AsText).unwrap(), *plain, "{text:?} as text");
        for ids in [recognized, plain] {
            assert_eq!(tokenizer.decode(ids, false), *text);
        }
    }
    for (name, (id, special)) in &ids.added {
        assert_eq!((tokenizer.id(name), tokenizer.is_special(*id)), (Some(*id), *special), "{name}");
    }
}

#[test]
fn deepseek_has_the_ids_of_hugging_face() {
    let golden = golden();
    check(&open("deepseek.gguf"), &golden.texts, &golden.deepseek);
}

#[test]
fn glm_has_the_ids_of_hugging_face() {
    let golden = golden();
    check(&open("glm.gguf"), &golden.texts, &golden.glm);
}

#[test]
fn rows_without_a_token_have_none() {
    let tokenizer = open("deepseek.gguf");
    // The file has five rows more, which its converter called [PAD…].
    assert_eq!(tokenizer.bytes(TokenId(tokenizer.vocab_size() as u32)), None);
    assert_eq!(tokenizer.id("[PAD3316]"), None);
    assert_eq!(
        golden().deepseek.added.values().map(|(id, _)| id.row() + 1).max(),
        Some(tokenizer.vocab_size())
    );
}

proptest! {
    /// Nothing is lost, whatever the text is.
    #[test]
    fn any_text_comes_back(text in "(?s).{0,60}|[a-zA-Z0-9 \\r\\n'!.,]{0,80}|(<think>|<｜User｜>|<\\|user\\|>| the|\\n|/nothink|三|ア){0,8}") {
        use std::sync::LazyLock;
        static ALL: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| ["deepseek.gguf", "glm.gguf"].map(open));
        for tokenizer in ALL.iter() {
            for specials in [Specials::Recognize, Specials::AsText] {
                prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text, specials).unwrap(), false), &text[..]);
            }
        }
    }
}

/// Changed files are refused, by name and place.
#[test]
fn a_file_that_is_not_whole_is_refused() {
    let whole = std::fs::read(data().join("glm.gguf")).unwrap();
    let refusal = |from: &[u8], to: &[u8]| {
        assert_eq!(from.len(), to.len());
        let at = whole.windows(from.len()).position(|window| window == from).unwrap();
        let mut bytes = whole.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        let files = [("glm.gguf".to_owned(), Bytes::from(bytes))].into();
        Tokenizer::open(&Files::Memory { name: "model".to_owned(), files }).unwrap_err().to_string()
    };
    let assert_says = |text: String, parts: &[&str]| {
        for part in ["model"].iter().chain(parts) {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
    };
    assert_says(refusal(b"ggml.merges", b"ggml.merged"), &["tokenizer.ggml.merges", "missing"]);
    assert_says(refusal(b"glm4", b"glm9"), &["tokenizer.ggml.pre", "glm9", "deepseek-v3"]);
    // A merge of 3 bytes whose left half no token is, then one without halves.
    let merge = |text: &[u8; 3]| [&3u64.to_le_bytes()[..], text].concat();
    assert_says(refusal(&merge(b"i n"), &merge(b"\x01 n")), &["tokenizer.ggml.merges[", "is no token"]);
    assert_says(refusal(&merge(b"i n"), &merge(b"i-n")), &["tokenizer.ggml.merges[", "a space between"]);
    // The token of a byte, made to be another one; then one that is there twice.
    let token = |text: &[u8; 1]| [&1u64.to_le_bytes()[..], text].concat();
    assert_says(refusal(&token(b"~"), &token(b"\x02")), &["tokenizer.ggml.tokens", "0x7e", "all 256"]);
    assert_says(refusal(&token(b"~"), &token(b"}")), &["tokenizer.ggml.tokens[", "another token"]);
}

/// The whole vocabulary of DeepSeek-V3, on the golden's texts, this repository's documents and sources, and texts made of both.
/// `python data/gguf/make.py --whole FOLDER` makes the files.
#[test]
#[ignore = "needs LUCID_TEST_TOKENIZER, a folder with deepseek.gguf and tokenizer.json"]
fn the_whole_of_deepseek() {
    let folder = PathBuf::from(std::env::var("LUCID_TEST_TOKENIZER").unwrap());
    let ours = Tokenizer::open(&Files::open(&folder.join("deepseek.gguf")).unwrap()).unwrap();
    let place = tempfile::tempdir().unwrap();
    std::fs::copy(folder.join("tokenizer.json"), place.path().join("tokenizer.json")).unwrap();
    let theirs = Tokenizer::open_json(&Files::Folder(place.path().to_owned())).unwrap();
    assert_eq!((ours.vocab_size(), theirs.vocab_size()), (128_815, 128_815));
    for id in (0..128_815).map(TokenId) {
        assert_eq!(ours.bytes(id), theirs.bytes(id), "{id}");
        assert_eq!(ours.is_special(id), theirs.is_special(id), "{id}");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut texts = golden().texts;
    for folder in ["docs", "crates/lucid-text/src/tokenizer", "crates/lucid-text/tests/data/templates"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            texts.extend(path.is_file().then(|| std::fs::read_to_string(&path).unwrap()));
        }
    }
    let mut tokens = 0;
    for text in texts {
        for specials in [Specials::Recognize, Specials::AsText] {
            let ids = ours.encode(&text, specials).unwrap();
            assert_eq!(ids, theirs.encode(&text, specials).unwrap());
            tokens += ids.len();
        }
    }
    assert!(tokens > 100_000, "{tokens}");
}
