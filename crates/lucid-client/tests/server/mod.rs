//! A tiny HTTP server for tests: replays recordings, or misbehaves.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses its own part

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

/// What a client asked.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub body: Option<Value>,
    #[serde(skip)]
    pub head: String,
}

/// A recorded exchange.
#[derive(Clone, Debug, Deserialize)]
pub struct Recording {
    pub name: String,
    pub request: Request,
    pub status: u16,
    pub content_type: Option<String>,
    pub body: String,
}

/// What the server does with a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A proper answer.
    Http { status: u16, content_type: String, body: Vec<u8> },
    /// These bytes, then the connection is closed.
    Raw(Vec<u8>),
    /// Nothing, until the client goes away.
    Hang,
}

impl Answer {
    pub fn http(status: u16, content_type: &str, body: &str) -> Answer {
        Answer::Http { status, content_type: content_type.to_owned(), body: body.as_bytes().to_vec() }
    }

    /// The recording that fits best: same path, and of those with it the one whose body agrees in most fields.
    pub fn from_recording(recordings: &[Recording], request: &Request) -> Answer {
        let agreement = |recording: &Recording| {
            let (Some(Value::Object(a)), Some(Value::Object(b))) = (&recording.request.body, &request.body)
            else {
                return 0_i64;
            };
            let equal = a.iter().filter(|(key, value)| b.get(*key) == Some(value)).count();
            // One field too many or too few weighs half as much as an equal one.
            2 * equal as i64 - a.len().abs_diff(b.len()) as i64
        };
        let found = recordings
            .iter()
            .filter(|recording| {
                recording.request.path == request.path && recording.request.method == request.method
            })
            .max_by_key(|recording| agreement(recording));
        match found {
            Some(recording) => Answer::http(
                recording.status,
                recording.content_type.as_deref().unwrap_or("text/plain"),
                &recording.body,
            ),
            None => Answer::http(404, "application/json", r#"{"detail":"Not Found"}"#),
        }
    }
}

/// The recordings of `tests/data/FILE`.
pub fn recorded(file: &str) -> Vec<Recording> {
    let path = format!("{}/tests/data/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap()
}

pub struct Server {
    port: u16,
}

impl Server {
    pub fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer: Arc<dyn Fn(&Request) -> Answer + Send + Sync> = Arc::new(answer);
        // The thread ends with the test process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let answer = Arc::clone(&answer);
                std::thread::spawn(move || serve(stream, &*answer));
            }
        });
        Server { port }
    }

    pub fn replay(recordings: Vec<Recording>) -> Server {
        Server::start(move |request| Answer::from_recording(&recordings, request))
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

fn serve(mut stream: TcpStream, answer: &dyn Fn(&Request) -> Answer) {
    let Some(request) = read(&mut stream) else { return };
    match answer(&request) {
        Answer::Http { status, content_type, body } => {
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
        Answer::Raw(bytes) => {
            let _ = stream.write_all(&bytes);
        }
        Answer::Hang => {
            let _ = stream.read(&mut [0; 1]);
        }
    }
}

fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length: usize = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("content-length:")
                        .map(|n| n.trim().parse().unwrap())
                })
                .unwrap_or(0);
            let start = head.len() + 4;
            if bytes.len() >= start + length {
                let mut words = head.split_whitespace();
                let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
                return Some(Request {
                    method,
                    path,
                    body: serde_json::from_slice(&bytes[start..]).ok(),
                    head: head.to_owned(),
                });
            }
        }
        match stream.read(&mut chunk) {
            Ok(n) if n > 0 => bytes.extend_from_slice(&chunk[..n]),
            _ => return None,
        }
    }
}
