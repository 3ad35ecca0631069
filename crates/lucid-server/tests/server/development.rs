//! What a server does for developers alone.

use serde_json::{Value, json};

use crate::fixture::{self, CAPITAL, CHAT, ask};

#[test]
fn a_request_can_ask_where_its_tokens_went() {
    let server = fixture::talkative();
    let prompt = json!({"model": "canary", "prompt": [1, 2, 3, 4, 5], "max_tokens": 3, "temperature": 0});
    let silent = fixture::post(&server, "/v1/completions", &prompt);
    assert_eq!(silent["choices"][0]["routed_experts"], Value::Null);
    let mut asking = prompt.clone();
    asking["return_routed_experts"] = json!(true);
    let told = fixture::post(&server, "/v1/completions", &asking);
    assert_eq!(told["choices"][0]["text"], silent["choices"][0]["text"]);
    // The head of a NumPy file: five tokens of the prompt and two of the answer, in four layers, to four experts each.
    let routes = told["choices"][0]["routed_experts"].as_str().unwrap();
    let head =
        "k05VTVBZAQB2AHsnZGVzY3InOiAnfHUxJywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDcsIDQsIDQpLCB9";
    assert!(routes.starts_with(head), "{routes}");
    let mut chat = ask(CAPITAL);
    chat["return_routed_experts"] = json!(true);
    assert!(fixture::post(&server, CHAT, &chat)["choices"][0]["routed_experts"].is_string());
    // Nobody else's server tells, and no stream.
    assert_eq!(
        fixture::post(fixture::shared(), "/v1/completions", &asking)["choices"][0]["routed_experts"],
        Value::Null
    );
    asking["stream"] = json!(true);
    let (status, error) = fixture::post_error(&server, "/v1/completions", &asking);
    assert_eq!((status, &error["param"]), (400, &json!("return_routed_experts")));
}

#[test]
fn the_prefix_cache_can_be_emptied_where_that_is_allowed() {
    let server = fixture::talkative();
    let ids: Vec<u32> = (0..200).map(|i| 300 + i).collect();
    let prompt = json!({"model": "canary", "prompt": ids, "max_tokens": 2, "temperature": 0});
    let cached = || {
        let answer = fixture::post(&server, "/v1/completions", &prompt);
        (
            answer["choices"][0]["text"].clone(),
            answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64(),
        )
    };
    let first = cached();
    let warm = cached();
    assert!(first.1.unwrap_or(0) == 0 && warm.1 > Some(0), "{first:?} {warm:?}");
    assert_eq!(fixture::post(&server, "/reset_prefix_cache", &json!({})), json!({"success": true}));
    assert_eq!(cached().1.unwrap_or(0), 0);
    assert_eq!(cached().0, first.0);
    assert_eq!(fixture::post(&server, "/flush_cache", &json!({})), json!({"success": true}));
    let (status, _) = fixture::post_error(fixture::shared(), "/reset_prefix_cache", &json!({}));
    assert_eq!(status, 404, "not unasked");
}
