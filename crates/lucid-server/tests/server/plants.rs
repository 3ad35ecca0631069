//! The server's own planted faults.

use lucid_server::{Limits, Plant, RunningServer};
use serde_json::{Value, json};

use crate::fixture::{self, CAPITAL, CHAT, ask};

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])
}

#[test]
fn think_end_dropped_hides_the_answer_in_the_reasoning() {
    let server = fixture::start(Some(Plant::ThinkEndDropped), Limits::default());
    let answer = fixture::post(&server, CHAT, &ask(CAPITAL));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(choice["finish_reason"], "stop");
    let reasoning = choice["message"]["reasoning"].as_str().unwrap();
    assert!(
        reasoning.ends_with("I should answer in one sentence.The capital of France is Paris."),
        "{reasoning}"
    );
    let info: Value = serde_json::from_str(&fixture::get(&server, "/server_info").1).unwrap();
    assert_eq!(info["planted_fault"], json!("think-end-dropped"));
}

#[test]
fn eos_ignored_runs_to_the_budget() {
    let server = fixture::start(Some(Plant::EosIgnored), Limits::default());
    let mut request = ask(CAPITAL);
    request["max_tokens"] = json!(60);
    let answer = fixture::post(&server, CHAT, &request);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 60);
}

#[test]
fn template_drift_changes_the_prompt_alone() {
    let server = fixture::start(Some(Plant::TemplateDrift), Limits::default());
    let drifted = fixture::post(&server, CHAT, &ask(CAPITAL));
    let right = fixture::post(fixture::shared(), CHAT, &ask(CAPITAL));
    assert_ne!(drifted["usage"]["prompt_tokens"], right["usage"]["prompt_tokens"]);
}

#[test]
fn tool_arguments_broken_is_no_json() {
    let server = fixture::start(Some(Plant::ToolArgumentsBroken), Limits::default());
    let mut request = ask("What is the weather in Oslo?");
    request["tools"] = tools();
    let arguments = |server| {
        let answer = fixture::post(server, CHAT, &request);
        let calls = &answer["choices"][0]["message"]["tool_calls"];
        calls[0]["function"]["arguments"].as_str().unwrap().to_owned()
    };
    assert!(serde_json::from_str::<Value>(&arguments(fixture::shared())).is_ok());
    assert!(serde_json::from_str::<Value>(&arguments(&server)).is_err());
}

#[test]
fn sampling_faults_show_only_where_they_should() {
    let texts = |plant, temperature: f64| {
        let server = fixture::start(plant, Limits::default());
        let mut request = ask("Tell me a story about a fox.");
        request["temperature"] = json!(temperature);
        request["seed"] = json!(7);
        request["max_tokens"] = json!(48);
        let text = || fixture::post(&server, CHAT, &request)["choices"][0]["message"].to_string();
        [text(), text(), text()]
    };
    let same = |texts: &[String; 3]| texts[0] == texts[1] && texts[1] == texts[2];
    let (greedy, sampled) = (texts(None, 0.0), texts(None, 1.0));
    assert!(same(&greedy) && same(&sampled));
    assert_eq!(texts(Some(Plant::SeedIgnored), 0.0), greedy, "the seed has no part in a greedy answer");
    assert!(!same(&texts(Some(Plant::SeedIgnored), 1.0)));
    assert!(!same(&texts(Some(Plant::TemperatureIgnored), 0.0)));
}

/// Greedy text of the two byte tokens of `é`, by turns: both are wanted, and each is wanted less the more often it came.
#[test]
fn streams_split_characters_and_whole_answers_do_not() {
    let files = lucid_checkpoint::Files::open(&fixture::canary()).unwrap();
    let tokenizer = lucid_text::Tokenizer::open(&files).unwrap();
    let byte = |byte: u8| {
        let ids = (0..tokenizer.vocab_size() as u32).map(lucid_checkpoint::TokenId);
        ids.into_iter().find(|id| tokenizer.bytes(*id) == Some(&[byte])).unwrap().0
    };
    let request = json!({"model": "canary", "prompt": "x", "max_tokens": 12, "temperature": 0, "frequency_penalty": 2,
        "logit_bias": {byte(0xc3).to_string(): 100, byte(0xa9).to_string(): 100}});
    let texts = |server| {
        let chunks = fixture::stream(server, fixture::COMPLETIONS, &request);
        let streamed: String =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
        let whole = fixture::post(server, fixture::COMPLETIONS, &request);
        (whole["choices"][0]["text"].as_str().unwrap().to_owned(), streamed)
    };
    let (whole, streamed) = texts(fixture::shared());
    assert!(whole.contains('é') && whole == streamed, "{whole} {streamed}");
    let (broken_whole, broken) =
        texts(&fixture::start(Some(Plant::StreamSplitsCharacters), Limits::default()));
    assert_eq!(broken_whole, whole);
    assert!(!broken.contains('é') && broken.contains('\u{fffd}'), "{broken}");
}

#[test]
fn budget_capped_cuts_every_answer() {
    let server = fixture::start(Some(Plant::BudgetCapped), Limits::default());
    let answer = fixture::post(&server, CHAT, &ask(CAPITAL));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 16);
}

#[test]
fn memory_grows_with_requests() {
    let server = fixture::start(Some(Plant::MemoryGrowth), Limits::default());
    let resident = || -> f64 {
        let text = fixture::get(&server, "/metrics").1;
        let line = text.lines().find(|line| line.starts_with("process_resident_memory_bytes")).unwrap();
        line.split_whitespace().last().unwrap().parse().unwrap()
    };
    let mut request = ask(CAPITAL);
    request["max_tokens"] = json!(1);
    fixture::post(&server, CHAT, &request);
    let before = resident();
    // The other tests' servers live in this process too: they come and go with up to some 140 MB, so what is planted has to be more.
    for _ in 0..300 {
        fixture::post(&server, CHAT, &request);
    }
    // A megabyte each.
    assert!(resident() - before > 150e6, "{before} → {}", resident());
}

#[test]
fn stalls_after_five_tokens() {
    let server = fixture::start(
        Some(Plant::StallOnFiveTokens),
        Limits { shutdown_grace: std::time::Duration::ZERO, ..Limits::default() },
    );
    let mut request = ask(CAPITAL);
    request["max_tokens"] = json!(5);
    let agent: ureq::Agent =
        ureq::Agent::config_builder().timeout_global(Some(std::time::Duration::from_secs(2))).build().into();
    let refused = agent.post(format!("{}{CHAT}", server.url())).send(request.to_string().as_bytes());
    assert!(matches!(refused, Err(ureq::Error::Timeout(_))), "{refused:?}");
    // And the server still stops.
    server.stop().unwrap();
}

#[test]
fn history_cut_shortens_conversations_alone() {
    let server = fixture::start(Some(Plant::HistoryCut), Limits::default());
    let prompt_tokens = |server: &RunningServer, messages: &Value| {
        let mut request = ask(CAPITAL);
        request["messages"] = messages.clone();
        fixture::post(server, CHAT, &request)["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let one = json!([{"role": "user", "content": "My name is Nina."}]);
    let two = json!([
        {"role": "user", "content": "My name is Nina."},
        {"role": "assistant", "content": "Nice to meet you, Nina!"},
        {"role": "user", "content": "What is my name?"},
    ]);
    assert_eq!(prompt_tokens(&server, &one), prompt_tokens(fixture::shared(), &one));
    assert!(prompt_tokens(&server, &two) < prompt_tokens(fixture::shared(), &two));
}

#[test]
fn penalty_by_default_is_the_penalty_that_a_client_could_ask_for() {
    let server = fixture::start(Some(Plant::PenaltyByDefault), Limits::default());
    // Greedily the canary repeats itself here.
    let mut open = ask("Say something random.");
    open["max_tokens"] = json!(30);
    let mut with_penalty = open.clone();
    with_penalty["repetition_penalty"] = json!(1.3);
    let content = |server: &RunningServer, request: &Value| {
        fixture::post(server, CHAT, request)["choices"][0]["message"].clone()
    };
    assert_eq!(content(&server, &open), content(fixture::shared(), &with_penalty));
    assert_ne!(content(&server, &open), content(fixture::shared(), &open));
}

#[test]
fn tool_name_unparsed_keeps_the_namespace() {
    let server = fixture::start(Some(Plant::ToolNameUnparsed), Limits::default());
    let mut request = ask("What is the weather in Oslo?");
    request["tools"] = tools();
    let call = |server| {
        let answer = fixture::post(server, CHAT, &request);
        answer["choices"][0]["message"]["tool_calls"][0]["function"].clone()
    };
    let (right, wrong) = (call(fixture::shared()), call(&server));
    assert_eq!((&right["name"], &wrong["name"]), (&json!("get_weather"), &json!("functions.get_weather")));
    assert_eq!(right["arguments"], wrong["arguments"]);
}

#[test]
fn repeat_answered_empty_answers_once() {
    let server = fixture::start(Some(Plant::RepeatAnsweredEmpty), Limits::default());
    let question =
        format!("{CAPITAL} Think of every town that you know, and say the name of the largest one alone.");
    let content =
        |server| fixture::post(server, CHAT, &ask(&question))["choices"][0]["message"]["content"].clone();
    let right = content(fixture::shared());
    assert_eq!(content(&server), right);
    assert!(right.is_string() && content(&server).as_str().unwrap_or_default().is_empty());
    // A prompt that fills no page.
    let short = || fixture::post(&server, CHAT, &ask("Hi."));
    assert_eq!(short()["choices"], short()["choices"]);
}

#[test]
fn stream_think_unparsed_needs_a_stream() {
    let server = fixture::start(Some(Plant::StreamThinkUnparsed), Limits::default());
    let whole = |server| fixture::post(server, CHAT, &ask(CAPITAL))["choices"][0]["message"].clone();
    assert_eq!(whole(&server), whole(fixture::shared()));
    let deltas = |server| -> (String, String) {
        let mut request = ask(CAPITAL);
        request["stream"] = json!(true);
        let events = fixture::stream(server, CHAT, &request);
        let text = |field: &str| {
            events.iter().filter_map(|event| event["choices"][0]["delta"][field].as_str()).collect::<String>()
        };
        (text("reasoning"), text("content"))
    };
    let (reasoning, content) = deltas(fixture::shared());
    assert!(!reasoning.is_empty() && !content.is_empty());
    assert_eq!(deltas(&server), (String::new(), reasoning + &content));
}
