//! The same prompt with and without the help of the prefix cache.
//!
//! Each prompt comes in twins that differ in their secret alone. The first twin is fresh; the second shares its beginning
//! with what the cache now holds; then both are repeated and can come from the cache as a whole. With the checkpoint's tokenizer
//! the secret is put late into a page: a page that is found by its beginning alone is found for the wrong twin.

use lucid_client::{ChatRequest, Endpoint};

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
    /// After the cache was emptied: the first twin against its first answer, or the second, if only that one changed, against itself.
    flushed: Option<Alike>,
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
        let mut random = Random::new(examination.seed ^ 0xc01d);
        let count = count(examination.depth);
        let mut outcomes = Vec::new();
        let mut asked: Vec<([ChatRequest; 2], Sample)> = Vec::new();
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
            asked.push(([requests[0].clone(), requests[1].clone()], first.clone()));
            outcomes.push(Outcome {
                shared: parted.unwrap_or(tokens * before / (before + AFTER + 2)),
                repeated: [first.compare(first_again, exact), second.compare(second_again, exact)],
                confused: foreign(second) || foreign(second_again),
                flushed: None,
                exchange: second.exchange,
                text: second.text.clone(),
            });
        }
        let flushed = examination.subject.deep && flush(examination, &endpoint);
        for (outcome, (twins, first)) in outcomes.iter_mut().zip(&asked).filter(|_| flushed) {
            outcome.flushed = if outcome.repeated[1].is_different() && !outcome.repeated[0].is_different() {
                // What was fresh had its twin before it. Without the twin it has to repeat itself.
                let again = examination.samples(&endpoint, &[twins[1].clone(), twins[1].clone()], 1)?;
                match again.as_slice() {
                    [Ok(fresh), Ok(repeated)] => Some(fresh.compare(repeated, exact)),
                    _ => None,
                }
            } else {
                let again = examination.sample(&endpoint, &twins[0]).ok();
                again.map(|again| first.compare(&again, exact))
            };
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
                "after a flush",
            ],
        );
        for outcome in &outcomes {
            let [first, second] = outcome.repeated.map(Alike::word);
            let after = outcome.flushed.map_or_else(|| "not flushed".to_owned(), Alike::word);
            table.row(&[
                &outcome.shared,
                &first,
                &second,
                &if outcome.confused { "yes" } else { "no" },
                &after,
            ]);
        }
        examination.evidence.probes.push(table);
        let unstable = examination.evidence.unstable;
        Ok(Examined {
            findings: findings(self.id(), &outcomes, exact, unstable, examination.seed),
            covered: format!(
                "{} pairs of prompts that share a beginning, each fresh and repeated{}",
                outcomes.len(),
                if flushed { ", and after a flush of the cache" } else { "" }
            ),
        })
    }
}

/// Empties the server's cache; false if it has no request for that, or doesn't take it.
fn flush(examination: &mut Examination<'_>, endpoint: &Endpoint) -> bool {
    endpoint.flush_cache().is_some_and(|reply| examination.take(reply).1.is_ok())
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

/// What became of prompts whose repetition was answered otherwise, once the cache was empty.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AfterFlush {
    Unknown,
    /// The first answer came again, or the second twin's without the first: what was in the cache was wrong.
    Right,
    StillDifferent,
}

impl AfterFlush {
    fn of(warm: &[&Outcome]) -> AfterFlush {
        let flushed: Vec<Alike> = warm.iter().filter_map(|outcome| outcome.flushed).collect();
        match flushed.iter().filter(|alike| alike.is_different()).count() {
            _ if flushed.is_empty() => AfterFlush::Unknown,
            0 => AfterFlush::Right,
            _ => AfterFlush::StillDifferent,
        }
    }

    fn word(self) -> &'static str {
        match self {
            AfterFlush::Unknown => "",
            AfterFlush::Right => " After a flush of the cache the answers are the fresh ones again.",
            AfterFlush::StillDifferent => {
                " After a flush of the cache the answers differ still: it is not the cache alone."
            }
        }
    }
}

fn findings(check: &str, outcomes: &[Outcome], exact: bool, unstable: bool, seed: u64) -> Vec<Finding> {
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
    let changes: Vec<Alike> =
        outcomes.iter().flat_map(|outcome| outcome.repeated).filter(|alike| alike.is_different()).collect();
    let changed = changes.len();
    // Twins share their beginning: where an expert was chosen by a hair in it, both may honestly come out otherwise.
    if changed >= 2 && (exact || warm.len() >= 2) {
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
        let ended = changes.iter().all(|alike| alike.is_ended());
        let after = AfterFlush::of(&warm);
        let (slug, title) = if ended {
            ("warm-ends-early", "A prompt that came before is answered with nothing, or with less")
        } else {
            ("warm-differs", "A repeated prompt gets an answer from another distribution")
        };
        let mut finding = Finding::new(check, slug, Severity::Error, title)
            .detail(format!("{changed} of {} repetitions.{pattern}{}", 2 * outcomes.len(), after.word()))
            .suggests(
                "prefix-cache",
                match after {
                    AfterFlush::Right => 12.0,
                    AfterFlush::StillDifferent => 2.0,
                    AfterFlush::Unknown if ended => 8.0,
                    AfterFlush::Unknown if unstable => 4.0,
                    AfterFlush::Unknown => 6.0,
                },
            )
            .suggests("kv-cache-scales", if ended { 0.0 } else { 2.0 });
        for outcome in warm.iter().take(2) {
            let odd = outcome.repeated.into_iter().rev().find(|alike| alike.is_different());
            let word = odd.map(Alike::word).unwrap_or_default();
            finding = finding.proof(ProofKind::Exchange, outcome.exchange.to_string(), word);
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
        Outcome {
            shared,
            repeated: [Alike::Same, alike],
            confused,
            flushed: None,
            exchange: 1,
            text: String::new(),
        }
    }

    fn ids(outcomes: &[Outcome]) -> Vec<String> {
        findings("endpoint.cold-warm", outcomes, false, false, 1)
            .into_iter()
            .map(|finding| finding.id)
            .collect()
    }

    #[test]
    fn one_odd_answer_convicts_nobody() {
        let same = || outcome(50, Alike::Same, false);
        let other = || outcome(70, Alike::Different { at: 2, shift: 1.0 }, false);
        assert_eq!(ids(&[same(), same()]), ["endpoint.cold-warm/warm-as-cold"]);
        assert_eq!(ids(&[same(), other()]), ["endpoint.cold-warm/warm-as-cold"]);
        assert_eq!(ids(&[other(), other()]), ["endpoint.cold-warm/warm-differs"]);
        let both = Outcome { repeated: [Alike::Different { at: 2, shift: 1.0 }; 2], ..other() };
        assert_eq!(ids(&[same(), both]), ["endpoint.cold-warm/warm-as-cold"], "twins share their beginning");
        let odd = |flushed| Outcome {
            flushed: Some(flushed),
            repeated: [Alike::Different { at: 2, shift: 1.0 }; 2],
            ..other()
        };
        let weight = |outcome: &dyn Fn() -> Outcome| {
            findings("x", &[outcome(), outcome()], false, false, 1)[0].suggests[0].weight
        };
        let (right, wrong) =
            (weight(&|| odd(Alike::Same)), weight(&|| odd(Alike::Different { at: 0, shift: 1.0 })));
        assert!(right > weight(&other) && wrong < weight(&other), "a flush tells the cache from the rest");
        let nothing = || outcome(70, Alike::Ended { at: 0 }, false);
        assert_eq!(ids(&[nothing(), nothing()]), ["endpoint.cold-warm/warm-ends-early"]);
        assert_eq!(
            ids(&[outcome(70, Alike::Tie { at: 1, gap: 0.1 }, false); 1]),
            ["endpoint.cold-warm/warm-as-cold"]
        );
        assert_eq!(ids(&[same(), outcome(70, Alike::Same, true)]), ["endpoint.cold-warm/foreign-secret"]);
    }
}
