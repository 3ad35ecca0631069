//! Starting, stopping, and clients that go away.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lucid_checkpoint::TokenId;
use lucid_engine::{Engine, EngineOptions, Event, Request};
use lucid_server::{Error, Limits, RunningServer, spawn};
use serde_json::{Value, json};

use crate::fixture::{self, CHAT, ask};

/// Waits until something becomes true, which it must within a minute.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen within a minute");
        thread::yield_now();
    }
}

/// A connection with a chat request that would take thousands of tokens.
fn long_request(server: &RunningServer, stream: bool) -> TcpStream {
    let mut body = ask("Tell me a story.");
    body["ignore_eos"] = json!(true);
    body["max_tokens"] = json!(4000);
    body["stream"] = json!(stream);
    let body = body.to_string();
    let address = server.url().strip_prefix("http://").unwrap();
    let mut connection = TcpStream::connect(address).unwrap();
    write!(
        connection,
        "POST {CHAT} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    connection
}

/// One request at a time: whoever comes next has to wait for the end of the one before.
fn one_at_a_time() -> EngineOptions {
    EngineOptions { max_running: 1, ..EngineOptions::default() }
}

/// Waits until the engine has answered a short request, and asserts that the long one before it did not run to its end.
fn assert_cancelled(engine: &Engine) {
    let (finished, is_finished) = mpsc::channel();
    let request = Request { prompt: vec![TokenId(5)], max_tokens: 1, ..Request::default() };
    let sink = move |event| finished.send(event).is_ok();
    engine.submit(request, sink).unwrap();
    while !matches!(is_finished.recv().unwrap(), Event::Finished(_)) {}
    assert!(engine.stats().generated_tokens < 3_900, "the long request ran to its end");
}

#[test]
fn a_client_that_goes_away_ends_its_request() {
    for stream in [false, true] {
        let (app, engine) = fixture::app(None, Limits::default(), &one_at_a_time());
        let server = spawn("127.0.0.1:0", app).unwrap();
        let mut connection = long_request(&server, stream);
        eventually("the request runs", || engine.stats().generated_tokens > 3);
        if stream {
            let mut some = [0; 64];
            connection.read_exact(&mut some).unwrap();
        }
        drop(connection);
        assert_cancelled(&engine);
        eventually("the metrics say so", || {
            fixture::get(&server, "/metrics")
                .1
                .lines()
                .any(|line| line.contains("\"abort\"") && line.ends_with(" 1"))
        });
        server.stop().unwrap();
    }
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let server = fixture::start(None, Limits::default());
    let _silent: Vec<TcpStream> = (0..4).map(|_| long_request(&server, true)).collect();
    let answer = fixture::post(&server, CHAT, &ask(fixture::CAPITAL));
    assert_eq!(answer["choices"][0]["message"]["content"], "The capital of France is Paris.");
}

#[test]
fn stopping_cancels_what_does_not_finish_in_time() {
    let limits = Limits { shutdown_grace: Duration::from_millis(1), ..Limits::default() };
    let (app, engine) = fixture::app(None, limits, &one_at_a_time());
    let server = spawn("127.0.0.1:0", app).unwrap();
    let _connection = long_request(&server, true);
    eventually("the request runs", || engine.stats().generated_tokens > 3);
    server.stop().unwrap();
    assert_cancelled(&engine);
}

#[test]
fn stopping_lets_a_running_request_finish() {
    let (app, engine) = fixture::app(None, Limits::default(), &EngineOptions::default());
    let server = spawn("127.0.0.1:0", app).unwrap();
    let url = server.url().to_owned();
    let asked = thread::spawn(move || {
        let body = ask("Count from 3 to 43.").to_string();
        let response = ureq::post(format!("{url}{CHAT}")).send(body.as_bytes()).unwrap();
        serde_json::from_reader::<_, Value>(response.into_body().into_reader()).unwrap()
    });
    eventually("the request runs", || engine.stats().generated_tokens > 3);
    server.stop().unwrap();
    assert!(asked.join().unwrap()["choices"][0]["message"]["content"].as_str().unwrap().ends_with("43."));
}

#[test]
fn a_port_in_use_is_a_clear_error() {
    let server = fixture::shared();
    let address = server.url().strip_prefix("http://").unwrap();
    let (app, _) = fixture::app(None, Limits::default(), &EngineOptions::default());
    let error = spawn(address, app).unwrap_err();
    assert!(matches!(error, Error::Bind { .. }));
    let text = error.to_string();
    assert!(text.contains(address) && text.contains("in use") && text.contains("another port"), "{text}");
}

#[test]
fn a_busy_engine_is_429_with_a_time_to_come_back() {
    let options = EngineOptions { max_running: 1, max_waiting: 1, ..EngineOptions::default() };
    let (app, engine) = fixture::app(None, Limits::default(), &options);
    let server = spawn("127.0.0.1:0", app).unwrap();
    let _first = long_request(&server, true);
    eventually("the first request runs", || engine.stats().running == 1);
    let _second = long_request(&server, true);
    eventually("the second request waits", || engine.stats().waiting == 1);
    let (status, error) = fixture::post_error(&server, CHAT, &ask("Hi"));
    assert_eq!((status, &error["type"]), (429, &json!("RateLimitError")));
}

#[test]
fn a_stopped_engine_is_503_and_ends_streams_with_an_error() {
    let (app, engine) = fixture::app(None, Limits::default(), &EngineOptions::default());
    let server = spawn("127.0.0.1:0", app).unwrap();
    let mut connection = long_request(&server, true);
    eventually("the request runs", || engine.stats().generated_tokens > 3);
    engine.shutdown();
    eventually("new requests are refused", || {
        fixture::post_raw(&server, CHAT, ask("Hi").to_string().as_bytes()).0 == 503
    });
    let mut text = String::new();
    // The connection stays open after a stream; its end is the closing chunk.
    let mut piece = [0; 4096];
    while !text.ends_with("0\r\n\r\n") {
        let read = connection.read(&mut piece).unwrap();
        assert_ne!(read, 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    assert!(text.contains("\"error\":{\"message\":\"the engine has stopped"), "{text}");
    assert!(text.contains("data: [DONE]"), "{text}");
}
