//! Broken tokenizer files: each gets an error that names file and place, and none a panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use lucid_checkpoint::Files;
use lucid_text::{ChatTemplate, Specials, Tokenizer};
use proptest::prelude::*;

const GOOD_CONFIG: &str = r#"{"added_tokens_decoder": {"256": {"content": "<a>", "special": true}}}"#;

/// The 256 single bytes, and what comes after.
fn ranks(more: &str) -> String {
    use base64::Engine as _;
    let byte = |byte: u8| base64::engine::general_purpose::STANDARD.encode([byte]);
    (0..=255).map(|value| format!("{} {value}\n", byte(value))).collect::<String>() + more
}

fn checkpoint(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Files) {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let files = Files::Folder(folder.path().to_owned());
    (folder, files)
}

fn tiktoken(model: &str, config: &str) -> Result<Tokenizer, lucid_text::Error> {
    let files = [("tiktoken.model", model.as_bytes()), ("tokenizer_config.json", config.as_bytes())];
    let (_folder, files) = checkpoint(&files);
    Tokenizer::open_tiktoken(&files)
}

#[test]
fn the_smallest_good_files() {
    let tokenizer = tiktoken(&ranks(""), GOOD_CONFIG).unwrap();
    assert_eq!(tokenizer.vocab_size(), 512);
    assert_eq!(tokenizer.encode("a<a>", Specials::Recognize).unwrap().len(), 2);
    assert_eq!(tokenizer.encode("a<a>", Specials::AsText).unwrap().len(), 4);
    // A file from Windows, ranks in any order.
    let shuffled: String = ranks("YWE= 256").lines().rev().map(|line| format!("{line}\r\n")).collect();
    let config = GOOD_CONFIG.replace("256", "257");
    assert_eq!(tiktoken(&shuffled, &config).unwrap().encode("aaa", Specials::AsText).unwrap().len(), 2);
}

#[test]
fn faults_of_tiktoken_model_name_the_line() {
    for (more, words) in [
        ("YWE=\n", ["line 257", "no space"]),
        ("Y!E= 256\n", ["line 257", "base64"]),
        ("YWE= x\n", ["line 257", "\"x\""]),
        ("YWE= -1\n", ["line 257", "\"-1\""]),
        ("YWE= 99999999999\n", ["line 257", "99999999999"]),
        (" 256\n", ["line 257", "no space"]),
        ("YQ== 256\n", ["line 257", "same bytes"]),
        ("YWE= 255\n", ["token id 255", "two tokens"]),
        ("YWE= 257\n", ["257 tokens", "256 is missing"]),
        ("YWE= 4294967295\n", ["token id 4294967295", "below"]),
    ] {
        let error = tiktoken(&ranks(more), GOOD_CONFIG).unwrap_err().to_string();
        assert!(error.contains("tiktoken.model"), "{more:?}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{more:?}: {error}");
    }
    let error = tiktoken("YQ== 0\n", r#"{"added_tokens_decoder": {}}"#).unwrap_err().to_string();
    assert!(error.contains("single byte 0x00"), "{error}");
    assert!(tiktoken("", "{}").is_err());
}

#[test]
fn faults_of_tokenizer_config_name_the_field() {
    for (config, words) in [
        (
            r#"{"added_tokens_decoder": {"255": {"content": "x"}}}"#,
            [r#"added_tokens_decoder["255"]"#, "256 to 511"],
        ),
        (
            r#"{"added_tokens_decoder": {"512": {"content": "x"}}}"#,
            [r#"added_tokens_decoder["512"]"#, "256 to 511"],
        ),
        (
            r#"{"added_tokens_decoder": {"x": {"content": "x"}}}"#,
            [r#"added_tokens_decoder["x"]"#, "not a token id"],
        ),
        (r#"{"added_tokens_decoder": {"256": {"content": ""}}}"#, ["content", "empty"]),
        (r#"{"added_tokens_decoder": {"256": {}}}"#, ["line 1", "content"]),
        (r#"{"added_tokens_decoder": []}"#, ["line 1", "map"]),
        (
            r#"{"added_tokens_decoder": {"256": {"content": "x"}, "257": {"content": "x"}}}"#,
            ["added token 257", "token 256"],
        ),
        ("{", ["line 1", "EOF"]),
    ] {
        let error = tiktoken(&ranks(""), config).unwrap_err().to_string();
        assert!(error.contains("tokenizer_config.json"), "{config}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{config}: {error}");
    }
}

#[test]
fn missing_files_are_named() {
    let (_folder, files) = checkpoint(&[]);
    let error = Tokenizer::open(&files).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json") && error.contains("tiktoken.model"), "{error}");
    let (_folder, files) = checkpoint(&[("tiktoken.model", ranks("").as_bytes())]);
    let error = Tokenizer::open(&files).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
}

#[test]
fn faults_of_tokenizer_json_name_the_field() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary");
    let good: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("tokenizer.json")).unwrap()).unwrap();
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut changed = good.clone();
        change(&mut changed);
        let (_folder, files) = checkpoint(&[("tokenizer.json", changed.to_string().as_bytes())]);
        Tokenizer::open(&files)
    };
    assert!(with(&|_| {}).is_ok());
    type Change<'c> = &'c dyn Fn(&mut serde_json::Value);
    let faults: [(Change<'_>, &str); 7] = [
        (&|json| json["decoder"] = serde_json::json!({"type": "Metaspace"}), "decoder.type"),
        (&|json| json["decoder"] = serde_json::Value::Null, "decoder.type"),
        (&|json| json["model"] = serde_json::Value::Null, "tokenizer"),
        (&|json| json["model"]["merges"][0] = serde_json::json!(["no", "such"]), "tokenizer"),
        (&|json| json["model"]["vocab"]["a"] = serde_json::json!(-1), "tokenizer"),
        (&|json| json["model"]["vocab"]["a"] = serde_json::json!(4_000_000_000_u32), "token id 4000000000"),
        (&|json| json["added_tokens"][0]["id"] = serde_json::json!(7), "added_tokens"),
    ];
    for (change, place) in faults {
        let error = with(change).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json") && error.contains(place), "{place}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>, text in "[{}%#\\- a-z\"\\n]{0,60}") {
        for name in ["tiktoken.model", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja"] {
            for bytes in [&bytes[..], text.as_bytes()] {
                let (_folder, files) = checkpoint(&[("tiktoken.model", ranks("").as_bytes()), (name, bytes)]);
                let _ = Tokenizer::open(&files);
                if let Ok(Some(template)) = ChatTemplate::open(&files) {
                    let _ = template.render(&serde_json::json!([]), None, &serde_json::Map::new(), true);
                }
            }
        }
    }
}
