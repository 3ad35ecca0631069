//! What the probes ask.

use lucid_client::{ChatRequest, Message};

use crate::knowledge::ladder;
use crate::ladder::{hay, needle, questions, secret};
use crate::statistics::Random;

/// Candidates beside each token: enough to see who was close.
pub(super) const TOP: u32 = 4;

/// A greedy request with log-probabilities.
pub(super) fn greedy(messages: Vec<Message>, max_tokens: u32) -> ChatRequest {
    ChatRequest {
        max_tokens: Some(max_tokens),
        temperature: Some(0.0),
        logprobs: Some(true),
        top_logprobs: Some(TOP),
        ..ChatRequest::new(messages)
    }
}

/// Questions of several kinds, in an order of the seed's, without needles.
pub(super) fn short_questions(seed: u64, count: usize) -> Vec<Vec<Message>> {
    let ladder = ladder();
    let rungs = ladder.rungs.iter().filter(|rung| rung.needle_sentences.is_none());
    let mut all: Vec<Vec<Message>> = rungs
        .flat_map(|rung| questions(rung, &ladder.haystack, 1, seed))
        .map(|question| question.messages)
        .collect();
    Random::new(seed).shuffle(&mut all);
    all.truncate(count);
    all
}

/// Questions that have many answers: where a temperature, a seed or a penalty shows.
pub(super) fn open_questions() -> Vec<Vec<Message>> {
    let questions = ["Tell me a short story.", "Say something random.", "Make up a name."];
    questions.map(|question| vec![Message::user(question)]).to_vec()
}

/// A text with a fresh secret, and the question for it.
#[derive(Clone, Debug)]
pub(super) struct Needle {
    pub(super) messages: Vec<Message>,
    pub(super) secret: String,
}

/// `before` sentences, the needle, `after` sentences, and the question.
pub(super) fn needle_prompt(before: usize, after: usize, random: &mut Random) -> Needle {
    let haystack = &ladder().haystack;
    let secret = secret(random);
    let mut text = hay(haystack, before, random);
    text.push(needle(haystack, "mirror", &secret));
    text.extend(hay(haystack, after, random));
    with_question(text, secret)
}

/// Two prompts that differ in their secret alone.
pub(super) fn twin_prompts(before: usize, after: usize, random: &mut Random) -> [Needle; 2] {
    let haystack = &ladder().haystack;
    let (first, last) = (hay(haystack, before, random), hay(haystack, after, random));
    [0, 1].map(|_| {
        let secret = secret(random);
        let mut text = first.clone();
        text.push(needle(haystack, "mirror", &secret));
        text.extend(last.iter().cloned());
        with_question(text, secret)
    })
}

fn with_question(text: Vec<String>, secret: String) -> Needle {
    let text = format!("{} What is the secret code of the mirror?", text.join(" "));
    Needle { messages: vec![Message::user(text)], secret }
}
