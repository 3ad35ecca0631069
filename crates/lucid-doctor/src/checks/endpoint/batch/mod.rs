//! Alone, and among neighbours.
//!
//! All of a company begin at the same moment, twice over, so that most of their prompts are read together: what is wrong with prompts that
//! share a step shows there, and who comes first is another one each time.
//!
//! Every neighbour carries a secret of its own. A question gets the same answer in any company, and nobody's secret shows up
//! in somebody else's answer.

mod apart;

use std::collections::BTreeSet;

use lucid_client::ChatRequest;

use super::requests::{Needle, greedy, needle_prompt, short_questions};
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Alike, Examination, Sample};
use crate::report::{Finding, ProbeTable, ProofKind, Severity};
use crate::statistics::{Random, wilson};
use crate::subject::Depth;

pub(crate) struct Batch;

/// Tokens of an answer.
const ANSWER: u32 = 32;
/// Questions whose answers are compared.
const QUESTIONS: usize = 6;

/// Sizes of the company by depth.
fn companies(depth: Depth) -> &'static [usize] {
    match depth {
        Depth::Quick => &[8, 8],
        Depth::Standard => &[8, 16, 16],
        Depth::Thorough => &[8, 16, 64, 64],
    }
}

impl Check for Batch {
    fn id(&self) -> &'static str {
        "endpoint.batch"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server]
    }

    fn covers(&self) -> &'static str {
        "an answer doesn't depend on its neighbours in the batch, and no neighbour's secret shows up in it"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 46, tokens: 5_000 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        let exact = examination.evidence.claim.is_some();
        let seed = examination.seed;
        let mut random = Random::new(seed ^ 0xba7c4);
        let questions: Vec<ChatRequest> = short_questions(seed.wrapping_add(7), QUESTIONS)
            .into_iter()
            .map(|messages| greedy(messages, ANSWER))
            .collect();
        let alone: Vec<Option<Sample>> =
            examination.samples(&endpoint, &questions, 1)?.into_iter().map(Result::ok).collect();
        let mut table = ProbeTable::new(
            self.id(),
            "Alone against in company",
            &["requests at a time", "question", "against alone"],
        );
        let (mut pairs, mut different, mut ties) = (0, Vec::new(), 0);
        let (mut leaks, mut neighbours) = (Vec::new(), 0);
        for (number, &size) in companies(examination.depth).iter().enumerate() {
            examination.step(number, companies(examination.depth).len(), &format!("{size} at a time"));
            let secrets: Vec<Needle> =
                (0..size.saturating_sub(QUESTIONS)).map(|i| needle_prompt(i % 5, 2, &mut random)).collect();
            let mut company: Vec<Member> = (0..QUESTIONS)
                .map(Member::Question)
                .chain((0..secrets.len()).map(Member::Neighbour))
                .collect();
            random.shuffle(&mut company);
            let request = |member: &Member| match *member {
                Member::Question(i) => questions[i].clone(),
                Member::Neighbour(i) => greedy(secrets[i].messages.clone(), ANSWER),
            };
            let requests: Vec<ChatRequest> = company.iter().map(request).collect();
            let answers = examination.samples(&endpoint, &requests, size)?;
            for (member, answer) in company.into_iter().zip(answers) {
                let Ok(answer) = answer else { continue };
                let mine = match member {
                    Member::Question(_) => None,
                    Member::Neighbour(i) => Some(secrets[i].secret.as_str()),
                };
                neighbours += usize::from(mine.is_some());
                let foreign = secrets
                    .iter()
                    .map(|needle| needle.secret.as_str())
                    .find(|secret| Some(*secret) != mine && answer.text.contains(secret));
                if foreign.is_some() {
                    leaks.push((answer.exchange, answer.text.clone()));
                }
                if let Member::Question(question) = member
                    && let Some(Some(alone)) = alone.get(question)
                {
                    let alike = alone.compare(&answer, exact);
                    table.row(&[&size, &(question + 1), &alike.word()]);
                    pairs += 1;
                    ties += usize::from(matches!(alike, Alike::Tie { .. }));
                    if alike.is_different() {
                        different.push((question, answer.exchange, alike));
                    }
                }
            }
        }
        examination.evidence.probes.push(table);
        if pairs == 0 {
            return Err(Skip("no answers could be compared".to_owned()));
        }
        let proven = proves(&different, exact) && !examination.evidence.unstable;
        let threshold = examination.evidence.threshold;
        let mut findings = findings(self.id(), &different, proven, pairs, ties, &leaks, neighbours);
        if examination.evidence.short_steps {
            findings = findings.into_iter().map(of_shorter_steps).collect();
        } else if threshold {
            findings = findings.into_iter().map(of_longer_steps).collect();
        } else if proven {
            let changed: BTreeSet<usize> = different.iter().map(|(question, ..)| *question).collect();
            let changed: Vec<(&ChatRequest, &Sample)> = changed
                .into_iter()
                .filter_map(|i| Some((questions.get(i)?, alone.get(i)?.as_ref()?)))
                .collect();
            findings.extend(apart::look(self.id(), examination, &endpoint, &changed, exact));
        }
        let interval = wilson(different.len() as u64, pairs as u64);
        Ok(Examined {
            findings,
            covered: format!(
                "{} of {pairs} answers differ in company (95 % interval {:.0}\u{2013}{:.0} %), {} of {neighbours} secrets leaked",
                different.len(),
                interval.low * 100.0,
                interval.high * 100.0,
                leaks.len()
            ),
        })
    }
}

/// One of a company.
#[derive(Clone, Copy)]
enum Member {
    /// The so-many-th question.
    Question(usize),
    /// Who holds the so-many-th secret.
    Neighbour(usize),
}

/// Company makes longer steps. Where a number of tokens is known to be too many, that alone changes answers, and no neighbour does.
fn of_longer_steps(mut finding: Finding) -> Finding {
    if finding.id.ends_with("/company-changes") {
        finding.suggests.clear();
        return finding.suggests("size-threshold", 4.0).suggests("attention-kernel", 2.0);
    }
    finding
}

/// Where short steps are known to be wrong, company makes longer ones, and who is alone is wrong.
fn of_shorter_steps(mut finding: Finding) -> Finding {
    if finding.id.ends_with("/company-changes") {
        finding.suggests.clear();
        return finding.suggests("collectives", 1.0).suggests("attention-kernel", 1.0);
    }
    finding
}

/// Whether the differences prove that company changes answers. All companies of a question are held against one answer: where that was
/// decided by a hair, all of them differ. So it takes two questions, but for plain f32.
fn proves(different: &[(usize, usize, Alike)], exact: bool) -> bool {
    let questions: BTreeSet<usize> = different.iter().map(|(question, ..)| *question).collect();
    different.len() >= 2 && (exact || questions.len() >= 2)
}

/// `proven`: of a server that repeats itself when alone; otherwise company proves nothing.
fn findings(
    check: &str,
    different: &[(usize, usize, Alike)],
    proven: bool,
    pairs: usize,
    ties: usize,
    leaks: &[(usize, String)],
    neighbours: usize,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some((exchange, text)) = leaks.first() {
        findings.push(
            Finding::new(
                check,
                "leak",
                Severity::Error,
                "A secret of one request shows up in the answer to another",
            )
            .detail(format!("{} of {neighbours} answers in company have a neighbour's secret.", leaks.len()))
            .proof(ProofKind::Exchange, exchange.to_string(), text.chars().take(100).collect::<String>())
            .suggests("attention-kernel", 9.0)
            .suggests("prefix-cache", 3.0),
        );
    }
    if proven {
        let mut finding = Finding::new(check, "company-changes", Severity::Error, "Answers change with the neighbours in the batch")
            .detail(format!("{} of {pairs} answers in company come from other distributions than alone, and not at near-ties.", different.len()))
            .suggests("attention-kernel", 8.0)
            .suggests("cuda-graph", 3.0)
            .suggests("size-threshold", 2.0);
        for (_, exchange, alike) in different.iter().take(3) {
            finding = finding.proof(ProofKind::Exchange, exchange.to_string(), alike.word());
        }
        findings.push(finding);
    } else if different.is_empty() && ties > 0 {
        findings.push(
            Finding::new(
                check,
                "near-ties",
                Severity::Info,
                "In company, answers part where two tokens are as likely",
            )
            .detail(format!(
                "{ties} of {pairs}. The distributions are the same: the order of sums changes with the batch."
            ))
            .suggests("expected-nondeterminism", 3.0),
        );
    }
    if findings.is_empty() && different.is_empty() {
        findings.push(
            Finding::new(check, "alike", Severity::Info, "Answers are the same alone and in company")
                .suggests("cuda-graph", -1.0),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(different: usize, leaks: usize, unstable: bool) -> Vec<String> {
        let different: Vec<_> =
            (0..different).map(|question| (question, 1, Alike::Different { at: 1, shift: 1.0 })).collect();
        judged(&different, leaks, unstable)
    }

    fn judged(different: &[(usize, usize, Alike)], leaks: usize, unstable: bool) -> Vec<String> {
        let leaks = vec![(1, String::new()); leaks];
        let proven = proves(different, false) && !unstable;
        findings("endpoint.batch", different, proven, 6, 0, &leaks, 10)
            .into_iter()
            .map(|finding| finding.id)
            .collect()
    }

    #[test]
    fn company_is_blamed_only_for_what_it_changes() {
        assert_eq!(ids(0, 0, false), ["endpoint.batch/alike"]);
        assert!(ids(1, 0, false).is_empty(), "one may be chance");
        assert_eq!(ids(3, 0, false), ["endpoint.batch/company-changes"]);
        let changes =
            [(0, 1, Alike::Different { at: 1, shift: 1.0 }), (1, 2, Alike::Different { at: 1, shift: 1.0 })];
        let found = findings("endpoint.batch", &changes, true, 6, 0, &[], 10).remove(0);
        assert_eq!(found.suggested_cause(), Some("attention-kernel"));
        assert_eq!(of_longer_steps(found.clone()).suggested_cause(), Some("size-threshold"));
        let weights: f64 = of_shorter_steps(found).suggests.iter().map(|suggestion| suggestion.weight).sum();
        assert!((weights - 2.0).abs() < 1e-9, "it says nothing that the number of tokens doesn't");
        let odd = (2, 1, Alike::Different { at: 1, shift: 1.0 });
        assert!(judged(&[odd, odd], 0, false).is_empty(), "one odd answer alone differs from all in company");
        assert!(ids(3, 0, true).is_empty(), "it doesn't repeat itself when alone either");
        assert_eq!(ids(0, 1, true), ["endpoint.batch/leak"]);
    }
}
