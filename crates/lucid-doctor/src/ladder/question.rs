//! Questions with their seeds.

use lucid_client::Message;

use super::haystack;
use crate::knowledge::{Haystack, Rung};
use crate::python::Case;
use crate::statistics::Random;

/// One question that is put to the server.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) messages: Vec<Message>,
    /// What the judge looks for.
    pub(crate) answer: String,
    pub(crate) cases: Vec<Case>,
    /// 0 for the first attempt, then sampled.
    pub(crate) temperature: f64,
    pub(crate) seed: u64,
}

/// Temperature of attempts after the first. Calibrated with the rungs' floors.
const TEMPERATURE: f64 = 0.7;

/// The questions of a rung: each prompt, `attempts` times.
pub(crate) fn questions(rung: &Rung, hay: &Haystack, attempts: u64, seed: u64) -> Vec<Question> {
    let mut all = Vec::new();
    for attempt in 0..attempts {
        for (number, prompt) in rung.prompts.iter().enumerate() {
            let own_seed = seed.wrapping_mul(1_000).wrapping_add(attempt * 100).wrapping_add(number as u64);
            let mut messages: Vec<Message> = rung.system.iter().map(Message::system).collect();
            messages.extend(
                rung.history
                    .iter()
                    .map(|turn| Message::new(&turn.role, turn.content.replace("{answer}", &prompt.answer))),
            );
            let (user, answer) = match rung.needle_sentences {
                Some(sentences) => {
                    let (text, secret) =
                        haystack::hide(hay, &prompt.answer, sentences, &mut Random::new(own_seed));
                    (format!("{text} {}", prompt.user), secret)
                }
                None => (prompt.user.clone(), prompt.answer.clone()),
            };
            messages.push(Message::user(user));
            let temperature = if attempt == 0 { 0.0 } else { TEMPERATURE };
            // Some servers keep seeds in 32 bits, signed.
            all.push(Question {
                messages,
                answer,
                cases: prompt.cases(),
                temperature,
                seed: own_seed % (1 << 31),
            });
        }
    }
    all
}
