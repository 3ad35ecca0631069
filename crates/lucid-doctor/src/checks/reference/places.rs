//! Where a difference lies: in what is read from the KV cache, or beyond a length of the prompt.
//!
//! A server that declares plain f32 is measured by the share of positions beyond rounding, any other by its divergence.

use super::logprobs::{HIGH, SCALE};
use crate::evidence::{FEW_BEYOND, PositionScore, PromptScore};
use crate::report::html::nats;
use crate::report::{Finding, Severity};

/// Fewer positions give no mean worth comparing.
const FEW: usize = 16;
/// Fewer positions of one prompt say nothing of that prompt.
const FEW_OF_A_PROMPT: usize = 4;
/// How many times larger a divergence has to be to lie in one place and not in another.
const APART: f64 = 10.0;
/// Divergence that is worth a word, nats a token: a hundred times what honest bf16 servers have.
const VISIBLE: f64 = 2e-3;
/// Share of positions beyond rounding at which a place is wrong.
const MANY_BEYOND: f64 = 0.25;

/// A prompt's first step has at least so many tokens, in any engine as it is usually set: later ones already read what the first one
/// left in the cache.
const FIRST_STEP: usize = 256;

/// How a place is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    /// Against the declared arithmetic, by the share beyond rounding; else by divergence.
    pub(super) exact: bool,
}

impl Measure {
    fn of(self, position: &PositionScore) -> f64 {
        if self.exact { f64::from(u8::from(position.is_beyond())) } else { position.kl.min(1.0) }
    }

    /// Whether one place is wrong and the other is right.
    fn apart(self, wrong: f64, right: f64) -> bool {
        if self.exact {
            wrong >= MANY_BEYOND && right <= FEW_BEYOND / 2.0
        } else {
            wrong > VISIBLE && wrong >= APART * right
        }
    }

    fn is_wrong(self, value: f64) -> bool {
        value > if self.exact { MANY_BEYOND } else { VISIBLE }
    }

    /// For people.
    fn shown(self, value: f64) -> String {
        if self.exact {
            format!("{:.0} % of the tokens beyond f32's rounding", value * 100.0)
        } else {
            format!("{} nats a token", nats(value))
        }
    }

    fn mean<'a>(self, positions: impl Iterator<Item = &'a PositionScore>, least: usize) -> Option<f64> {
        mean(positions.map(|position| self.of(position)), least)
    }
}

/// Mean divergence of some positions, each cut at 1 nat; `None` of too few.
pub(super) fn mean_kl<'a>(positions: impl Iterator<Item = &'a PositionScore>) -> Option<f64> {
    mean(positions.map(|position| position.kl.min(1.0)), FEW)
}

fn mean(values: impl Iterator<Item = f64>, least: usize) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count as usize >= least).then(|| sum / f64::from(count))
}

/// Where the difference lies, if it lies in one place.
pub(super) fn places(check: &str, scores: &[PromptScore], measure: Measure) -> Vec<Finding> {
    // A long prompt's later steps read the cache as well: what is wrong with it begins after a length too.
    only_while_decoding(check, scores, measure)
        .or_else(|| only_beyond(check, scores, measure))
        .into_iter()
        .collect()
}

pub(super) fn only_while_decoding(check: &str, scores: &[PromptScore], measure: Measure) -> Option<Finding> {
    // Answers to prompts of one step: after longer ones, what is wrong with the prompt is wrong with the answer.
    let of_prompt =
        |score: &PromptScore| score.positions.iter().filter(|p| !p.decoded).map(|p| p.position).max();
    let short = || scores.iter().filter(|score| of_prompt(score).is_none_or(|last| last <= FIRST_STEP));
    let all = || short().flat_map(|score| &score.positions);
    let prefill = measure.mean(all().filter(|p| !p.decoded), FEW)?;
    let decode = measure.mean(all().filter(|p| p.decoded), FEW)?;
    // A loss that begins late in the answers is a small share of them: what counts is where it began.
    let began = all().filter(|p| p.decoded && measure.is_wrong(measure.of(p))).map(|p| p.position).min()?;
    let since = |score: &PromptScore| -> Option<f64> {
        measure.mean(score.positions.iter().filter(|p| p.decoded && p.position >= began), FEW_OF_A_PROMPT)
    };
    let later: Vec<f64> = short().filter_map(since).collect();
    let affected = later.iter().filter(|value| measure.is_wrong(**value)).count();
    let everywhere = measure.apart(decode, prefill);
    let late = measure.exact && prefill <= FEW_BEYOND / 2.0 && affected >= 2;
    if !everywhere && !late {
        return None;
    }
    // Scales are wrong for everybody, pages for some.
    let everybody = affected * 5 >= later.len() * 4;
    let kl = mean_kl(all().filter(|p| p.decoded)).unwrap_or(0.0);
    let broken = kl > HIGH * SCALE;
    let (scales, pages) = match (broken || measure.exact, everybody) {
        (true, true) => (7.0, -2.0),
        (true, false) => (2.0, 4.0),
        // An honest fp8 cache looks like this.
        (false, _) => (2.0, 0.0),
    };
    Some(
        Finding::new(
            check,
            "only-while-decoding",
            if broken || measure.exact { Severity::Error } else { Severity::Info },
            "Prompts are computed rightly, what is generated after them is not",
        )
        .detail(format!(
            "{} where the server computed the prompt, {} where it read its KV cache step by step, from position {began} on in {affected} of {} answers: entries are rounded, or written or read wrongly.",
            measure.shown(prefill),
            measure.shown(decode),
            later.len()
        ))
        .confidence(0.99)
        .suggests("kv-cache-scales", scales)
        .suggests("prefix-cache", pages)
        .suggests("size-threshold", -4.0),
    )
}

/// The largest power of two below which all of a prompt is right.
pub(super) fn only_beyond(check: &str, scores: &[PromptScore], measure: Measure) -> Option<Finding> {
    let beyond = |score: &PromptScore, edge: usize| {
        let later = score.positions.iter().filter(|p| !p.decoded && p.position > edge);
        measure.mean(later, FEW_OF_A_PROMPT)
    };
    let (edge, below, above) = (4..13).rev().map(|power| 1_usize << power).find_map(|edge| {
        let prefill = || scores.iter().flat_map(|score| &score.positions).filter(|p| !p.decoded);
        let below = measure.mean(prefill().filter(|p| p.position <= edge), FEW)?;
        let above = measure.mean(prefill().filter(|p| p.position > edge), FEW)?;
        // Two prompts: one may have met a near-tie that moved all that follows.
        let prompts = scores.iter().filter_map(|score| beyond(score, edge));
        let wrong = prompts.filter(|value| measure.is_wrong(*value)).count();
        let right = if measure.exact { below } else { below.max(VISIBLE / APART) };
        (wrong >= 2 && measure.apart(above, right)).then_some((edge, below, above))
    })?;
    Some(
        Finding::new(
            check,
            "only-beyond-a-length",
            Severity::Error,
            format!("The difference begins after about {edge} tokens of a prompt"),
        )
        .detail(format!("{} up to there, {} beyond.", measure.shown(below), measure.shown(above)))
        .confidence(0.99)
        .suggests("size-threshold", if measure.exact { 9.0 } else { 5.0 })
        .suggests("rope-scaling", 1.0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prompts of 200 and of 600 positions, and answers of 30, with a divergence and a gap by position and by whether it was decoded.
    fn found(exact: bool, at: impl Fn(usize, bool) -> f64) -> Vec<String> {
        let prompt = |length: usize| PromptScore {
            positions: (1..length + 30)
                .map(|position| {
                    let decoded = position > length;
                    let value = at(position, decoded);
                    PositionScore {
                        position,
                        kl: value,
                        gap: value,
                        decoded,
                        top1: true,
                        ..PositionScore::default()
                    }
                })
                .collect(),
        };
        let scores = [prompt(200), prompt(600), prompt(200), prompt(600)];
        places("reference.logprobs", &scores, Measure { exact })
            .into_iter()
            .map(|finding| format!("{} {}", finding.id, finding.suggested_cause().unwrap_or_default()))
            .collect()
    }

    const DECODING: [&str; 1] = ["reference.logprobs/only-while-decoding kv-cache-scales"];
    const LONG: [&str; 1] = ["reference.logprobs/only-beyond-a-length size-threshold"];

    #[test]
    fn the_place_of_a_difference_names_its_cause() {
        assert_eq!(found(false, |_, decoded| if decoded { 0.3 } else { 1e-5 }), DECODING);
        assert_eq!(
            found(false, |position, decoded| if position > 130 && !decoded { 0.1 } else { 1e-5 }),
            LONG
        );
        assert!(found(false, |_, _| 0.3).is_empty(), "everywhere is no place");
        assert!(found(false, |_, _| 1e-5).is_empty(), "rounding is no difference");
        let grows = found(false, |position, _| 1e-6 * position as f64);
        assert!(grows.is_empty(), "bf16 at long distances: {grows:?}");
    }

    #[test]
    fn a_declared_arithmetic_shows_what_no_divergence_would() {
        assert_eq!(found(true, |_, decoded| if decoded { 0.01 } else { 1e-5 }), DECODING);
        let late = found(true, |position, decoded| if decoded && position > 220 { 0.01 } else { 1e-5 });
        assert_eq!(late, DECODING, "begins late");
        assert_eq!(
            found(true, |position, decoded| if position > 64 && !decoded { 0.01 } else { 1e-5 }),
            LONG
        );
        let poisoned = found(true, |position, _| if position > 256 { 0.01 } else { 1e-5 });
        assert_eq!(poisoned, LONG, "answers to wrong prompts are wrong");
        let chunked = found(true, |position, decoded| if decoded || position > 256 { 0.01 } else { 1e-5 });
        assert_eq!(chunked, DECODING, "the second step of a prompt reads the cache");
        assert!(found(true, |_, _| 0.01).is_empty(), "everywhere is no place");
        assert!(found(true, |_, _| 1e-5).is_empty(), "rounding is no difference");
    }
}
