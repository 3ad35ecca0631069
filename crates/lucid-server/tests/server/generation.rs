//! Where an answer ends, how it is drawn, and what else can be asked for.

use serde_json::{Value, json};

use crate::fixture::{self, CAPITAL, CHAT, COMPLETIONS, ask, shared};

fn with(mut request: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

#[test]
fn a_budget_that_reasoning_uses_up_leaves_no_content() {
    let answer = fixture::post(shared(), CHAT, &with(ask(CAPITAL), json!({"max_completion_tokens": 8})));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(answer["usage"]["completion_tokens"], 8);
    assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 8);
}

#[test]
fn reasoning_can_be_left_out() {
    let answer = fixture::post(shared(), CHAT, &with(ask(CAPITAL), json!({"include_reasoning": false})));
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], "The capital of France is Paris.");
    assert_eq!((&message["reasoning"], &message["reasoning_content"]), (&Value::Null, &Value::Null));
}

/// " is Par" begins inside one token and ends inside another.
#[test]
fn a_stop_string_ends_the_answer_and_no_part_of_it_leaks() {
    let instant = with(ask(CAPITAL), json!({"chat_template_kwargs": {"thinking": false}}));
    for (stop, include, content) in [
        (json!("s Par"), false, "The capital of France i"),
        (json!("s Par"), true, "The capital of France is Par"),
        (json!(["never", " France is"]), false, "The capital of"),
    ] {
        let request = with(
            instant.clone(),
            json!({"stop": stop, "include_stop_str_in_output": include, "return_token_ids": true}),
        );
        let answer = fixture::post(shared(), CHAT, &request);
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"]["content"], content);
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(choice["stop_reason"], stop.get(1).unwrap_or(&stop).clone());
        let chunks = fixture::stream(shared(), CHAT, &request);
        assert_eq!(fixture::joined(&chunks, "content"), content);
        assert_eq!(chunks.last().unwrap()["choices"][0]["stop_reason"], choice["stop_reason"]);
        let counted = choice["token_ids"].as_array().unwrap().len();
        assert_eq!(answer["usage"]["completion_tokens"], counted);
    }
}

#[test]
fn a_stop_token_of_the_request_is_named() {
    let instant = with(ask(CAPITAL), json!({"chat_template_kwargs": {"thinking": false}}));
    let france = fixture::post(shared(), "/tokenize", &json!({"prompt": " France"}))["tokens"][0].clone();
    let answer = fixture::post(shared(), CHAT, &with(instant.clone(), json!({"stop_token_ids": [france]})));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "The capital of");
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &france));

    let more = json!({"stop_token_ids": [france], "min_tokens": 6});
    let answer = fixture::post(shared(), CHAT, &with(instant, more));
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() >= 6);
}

#[test]
fn ignore_eos_goes_on_to_the_budget() {
    let request = with(ask(CAPITAL), json!({"ignore_eos": true, "max_tokens": 48}));
    let answer = fixture::post(shared(), CHAT, &request);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 48);
}

#[test]
fn a_seed_repeats_an_answer_and_n_draws_several() {
    let request = json!({
        "model": "canary", "messages": [{"role": "user", "content": "Tell me a story."}],
        "temperature": 1.5, "top_p": 1, "seed": 11, "n": 3, "max_tokens": 60, "return_token_ids": true,
    });
    let draw = || fixture::post(shared(), CHAT, &request)["choices"].clone();
    let (first, second) = (draw(), draw());
    assert_eq!(first, second);
    let ids: Vec<&Value> = (0..3).map(|i| &first[i]["token_ids"]).collect();
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    // The second answer of seed 11 is the first of seed 12.
    let next = fixture::post(shared(), CHAT, &with(request.clone(), json!({"seed": 12, "n": 1})));
    assert_eq!(&next["choices"][0]["token_ids"], ids[1]);
}

#[test]
fn several_answers_share_a_stream() {
    let request =
        with(ask("Tell me a story."), json!({"temperature": 1, "seed": 3, "n": 2, "max_tokens": 20}));
    let whole = fixture::post(shared(), CHAT, &request);
    let chunks = fixture::stream(shared(), CHAT, &request);
    for index in 0..2 {
        let mine: Vec<&Value> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|choice| choice["index"] == index)
            .collect();
        assert_eq!(mine[0]["delta"], json!({"role": "assistant", "content": ""}));
        assert_eq!(mine.last().unwrap()["finish_reason"], "length");
        let reasoning: String =
            mine.iter().filter_map(|choice| choice["delta"]["reasoning"].as_str()).collect();
        assert_eq!(reasoning, whole["choices"][index]["message"]["reasoning"].as_str().unwrap());
    }
}

#[test]
fn logit_bias_forbids_a_token() {
    let paris = fixture::post(shared(), "/tokenize", &json!({"prompt": " Paris"}))["tokens"][0].clone();
    let bias = json!({paris.to_string(): -100});
    let answer = fixture::post(
        shared(),
        CHAT,
        &with(ask(CAPITAL), json!({"logit_bias": bias, "return_token_ids": true})),
    );
    assert!(!answer["choices"][0]["token_ids"].as_array().unwrap().contains(&paris));
}

#[test]
fn tokens_can_be_named_by_their_ids() {
    let more = json!({"logprobs": true, "top_logprobs": 1, "max_tokens": 2, "return_tokens_as_token_ids": true,
                      "return_token_ids": true});
    let answer = fixture::post(shared(), CHAT, &with(ask(CAPITAL), more));
    let choice = &answer["choices"][0];
    for (entry, id) in
        choice["logprobs"]["content"].as_array().unwrap().iter().zip(choice["token_ids"].as_array().unwrap())
    {
        assert_eq!(entry["token"], format!("token_id:{id}"));
    }
}

#[test]
fn usage_can_come_with_every_chunk() {
    let more =
        json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}, "max_tokens": 5});
    let chunks = fixture::stream(shared(), CHAT, &with(ask(CAPITAL), more));
    let counts: Vec<u64> =
        chunks.iter().map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted());
    assert_eq!((counts[0], *counts.last().unwrap()), (0, 5));
    assert_eq!(chunks.last().unwrap()["choices"], json!([]));
}

#[test]
fn usage_says_what_came_from_the_prefix_cache() {
    // Tokens that no other test asks for, two whole pages and a bit, and one page and a bit. The two begin differently: with a common
    // page the second might find the first's, if the first is through before the second is taken in.
    let prompt = |first: u32, tokens: u32| (0..tokens).map(|i| first + i * 3 % 500).collect::<Vec<u32>>();
    let request =
        json!({"prompt": [prompt(1000, 150), prompt(1600, 100)], "temperature": 0, "max_tokens": 4});
    let cold = fixture::post(shared(), COMPLETIONS, &request);
    let warm = fixture::post(shared(), COMPLETIONS, &request);
    assert_eq!(cold["usage"]["prompt_tokens_details"], Value::Null);
    assert_eq!(warm["usage"]["prompt_tokens_details"], json!({"cached_tokens": 128 + 64}));
    assert_eq!(warm["usage"]["prompt_tokens"], 250);
    for i in 0..2 {
        assert_eq!(cold["choices"][i]["text"], warm["choices"][i]["text"]);
    }
    let chunks = fixture::stream(
        shared(),
        COMPLETIONS,
        &with(request, json!({"stream_options": {"include_usage": true}})),
    );
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(usage["prompt_tokens_details"], json!({"cached_tokens": 128 + 64}));
}

#[test]
fn several_prompts_have_several_answers() {
    let prompts = ["The capital of France is", "The capital of Peru is"];
    let request = |prompt: Value| json!({"prompt": prompt, "temperature": 0, "max_tokens": 2});
    let together = fixture::post(shared(), COMPLETIONS, &with(request(json!(prompts)), json!({"n": 2})));
    for (index, choice) in together["choices"].as_array().unwrap().iter().enumerate() {
        let alone = fixture::post(shared(), COMPLETIONS, &request(json!(prompts[index / 2])));
        assert_eq!(choice["text"], alone["choices"][0]["text"]);
        assert_eq!(choice["index"], index);
    }
    assert_eq!(together["choices"].as_array().unwrap().len(), 4);
}

#[test]
fn a_completion_streams_what_it_answers_whole() {
    let request = json!({"prompt": "The capital of France is", "temperature": 0, "max_tokens": 6, "logprobs": 1, "echo": true,
                         "return_token_ids": true});
    let whole = fixture::post(shared(), COMPLETIONS, &request);
    let chunks = fixture::stream(shared(), COMPLETIONS, &request);
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, whole["choices"][0]["text"]);
    for list in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
        let joined: Value = chunks
            .iter()
            .flat_map(|chunk| chunk["choices"][0]["logprobs"][list].as_array().cloned().unwrap_or_default())
            .collect();
        assert_eq!(joined, whole["choices"][0]["logprobs"][list], "{list}");
    }
    assert_eq!(chunks[0]["choices"][0]["prompt_token_ids"], whole["choices"][0]["prompt_token_ids"]);
}

#[test]
fn a_prompt_can_be_scored_without_an_answer() {
    let request =
        json!({"prompt": "The capital of France is Paris", "max_tokens": 0, "echo": true, "logprobs": 0});
    let answer = fixture::post(shared(), COMPLETIONS, &request);
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "The capital of France is Paris");
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[test]
fn prompt_logprobs_of_a_conversation_stand_at_the_top() {
    let answer =
        fixture::post(shared(), CHAT, &with(ask(CAPITAL), json!({"prompt_logprobs": 1, "max_tokens": 1})));
    let entries = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!(entries.len(), answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize);
    assert!(entries[0].is_null() && entries[1].is_object());
}

#[test]
fn without_parsing_a_call_stays_text() {
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}}, "required": ["city"]}, "description": "Get the weather of a city"}}]);
    let request = with(
        ask("What is the weather in Oslo?"),
        json!({"tools": tools, "tool_choice": "none", "max_tokens": 96}),
    );
    let choice = fixture::post(shared(), CHAT, &request)["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "stop");
    assert!(choice["message"].get("tool_calls").is_none());
    assert!(
        choice["message"]["content"].as_str().unwrap().starts_with("<|tool_calls_section_begin|>"),
        "{choice}"
    );
}
