//! The smallest prompt length at which answers change.
//!
//! A kernel that is wrong above 64 rows, a step that is cut at 512, a context that was extended: each breaks answers from one
//! length on. The probe asks just below and just above powers of two, and halves the interval between the last right and the
//! first wrong answer. With the checkpoint at hand an answer is wrong when its distributions are; without it, when a needle
//! isn't found. An edge is an accusation only when fresh prompts of such lengths show it again, on both sides.

mod edge;

use edge::{Distance, Trial, controls, edge, is_reproduced};

use super::requests::{Needle, greedy, needle_prompt};
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Examination, Observation, Observed, PositionScore, PromptScore, compare};
use crate::report::html::nats;
use crate::report::{Finding, ProbeTable, ProofKind, Severity};
use crate::statistics::Random;
use crate::subject::Depth;

pub(crate) struct LengthSweep;

/// Tokens of an answer: the reasoning and the code.
const ANSWER: u32 = 40;
/// Tokens that the frame of a prompt, the needle and the question take, about.
const FRAME: usize = 34;
/// Tokens of a sentence, about.
const SENTENCE: usize = 9;
/// Draws of a text until it has about as many tokens as it should: the two sides of a power of two lie three sentences apart.
const DRAWS: usize = 8;
/// Two lengths that are so close are the same edge.
const CLOSE: usize = 12;
/// Halvings of the interval, at the most.
const HALVINGS: usize = 6;

/// Lengths by depth: each just below and just above a power of two.
fn lengths(depth: Depth, longest: usize) -> Vec<usize> {
    let powers: &[usize] = match depth {
        Depth::Quick => &[64, 256],
        Depth::Standard => &[64, 128, 256, 512, 1_024],
        Depth::Thorough => &[64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768],
    };
    let around = powers.iter().flat_map(|&power| [power - SENTENCE, power + 2 * SENTENCE]);
    around.filter(|length| length + ANSWER as usize + 2 * SENTENCE <= longest).collect()
}

impl Check for LengthSweep {
    fn id(&self) -> &'static str {
        "endpoint.length-sweep"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server]
    }

    fn covers(&self) -> &'static str {
        "prompts just below and just above powers of two are answered from the same model"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 10, tokens: 5_000 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        let longest = endpoint.info().max_model_len.map_or(4_096, |length| length as usize);
        let mut sweep = Sweep { random: Random::new(examination.seed ^ 0x1e47), trials: Vec::new() };
        let lengths = lengths(examination.depth, longest);
        let mut failed = None;
        for (number, &length) in lengths.iter().enumerate() {
            examination.step(number, lengths.len(), &format!("{length} tokens"));
            match sweep.ask(examination, length) {
                Ok(()) => {}
                Err(reason) => failed = failed.or(Some(reason)),
            }
        }
        if sweep.trials.len() < 4 {
            return Err(Skip(failed.unwrap_or_else(|| "too few lengths fit the context".to_owned())));
        }
        sweep.beyond(examination, longest);
        sweep.bisect(examination);
        let found = edge(&sweep.trials);
        let again = found.map(|found| sweep.again(examination, found));
        let mut trials = sweep.trials;
        trials.sort_by_key(|trial| trial.tokens);
        let mut table = ProbeTable::new(
            self.id(),
            "By the length of the prompt",
            &["tokens", "code found", "nats a token from the reference", "judged"],
        );
        for trial in &trials {
            let judged = if trial.is_wrong() { "wrong" } else { "right" };
            let kl = trial.distance.map_or_else(|| "not compared".to_owned(), |distance| nats(distance.kl));
            table.row(&[&trial.tokens, &if trial.found { "yes" } else { "no" }, &kl, &judged]);
        }
        examination.evidence.probes.push(table);
        examination.evidence.threshold |= found.is_some() && again == Some(true);
        let (first, last) = (trials.first().map_or(0, |t| t.tokens), trials.last().map_or(0, |t| t.tokens));
        Ok(Examined {
            findings: findings(self.id(), &trials, found.filter(|_| again == Some(true))),
            covered: format!("{} prompts of {first} to {last} tokens", trials.len()),
        })
    }
}

struct Sweep {
    random: Random,
    trials: Vec<Trial>,
}

impl Sweep {
    fn ask(&mut self, examination: &mut Examination<'_>, length: usize) -> Result<(), String> {
        let endpoint = examination.endpoint()?;
        let needle = self.needle(examination, length);
        let sample = examination.sample(&endpoint, &greedy(needle.messages.clone(), ANSWER))?;
        let score = against_reference(examination, &needle, &sample);
        let exact = examination.evidence.claim.is_some();
        let distance = score.map(|score| Distance {
            kl: score.mean_kl(),
            rounding: exact.then(|| (score.beyond(), mean_gap(&score))),
            first_is_beyond: exact && score.positions.first().is_some_and(PositionScore::is_beyond),
        });
        let tokens = if sample.prompt_tokens > 0 { sample.prompt_tokens as usize } else { length };
        self.trials.push(Trial {
            tokens,
            found: sample.text.contains(&needle.secret),
            distance,
            exchange: sample.exchange,
            text: sample.text,
        });
        Ok(())
    }

    /// A prompt of about so many tokens; as near as half a sentence where there is a tokenizer to count them.
    fn needle(&mut self, examination: &Examination<'_>, length: usize) -> Needle {
        let mut sentences = length.saturating_sub(FRAME) / SENTENCE;
        let mut nearest: Option<(usize, Needle)> = None;
        for _ in 0..DRAWS {
            let before = sentences / 2;
            let needle = needle_prompt(before, sentences - before, &mut self.random);
            let tokens =
                examination.reference.as_ref().and_then(|reference| reference.prompt(&needle.messages).ok());
            let Some(tokens) = tokens.map(|tokens| tokens.len()) else { return needle };
            let missed = tokens.abs_diff(length);
            if tokens > length + SENTENCE / 2 {
                sentences = sentences.saturating_sub((missed / SENTENCE).max(1));
            } else if tokens + SENTENCE / 2 < length {
                sentences += (missed / SENTENCE).max(1);
            }
            if nearest.as_ref().is_none_or(|(least, _)| missed < *least) {
                nearest = Some((missed, needle));
            }
            if missed <= SENTENCE / 2 {
                break;
            }
        }
        nearest.map_or_else(|| needle_prompt(0, 0, &mut self.random), |(_, needle)| needle)
    }

    /// Asks for something longer still where only the longest prompt is wrong: an edge takes two.
    fn beyond(&mut self, examination: &mut Examination<'_>, longest: usize) {
        let last = self.trials.iter().max_by_key(|trial| trial.tokens);
        let Some(last) = last.filter(|last| last.is_wrong()).map(|last| last.tokens) else { return };
        let length = last + 3 * SENTENCE;
        let alone = self.trials.iter().filter(|trial| trial.is_wrong()).count() == 1;
        if alone && length + ANSWER as usize + 2 * SENTENCE <= longest {
            examination.step(0, 1, &format!("{length} tokens"));
            // Without an answer there is no edge to narrow.
            let _ = self.ask(examination, length);
        }
    }

    /// Whether fresh prompts, two on either side, show the edge again. They join the trials.
    fn again(&mut self, examination: &mut Examination<'_>, edge: (usize, usize)) -> bool {
        let before = self.trials.len();
        for (number, length) in controls(&self.trials, edge).into_iter().enumerate() {
            examination.step(number, 4, &format!("{length} tokens, once more"));
            if self.ask(examination, length).is_err() {
                return false;
            }
        }
        self.trials.get(before..).is_some_and(|fresh| is_reproduced(fresh, edge))
    }

    /// Narrows the interval between right and wrong.
    fn bisect(&mut self, examination: &mut Examination<'_>) {
        for _ in 0..HALVINGS {
            let Some((right, wrong)) = edge(&self.trials) else { return };
            if wrong - right <= CLOSE {
                return;
            }
            examination.step(0, HALVINGS, &format!("between {right} and {wrong} tokens"));
            let before = self.trials.len();
            if self.ask(examination, right.midpoint(wrong)).is_err() {
                return;
            }
            // Sentences have their own lengths: a prompt that falls outside of the interval narrows nothing.
            if !self.trials.get(before).is_some_and(|trial| (right + 1..wrong).contains(&trial.tokens)) {
                return;
            }
        }
    }
}

/// Mean of the tokens' largest |Δ log-probability|, each cut at 1 nat.
#[allow(clippy::cast_precision_loss)] // counts of tokens
fn mean_gap(score: &PromptScore) -> f64 {
    // `min` takes 1 for a gap that is no number.
    score.positions.iter().map(|position| position.gap.min(1.0)).sum::<f64>()
        / score.positions.len().max(1) as f64
}

/// The answer's own tokens, re-scored by the reference.
fn against_reference(
    examination: &Examination<'_>,
    needle: &Needle,
    sample: &crate::evidence::Sample,
) -> Option<PromptScore> {
    let reference = examination.reference.as_ref()?;
    let prompt = reference.prompt(&needle.messages).ok()?;
    // Another template would be another prompt: that is `reference.prompt-tokens`' to find.
    if sample.prompt_tokens != prompt.len() as u64 || prompt.len() + sample.tokens.len() > reference.max_len()
    {
        return None;
    }
    let mut observed = Observed {
        tokens: prompt.clone(),
        prompt: prompt.len(),
        end: None,
        observations: Vec::new(),
        exchange: 0,
    };
    for token in &sample.tokens {
        let Some(id) = reference.id(&token.name) else { break };
        let top =
            token.top.iter().filter_map(|(name, logprob)| Some((reference.id(name)?, *logprob))).collect();
        observed.observations.push(Observation {
            position: observed.tokens.len(),
            logprob: token.logprob,
            top,
        });
        observed.tokens.push(id);
    }
    if observed.observations.is_empty() {
        return None;
    }
    let mut scorer = reference.scorer_as(examination.evidence.claim).ok()?;
    compare(&mut scorer, &observed).ok()
}

/// `edge`: the longest right and the shortest wrong prompt, if fresh prompts have shown them again.
fn findings(check: &str, trials: &[Trial], edge: Option<(usize, usize)>) -> Vec<Finding> {
    let wrong = trials.iter().filter(|trial| trial.is_wrong()).count();
    if let Some((right, first_wrong)) = edge {
        let power = first_wrong.next_power_of_two() / if first_wrong.is_power_of_two() { 1 } else { 2 };
        let at_power = right <= power + CLOSE / 2 && first_wrong >= power;
        let example = trials.iter().find(|trial| trial.tokens == first_wrong);
        let place = if at_power { format!(" The power of two there is {power}.") } else { String::new() };
        let mut finding = Finding::new(
            check,
            "threshold",
            Severity::Error,
            format!("Answers break when a prompt is longer than {right} tokens"),
        )
        .detail(format!(
            "Right up to {right} tokens, wrong from {first_wrong} on: {wrong} of {} prompts, fresh ones on both sides among them.{place}",
            trials.len()
        ))
        .suggests("size-threshold", if at_power { 8.0 } else { 5.0 })
        .suggests("attention-kernel", 2.0)
        .suggests("rope-scaling", if first_wrong >= 1_000 { 2.0 } else { 0.0 });
        if let Some(trial) = example {
            finding = finding.proof(
                ProofKind::Exchange,
                trial.exchange.to_string(),
                trial.text.chars().take(100).collect::<String>(),
            );
        }
        return vec![finding];
    }
    if wrong == 0 {
        return vec![
            Finding::new(check, "even", Severity::Info, "Prompts of all tried lengths are answered alike")
                .suggests("size-threshold", -3.0),
        ];
    }
    if wrong == trials.len() {
        return vec![
            Finding::new(
                check,
                "all-lengths",
                Severity::Info,
                "Answers are wrong at every length: no length is to blame",
            )
            .suggests("size-threshold", -4.0),
        ];
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::edge::tests::trials;
    use super::*;

    #[test]
    fn powers_of_two_are_named() {
        let list = trials(&[(60, true), (66, false), (120, false), (150, false)]);
        let found = findings("endpoint.length-sweep", &list, edge(&list));
        assert_eq!(found[0].suggested_cause(), Some("size-threshold"));
        assert!(found[0].detail.contains("is 64"), "{}", found[0].detail);
        assert!(findings("x", &list, None).is_empty(), "fresh prompts did not show it again");
        assert_eq!(findings("x", &trials(&[(60, true), (70, true)]), None)[0].id, "x/even");
        assert_eq!(findings("x", &trials(&[(60, false), (70, false)]), None)[0].id, "x/all-lengths");
    }

    #[test]
    fn lengths_fit_the_context() {
        assert!(lengths(Depth::Thorough, 4_096).iter().all(|length| *length < 4_096));
        assert_eq!(lengths(Depth::Standard, 4_096).len(), 10);
    }
}
