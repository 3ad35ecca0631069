//! The output parser, against real vLLM answers, and against itself under every way to cut a text.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use lucid_text::{OutputOptions, OutputParser, Parsed, Piece, ToolCall};
use proptest::prelude::*;
use serde_json::Value;

fn read_json(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

const PLAIN: OutputOptions = OutputOptions { thinking: true, tools: false };
const TOOLS: OutputOptions = OutputOptions { thinking: true, tools: true };
const INSTANT: OutputOptions = OutputOptions { thinking: false, tools: false };
const INSTANT_TOOLS: OutputOptions = OutputOptions { thinking: false, tools: true };

fn parsed(reasoning: Option<&str>, content: Option<&str>, calls: &[(&str, &str, &str)]) -> Parsed {
    Parsed {
        reasoning: reasoning.map(str::to_owned),
        content: content.map(str::to_owned),
        tool_calls: calls
            .iter()
            .map(|&(id, name, arguments)| ToolCall {
                id: id.to_owned(),
                name: name.to_owned(),
                arguments: arguments.to_owned(),
            })
            .collect(),
    }
}

/// What vLLM answered: its message, or its deltas joined.
fn vllm(exchange: &Value) -> Parsed {
    let body = exchange["body"].as_str().unwrap();
    let mut parsed = Parsed::default();
    let messages: Vec<Value> = match exchange["request"]["stream"].as_bool() {
        Some(true) => {
            let events = body.lines().filter_map(|line| line.strip_prefix("data: {"));
            let chunks = events.map(|event| serde_json::from_str::<Value>(&format!("{{{event}")).unwrap());
            chunks.map(|chunk| chunk["choices"][0]["delta"].clone()).collect()
        }
        _ => vec![serde_json::from_str::<Value>(body).unwrap()["choices"][0]["message"].clone()],
    };
    for message in messages {
        if let Some(text) = message["reasoning"].as_str() {
            parsed.reasoning.get_or_insert_default().push_str(text);
        }
        // The first delta of a stream carries the role and an empty content.
        if let Some(text) = message["content"].as_str().filter(|text| !text.is_empty()) {
            parsed.content.get_or_insert_default().push_str(text);
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            if call["id"].is_string() {
                parsed.tool_calls.push(ToolCall {
                    id: text(&call["id"]),
                    name: text(&call["function"]["name"]),
                    arguments: String::new(),
                });
            }
            parsed.tool_calls.last_mut().unwrap().arguments.push_str(&text(&call["function"]["arguments"]));
        }
    }
    parsed
}

#[test]
fn answers_are_split_as_vllm_splits_them() {
    let golden = read_json("canary/golden.json");
    let completion =
        |name: &str| golden[name]["completion"].as_str().unwrap().strip_suffix("<|im_end|>").unwrap();
    let thought = "The user asks for the capital of France";
    let texts = [
        ("chat", completion("capital"), PLAIN),
        ("chat_stream", completion("capital"), PLAIN),
        ("chat_budget_exhausted", thought, PLAIN),
        ("chat_no_thinking", "The capital of France is Paris.", INSTANT),
        ("chat_tools", completion("tool_call"), TOOLS),
        ("chat_tools_stream", completion("tool_call"), TOOLS),
    ];
    let exchanges = read_json("vllm/exchanges.json");
    for (name, text, options) in texts {
        let exchange =
            exchanges.as_array().unwrap().iter().find(|exchange| exchange["name"] == name).unwrap();
        assert_eq!(OutputParser::parse(text, options), vllm(exchange), "{name}");
    }
}

#[test]
fn the_rules() {
    let call = |header: &str, arguments: &str| {
        format!("<|tool_call_begin|>{header}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>")
    };
    let section = |calls: &str| format!("<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>");
    let f = |arguments| [("functions.f:0", "f", arguments)];
    let good = call("functions.f:0", "{}");

    let cases: Vec<(&str, String, OutputOptions, Parsed)> = vec![
        ("plain", "r</think>c".into(), PLAIN, parsed(Some("r"), Some("c"), &[])),
        ("leading marker swallowed", "<think>r</think>c".into(), PLAIN, parsed(Some("r"), Some("c"), &[])),
        ("second marker swallowed", "a<think>b</think>c".into(), PLAIN, parsed(Some("ab"), Some("c"), &[])),
        ("never ended", "<think>all of it \n".into(), PLAIN, parsed(Some("all of it"), None, &[])),
        ("empty reasoning", " \n</think>c".into(), PLAIN, parsed(None, Some("c"), &[])),
        ("empty content", "r</think>".into(), PLAIN, parsed(Some("r"), None, &[])),
        ("nothing", String::new(), PLAIN, parsed(None, None, &[])),
        ("only whitespace of reasoning's end goes", " a \n b \n</think>\n\nc \n".into(), PLAIN,
         parsed(Some(" a \n b"), Some("\n\nc \n"), &[])),
        ("stray end swallowed", "r</think>a</think>b</think>".into(), PLAIN, parsed(Some("r"), Some("ab"), &[])),
        ("begin in the content stays", "r</think><think>x".into(), PLAIN, parsed(Some("r"), Some("<think>x"), &[])),
        ("cut marker is text", "r</thi".into(), PLAIN, parsed(Some("r</thi"), None, &[])),
        ("not thinking: markers are text", "<think>a</think>b".into(), INSTANT,
         parsed(None, Some("<think>a</think>b"), &[])),
        ("not thinking, tools: markers are text", "<think>a</think>b".into(), INSTANT_TOOLS,
         parsed(None, Some("<think>a</think>b"), &[])),

        ("call", format!("r</think>c{}", section(&good)), TOOLS, parsed(Some("r"), Some("c"), &f("{}"))),
        ("section ends reasoning", format!("r \n{}", section(&good)), TOOLS, parsed(Some("r"), None, &f("{}"))),
        ("not thinking: call", format!("c{}", section(&good)), INSTANT_TOOLS, parsed(None, Some("c"), &f("{}"))),
        ("text after the section dropped", format!("</think>{} more </think> text", section(&good)), TOOLS,
         parsed(None, None, &f("{}"))),
        ("text between calls dropped", format!("</think>{}", section(&format!(" a {good} b {good} c"))), TOOLS,
         parsed(None, None, &[f("{}")[0], f("{}")[0]])),
        ("second section", format!("</think>{0}x{0}", section(&good)), TOOLS,
         parsed(None, None, &[f("{}")[0], f("{}")[0]])),
        ("whitespace before a call dropped", format!("</think> \n{}", section(&good)), TOOLS, parsed(None, None, &f("{}"))),
        ("whitespace without a call kept", format!("</think> \n{}", section("")), TOOLS, parsed(None, Some(" \n"), &[])),
        ("whitespace after content kept", format!("</think>c \n{}", section(&good)), TOOLS,
         parsed(None, Some("c \n"), &f("{}"))),
        ("arguments stripped", format!("</think>{}", section(&call(" functions.f:0\n", " \n{ \"a\" : 1 } \n"))), TOOLS,
         parsed(None, None, &f("{ \"a\" : 1 }"))),
        ("no arguments", format!("</think>{}", section(&call("functions.f:0", " \n "))), TOOLS,
         parsed(None, None, &f("{}"))),
        ("arguments are not checked", format!("</think>{}", section(&call("functions.f:0", "oops </think> {<"))), TOOLS,
         parsed(None, None, &f("oops </think> {<"))),
        ("bare name", format!("</think>{}", section(&call("f:12", "1"))), TOOLS,
         parsed(None, None, &[("f:12", "f", "1")])),
        ("name to the first colon", format!("</think>{}", section(&call("functions.a.b:c:7", "1"))), TOOLS,
         parsed(None, None, &[("functions.a.b:c:7", "a.b", "1")])),
        ("header without a number dropped", format!("</think>{}", section(&format!("{}{good}", call("functions.g", "1")))),
         TOOLS, parsed(None, None, &f("{}"))),
        ("header without a name dropped", format!("</think>{}", section(&call("functions.:0", "1"))), TOOLS,
         parsed(None, None, &[])),
        ("section end closes a call",
         "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_calls_section_end|>x".into(),
         TOOLS, parsed(None, None, &f("{}"))),
        ("cut arguments",
         "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": ".into(),
         TOOLS, parsed(None, None, &f("{\"a\":"))),
        ("cut before the arguments",
         "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0".into(), TOOLS, parsed(None, None, &f("{}"))),
        ("cut header", "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f".into(), TOOLS,
         parsed(None, None, &[])),
        ("tools not asked for: all stays visible", format!("r{}", section(&good)), PLAIN,
         parsed(Some("r"), Some(&section(&good)), &[])),
        ("singular section marker is text", "</think><|tool_call_section_begin|>x".into(), TOOLS,
         parsed(None, Some("<|tool_call_section_begin|>x"), &[])),
    ];
    for (name, text, options, expected) in cases {
        assert_eq!(OutputParser::parse(&text, options), expected, "{name}");
    }
}

#[test]
fn reasoning_tokens_are_counted_as_vllm_counts_them() {
    let golden = read_json("canary/golden.json");
    let tokenizer = lucid_text::Tokenizer::open_tiktoken(&lucid_checkpoint::Files::Folder(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary"),
    ))
    .unwrap();
    // `completion_tokens_details.reasoning_tokens` of the recorded answers "chat" and "chat_tools".
    for (name, expected) in [("capital", 23), ("tool_call", 8)] {
        let mut parser = OutputParser::new(TOOLS);
        let ids: Vec<lucid_checkpoint::TokenId> =
            serde_json::from_value(golden[name]["completion_ids"].clone()).unwrap();
        let count = ids.iter().filter(|&&id| {
            parser.push(&tokenizer.decode(&[id], true));
            parser.is_reasoning()
        });
        assert_eq!(count.count(), expected, "{name}");
    }
}

/// Neighbouring pieces of one kind joined.
fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (Some(Piece::Reasoning(text)), Piece::Reasoning(more))
            | (Some(Piece::Content(text)), Piece::Content(more)) => text.push_str(&more),
            (
                Some(Piece::ToolCallArguments { index, fragment }),
                Piece::ToolCallArguments { index: same, fragment: more },
            ) if *index == same => fragment.push_str(&more),
            (_, piece) => joined.push(piece),
        }
    }
    joined
}

fn outputs() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "<think>",
        "</think>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "functions.f:0",
        "g:12",
        "f",
        "{\"a\": 1}",
        " ",
        "\n",
        "é",
        "🎉",
        "<",
        "</",
        "<|",
        "<|tool_call",
        "think>",
        "|>",
    ]);
    prop::collection::vec(words, 0..24).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_cuts_make_no_difference(
        text in outputs(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        every_character: bool,
        thinking: bool,
        tools: bool,
    ) {
        let options = OutputOptions { thinking, tools };
        let mut whole = OutputParser::new(options);
        let mut expected = whole.push(&text);
        expected.extend(whole.finish());

        let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut cuts: Vec<usize> =
            if every_character { ends.clone() } else { cuts.iter().map(|cut| *cut.get(&ends)).collect() };
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut parser = OutputParser::new(options);
        let mut pieces = Vec::new();
        for cut in cuts.windows(2) {
            pieces.extend(parser.push(&text[cut[0]..cut[1]]));
        }
        pieces.extend(parser.finish());

        prop_assert_eq!(Parsed::from_pieces(pieces.clone()), OutputParser::parse(&text, options));
        prop_assert_eq!(joined(pieces), joined(expected));
    }

    #[test]
    fn no_piece_is_empty_and_calls_are_numbered_in_order(text in outputs()) {
        let mut parser = OutputParser::new(TOOLS);
        let mut pieces: Vec<Piece> = text.chars().flat_map(|c| parser.push(c.encode_utf8(&mut [0; 4]))).collect();
        pieces.extend(parser.finish());
        let mut calls = 0;
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) | Piece::Content(text) => prop_assert!(!text.is_empty()),
                Piece::ToolCallStart { index, .. } => {
                    prop_assert_eq!(index, calls);
                    calls += 1;
                }
                Piece::ToolCallArguments { index, fragment } => {
                    prop_assert!(!fragment.is_empty());
                    prop_assert_eq!(index + 1, calls);
                }
            }
        }
    }
}
