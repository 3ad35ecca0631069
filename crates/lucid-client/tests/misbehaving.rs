//! Servers that answer anything but what was asked for: each gets a clear, typed error.

#![allow(clippy::unwrap_used)] // tests

mod server;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use lucid_client::{ApiKey, ChatRequest, Endpoint, EndpointOptions, Error, Message};
use server::{Answer, Server};

fn options() -> EndpointOptions {
    EndpointOptions { timeout: Duration::from_millis(600), ..EndpointOptions::default() }
}

fn connect(answer: impl Fn() -> Answer + Send + Sync + 'static) -> Error {
    let server = Server::start(move |_| answer());
    let error = Endpoint::connect(&server.url(), options()).unwrap_err();
    assert!(error.to_string().contains(&server.url()), "the text names the address: {error}");
    error
}

#[test]
fn nobody_there() {
    // Bound and dropped at once: the port is free.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = Endpoint::connect(&format!("http://127.0.0.1:{port}"), options()).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[test]
fn html() {
    let error = connect(|| Answer::http(200, "text/html", "<html><title>Sign in</title></html>"));
    assert!(matches!(error, Error::NotJson { .. }), "{error:?}");
    assert!(error.to_string().contains("HTML") && error.to_string().contains("Sign in"), "{error}");
}

#[test]
fn garbage_bytes() {
    let error = connect(|| Answer::Raw(vec![0xff, 0, 0x80, b'\r', b'\n', b'\r', b'\n']));
    assert!(matches!(error, Error::Broken { .. }), "{error:?}");
    let error = connect(|| Answer::Http {
        status: 200,
        content_type: "application/json".into(),
        body: vec![0xff, 0xfe, 0x00],
    });
    assert!(matches!(error, Error::NotJson { .. }), "{error:?}");
}

#[test]
fn closed_early() {
    let error =
        connect(|| Answer::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{\"object\":".to_vec()));
    assert!(matches!(error, Error::Broken { .. }), "{error:?}");
    let error = connect(|| Answer::Raw(Vec::new()));
    assert!(matches!(error, Error::Broken { .. }), "{error:?}");
}

#[test]
fn hangs() {
    let error = connect(|| Answer::Hang);
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
}

#[test]
fn too_many_requests() {
    let error = connect(|| {
        Answer::http(
            429,
            "application/json",
            r#"{"error":{"message":"Rate limit reached","type":"rate_limit"}}"#,
        )
    });
    assert!(
        matches!(&error, Error::Status { status: 429, message, .. } if message == "Rate limit reached"),
        "{error:?}"
    );
}

#[test]
fn json_of_another_service() {
    let error = connect(|| Answer::http(200, "application/json", r#"{"hello": "world"}"#));
    assert!(matches!(error, Error::Shape { .. }), "{error:?}");
    let error = connect(|| Answer::http(200, "application/json", r#"{"data": []}"#));
    assert!(matches!(error, Error::Model { .. }), "{error:?}");
}

#[test]
fn a_redirect_is_not_followed() {
    let error = connect(|| {
        Answer::Raw(
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n".to_vec(),
        )
    });
    assert!(matches!(error, Error::Status { status: 302, .. }), "{error:?}");
}

#[test]
fn endless_bodies_are_bounded() {
    let server = Server::start(|_| Answer::http(200, "application/json", &"[".repeat(100_000)));
    let (exchanges, outcome) = Endpoint::introduce(
        &lucid_client::BaseUrl::parse(&server.url()).unwrap(),
        EndpointOptions { max_body: 50_000, ..options() },
    );
    assert!(matches!(outcome, Err(Error::TooLarge { limit: 50_000, .. })), "{outcome:?}");
    assert!(exchanges[0].truncated && exchanges[0].body.len() == 50_000);
}

/// llama-server closes a connection after a stream, without saying so: a request that is on its way then must not look like a server that
/// breaks off.
#[test]
fn no_request_depends_on_the_connection_of_another() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().take(20).flatten() {
            std::thread::spawn(move || answer_once(stream));
        }
    });
    let endpoint = Endpoint::connect(&url, options()).unwrap();
    for _ in 0..3 {
        endpoint.health().outcome.unwrap();
    }
}

/// Answers one request, and closes when the next one begins.
fn answer_once(mut stream: TcpStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
        head.push(byte[0]);
    }
    let body = r#"{"data":[{"id":"m","owned_by":"llamacpp"}]}"#;
    let kind = "content-type: application/json";
    write!(stream, "HTTP/1.1 200 OK\r\n{kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let _ = stream.read(&mut byte);
}

#[test]
fn deeply_nested_json_is_an_error_not_a_crash() {
    let error = connect(|| Answer::http(200, "application/json", &"[".repeat(100_000)));
    assert!(matches!(error, Error::NotJson { .. }), "{error:?}");
}

#[test]
fn the_key_is_sent_and_never_kept() {
    let server = Server::start(|request| {
        let sent = request.head.contains("Bearer sk-secret-123");
        match request.path.as_str() {
            "/v1/models" if sent => {
                Answer::http(200, "application/json", r#"{"data":[{"id":"m","owned_by":"vllm"}]}"#)
            }
            _ => Answer::http(401, "application/json", r#"{"error":{"message":"bad key sk-secret-123"}}"#),
        }
    });
    let options = EndpointOptions { api_key: ApiKey::new("sk-secret-123"), ..options() };
    let endpoint = Endpoint::connect(&server.url(), options).unwrap();
    let reply = endpoint.chat(&ChatRequest::new(vec![Message::user("Hi")]));
    let kept = format!("{:?} {:?}", reply, endpoint);
    assert!(kept.contains("[API key]") && !kept.contains("sk-secret"), "{kept}");
}
