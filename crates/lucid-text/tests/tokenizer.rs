//! Our encoder and the `tokenizers` crate, against ids from transformers and tiktoken, and against each other.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use base64::Engine as _;
use lucid_checkpoint::{Files, TokenId};
use lucid_text::{Detokenizer, Specials, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn read_json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(data(name)).unwrap()).unwrap()
}

fn canary() -> Files {
    Files::Folder(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary"))
}

fn kimi() -> Files {
    Files::Folder(data("kimi"))
}

fn ids(value: &Value) -> Vec<TokenId> {
    serde_json::from_value(value.clone()).unwrap()
}

static CANARY_OURS: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::open_tiktoken(&canary()).unwrap());
static CANARY_JSON: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::open_json(&canary()).unwrap());
static KIMI: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::open_tiktoken(&kimi()).unwrap());

#[test]
fn golden_prompts_have_the_ids_of_transformers() {
    let golden = read_json("canary/golden.json");
    for tokenizer in [&*CANARY_OURS, &*CANARY_JSON] {
        for (name, case) in golden.as_object().unwrap() {
            let prompt = case["prompt"].as_str().unwrap();
            let encoded = tokenizer.encode(prompt, Specials::Recognize).unwrap();
            assert_eq!(encoded, ids(&case["prompt_ids"]), "{name}, {}", tokenizer.source());
            assert_eq!(tokenizer.decode(&encoded, false), prompt, "{name}");

            let completion = case["completion"].as_str().unwrap();
            assert_eq!(tokenizer.decode(&ids(&case["completion_ids"]), false), completion, "{name}");
            let without_end = completion.strip_suffix("<|im_end|>").unwrap();
            assert_eq!(tokenizer.decode(&ids(&case["completion_ids"]), true), without_end, "{name}");
        }
    }
}

#[test]
fn vllm_counts_the_same_tokens() {
    for exchange in read_json("vllm/exchanges.json").as_array().unwrap() {
        let Some(prompt) = exchange["request"]["prompt"].as_str() else { continue };
        let body: Value = serde_json::from_str(exchange["body"].as_str().unwrap()).unwrap();
        for tokenizer in [&*CANARY_OURS, &*CANARY_JSON] {
            let encoded = tokenizer.encode(prompt, Specials::Recognize).unwrap();
            match exchange["name"].as_str().unwrap() {
                "tokenize" => assert_eq!(encoded, ids(&body["tokens"])),
                _ => {
                    assert_eq!(encoded.len() as u64, body["usage"]["prompt_tokens"].as_u64().unwrap());
                    let choice = &body["choices"][0];
                    assert_eq!(
                        tokenizer.decode(&ids(&choice["token_ids"]), true),
                        choice["text"].as_str().unwrap()
                    );
                }
            }
        }
    }
}

#[test]
fn kimi_ids_are_those_of_moonshots_own_tokenizer() {
    let golden = read_json("kimi/golden.json");
    for (field, specials) in [("special_allowed", Specials::Recognize), ("special_as_text", Specials::AsText)]
    {
        for case in golden[field].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let encoded = KIMI.encode(text, specials).unwrap();
            assert_eq!(encoded, ids(&case["ids"]), "{text:?}");
            assert_eq!(KIMI.decode(&encoded, false), text);
        }
    }
    for (name, case) in golden["prompts"].as_object().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(KIMI.encode(text, Specials::Recognize).unwrap(), ids(&case["ids"]), "{name}");
    }
}

#[test]
fn kimi_has_256_added_tokens_after_its_ranks() {
    assert_eq!(KIMI.vocab_size(), 163_840);
    assert_eq!(KIMI.id("<|im_end|>"), Some(TokenId(163_586)));
    assert_eq!(KIMI.id("<think>"), Some(TokenId(163_606)));
    assert_eq!(KIMI.id("[PAD]"), Some(TokenId(163_839)));
    // 163589 has no name in tokenizer_config.json.
    assert_eq!(KIMI.id("<|reserved_token_163589|>"), Some(TokenId(163_589)));
    assert_eq!(KIMI.bytes(TokenId(163_589)), Some(b"<|reserved_token_163589|>".as_slice()));
    assert_eq!(KIMI.bytes(TokenId(163_840)), None);
    assert_eq!(KIMI.id("no such token"), None);

    for special in ["<|im_end|>", "<|im_user|>", "[EOS]", "<|media_pad|>"] {
        assert!(KIMI.is_special(KIMI.id(special).unwrap()), "{special}");
    }
    for seen in ["<think>", "</think>", "<|tool_call_begin|>", "<|tool_calls_section_end|>"] {
        assert!(!KIMI.is_special(KIMI.id(seen).unwrap()), "{seen}");
    }
    assert!(!KIMI.is_special(TokenId(0)));
    assert!(!KIMI.is_special(TokenId(u32::MAX)));
}

#[test]
fn both_files_of_the_canary_name_the_same_tokens() {
    assert!(Tokenizer::open(&canary()).unwrap().source().ends_with("tokenizer.json"));
    assert!(Tokenizer::open(&kimi()).unwrap().source().ends_with("tiktoken.model"));
    assert_eq!(CANARY_OURS.vocab_size(), 4096);
    assert_eq!(CANARY_JSON.vocab_size(), 4096);
    for id in (0..4097).map(TokenId) {
        assert_eq!(CANARY_OURS.bytes(id), CANARY_JSON.bytes(id), "{id}");
        assert_eq!(CANARY_OURS.is_special(id), CANARY_JSON.is_special(id), "{id}");
    }
    assert_eq!(CANARY_OURS.id("<|im_end|>"), Some(TokenId(3842)));
    assert_eq!(CANARY_JSON.id("<|im_end|>"), Some(TokenId(3842)));
}

/// A `tokenizer.json` with the tokens of a `tiktoken.model`: merges are all ways to make a token of two tokens, in the order of
/// the ranks, as transformers' `TikTokenConverter` does it.
fn kimi_as_json() -> Value {
    let letter = |byte: u8| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        0..=0x20 => char::from_u32(0x100 + u32::from(byte)).unwrap(),
        0x7F..=0xA0 => char::from_u32(0x121 + u32::from(byte) - 0x7F).unwrap(),
        0xAD => '\u{143}',
    };
    let spell = |bytes: &[u8]| bytes.iter().map(|&byte| letter(byte)).collect::<String>();
    let file = std::fs::read_to_string(data("kimi/tiktoken.model")).unwrap();
    let tokens: Vec<Vec<u8>> = file
        .lines()
        .map(|line| {
            base64::engine::general_purpose::STANDARD.decode(line.split(' ').next().unwrap()).unwrap()
        })
        .collect();
    let ranks: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(rank, token)| (&token[..], rank)).collect();
    let mut merges = Vec::new();
    for token in &tokens {
        let mut ways: Vec<(usize, usize)> = (1..token.len())
            .filter_map(|at| Some((*ranks.get(&token[..at])?, *ranks.get(&token[at..])?)))
            .collect();
        ways.sort_unstable();
        merges.extend(ways.iter().map(|&(left, right)| json!([spell(&tokens[left]), spell(&tokens[right])])));
    }
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(rank, token)| (spell(token), json!(rank))).collect();
    let added: Vec<Value> = (163_584..163_840)
        .map(|id| {
            let name = String::from_utf8(KIMI.bytes(TokenId(id)).unwrap().to_vec()).unwrap();
            json!({"id": id, "content": name, "special": KIMI.is_special(TokenId(id)), "normalized": false,
                   "single_word": false, "lstrip": false, "rstrip": false})
        })
        .collect();
    let mut tokenizer: Value =
        serde_json::from_slice(&canary().find("tokenizer.json").unwrap().unwrap()).unwrap();
    tokenizer["added_tokens"] = Value::Array(added);
    tokenizer["model"]["vocab"] = Value::Object(vocab);
    tokenizer["model"]["merges"] = Value::Array(merges);
    tokenizer
}

const MIXED_TEXTS: &[&str] = &[
    "fn main() {\n    let x: Vec<u8> = vec![0; 1024];\n\tprintln!(\"{x:?}\");\r\n}\n\n\n    // done\n",
    "The quick brown fox, 他跳过了懒狗。今天是2026年11月29日，气温-3.5°C；価格は¥12,345です。한국어도 조금.",
    "🎉👩‍👩‍👧‍👦🏳️‍🌈 e\u{301}\u{323} ﬁﬂ ǅ ʰ Ⅷ ½ ² ٣٤٥ १२३ 〇一二 \u{200b}\u{feff}",
    "     leading\t\t tabs \u{a0}\u{a0}nbsp \u{3000}　ideographic  \n \n\n   \r\n trailing   ",
    "123456789012345678901234567890 0x1F 1e-5 v1.2.3-rc.4",
    "I'M don't WE'LL they'Ve 'sUP o'clock ''' \u{2019}s",
    "<|im_user|>user<|im_middle|>x<think>y</think><|tool_call_begin|>z<|reserved_token_163589|>[BOS]<|im_end",
    "SELECT * FROM t WHERE a>=1 AND b<>'x';--!!!???\n\n#include <stdio.h>\n$$\\frac{a}{b}$$",
    "\u{1c}\u{1d}\u{1e}\u{1f}\u{85}\u{2028}\u{2029}\0\u{7f}",
    "camelCaseXMLHttpRequest SHOUTING Ünïcödé ΑΒΓαβγ АБВабв אבג ابت ไทย हिन्दी",
];

#[test]
fn both_implementations_agree_on_kimis_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), kimi_as_json().to_string()).unwrap();
    let json = Tokenizer::open(&Files::Folder(folder.path().to_owned())).unwrap();
    assert_eq!(json.vocab_size(), KIMI.vocab_size());
    let golden = read_json("canary/golden.json");
    let prompts = golden.as_object().unwrap().values().map(|case| case["prompt"].as_str().unwrap());
    for text in MIXED_TEXTS.iter().copied().chain(prompts) {
        for specials in [Specials::Recognize, Specials::AsText] {
            let ours = KIMI.encode(text, specials).unwrap();
            assert_eq!(ours, json.encode(text, specials).unwrap(), "{text:?}");
            assert_eq!(KIMI.decode(&ours, false), text);
        }
    }
}

/// Text as it comes, spiced with what a tokenizer stumbles over.
fn texts() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "a",
        "The",
        "'s",
        "'LL",
        "1",
        "2026",
        "é",
        "e\u{301}",
        "你好",
        "〇",
        "🎉",
        "<",
        "|>",
        "<|im_end|>",
        "<think>",
        "</think>",
        "[EOS]",
        "\u{3000}",
        "\u{1f}",
        "\u{85}",
        "ǅ",
        "ʰ",
        "...",
        "==\n",
    ]);
    prop_oneof![
        any::<String>(),
        prop::collection::vec(words.prop_map(str::to_owned).boxed(), 0..30).prop_map(|words| words.concat()),
        prop::collection::vec(
            prop_oneof![any::<char>().prop_map(String::from), "[ \\n\\t]{1,4}", "[a-zA-Z']{1,8}"],
            0..20
        )
        .prop_map(|parts| parts.concat()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn both_implementations_agree_on_any_text(text in texts(), as_text: bool) {
        let specials = if as_text { Specials::AsText } else { Specials::Recognize };
        let ours = CANARY_OURS.encode(&text, specials).unwrap();
        prop_assert_eq!(&ours, &CANARY_JSON.encode(&text, specials).unwrap());
        prop_assert_eq!(CANARY_OURS.decode(&ours, false), text);
    }

    #[test]
    fn streamed_text_is_the_decoded_text(ids in prop::collection::vec(0..4100_u32, 0..40), skip_special: bool) {
        let ids: Vec<TokenId> = ids.into_iter().map(TokenId).collect();
        let mut detokenizer = Detokenizer::new(CANARY_OURS.clone(), skip_special);
        let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
        text.push_str(&detokenizer.finish());
        prop_assert_eq!(text, CANARY_OURS.decode(&ids, skip_special));
    }

    #[test]
    fn streaming_never_emits_half_a_character(text in texts()) {
        let mut detokenizer = Detokenizer::new(CANARY_OURS.clone(), false);
        let mut streamed = String::new();
        for id in CANARY_OURS.encode(&text, Specials::AsText).unwrap() {
            streamed.push_str(&detokenizer.push(id));
            prop_assert!(text.starts_with(&streamed));
        }
        prop_assert_eq!(detokenizer.finish(), "");
        prop_assert_eq!(streamed, text);
    }
}

#[test]
fn a_character_in_two_tokens_comes_whole() {
    let mut detokenizer = Detokenizer::new(CANARY_OURS.clone(), false);
    // The canary spells é as the bytes C3 A9, one token each.
    let pieces: Vec<String> = [195, 169].map(TokenId).iter().map(|&id| detokenizer.push(id)).collect();
    assert_eq!(pieces, ["", "é"]);
    assert_eq!(detokenizer.push(TokenId(195)), "");
    assert_eq!(detokenizer.finish(), "\u{FFFD}");
}

#[test]
fn long_runs_come_back_whole() {
    // 25,000 characters without a break are one piece for the pre-tokenizer; quadratic merging would take minutes for these.
    for unit in ["ab", "你", " ", "🎉", "=", "\n", "x1"] {
        let text = unit.repeat(60_000);
        let encoded = KIMI.encode(&text, Specials::Recognize).unwrap();
        assert_eq!(KIMI.decode(&encoded, false), text, "{unit:?}");
    }
}
