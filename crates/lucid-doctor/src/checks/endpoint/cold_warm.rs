//! The same prompt with and without the help of the prefix cache.
//!
//! Each prompt comes in twins that differ in their secret alone. The first twin is fresh; the second shares its beginning
//! with what the cache now holds; then both are repeated and can come from the cache as a whole. With the checkpoint's tokenizer
//! the secret is put late into a page: a page that is found by its beginning alone is found for the wrong twin.

use super::requests::{Needle, greedy, twin_prompts};
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Alike, Examination, Sample};
use crate::report::{Finding, ProbeTable, ProofKind, Severity};
use crate::statistics::{Random, periodic};
use crate::subject::Depth;

pub(crate) struct ColdWarm;

/// Tokens of an answer: the reasoning and the code.
const ANSWER: u32 = 40;
/// Sentences after the secret.
const AFTER: usize = 6;
/// The largest page that MLA kernels usually have; the others divide it.
const PAGE: usize = 64;
/// Where in a page the twins part: far from its beginning, and with room for the code before its end.
const LATE: std::ops::RangeInclusive<usize> = 40..=56;
/// Draws of a text until the twins part there.
const DRAWS: usize = 60;

/// Twins by depth.
fn count(depth: Depth) -> usize {
    match depth {
        Depth::Quick => 3,
        Depth::Standard => 6,
        Depth::Thorough => 24,
    }
}

/// What became of one pair of twins.
struct Outcome {
    /// Tokens before the secret, about.
    shared: usize,
    /// Each twin repeated against itself.
    repeated: [Alike; 2],
    /// The second twin's answer has the first one's secret.
    confused: bool,
    exchange: usize,
    text: String,
}

impl Check for ColdWarm {
    fn id(&self) -> &'static str {
        "endpoint.cold-warm"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server]
    }

    fn covers(&self) -> &'static str {
        "a prompt gets the same answer fresh, repeated, and after another one with the same beginning"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 24, tokens: 8_000 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        let exact = examination.evidence.claim.is_some();
        let mut random = Random::new(examination.subject.seed ^ 0xc01d);
        let count = count(examination.subject.depth);
        let mut outcomes = Vec::new();
        let mut failed = None;
        for number in 0..count {
            examination.step(number, count, "fresh and from the cache");
            let (before, parted, twins) = twins(examination, &mut random);
            let requests = [0, 1, 0, 1].map(|twin| greedy(twins[twin].messages.clone(), ANSWER));
            let answers: Vec<Sample> =
                match examination.samples(&endpoint, &requests, 1)?.into_iter().collect() {
                    Ok(answers) => answers,
                    Err(reason) => {
                        failed.get_or_insert(reason);
                        continue;
                    }
                };
            let [first, second, first_again, second_again] = answers.as_slice() else { continue };
            let foreign = |answer: &Sample| {
                answer.text.contains(&twins[0].secret) && !answer.text.contains(&twins[1].secret)
            };
            let tokens = second.prompt_tokens as usize;
            outcomes.push(Outcome {
                shared: parted.unwrap_or(tokens * before / (before + AFTER + 2)),
                repeated: [first.compare(first_again, exact), second.compare(second_again, exact)],
                confused: foreign(second) || foreign(second_again),
                exchange: second.exchange,
                text: second.text.clone(),
            });
        }
        if outcomes.is_empty() {
            return Err(Skip(failed.unwrap_or_else(|| "no answer came".to_owned())));
        }
        let mut table = ProbeTable::new(
            self.id(),
            "Fresh against repeated; the second twin's answer after the first",
            &[
                "tokens before the secret",
                "first repeated",
                "second repeated",
                "second has the first's secret",
            ],
        );
        for outcome in &outcomes {
            let [first, second] = outcome.repeated.map(Alike::word);
            table.row(&[&outcome.shared, &first, &second, &if outcome.confused { "yes" } else { "no" }]);
        }
        examination.evidence.probes.push(table);
        let unstable = examination.evidence.unstable;
        Ok(Examined {
            findings: findings(self.id(), &outcomes, unstable, examination.subject.seed),
            covered: format!(
                "{} pairs of prompts that share a beginning, each fresh and repeated",
                outcomes.len()
            ),
        })
    }
}

/// Sentences before the secret, the token at which the twins part (if there is a tokenizer to tell), and the twins.
fn twins(examination: &Examination<'_>, random: &mut Random) -> (usize, Option<usize>, [Needle; 2]) {
    let mut draws = 0;
    loop {
        draws += 1;
        // From a few tokens to three of the larger pages.
        let before = 1 + random.below(20);
        let twins = twin_prompts(before, AFTER, random);
        let tokens = |twin: &Needle| examination.reference.as_ref()?.prompt(&twin.messages).ok();
        let (Some(first), Some(second)) = (tokens(&twins[0]), tokens(&twins[1])) else {
            return (before, None, twins);
        };
        let parted = first.iter().zip(&second).take_while(|(a, b)| a == b).count();
        if LATE.contains(&(parted % PAGE)) || draws >= DRAWS {
            return (before, Some(parted), twins);
        }
    }
}

fn findings(check: &str, outcomes: &[Outcome], unstable: bool, seed: u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    let confused: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.confused).collect();
    if let Some(example) = confused.first() {
        findings.push(
            Finding::new(
                check,
                "foreign-secret",
                Severity::Error,
                "An answer gives the secret of an earlier prompt with the same beginning",
            )
            .detail(format!(
                "{} of {} pairs: the cached beginning of one prompt is taken for another one's.",
                confused.len(),
                outcomes.len()
            ))
            .proof(
                ProofKind::Exchange,
                example.exchange.to_string(),
                example.text.chars().take(80).collect::<String>(),
            )
            .suggests("prefix-cache", 9.0),
        );
    }
    let warm: Vec<&Outcome> =
        outcomes.iter().filter(|outcome| outcome.repeated.iter().any(|alike| alike.is_different())).collect();
    let changed: usize =
        outcomes.iter().flat_map(|outcome| outcome.repeated).filter(|alike| alike.is_different()).count();
    if changed >= 2 {
        let pattern = periodic(
            &outcomes.iter().map(|outcome| outcome.shared).collect::<Vec<_>>(),
            &outcomes
                .iter()
                .map(|outcome| outcome.repeated.iter().any(|alike| alike.is_different()))
                .collect::<Vec<_>>(),
            &[16, 32, 64, 128],
            seed,
        );
        let pattern = pattern.map_or_else(String::new, |(period, p)| {
            format!(" By the tokens before the secret modulo {period}: p = {p:.3} for a pattern.")
        });
        let mut finding = Finding::new(
            check,
            "warm-differs",
            Severity::Error,
            "A repeated prompt gets an answer from another distribution",
        )
        .detail(format!("{changed} of {} repetitions.{pattern}", 2 * outcomes.len()))
        .suggests("prefix-cache", if unstable { 4.0 } else { 6.0 })
        .suggests("kv-cache-scales", 2.0);
        for outcome in warm.iter().take(2) {
            finding =
                finding.proof(ProofKind::Exchange, outcome.exchange.to_string(), outcome.repeated[1].word());
        }
        findings.push(finding);
    } else if confused.is_empty() {
        findings.push(
            Finding::new(
                check,
                "warm-as-cold",
                Severity::Info,
                "Repeated prompts and shared beginnings change nothing",
            )
            .suggests("prefix-cache", -3.0),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(shared: usize, alike: Alike, confused: bool) -> Outcome {
        Outcome { shared, repeated: [Alike::Same, alike], confused, exchange: 1, text: String::new() }
    }

    fn ids(outcomes: &[Outcome]) -> Vec<String> {
        findings("endpoint.cold-warm", outcomes, false, 1).into_iter().map(|finding| finding.id).collect()
    }

    #[test]
    fn one_odd_answer_convicts_nobody() {
        let same = || outcome(50, Alike::Same, false);
        let other = || outcome(70, Alike::Different { at: 2, shift: 1.0 }, false);
        assert_eq!(ids(&[same(), same()]), ["endpoint.cold-warm/warm-as-cold"]);
        assert_eq!(ids(&[same(), other()]), ["endpoint.cold-warm/warm-as-cold"]);
        assert_eq!(ids(&[other(), other()]), ["endpoint.cold-warm/warm-differs"]);
        assert_eq!(
            ids(&[outcome(70, Alike::Tie { at: 1, gap: 0.1 }, false); 1]),
            ["endpoint.cold-warm/warm-as-cold"]
        );
        assert_eq!(ids(&[same(), outcome(70, Alike::Same, true)]), ["endpoint.cold-warm/foreign-secret"]);
    }
}
