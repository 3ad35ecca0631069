//! The greedy answers that transformers computed, word by word, split into reasoning and content.

use serde_json::{Value, json};

use crate::fixture::{self, CHAT, shared};

fn goldens() -> serde_json::Map<String, Value> {
    fixture::data("goldens.json").as_object().unwrap().clone()
}

fn request(case: &Value) -> Value {
    let mut request = json!({
        "model": "canary", "messages": case["messages"], "temperature": 0, "max_tokens": 256, "return_token_ids": true,
    });
    if !case["tools"].is_null() {
        request["tools"] = case["tools"].clone();
    }
    if !case["thinking"].is_null() {
        request["chat_template_kwargs"] = json!({"thinking": case["thinking"]});
    }
    request
}

/// Reasoning and content of a golden text without tool calls.
fn split(case: &Value) -> (Option<&str>, &str) {
    let text = case["completion"].as_str().unwrap().strip_suffix("<|im_end|>").unwrap();
    match text.split_once("</think>") {
        Some((reasoning, content)) => (Some(reasoning), content),
        None => (None, text),
    }
}

#[test]
fn answers_are_the_goldens() {
    for (name, case) in goldens() {
        let answer = fixture::post(shared(), CHAT, &request(&case));
        assert_eq!(answer["prompt_token_ids"], case["prompt_ids"], "{name}");
        let choice = &answer["choices"][0];
        assert_eq!(choice["token_ids"], case["completion_ids"], "{name}");
        let message = &choice["message"];
        let (reasoning, content) = split(&case);
        assert_eq!(message["reasoning"], json!(reasoning), "{name}");
        assert_eq!(message["reasoning_content"], message["reasoning"], "{name}");
        if name == "tool_call" {
            assert_eq!(choice["finish_reason"], "tool_calls");
            assert_eq!(message["content"], Value::Null);
            assert_eq!(
                message["tool_calls"],
                json!([{
                    "id": "functions.get_weather:0",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"},
                }])
            );
        } else {
            assert_eq!(choice["finish_reason"], "stop", "{name}");
            assert_eq!(message["content"], content, "{name}");
            assert!(message.get("tool_calls").is_none(), "{name}");
        }
        let completion = case["completion_ids"].as_array().unwrap().len();
        assert_eq!(answer["usage"]["completion_tokens"], completion, "{name}");
    }
}

#[test]
fn a_stream_says_the_same_as_a_whole_answer() {
    for (name, case) in goldens() {
        let mut request = request(&case);
        request["logprobs"] = json!(true);
        request["top_logprobs"] = json!(2);
        let whole = fixture::post(shared(), CHAT, &request);
        request["stream_options"] = json!({"include_usage": true});
        let chunks = fixture::stream(shared(), CHAT, &request);
        let (choice, message) = (&whole["choices"][0], &whole["choices"][0]["message"]);
        for field in ["reasoning", "content"] {
            assert_eq!(
                fixture::joined(&chunks, field),
                message[field].as_str().unwrap_or(""),
                "{name} {field}"
            );
        }
        let concatenated = |pick: &dyn Fn(&Value) -> Value| -> Value {
            chunks
                .iter()
                .flat_map(|chunk| pick(&chunk["choices"][0]).as_array().cloned().unwrap_or_default())
                .collect()
        };
        assert_eq!(concatenated(&|choice| choice["token_ids"].clone()), choice["token_ids"], "{name}");
        assert_eq!(
            concatenated(&|choice| choice["logprobs"]["content"].clone()),
            choice["logprobs"]["content"],
            "{name}"
        );
        let calls = concatenated(&|choice| choice["delta"]["tool_calls"].clone());
        let arguments: String = calls
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|call| call["function"]["arguments"].as_str())
            .collect();
        assert_eq!(
            arguments,
            message["tool_calls"][0]["function"]["arguments"].as_str().unwrap_or(""),
            "{name}"
        );
        let finish: Vec<&Value> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0]["finish_reason"])
            .filter(|reason| !reason.is_null())
            .collect();
        assert_eq!(finish, [&choice["finish_reason"]], "{name}");
        let usage = &chunks.last().unwrap()["usage"];
        assert_eq!(usage["total_tokens"], whole["usage"]["total_tokens"], "{name}");
        assert_eq!(usage["completion_tokens_details"], whole["usage"]["completion_tokens_details"], "{name}");
    }
}

#[test]
fn tokenize_renders_a_conversation_as_chat_does() {
    for (name, case) in goldens() {
        let mut request = request(&case);
        request["return_token_strs"] = json!(true);
        let answer = fixture::post(shared(), "/tokenize", &request);
        assert_eq!(answer["tokens"], case["prompt_ids"], "{name}");
        assert_eq!(answer["count"], case["prompt_ids"].as_array().unwrap().len(), "{name}");
        assert_eq!(
            answer["token_strs"].as_array().unwrap().len(),
            answer["count"].as_u64().unwrap() as usize
        );
        let back = fixture::post(shared(), "/detokenize", &json!({"tokens": case["completion_ids"]}));
        assert_eq!(back["prompt"], case["completion"], "{name}");
    }
}

/// The same tokens through the plain endpoint: nothing is parsed, and non-special tokens such as `</think>` stay.
#[test]
fn completions_of_token_ids() {
    let case = &goldens()["capital"];
    let request =
        json!({"prompt": case["prompt_ids"], "temperature": 0, "max_tokens": 64, "return_token_ids": true});
    let answer = fixture::post(shared(), "/v1/completions", &request);
    let text = case["completion"].as_str().unwrap().strip_suffix("<|im_end|>").unwrap();
    assert_eq!(answer["choices"][0]["text"], text);
    assert_eq!(answer["choices"][0]["token_ids"], case["completion_ids"]);
}
