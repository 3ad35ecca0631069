//! Reads what real servers answered. See `data/README.md`.

#![allow(clippy::unwrap_used)] // tests

mod server;

use lucid_client::{ChatRequest, Dialect, Endpoint, EndpointOptions, Error, Message, TokenName};
use server::{Answer, Server, recorded};

fn connect(server: &Server) -> Endpoint {
    Endpoint::connect(&server.url(), EndpointOptions::default()).unwrap()
}

fn ask() -> ChatRequest {
    ChatRequest::new(vec![Message::user("What is the capital of France? Answer in one sentence.")])
}

#[test]
fn vllm_introduces_itself() {
    let server = Server::replay(recorded("vllm-0.32.json"));
    let info = connect(&server).info().clone();
    assert_eq!(
        (info.dialect, info.version.as_deref(), info.model.as_str(), info.max_model_len),
        (Dialect::Vllm, Some("0.32.0"), "canary", Some(4096))
    );
}

#[test]
fn llama_server_introduces_itself() {
    let server = Server::replay(recorded("llama-server.json"));
    let info = connect(&server).info().clone();
    assert_eq!(
        (info.dialect, info.model.as_str(), info.max_model_len),
        (Dialect::LlamaCpp, "canary", Some(4096))
    );
}

#[test]
fn reasoning_under_both_names() {
    for (file, content_when_cut) in [("vllm-0.32.json", None), ("llama-server.json", Some(String::new()))] {
        let server = Server::replay(recorded(file));
        let endpoint = connect(&server);
        let answer = endpoint
            .chat(&ChatRequest { max_tokens: Some(128), temperature: Some(0.0), ..ask() })
            .outcome
            .unwrap();
        assert_eq!(answer.content(), "The capital of France is Paris.", "{file}");
        assert!(answer.reasoning().unwrap().starts_with("The user asks"), "{file}");
        assert_eq!(answer.finish_reason(), Some("stop"), "{file}");
        assert_eq!(answer.usage.unwrap().completion_tokens, 32, "{file}");

        let cut = endpoint
            .chat(&ChatRequest { max_tokens: Some(8), temperature: Some(0.0), ..ask() })
            .outcome
            .unwrap();
        assert_eq!(cut.choices[0].message.content, content_when_cut, "{file}");
        assert_eq!(cut.finish_reason(), Some("length"), "{file}");
        assert_eq!(cut.reasoning(), Some("The user asks for the capital of France"), "{file}");
    }
}

#[test]
fn streams_add_up_to_the_answer() {
    for file in ["vllm-0.32.json", "llama-server.json"] {
        let server = Server::replay(recorded(file));
        let endpoint = connect(&server);
        let streamed = endpoint
            .chat_stream(&ChatRequest { max_tokens: Some(64), temperature: Some(0.0), ..ask() }, |_| {})
            .outcome
            .unwrap();
        assert_eq!(streamed.answer.content(), "The capital of France is Paris.", "{file}");
        assert!(streamed.answer.reasoning().unwrap().ends_with("in one sentence."), "{file}");
        assert_eq!(streamed.answer.finish_reason(), Some("stop"), "{file}");
        assert_eq!(streamed.answer.usage.unwrap().completion_tokens, 32, "{file}");
        assert!(streamed.done && streamed.malformed.is_empty(), "{file}: {:?}", streamed.malformed);
        assert!(streamed.text_seconds.len() > 20, "{file}");
    }
}

#[test]
fn chat_logprobs_of_both() {
    for (file, first) in
        [("vllm-0.32.json", TokenName::Bytes(b"The".to_vec())), ("llama-server.json", TokenName::Id(263))]
    {
        let server = Server::replay(recorded(file));
        let request = ChatRequest {
            max_tokens: Some(16),
            temperature: Some(0.0),
            logprobs: Some(true),
            top_logprobs: Some(3),
            ..ask()
        };
        let reply = connect(&server).chat(&request);
        let scored = Endpoint::chat_logprobs(&reply.exchange, &reply.outcome.unwrap()).unwrap().unwrap();
        assert_eq!(scored.len(), 16, "{file}");
        assert_eq!(scored[0].token, first, "{file}");
        assert!((scored[0].logprob - -0.04).abs() < 2e-3, "{file}: {}", scored[0].logprob);
        assert_eq!(scored[0].top.len(), 3, "{file}");
    }
}

#[test]
fn vllm_scores_prompt_and_answer() {
    let server = Server::replay(recorded("vllm-0.32.json"));
    // The recording gave its prompt as text; these are its ids.
    let prompt = [3843, 291, 3857, 2309, 3842];
    let reply = connect(&server).score_tokens(&prompt, 4, 2, false);
    let (of_prompt, generated) = reply.outcome.unwrap();
    assert_eq!(of_prompt.len() + 1, prompt.len());
    assert!(of_prompt.iter().zip(&prompt[1..]).all(|(scored, id)| scored.token == TokenName::Id(*id)));
    assert!(of_prompt.iter().all(|scored| scored.top.len() >= 2 && scored.logprob <= 0.0));
    assert_eq!(generated.len(), 4);
    assert_eq!(generated[0].token, TokenName::Id(3844));
}

#[test]
fn errors_carry_the_servers_words() {
    let server = Server::replay(recorded("vllm-0.32.json"));
    let endpoint = connect(&server);
    let error = endpoint.chat(&ChatRequest { model: "nope".into(), ..ask() }).outcome.unwrap_err();
    let Error::Status { status: 404, message, param, .. } = &error else { panic!("{error}") };
    assert!(message.contains("`nope` does not exist") && param.as_deref() == Some("model"), "{error}");
}

#[test]
fn wrong_model_names_are_refused_before_asking() {
    let server = Server::replay(recorded("vllm-0.32.json"));
    let options = EndpointOptions { model: Some("kimi".into()), ..EndpointOptions::default() };
    let error = Endpoint::connect(&server.url(), options).unwrap_err().to_string();
    assert!(error.contains("no model `kimi`") && error.contains("canary"), "{error}");
}

#[test]
fn a_stream_with_a_broken_frame_keeps_it() {
    let mut answers = recorded("vllm-0.32.json");
    for answer in &mut answers {
        if answer.name == "chat_stream" {
            answer.body = format!("data: {{\"choices\": [{{\"delta\": \n\nnonsense\n\n{}", answer.body);
        }
    }
    let server = Server::start(move |request| Answer::from_recording(&answers, request));
    let streamed = connect(&server)
        .chat_stream(&ChatRequest { max_tokens: Some(64), temperature: Some(0.0), ..ask() }, |_| {})
        .outcome
        .unwrap();
    assert_eq!(streamed.malformed, ["{\"choices\": [{\"delta\": ", "nonsense"]);
    assert_eq!(streamed.answer.content(), "The capital of France is Paris.");
}

#[test]
fn a_cache_is_flushed_as_the_dialect_has_it() {
    let flushing = |owner: &'static str, status: u16, body: &'static str| {
        Server::start(move |request| match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/v1/models") => {
                let card = format!(r#"{{"data":[{{"id":"m","owned_by":"{owner}","max_model_len":4096}}]}}"#);
                Answer::http(200, "application/json", &card)
            }
            ("POST", "/reset_prefix_cache" | "/flush_cache") => {
                Answer::http(status, "application/json", body)
            }
            _ => Answer::http(404, "application/json", "{}"),
        })
    };
    let flushed = |owner, status, body| {
        let server = flushing(owner, status, body);
        let reply = connect(&server).flush_cache()?;
        Some((reply.exchange.url.rsplit('/').next().unwrap().to_owned(), reply.outcome.is_ok()))
    };
    let path = |path: &str, done| Some((path.to_owned(), done));
    assert_eq!(flushed("vllm", 200, r#"{"success":true}"#), path("reset_prefix_cache", true));
    assert_eq!(
        flushed("vllm", 200, r#"{"success":false}"#),
        path("reset_prefix_cache", false),
        "blocks are held"
    );
    assert_eq!(flushed("vllm", 404, r#"{"detail":"Not Found"}"#), path("reset_prefix_cache", false));
    assert_eq!(flushed("sglang", 200, "Cache flushed."), path("flush_cache", true));
    assert_eq!(flushed("llamacpp", 200, "{}"), None);
}
