//! Requests together are answered as alone.

use std::thread;

use serde_json::{Value, json};

use crate::fixture::{self, CHAT, shared};

#[test]
fn answers_do_not_depend_on_company() {
    let questions = [
        "What is the capital of France? Answer in one sentence.",
        "What is 47 + 85?",
        "Count from 3 to 43.",
        "Write a Python function that checks if a number is prime. Be concise.",
        "What is the capital of Peru?",
        "Repeat exactly: river stone castle lamp",
    ];
    let ask = |question: &str| -> Value {
        let request = json!({
            "messages": [{"role": "user", "content": question}], "temperature": 1, "seed": 5, "max_tokens": 80,
            "logprobs": true, "top_logprobs": 3,
        });
        fixture::post(shared(), CHAT, &request)["choices"].clone()
    };
    let alone: Vec<Value> = questions.iter().map(|question| ask(question)).collect();
    let together: Vec<Value> = thread::scope(|scope| {
        let asked: Vec<_> = questions.iter().map(|question| scope.spawn(move || ask(question))).collect();
        asked.into_iter().map(|answer| answer.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
}
