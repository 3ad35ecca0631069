//! The server's own planted fault.

use lucid_server::{Limits, Plant};
use serde_json::{Value, json};

use crate::fixture::{self, CAPITAL, CHAT, ask};

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
