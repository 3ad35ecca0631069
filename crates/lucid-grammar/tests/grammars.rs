//! The other kinds of grammar, and where an answer begins and ends.

mod walk;

use lucid_checkpoint::TokenId;
use lucid_grammar::{Beginning, Calls, Error, Function, Grammar};
use lucid_text::{OutputOptions, OutputParser, Specials};
use serde_json::{Value, json};

fn calls(several: bool, instead: Option<Value>) -> Grammar {
    let function = |name: &str, parameters: Option<Value>| Function { name: name.to_owned(), parameters };
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let functions = vec![function("get_weather", Some(city)), function("now \"quoted\"\\", None)];
    Grammar::Calls(Calls { functions, first: 4, several, instead })
}

/// The parser that reads a model's calls reads the forced ones.
#[test]
fn forced_calls_are_read_by_the_parser_of_calls() {
    let canary = walk::canary();
    let mut most = 0;
    for several in [false, true] {
        for seed in 0..12 {
            let Some(answer) = canary.walk(&calls(several, None), seed) else { continue };
            let parsed = OutputParser::parse(&answer, OutputOptions { thinking: false, tools: true });
            assert_eq!(parsed.content, None, "{answer}");
            assert!(!parsed.tool_calls.is_empty() && (several || parsed.tool_calls.len() == 1), "{answer}");
            assert!(parsed.tool_calls[0].id.ends_with(":4"), "{answer}");
            for call in &parsed.tool_calls {
                let arguments: Value = serde_json::from_str(&call.arguments)
                    .unwrap_or_else(|error| panic!("{error}: {}", call.arguments));
                let fits = match call.name.as_str() {
                    "get_weather" => arguments["city"].is_string(),
                    name => name == "now \"quoted\"\\" && arguments.is_object(),
                };
                assert!(fits, "{answer}");
            }
            most = most.max(parsed.tool_calls.len());
        }
    }
    assert!(most > 1, "never two calls");
}

#[test]
fn an_answer_may_stand_in_place_of_calls() {
    let canary = walk::canary();
    let grammar = calls(true, Some(json!({"type": "integer", "minimum": 10, "maximum": 99})));
    let mut seen = [false; 2];
    for seed in 0..40 {
        let Some(answer) = canary.walk(&grammar, seed) else { continue };
        let number = answer.trim().parse::<u32>();
        assert!(
            answer.starts_with("<|tool_calls_section_begin|>")
                || number.as_ref().is_ok_and(|n| (10..100).contains(n)),
            "{answer}"
        );
        seen[usize::from(number.is_ok())] = true;
    }
    assert_eq!(seen, [true; 2]);
}

#[test]
fn patterns_choices_and_lark_hold() {
    let canary = walk::canary();
    for seed in 0..20 {
        let date =
            canary.walk(&Grammar::Regex(r"[0-9]{4}-(0[1-9]|1[0-2])/é*".into()), seed).expect("it is short");
        assert!(date.as_bytes()[4] == b'-' && date.contains('/'), "{date}");
        let choices = vec!["yes".to_owned(), "no \"way\"\n".to_owned()];
        assert!(
            choices.contains(&canary.walk(&Grammar::Choice(choices.clone()), seed).expect("it is short"))
        );
        let sum =
            canary.walk(&Grammar::Lark("start: n (\"+\" n)*\nn: /[0-9]/".into()), seed).expect("it is short");
        assert!(sum.split('+').all(|n| n.len() == 1), "{sum}");
    }
}

/// Behind `</think>`, and not before; calls that begin in the reasoning end it.
#[test]
fn reasoning_is_free() {
    let canary = walk::canary();
    let token = |name: &str| canary.tokenizer.id(name).expect("Kimi's vocabulary has it");
    let grammar = Grammar::Choice(vec!["yes".to_owned()]);
    let mut guide = canary.grammars.compile(&grammar, Beginning::Reasoning).expect("it compiles");
    let text = canary.tokenizer.encode("Let me think", Specials::AsText).expect("it is text");
    for &id in text.iter().chain(&[token("<|tool_calls_section_begin|>")]) {
        assert!(guide.is_idle());
        assert_eq!(canary.allowed(&mut guide).len(), canary.tokenizer.vocab_size());
        guide.accept(id).expect("all may come");
    }
    guide.accept(token("</think>")).expect("it ends the reasoning");
    assert!(!guide.is_idle());
    let starts = |id: &TokenId| canary.tokenizer.bytes(*id).is_some_and(|bytes| b"yes".starts_with(bytes));
    assert!(canary.allowed(&mut guide).iter().all(starts));

    let mut guide = canary.grammars.compile(&calls(false, None), Beginning::Reasoning).expect("it compiles");
    let mut other = guide.duplicate();
    guide.accept(token("<|tool_calls_section_begin|>")).expect("it begins the calls");
    assert_eq!(canary.allowed(&mut guide), [token("<|tool_call_begin|>")]);
    other.accept(token("</think>")).expect("it ends the reasoning");
    assert_eq!(canary.allowed(&mut other), [token("<|tool_calls_section_begin|>")]);
}

/// A complete answer may end with any of the tokens that end answers, and with nothing else, for as long as somebody asks.
#[test]
fn a_complete_answer_ends() {
    let canary = walk::canary();
    let mut guide = canary
        .grammars
        .compile(&Grammar::Choice(vec!["a".to_owned()]), Beginning::Answer)
        .expect("it compiles");
    let [letter] = canary.allowed(&mut guide)[..] else { panic!("only one letter may come") };
    guide.accept(letter).expect("it was allowed");
    let mut eos = canary.eos.clone();
    eos.sort_unstable();
    for &end in eos.iter().cycle().take(5) {
        assert_eq!(canary.allowed(&mut guide), eos);
        guide.accept(end).expect("it was allowed");
    }
}

/// Whitespace between the parts of JSON ends, or a model that is fond of it would never.
#[test]
fn whitespace_is_bounded() {
    let canary = walk::canary();
    let newline = canary.tokenizer.encode("\n", Specials::AsText).expect("it is text")[0];
    let schemas = [
        Grammar::JsonObject,
        Grammar::JsonSchema(json!({"type": "object"})),
        Grammar::JsonSchema(json!(true)),
    ];
    for grammar in schemas {
        let mut guide = canary.grammars.compile(&grammar, Beginning::Answer).expect("it compiles");
        let open = canary.tokenizer.encode("{", Specials::AsText).expect("it is text")[0];
        guide.accept(open).expect("an object begins so");
        let mut count = 0;
        while canary.allowed(&mut guide).contains(&newline) {
            guide.accept(newline).expect("it was allowed");
            count += 1;
            assert!(count <= 64, "without end");
        }
        assert!(count > 10, "{count}: an indented object needs some");
    }
}

/// The name of a token in a text is a text.
#[test]
fn names_of_tokens_in_texts_are_texts() {
    let canary = walk::canary();
    let grammar = Grammar::Choice(vec!["<|im_end|>".to_owned()]);
    let mut guide = canary.grammars.compile(&grammar, Beginning::Answer).expect("it compiles");
    assert!(!canary.allowed(&mut guide).contains(&canary.eos[0]));
    assert_eq!(canary.walk(&grammar, 1).as_deref(), Some("<|im_end|>"));
}

#[test]
fn what_does_not_compile_says_why() {
    let canary = walk::canary();
    for grammar in [
        Grammar::Regex("(a".into()),
        Grammar::Regex("(?=a)a".into()),
        Grammar::Choice(vec![]),
        Grammar::Lark("begin: \"a\"".into()),
        Grammar::JsonSchema(json!({"type": "strin"})),
        Grammar::JsonSchema(json!({"type": "integer", "minimum": 5, "maximum": 4})),
        Grammar::JsonSchema(json!({"$ref": "https://example.com/schema"})),
    ] {
        let error = canary.grammars.compile(&grammar, Beginning::Answer).expect_err("it is wrong");
        assert!(matches!(&error, Error::Grammar(why) if !why.is_empty() && why.len() < 500), "{error}");
    }
}
