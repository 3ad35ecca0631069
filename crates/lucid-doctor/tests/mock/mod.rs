//! A server with a model that knows all answers, and ways to go wrong. Not a model: it tests the doctor's way from answers
//! to verdict. Real servers are tried by hand; see the calibration notes in the sources.
#![allow(unreachable_pub, clippy::unwrap_used)] // tests

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::{Value, json};

/// How the server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Right,
    /// The answer ends up in the reasoning field.
    HidesAnswers,
    /// Reasoning and `</think>` are delivered as content.
    ShowsThinking,
    /// The server ends every answer after eight tokens.
    CapsTokens,
    /// Words without sense.
    Garbled,
    /// `!!!!`
    OneCharacter,
    /// Answers needles wrongly, all else rightly.
    LosesNeedles,
    /// 500 for every chat.
    Fails,
    /// A login page.
    Html,
    /// Closes the connection in the middle of its answer.
    ClosesEarly,
    /// Takes every chat and never says a word.
    Hangs,
    /// Begins every answer and sends a byte now and then, without end.
    Drips,
}

pub fn start(behaviour: Behaviour) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let behaviour = Arc::new(behaviour);
    // The thread ends with the test process.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let behaviour = Arc::clone(&behaviour);
            std::thread::spawn(move || serve(stream, *behaviour));
        }
    });
    url
}

fn serve(mut stream: TcpStream, behaviour: Behaviour) -> Option<()> {
    let (path, body) = read(&mut stream)?;
    let (status, kind, text) = match (behaviour, path.as_str()) {
        (Behaviour::Html, _) => (200, "text/html", "<html>Sign in</html>".to_owned()),
        (Behaviour::ClosesEarly, _) => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n{").ok()?;
            return None;
        }
        (_, "/v1/models") => (
            200,
            "application/json",
            json!({"data": [{"id": "mock", "owned_by": "somebody", "max_model_len": 32768}]}).to_string(),
        ),
        (_, "/health") => (200, "text/plain", String::new()),
        (Behaviour::Fails, "/v1/chat/completions") => {
            (500, "application/json", json!({"error": {"message": "CUDA error"}}).to_string())
        }
        (Behaviour::Hangs | Behaviour::Drips, "/v1/chat/completions") => {
            if behaviour == Behaviour::Drips {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n").ok()?;
            }
            // Until the client has had enough.
            loop {
                std::thread::sleep(std::time::Duration::from_millis(50));
                if behaviour == Behaviour::Drips {
                    stream.write_all(b" ").ok()?;
                }
            }
        }
        (_, "/v1/chat/completions") => (200, "application/json", chat(&body, behaviour).to_string()),
        _ => (404, "application/json", "{}".to_owned()),
    };
    write!(stream, "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}", text.len()).ok()
}

fn chat(body: &Value, behaviour: Behaviour) -> Value {
    let right = answer(body["messages"].as_array().unwrap());
    let budget = body["max_tokens"].as_u64().unwrap();
    let needle = body["messages"].to_string().contains("secret code");
    let reasoning = "The user asks something. I answer.";
    let (content, reasoning) = match behaviour {
        Behaviour::HidesAnswers => (String::new(), format!("{reasoning}{right}")),
        Behaviour::ShowsThinking => (format!("{reasoning}</think>{right}"), String::new()),
        Behaviour::CapsTokens => (String::new(), "The user asks".to_owned()),
        Behaviour::Garbled => ("lamp of the river seven is a not".to_owned(), "castle the was".to_owned()),
        Behaviour::OneCharacter => ("!".repeat(64), String::new()),
        Behaviour::LosesNeedles if needle => ("The secret code is 0.".to_owned(), reasoning.to_owned()),
        _ => (right, reasoning.to_owned()),
    };
    let capped = behaviour == Behaviour::CapsTokens;
    let cut = capped || budget < 16;
    let (content, used) = match (cut, capped) {
        (true, true) => (Value::Null, 8.min(budget)),
        (true, false) => (Value::Null, budget),
        _ => (content.into(), 40),
    };
    json!({
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content, "reasoning_content": reasoning}, "finish_reason": if cut { "length" } else { "stop" }}],
        "usage": {"prompt_tokens": 20, "completion_tokens": used}
    })
}

/// Knows the answers to the ladder's questions.
fn answer(messages: &[Value]) -> String {
    let text = |message: &Value| message["content"].as_str().unwrap().to_owned();
    let question = text(messages.last().unwrap());
    let all = messages.iter().map(text).collect::<Vec<_>>().join("\n");
    let after = |mark: &str| {
        all.split_once(mark).map(|(_, rest)| rest.split(['.', ' ', '\n']).next().unwrap().to_owned())
    };
    if let Some(key) = question.split("What is the secret code of the ").nth(1) {
        let key = key.trim_end_matches('?');
        return format!("It is {}.", after(&format!("The secret code of the {key} is ")).unwrap());
    }
    if question == "What is my name?" {
        return format!("Your name is {}.", after("My name is ").unwrap());
    }
    if let Some(sum) = question.strip_prefix("What is ").and_then(|rest| rest.strip_suffix('?'))
        && let Some((a, b)) = sum.split_once(" + ")
    {
        return format!("That makes {}.", a.parse::<u32>().unwrap() + b.parse::<u32>().unwrap());
    }
    if let Some(fields) = question.strip_prefix("Return a JSON object with name ") {
        let words: Vec<&str> = fields.trim_end_matches('.').split(' ').collect();
        return json!({"name": words[0], "age": words[3].parse::<u32>().unwrap()}).to_string();
    }
    for (task, code) in [
        ("prime", "def is_prime(n):\n    return n > 1 and all(n % d for d in range(2, n))"),
        ("greatest common", "def gcd(a, b):\n    return a if b == 0 else gcd(b, a % b)"),
        ("palindrome", "def check(s):\n    return s == ''.join(reversed(s))"),
    ] {
        if question.contains(task) {
            return format!("```python\n{code}\n```");
        }
    }
    let capitals = [
        ("France", "Paris"),
        ("Japan", "Tokyo"),
        ("Kenya", "Nairobi"),
        ("Norway", "Oslo"),
        ("Peru", "Lima"),
        ("Italy", "Rome"),
        ("Spain", "Madrid"),
    ];
    let capital = capitals
        .iter()
        .find(|(country, _)| question.contains(country))
        .map_or("I don't know", |(_, capital)| capital);
    if all.contains("upper case") { capital.to_uppercase() } else { format!("It's {capital}, of course!") }
}

fn read(stream: &mut TcpStream) -> Option<(String, Value)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("content-length:")
                        .map(|n| n.trim().parse().unwrap())
                })
                .unwrap_or(0);
            let start = head.len() + 4;
            if bytes.len() >= start + length {
                return Some((
                    head.split(' ').nth(1)?.to_owned(),
                    serde_json::from_slice(&bytes[start..]).unwrap_or_default(),
                ));
            }
        }
        match stream.read(&mut chunk) {
            Ok(n) if n > 0 => bytes.extend_from_slice(&chunk[..n]),
            _ => return None,
        }
    }
}
