//! What the server's own faults do, and how strongly.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use lucid_checkpoint::TokenId;
use lucid_engine::Sampling;
use lucid_text::Piece;

use super::Plant;

/// Tokens after which an answer stalls.
const STALL_AFTER: usize = 5;
/// Temperature of answers whose own is ignored; a usual default.
const DEFAULT_TEMPERATURE: f32 = 0.6;
/// The end of a message in the canary's template.
const END: &str = "<|im_end|>";
/// Prompts that are remembered at the most.
const MOST_PROMPTS: usize = 4_096;
/// What leaks at the most, so that a test can't fill a machine.
const MOST_LEAKED: usize = 1 << 30;

/// The server's own fault at work. Without one, every method changes nothing.
#[derive(Debug, Default)]
pub(crate) struct Act {
    plant: Option<Plant>,
    /// Which of a fault's variants; 0 is the usual one.
    variant: usize,
    answers: AtomicU64,
    leaked: Mutex<Vec<Vec<u8>>>,
    prompts: Mutex<HashSet<Vec<TokenId>>>,
}

impl Act {
    pub(crate) fn new(plant: Option<Plant>, seed: Option<u64>) -> Act {
        // Neighbouring seeds shall not give neighbouring variants of every fault.
        let variant = seed.map_or(0, |seed| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize);
        Act { plant, variant, ..Act::default() }
    }

    fn is(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    /// The variant's value out of a list.
    fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.variant % of.len()]
    }

    /// A rendered conversation as the server passes it on.
    pub(crate) fn rendered(&self, text: String) -> String {
        if self.is(Plant::HistoryCut) {
            return self.without_history(&text);
        }
        if !self.is(Plant::TemplateDrift) {
            return text;
        }
        let drifted = match self.variant % 4 {
            // A template of another version ends messages with a line break.
            0 => text.replace("<|im_end|>", "<|im_end|>\n"),
            // A default system prompt that the checkpoint's template doesn't have.
            1 => format!("<|im_system|>system<|im_middle|>You are a helpful assistant.<|im_end|>{text}"),
            // The reasoning isn't begun for the model.
            2 => text.strip_suffix("<think>").unwrap_or(&text).to_owned(),
            // The role's name got lost.
            _ => text.replace("<|im_user|>user<|im_middle|>", "<|im_user|><|im_middle|>"),
        };
        if drifted == text { format!("\n{text}") } else { drifted }
    }

    /// A rendered conversation without some of its earlier messages. One turn stays as it is.
    fn without_history(&self, text: &str) -> String {
        let messages: Vec<&str> = text.split_inclusive(END).collect();
        // What follows the last end is the beginning of the answer; before it stands the last question.
        let last = messages.len().saturating_sub(2);
        let lost = |(i, message): (usize, &&str)| match self.variant % 3 {
            // Earlier answers.
            0 => message.starts_with("<|im_assistant|>") && message.ends_with(END),
            // The system message and all before the last question.
            1 => i < last,
            // The system message, or the first one where there is none.
            _ => i == 0 && last > 0,
        };
        let kept = messages.iter().enumerate().filter(|entry| !lost(*entry));
        kept.map(|(_, message)| *message).collect()
    }

    /// Whether the model's own end tokens count.
    pub(crate) fn ends_at_eos(&self) -> bool {
        !self.is(Plant::EosIgnored)
    }

    /// How tokens are really drawn.
    pub(crate) fn sampling(&self, mut sampling: Sampling) -> Sampling {
        if self.is(Plant::SeedIgnored) {
            sampling.seed = None;
        }
        if self.is(Plant::PenaltyByDefault) && sampling.repetition_penalty == 1.0 {
            sampling.repetition_penalty = self.pick(&[1.3, 1.15, 1.5]);
        }
        if self.is(Plant::TemperatureIgnored) && sampling.temperature == 0.0 {
            sampling.temperature = self.pick(&[DEFAULT_TEMPERATURE, 0.8, 1.0]);
            sampling.seed = None;
        }
        sampling
    }

    /// How many tokens an answer may really have.
    pub(crate) fn budget(&self, asked: usize) -> usize {
        if self.is(Plant::BudgetCapped) { asked.min(self.pick(&[16, 12, 20])) } else { asked }
    }

    /// The tokens that end the answer to a prompt, out of a vocabulary.
    pub(crate) fn stop_tokens(
        &self,
        prompt: &[TokenId],
        usual: Vec<TokenId>,
        vocabulary: usize,
    ) -> Vec<TokenId> {
        // Only what fills a page of the cache is found again.
        if !self.is(Plant::RepeatAnsweredEmpty) || prompt.len() < self.pick(&[32, 64, 128]) {
            return usual;
        }
        let mut prompts = self.prompts.lock().unwrap_or_else(PoisonError::into_inner);
        if prompts.contains(prompt) {
            return (0..u32::try_from(vocabulary).unwrap_or(u32::MAX)).map(TokenId).collect();
        }
        if prompts.len() < MOST_PROMPTS {
            prompts.insert(prompt.to_vec());
        }
        usual
    }

    /// Whether tokens of a stream are decoded one by one.
    pub(crate) fn splits_characters(&self) -> bool {
        self.is(Plant::StreamSplitsCharacters)
    }

    /// Whether `</think>` gets lost.
    pub(crate) fn drops_think_end(&self) -> bool {
        self.is(Plant::ThinkEndDropped)
    }

    /// A request begins: memory that it leaves behind.
    pub(crate) fn request(&self) {
        if !self.is(Plant::MemoryGrowth) {
            return;
        }
        let bytes = self.pick(&[1 << 20, 512 << 10, 2 << 20]);
        let mut leaked = self.leaked.lock().unwrap_or_else(PoisonError::into_inner);
        if leaked.len() * bytes < MOST_LEAKED {
            // Not zeros: those would take no memory.
            leaked.push(vec![0x5a; bytes]);
        }
    }

    /// After how many tokens the next answer stalls; `None` if it doesn't.
    pub(crate) fn stall(&self) -> Option<usize> {
        if !self.is(Plant::StallOnFiveTokens) {
            return None;
        }
        let every = self.pick(&[1, 2, 3]);
        let number = self.answers.fetch_add(1, Ordering::Relaxed) + 1;
        number.is_multiple_of(every).then_some(STALL_AFTER)
    }

    /// The pieces of an answer as the client gets them.
    pub(crate) fn pieces(&self, pieces: &mut [Piece], streamed: bool) {
        if streamed && self.is(Plant::StreamThinkUnparsed) {
            for piece in pieces.iter_mut() {
                if let Piece::Reasoning(text) = piece {
                    *piece = Piece::Content(std::mem::take(text));
                }
            }
        }
        if self.is(Plant::ToolNameUnparsed) {
            for piece in pieces.iter_mut() {
                if let Piece::ToolCallStart { id, name, .. } = piece {
                    *name = match self.variant % 2 {
                        0 => format!("functions.{name}"),
                        _ => id.clone(),
                    };
                }
            }
        }
        if !self.is(Plant::ToolArgumentsBroken) {
            return;
        }
        for piece in pieces {
            if let Piece::ToolCallArguments { fragment, .. } = piece {
                *fragment = match self.variant % 3 {
                    // The outer brace is taken for part of the markup.
                    0 => fragment.replace('{', ""),
                    1 => fragment.replace('"', "'"),
                    _ => fragment.replace('}', ""),
                };
            }
        }
    }
}
