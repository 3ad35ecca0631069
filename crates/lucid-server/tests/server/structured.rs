//! Answers that are held to a grammar, and calls that must be made.

use serde_json::{Value, json};

use crate::fixture::{self, CAPITAL, CHAT, COMPLETIONS, ask, shared};

fn with(mut request: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

fn person() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "person", "strict": true, "schema": {
        "type": "object", "additionalProperties": false, "required": ["name", "age"],
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}}}}})
}

fn tools() -> Value {
    let tool = |name: &str, property: &str, kind: &str| {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "additionalProperties": false,
            "properties": {property: {"type": kind, "maximum": 99, "maxLength": 9}}, "required": [property]}}})
    };
    json!([tool("get_weather", "city", "string"), tool("roll_dice", "sides", "integer")])
}

/// The question has nothing to do with the schema, so that only the mask can make the answer fit.
#[test]
fn content_is_of_the_schema_and_reasoning_is_free() {
    let request = with(ask(CAPITAL), json!({"response_format": person()}));
    let answer = fixture::post(shared(), CHAT, &request);
    let message = &answer["choices"][0]["message"];
    let content: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
    assert!(content["name"].as_str().unwrap().chars().count() <= 12, "{content}");
    assert!((0..=120).contains(&content["age"].as_i64().unwrap()), "{content}");
    assert_eq!(content.as_object().unwrap().len(), 2);
    // What the free model says, word for word.
    let free = fixture::post(shared(), CHAT, &ask(CAPITAL));
    assert_eq!(message["reasoning"], free["choices"][0]["message"]["reasoning"]);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    // A stream says the same.
    let chunks = fixture::stream(shared(), CHAT, &request);
    assert_eq!(fixture::joined(&chunks, "content"), message["content"].as_str().unwrap());
}

#[test]
fn without_reasoning_the_grammar_begins_at_once() {
    let instant = with(ask(CAPITAL), json!({"chat_template_kwargs": {"thinking": false}}));
    let content = |more: Value| {
        let answer = fixture::post(shared(), CHAT, &with(instant.clone(), more));
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(content(json!({"structured_outputs": {"regex": "[0-9]{3}-[0-9]{2}"}})).len(), 6);
    let choice = content(json!({"guided_choice": ["Berlin", "Madrid"]}));
    assert!(["Berlin", "Madrid"].contains(&choice.as_str()), "{choice}");
    let list = content(json!({"guided_grammar": "start: item (\", \" item){2}\nitem: \"red\" | \"blue\""}));
    assert_eq!(list.split(", ").filter(|item| ["red", "blue"].contains(item)).count(), 3, "{list}");
    // Also at a temperature, with bias and penalties, and in every answer of several.
    let hot = json!({"structured_outputs": {"choice": ["yes", "no"]}, "temperature": 1.5, "n": 4, "seed": 3,
        "presence_penalty": 1.0, "repetition_penalty": 1.3, "min_tokens": 9});
    let answers = fixture::post(shared(), CHAT, &with(instant.clone(), hot));
    for choice in answers["choices"].as_array().unwrap() {
        assert!(["yes", "no"].contains(&choice["message"]["content"].as_str().unwrap()), "{choice}");
    }
}

#[test]
fn completions_are_held_too() {
    let request = json!({"prompt": "The capital of France is", "temperature": 0, "max_tokens": 40,
        "structured_outputs": {"choice": [" Rome", " Paris is large"]}});
    assert_eq!(fixture::post(shared(), COMPLETIONS, &request)["choices"][0]["text"], " Paris is large");
}

/// What a token would have been is still told: log-probabilities are the model's, not the mask's.
#[test]
fn log_probabilities_are_those_of_the_model() {
    let request =
        json!({"prompt": "The capital of France is", "temperature": 0, "max_tokens": 1, "logprobs": 1});
    let free = fixture::post(shared(), COMPLETIONS, &request);
    let held = fixture::post(
        shared(),
        COMPLETIONS,
        &with(request, json!({"structured_outputs": {"choice": [" Rome"]}})),
    );
    let top = |answer: &Value| answer["choices"][0]["logprobs"]["top_logprobs"][0].clone();
    assert_eq!(top(&held)[" Paris"], top(&free)[" Paris"]);
    assert!(held["choices"][0]["logprobs"]["token_logprobs"][0].as_f64().unwrap() < -1.0, "{held}");
}

#[test]
fn calls_can_be_forced() {
    let request = with(ask(CAPITAL), json!({"tools": tools()}));
    for (choice, only) in [
        (json!("required"), None),
        (json!({"type": "function", "function": {"name": "roll_dice"}}), Some("roll_dice")),
        (json!({"type": "function", "function": {"name": "get_weather"}}), Some("get_weather")),
    ] {
        for thinking in [true, false] {
            let kwargs = json!({"tool_choice": choice, "chat_template_kwargs": {"thinking": thinking}, "max_tokens": 400});
            let answer = fixture::post(shared(), CHAT, &with(request.clone(), kwargs));
            let message = &answer["choices"][0]["message"];
            assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
            assert_eq!(message["content"], Value::Null);
            assert_eq!(message["reasoning"].is_string(), thinking, "{message}");
            let calls = message["tool_calls"].as_array().unwrap();
            assert!(only.is_none() || calls.len() == 1, "{calls:?}");
            for call in calls {
                let name = call["function"]["name"].as_str().unwrap();
                assert!(only.is_none_or(|only| only == name), "{call}");
                let arguments: Value =
                    serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
                let fits = match name {
                    "get_weather" => arguments["city"].is_string(),
                    _ => arguments["sides"].as_i64().is_some_and(|sides| sides <= 99),
                };
                assert!(fits && arguments.as_object().unwrap().len() == 1, "{call}");
            }
            assert_eq!(
                calls[0]["id"],
                format!("functions.{}:0", calls[0]["function"]["name"].as_str().unwrap())
            );
        }
    }
}

/// Kimi numbers calls over the whole conversation.
#[test]
fn the_number_of_a_forced_call_goes_on() {
    let call = json!({"id": "functions.get_weather:0", "type": "function",
        "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}});
    let request = json!({"temperature": 0, "max_tokens": 300, "tools": tools(), "tool_choice": "required", "messages": [
        {"role": "user", "content": "What is the weather in Oslo?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": "7 degrees, rain"},
        {"role": "user", "content": "And in Paris?"},
    ]});
    let answer = fixture::post(shared(), CHAT, &request);
    let id = answer["choices"][0]["message"]["tool_calls"][0]["id"].as_str().unwrap().to_owned();
    assert!(id.ends_with(":1"), "{id}");
}

/// A schema for the content forbids no calls.
#[test]
fn a_model_with_tools_may_still_call_them() {
    let question = ask("What is the weather in Oslo?");
    let answer = fixture::post(
        shared(),
        CHAT,
        &with(question, json!({"tools": tools(), "response_format": person()})),
    );
    assert_eq!(
        answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "get_weather",
        "{answer}"
    );
    let answer = fixture::post(
        shared(),
        CHAT,
        &with(ask(CAPITAL), json!({"tools": tools(), "response_format": person()})),
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    serde_json::from_str::<Value>(answer["choices"][0]["message"]["content"].as_str().unwrap()).unwrap();
}

#[test]
fn grammars_that_do_not_compile_are_refused_by_name() {
    for (more, param) in [
        (json!({"guided_regex": "(a"}), "guided_regex"),
        (json!({"guided_grammar": "begin: \"a\""}), "guided_grammar"),
        (json!({"guided_json": {"type": "strin"}}), "guided_json"),
        (json!({"guided_json": {"type": "integer", "minimum": 5, "maximum": 4}}), "guided_json"),
        (json!({"guided_json": {"$ref": "https://example.com/schema"}}), "guided_json"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "strin"}}}],
            "tool_choice": "required"}),
            "tools",
        ),
    ] {
        let (status, error) = fixture::post_error(shared(), CHAT, &with(ask(CAPITAL), more.clone()));
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{more} → {error}");
        assert!(error["message"].as_str().unwrap().len() < 600, "{error}");
    }
}

/// A grammar belongs to an answer: neighbours in the batch are free, and have the bits that they have alone.
#[test]
fn neighbours_are_free() {
    let request = with(ask(CAPITAL), json!({"logprobs": true}));
    let alone = fixture::post(shared(), CHAT, &request);
    let held = with(ask(CAPITAL), json!({"response_format": {"type": "json_object"}, "max_tokens": 200}));
    std::thread::scope(|scope| {
        let neighbours: Vec<_> =
            (0..3).map(|_| scope.spawn(|| fixture::post(shared(), CHAT, &held))).collect();
        let together = fixture::post(shared(), CHAT, &request);
        assert_eq!(together["choices"][0]["message"], alone["choices"][0]["message"]);
        assert_eq!(together["choices"][0]["logprobs"], alone["choices"][0]["logprobs"]);
        for neighbour in neighbours {
            let answer = neighbour.join().unwrap();
            if answer["choices"][0]["finish_reason"] == "stop" {
                let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
                assert!(serde_json::from_str::<Value>(content).unwrap().is_object(), "{content}");
            }
        }
    });
}
