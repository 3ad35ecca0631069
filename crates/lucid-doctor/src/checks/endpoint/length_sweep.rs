//! The smallest prompt length at which answers change.
//!
//! A kernel that is wrong above 64 rows, a step that is cut at 512, a context that was extended: each breaks answers from one
//! length on. The probe asks just below and just above powers of two, and halves the interval between the last right and the
//! first wrong answer. With the checkpoint at hand an answer is wrong when its distributions are; without it, when a needle
//! isn't found.

use super::requests::{Needle, greedy, needle_prompt};
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Examination, FEW_BEYOND, Observation, Observed, PromptScore, compare};
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
/// Divergence of an answer from the reference at which it may be wrong, nats a token.
const WRONG: f64 = 5e-3;
/// How many times farther from the reference wrong answers are than right ones: honest servers of large models reach `WRONG`
/// by rounding, at all lengths alike.
const APART: f64 = 10.0;
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

/// What one prompt gave.
#[derive(Clone, Debug)]
struct Trial {
    tokens: usize,
    found: bool,
    /// Divergence from the reference, where it was compared.
    kl: Option<f64>,
    /// Share of the answer's tokens beyond rounding, if the server declares an arithmetic that the reference has.
    beyond: Option<f64>,
    exchange: usize,
    text: String,
}

impl Trial {
    fn is_wrong(&self) -> bool {
        match (self.beyond, self.kl) {
            (Some(beyond), _) => beyond > FEW_BEYOND,
            (None, Some(kl)) => kl > WRONG,
            (None, None) => !self.found,
        }
    }
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
        let mut sweep = Sweep { random: Random::new(examination.subject.seed ^ 0x1e47), trials: Vec::new() };
        let lengths = lengths(examination.subject.depth, longest);
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
        sweep.bisect(examination);
        let mut trials = sweep.trials;
        trials.sort_by_key(|trial| trial.tokens);
        let mut table = ProbeTable::new(
            self.id(),
            "By the length of the prompt",
            &["tokens", "code found", "nats a token from the reference"],
        );
        for trial in &trials {
            let kl = trial.kl.map_or_else(|| "not compared".to_owned(), nats);
            table.row(&[&trial.tokens, &if trial.found { "yes" } else { "no" }, &kl]);
        }
        examination.evidence.probes.push(table);
        let (first, last) = (trials.first().map_or(0, |t| t.tokens), trials.last().map_or(0, |t| t.tokens));
        Ok(Examined {
            findings: findings(self.id(), &trials),
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
        let sentences = length.saturating_sub(FRAME) / SENTENCE;
        let before = sentences / 2;
        let needle = needle_prompt(before, sentences - before, &mut self.random);
        let sample = examination.sample(&endpoint, &greedy(needle.messages.clone(), ANSWER))?;
        let score = against_reference(examination, &needle, &sample);
        let exact = examination.evidence.claim.is_some();
        let tokens = if sample.prompt_tokens > 0 { sample.prompt_tokens as usize } else { length };
        self.trials.push(Trial {
            tokens,
            found: sample.text.contains(&needle.secret),
            kl: score.as_ref().map(PromptScore::mean_kl),
            beyond: score.filter(|_| exact).map(|score| score.beyond()),
            exchange: sample.exchange,
            text: sample.text,
        });
        Ok(())
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
    let mut observed =
        Observed { tokens: prompt.clone(), prompt: prompt.len(), observations: Vec::new(), exchange: 0 };
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

/// The longest right prompt below the shortest wrong one; `None` if the wrong ones are not all longer than the right ones, up to
/// one exception.
fn edge(trials: &[Trial]) -> Option<(usize, usize)> {
    let mut sorted: Vec<&Trial> = trials.iter().collect();
    sorted.sort_by_key(|trial| trial.tokens);
    // The cut with the fewest exceptions.
    let exceptions =
        |cut: usize| sorted.iter().enumerate().filter(|(i, trial)| trial.is_wrong() != (*i >= cut)).count();
    let cut = (1..sorted.len()).min_by_key(|&cut| exceptions(cut))?;
    let (right, wrong) = (sorted.get(cut - 1)?, sorted.get(cut)?);
    let wrongs = sorted.get(cut..)?.iter().filter(|trial| trial.is_wrong()).count();
    (exceptions(cut) <= 1 && wrongs >= 2 && wrong.is_wrong() && !right.is_wrong() && apart(trials))
        .then_some((right.tokens, wrong.tokens))
}

/// Whether wrong answers are far from right ones, where they were compared with the reference.
#[allow(clippy::cast_precision_loss)] // a dozen trials
fn apart(trials: &[Trial]) -> bool {
    let mean = |wrong: bool| {
        let of = trials.iter().filter(|trial| trial.is_wrong() == wrong).filter_map(|trial| trial.kl);
        let (sum, count) = of.fold((0.0, 0), |(sum, count), kl| (sum + kl, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    };
    if trials.iter().all(|trial| trial.beyond.is_some()) {
        return true;
    }
    match (mean(true), mean(false)) {
        (Some(wrong), Some(right)) => wrong >= APART * right,
        _ => true,
    }
}

fn findings(check: &str, trials: &[Trial]) -> Vec<Finding> {
    let wrong = trials.iter().filter(|trial| trial.is_wrong()).count();
    if let Some((right, first_wrong)) = edge(trials) {
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
            "Right up to {right} tokens, wrong from {first_wrong} on: {wrong} of {} prompts.{place}",
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
    use super::*;

    fn trials(list: &[(usize, bool)]) -> Vec<Trial> {
        list.iter()
            .map(|&(tokens, found)| Trial {
                tokens,
                found,
                kl: None,
                beyond: None,
                exchange: 1,
                text: String::new(),
            })
            .collect()
    }

    #[test]
    fn an_edge_needs_all_wrong_ones_above_it() {
        let list = [(56, true), (80, false), (120, false), (150, false)];
        assert_eq!(edge(&trials(&list)), Some((56, 80)));
        assert_eq!(
            edge(&trials(&[(56, true), (80, true), (120, true), (150, false)])),
            None,
            "one may be chance"
        );
        assert_eq!(edge(&trials(&[(56, false), (80, true), (120, false), (150, true)])), None);
        assert_eq!(edge(&trials(&[(56, true), (80, true)])), None);
        let one_exception = [(56, true), (80, false), (120, false), (150, true), (250, false), (280, false)];
        assert_eq!(edge(&trials(&one_exception)), Some((56, 80)));
    }

    #[test]
    fn powers_of_two_are_named() {
        let found = findings(
            "endpoint.length-sweep",
            &trials(&[(60, true), (66, false), (120, false), (150, false)]),
        );
        assert_eq!(found[0].suggested_cause(), Some("size-threshold"));
        assert!(found[0].detail.contains("is 64"), "{}", found[0].detail);
        assert_eq!(findings("x", &trials(&[(60, true), (70, true)]))[0].id, "x/even");
        assert_eq!(findings("x", &trials(&[(60, false), (70, false)]))[0].id, "x/all-lengths");
    }

    #[test]
    fn lengths_fit_the_context() {
        assert!(lengths(Depth::Thorough, 4_096).iter().all(|length| *length < 4_096));
        assert_eq!(lengths(Depth::Standard, 4_096).len(), 10);
    }
}
