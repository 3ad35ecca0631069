//! A server with the canary, and a client.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lucid_checkpoint::{Checkpoint, Files};
use lucid_engine::{Engine, EngineOptions};
use lucid_server::{App, Limits, Plant, RunningServer, ServerOptions, spawn};
use lucid_text::{ChatTemplate, Tokenizer};
use serde_json::{Value, json};

/// The server that most tests share.
pub fn shared() -> &'static RunningServer {
    static SERVER: OnceLock<RunningServer> = OnceLock::new();
    SERVER.get_or_init(|| start(None, Limits::default()))
}

/// A server of its own.
pub fn start(plant: Option<Plant>, limits: Limits) -> RunningServer {
    spawn("127.0.0.1:0", app(plant, limits, &EngineOptions::default()).0).unwrap()
}

pub fn app(plant: Option<Plant>, limits: Limits, engine: &EngineOptions) -> (App, Engine) {
    app_of(&canary(), plant, limits, engine)
}

/// The bundled model.
pub fn canary() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary")
}

/// The model in a folder.
pub fn app_of(folder: &Path, plant: Option<Plant>, limits: Limits, engine: &EngineOptions) -> (App, Engine) {
    let files = Files::open(folder).unwrap();
    let checkpoint = Checkpoint::open(files.clone()).unwrap();
    let tokenizer = Tokenizer::open(&files).unwrap();
    let template = ChatTemplate::open(&files).unwrap();
    let engine = Engine::start(&checkpoint, engine).unwrap();
    let options = ServerOptions { plant, limits, ..ServerOptions::new("canary") };
    (App::new(engine.clone(), tokenizer, template, &checkpoint, options), engine)
}

/// A server for developers: its cache can be emptied, and it tells where tokens go.
pub fn talkative() -> RunningServer {
    let files = Files::open(&canary()).unwrap();
    let mut options = ServerOptions::new("canary");
    (options.return_routed_experts, options.dev_mode) = (true, true);
    spawn("127.0.0.1:0", App::load(&files, &EngineOptions::default(), options).unwrap()).unwrap()
}

/// A file of `tests/data`.
pub fn data(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().into()
}

pub fn get(server: &RunningServer, path: &str) -> (u16, String) {
    let mut response = agent().get(format!("{}{path}", server.url())).call().unwrap();
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

/// Sends bytes as they are.
pub fn post_raw(server: &RunningServer, path: &str, body: &[u8]) -> (u16, String) {
    let mut response = agent().post(format!("{}{path}", server.url())).send(body).unwrap();
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

/// Sends a request and expects 200.
pub fn post(server: &RunningServer, path: &str, body: &Value) -> Value {
    let (status, text) = post_raw(server, path, body.to_string().as_bytes());
    assert_eq!(status, 200, "{body} → {text}");
    serde_json::from_str(&text).unwrap()
}

/// Sends a request and expects an error.
pub fn post_error(server: &RunningServer, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = post_raw(server, path, body.to_string().as_bytes());
    assert_ne!(status, 200, "{body} → {text}");
    let mut error: Value = serde_json::from_str(&text).unwrap();
    (status, error["error"].take())
}

/// The events of a stream, without the last, which must be `[DONE]`.
pub fn stream(server: &RunningServer, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let response = agent().post(format!("{}{path}", server.url())).send(body.to_string().as_bytes()).unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    events(BufReader::new(response.into_body().into_reader()))
}

/// Reads server-sent events.
pub fn events(reader: impl BufRead) -> Vec<Value> {
    let mut events = Vec::new();
    let mut done = false;
    for line in reader.lines() {
        let line = line.unwrap();
        if line.is_empty() {
            continue;
        }
        assert!(!done, "an event follows [DONE]: {line}");
        let data = line.strip_prefix("data: ").unwrap();
        if data == "[DONE]" {
            done = true;
        } else {
            events.push(serde_json::from_str(data).unwrap());
        }
    }
    assert!(done, "the stream ended without [DONE]");
    events
}

/// One question, greedy.
pub fn ask(text: &str) -> Value {
    json!({"model": "canary", "messages": [{"role": "user", "content": text}], "temperature": 0})
}

pub const CAPITAL: &str = "What is the capital of France? Answer in one sentence.";
pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";

/// Joins what the deltas of one choice say in a field.
pub fn joined(chunks: &[Value], field: &str) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str()).collect()
}
