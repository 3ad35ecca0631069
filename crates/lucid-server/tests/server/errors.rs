//! Errors over the wire.

use serde_json::{Value, json};

use crate::fixture::{self, CHAT, COMPLETIONS, ask, shared};

/// Where Lucid's errors differ from vLLM's in more than their words.
#[test]
fn recorded_errors_have_vllms_status_and_keys() {
    for exchange in fixture::data("vllm-0.32-cpu.json").as_array().unwrap() {
        let name = exchange["name"].as_str().unwrap();
        if !name.starts_with("error_") {
            continue;
        }
        let mut request = exchange["request"]["body"].clone();
        if name == "error_too_long" {
            request["prompt"] = json!(vec![5; 9000]);
        }
        let (status, ours) =
            fixture::post_error(shared(), exchange["request"]["path"].as_str().unwrap(), &request);
        let theirs: Value = serde_json::from_str(exchange["body"].as_str().unwrap()).unwrap();
        let theirs = &theirs["error"];
        assert_eq!(status, exchange["status"].as_u64().unwrap() as u16, "{name}");
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&ours), keys(theirs), "{name}");
        assert_eq!(ours["code"], theirs["code"], "{name}");
        // vLLM writes `body.` before a field whose type is wrong, and then "Bad Request".
        let param = theirs["param"].as_str().unwrap();
        assert_eq!(ours["param"], param.strip_prefix("body.").unwrap_or(param), "{name}");
        let kind = theirs["type"].as_str().unwrap();
        assert_eq!(ours["type"], if kind == "Bad Request" { "BadRequestError" } else { kind }, "{name}");
    }
}

#[test]
fn a_body_that_is_no_json_is_400() {
    for body in [&b""[..], b"{", b"[]", b"\xff\xfe", b"null"] {
        let (status, text) = fixture::post_raw(shared(), CHAT, body);
        assert_eq!(status, 400, "{text}");
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(error["error"]["param"], "body");
    }
}

#[test]
fn a_body_that_nests_without_end_is_400() {
    let body = format!("{{\"messages\": {}", "[".repeat(100_000));
    assert_eq!(fixture::post_raw(shared(), CHAT, body.as_bytes()).0, 400);
}

#[test]
fn a_body_that_is_too_large_is_413() {
    let limits = lucid_server::Limits { body_bytes: 1_000, ..lucid_server::Limits::default() };
    let server = fixture::start(None, limits);
    let (status, error) = fixture::post_error(&server, CHAT, &ask(&"a".repeat(2_000)));
    assert_eq!((status, &error["code"]), (413, &json!(413)));
    fixture::post(&server, CHAT, &ask("Hi"));
}

#[test]
fn unknown_paths_and_methods_are_answered_in_the_same_form() {
    let (status, text) = fixture::get(shared(), "/v1/embeddings");
    assert_eq!(status, 404);
    assert!(serde_json::from_str::<Value>(&text).unwrap()["error"]["message"].is_string());
    assert_eq!(fixture::get(shared(), CHAT).0, 405);
}

#[test]
fn a_budget_beyond_the_context_is_400() {
    let (status, error) =
        fixture::post_error(shared(), COMPLETIONS, &json!({"prompt": "Hi", "max_tokens": 1_000_000}));
    assert_eq!((status, &error["param"]), (400, &json!("max_tokens")));
}

#[test]
fn a_template_that_fails_blames_the_messages() {
    let request =
        json!({"messages": [{"role": "tool", "content": "x", "tool_call_id": "a.b"}], "max_tokens": 1});
    // `a.b` has one dot: the canary's template takes what follows it.
    fixture::post(shared(), CHAT, &request);
    let (status, error) =
        fixture::post_error(shared(), CHAT, &json!({"messages": [{"role": "user", "content": {}}]}));
    assert_eq!((status, &error["param"]), (400, &json!("messages[0].content")));
}
