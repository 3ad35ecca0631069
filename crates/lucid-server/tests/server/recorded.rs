//! Against a real vLLM that served the same model: the same keys, the same choice of null and absent, the same words.

use std::io::BufReader;

use serde_json::{Value, json};

use crate::fixture::{self, CHAT, COMPLETIONS, shared};

/// Fields that Lucid adds to vLLM's shapes; the reasoning stands under SGLang's and DeepSeek's name as well.
const ADDED: [&str; 1] = ["reasoning_content"];
/// Values that are each server's own.
const OWN: [&str; 7] = ["id", "created", "system_fingerprint", "owned_by", "root", "logprob", "version"];

/// The recording of that name.
fn recording(name: &str) -> Value {
    let all = fixture::data("vllm-0.32-cpu.json");
    all.as_array().unwrap().iter().find(|exchange| exchange["name"] == name).unwrap().clone()
}

fn recorded_body(recording: &Value) -> Value {
    serde_json::from_str(recording["body"].as_str().unwrap()).unwrap()
}

/// Asserts that `ours` is `theirs`, but for additions and each server's own values.
fn same(ours: &Value, theirs: &Value, at: &str) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            let keys = |map: &serde_json::Map<String, Value>| -> Vec<String> {
                let mut keys: Vec<_> =
                    map.keys().filter(|key| !ADDED.contains(&key.as_str())).cloned().collect();
                keys.sort();
                keys
            };
            assert_eq!(keys(ours), keys(theirs), "keys of {at}");
            for (key, theirs) in theirs {
                let at = format!("{at}.{key}");
                if OWN.contains(&key.as_str()) {
                    assert_eq!(ours[key].is_null(), theirs.is_null(), "{at}");
                    assert_eq!(ours[key].is_number(), theirs.is_number(), "{at}");
                } else {
                    same(&ours[key], theirs, &at);
                }
            }
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            assert_eq!(ours.len(), theirs.len(), "length of {at}");
            for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                same(ours, theirs, &format!("{at}[{i}]"));
            }
        }
        _ => assert_eq!(ours, theirs, "{at}"),
    }
}

fn check(name: &str, path: &str) {
    let recording = recording(name);
    let ours = fixture::post(shared(), path, &recording["request"]["body"]);
    same(&ours, &recorded_body(&recording), name);
}

#[test]
fn chat() {
    check("chat", CHAT);
}

#[test]
fn chat_whose_budget_went_into_reasoning() {
    check("chat_budget_exhausted", CHAT);
}

#[test]
fn chat_without_thinking() {
    check("chat_no_thinking", CHAT);
}

#[test]
fn chat_with_tools() {
    check("chat_tools", CHAT);
}

#[test]
fn tokenize() {
    check("tokenize", "/tokenize");
}

#[test]
fn models() {
    let ours: Value = serde_json::from_str(&fixture::get(shared(), "/v1/models").1).unwrap();
    same(&ours, &recorded_body(&recording("models")), "models");
}

#[test]
fn version_and_health() {
    let ours: Value = serde_json::from_str(&fixture::get(shared(), "/version").1).unwrap();
    same(&ours, &recorded_body(&recording("version")), "version");
    assert_eq!(fixture::get(shared(), "/health"), (200, String::new()));
    assert_eq!(fixture::get(shared(), "/ping"), (200, String::new()));
}

/// Every chunk of theirs is one of ours, in the same order.
#[test]
fn chat_streamed() {
    let recording = recording("chat_stream");
    let theirs = fixture::events(BufReader::new(recording["body"].as_str().unwrap().as_bytes()));
    let ours = fixture::stream(shared(), CHAT, &recording["request"]["body"]);
    same(&json!(ours), &json!(theirs), "chat_stream");
}

/// How arguments are cut into fragments is the parser's affair; the first chunk, the shapes, and the whole are not.
#[test]
fn tools_streamed() {
    let recording = recording("chat_tools_stream");
    let theirs = fixture::events(BufReader::new(recording["body"].as_str().unwrap().as_bytes()));
    let ours = fixture::stream(shared(), CHAT, &recording["request"]["body"]);
    same(&ours[0], &theirs[0], "role chunk");
    same(ours.last().unwrap(), theirs.last().unwrap(), "finish chunk");
    assert_eq!(fixture::joined(&ours, "reasoning"), fixture::joined(&theirs, "reasoning"));
    let calls = |chunks: &[Value]| -> Vec<Value> {
        chunks
            .iter()
            .map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0].clone())
            .filter(|c| !c.is_null())
            .collect()
    };
    let (ours, theirs) = (calls(&ours), calls(&theirs));
    let arguments = |calls: &[Value]| -> String {
        calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect()
    };
    assert_eq!(arguments(&ours), arguments(&theirs));
    for at in [0, 1] {
        let (mut ours, mut theirs) = (ours[at].clone(), theirs[at].clone());
        ours["function"]["arguments"].take();
        theirs["function"]["arguments"].take();
        same(&ours, &theirs, "tool call delta");
    }
}

/// A log-probability of ours is near theirs: both compute with rounded activations, each in its own way. Far down the
/// list the rounding of bf16 is large against the distance, so only likely tokens are compared by value.
fn near(ours: &Value, theirs: &Value) {
    let (ours, theirs) = (ours.as_f64().unwrap(), theirs.as_f64().unwrap());
    if theirs > -5.0 {
        assert!((ours - theirs).abs() < 0.15, "{ours} and {theirs}");
    }
}

#[test]
fn chat_logprobs() {
    let recording = recording("chat_logprobs");
    let mut ours = fixture::post(shared(), CHAT, &recording["request"]["body"]);
    let mut theirs = recorded_body(&recording);
    let entries = |body: &mut Value| body["choices"][0]["logprobs"]["content"].take();
    let (our_entries, their_entries) = (entries(&mut ours), entries(&mut theirs));
    same(&ours, &theirs, "chat_logprobs");
    let (our_entries, their_entries) = (our_entries.as_array().unwrap(), their_entries.as_array().unwrap());
    assert_eq!(our_entries.len(), their_entries.len());
    for (ours, theirs) in our_entries.iter().zip(their_entries) {
        // Candidates after the first differ where both are as good as impossible.
        let (mut a, mut b) = (ours.clone(), theirs.clone());
        let (ours_top, theirs_top) = (a["top_logprobs"].take(), b["top_logprobs"].take());
        same(&a, &b, "entry");
        near(&ours["logprob"], &theirs["logprob"]);
        assert_eq!(ours_top.as_array().unwrap().len(), theirs_top.as_array().unwrap().len());
        same(&ours_top[0], &theirs_top[0], "best candidate");
    }
}

/// The two completions recordings have prompts whose log-probabilities vLLM computed too.
#[test]
fn completions() {
    for name in ["completions_prompt_logprobs", "completions_echo"] {
        let recording = recording(name);
        let mut ours = fixture::post(shared(), COMPLETIONS, &recording["request"]["body"]);
        let mut theirs = recorded_body(&recording);
        let prompt = |body: &mut Value| body["choices"][0]["prompt_logprobs"].take();
        let (our_prompt, their_prompt) = (prompt(&mut ours), prompt(&mut theirs));
        prompt_logprobs(our_prompt.as_array().unwrap(), their_prompt.as_array().unwrap());

        let lists = |body: &mut Value| body["choices"][0]["logprobs"].take();
        let (our_lists, their_lists) = (lists(&mut ours), lists(&mut theirs));
        for list in ["text_offset", "tokens"] {
            assert_eq!(our_lists[list], their_lists[list], "{name} {list}");
        }
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&our_lists), keys(&their_lists));
        for (ours, theirs) in
            values(&our_lists, "token_logprobs").iter().zip(values(&their_lists, "token_logprobs"))
        {
            assert_eq!(ours.is_null(), theirs.is_null());
            if !ours.is_null() {
                near(ours, theirs);
            }
        }
        for (ours, theirs) in
            values(&our_lists, "top_logprobs").iter().zip(values(&their_lists, "top_logprobs"))
        {
            assert_eq!(ours.is_null(), theirs.is_null());
            if !ours.is_null() {
                // The token itself stands first, then the likeliest others.
                assert_eq!((keys(ours).len(), &keys(ours)[0]), (keys(theirs).len(), &keys(theirs)[0]));
            }
        }
        same(&ours, &theirs, name);
    }
}

fn values<'a>(lists: &'a Value, name: &str) -> &'a Vec<Value> {
    lists[name].as_array().unwrap()
}

fn prompt_logprobs(ours: &[Value], theirs: &[Value]) {
    assert_eq!(ours.len(), theirs.len());
    assert!(ours[0].is_null() && theirs[0].is_null());
    for (ours, theirs) in ours.iter().zip(theirs).skip(1) {
        let (ours, theirs) = (ours.as_object().unwrap(), theirs.as_object().unwrap());
        assert_eq!(ours.len(), theirs.len());
        // The prompt's own token comes first.
        let ((our_id, ours), (their_id, theirs)) =
            (ours.iter().next().unwrap(), theirs.iter().next().unwrap());
        assert_eq!(our_id, their_id);
        assert_eq!(ours["decoded_token"], theirs["decoded_token"]);
        assert_eq!(ours["rank"] == 1, theirs["rank"] == 1);
        near(&ours["logprob"], &theirs["logprob"]);
    }
}

/// Lucid's names are vLLM's with another prefix, but for those that it adds.
#[test]
fn metrics() {
    fixture::post(shared(), CHAT, &fixture::ask("Hi"));
    let (status, text) = fixture::get(shared(), "/metrics");
    assert_eq!(status, 200);
    let recording = recording("metrics");
    let theirs = recording["body"].as_str().unwrap();
    let names =
        text.lines().filter(|line| line.starts_with("lucid:")).map(|line| line.split('{').next().unwrap());
    let mut count = 0;
    for name in names.filter(|name| *name != "lucid:healthy") {
        let vllm = name.replace("lucid:", "vllm:");
        assert!(theirs.lines().any(|line| line == vllm), "vLLM has no {vllm}");
        count += 1;
    }
    assert!(count > 50, "{text}");
    let stopped = text
        .lines()
        .find(|line| line.starts_with("lucid:request_success_total") && line.contains("\"stop\""));
    assert!(stopped.is_some_and(|line| !line.ends_with(" 0")), "{text}");
    assert!(text.contains("model_name=\"canary\",engine=\"0\""), "{text}");
}
