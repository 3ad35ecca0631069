//! The same request several times: does the server compute the same, and does it draw as it was told?
//!
//! Two texts that differ prove nothing: where two tokens are as likely, the order of a sum decides. The answers'
//! log-probabilities tell such near-ties from answers that come from different distributions.

use lucid_client::{ChatRequest, Dialect, TokenName};

use super::requests::{TOP, greedy, open_questions, short_questions};
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Alike, Examination, Sample, SampleToken};
use crate::report::{Finding, ProbeTable, ProofKind, Severity};
use crate::statistics::{DrawTest, wilson};
use crate::subject::Depth;

pub(crate) struct Determinism;

/// Tokens of an answer.
const ANSWER: u32 = 24;
/// Times that each question is put.
const TIMES: usize = 3;
/// Times that each open question is put: their answers are long, and have many tokens that a wrong temperature changes.
const OPEN_TIMES: usize = 2;
/// Tokens of an open answer.
const OPEN_ANSWER: u32 = 48;
/// Temperature of the sampled answers: high enough that two seeds hardly ever draw the same.
const HOT: f64 = 1.8;
/// Odds against the stated distributions at which draws are not from them: error rate 0.1 %.
const ODDS: f64 = 1_000.0;

/// Questions by depth.
fn count(depth: Depth) -> usize {
    match depth {
        Depth::Quick => 2,
        Depth::Standard => 4,
        Depth::Thorough => 12,
    }
}

impl Check for Determinism {
    fn id(&self) -> &'static str {
        "endpoint.determinism"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server]
    }

    fn covers(&self) -> &'static str {
        "the same greedy request gets the same answer up to near-ties, greedy choices are the likeliest tokens, draws follow the stated distributions, and a seed repeats a draw"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 25, tokens: 1_600 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        let exact = examination.evidence.claim.is_some();
        let seed = examination.seed;
        let questions = short_questions(seed, count(examination.depth));
        // All questions, then all again: between two times other requests have passed through the server's caches.
        let requests: Vec<ChatRequest> = (0..TIMES)
            .flat_map(|_| questions.iter().cloned())
            .map(|messages| greedy(messages, ANSWER))
            .collect();
        let answers = examination.samples(&endpoint, &requests, 1)?;
        let mut table = ProbeTable::new(
            self.id(),
            "The same greedy request, repeated",
            &["question", "time", "against the first"],
        );
        let (mut pairs, mut different, mut ties) = (0, Vec::new(), 0);
        for (i, answer) in answers.iter().enumerate().skip(questions.len()) {
            let (Ok(first), Ok(answer)) = (&answers[i % questions.len()], answer) else { continue };
            let alike = first.compare(answer, exact);
            table.row(&[&(i % questions.len() + 1), &(i / questions.len() + 1), &alike.word()]);
            pairs += 1;
            ties += usize::from(matches!(alike, Alike::Tie { .. }));
            if alike.is_different() {
                different.push(Unlike {
                    question: i % questions.len(),
                    first: first.exchange,
                    again: answer.exchange,
                    alike,
                });
            }
        }
        examination.evidence.probes.push(table);
        if pairs == 0 {
            let reason = answers.into_iter().find_map(Result::err);
            return Err(Skip(reason.unwrap_or_else(|| "nothing could be compared".to_owned())));
        }
        let mut findings = Vec::new();
        let repeats = proves(&different, pairs, &answers, questions.len(), exact);
        let mut answers: Vec<Sample> = answers.into_iter().flatten().collect();
        let open: Vec<ChatRequest> = (0..OPEN_TIMES)
            .flat_map(|_| open_questions())
            .map(|messages| greedy(messages, OPEN_ANSWER))
            .collect();
        answers.extend(examination.samples(&endpoint, &open, 1)?.into_iter().flatten());
        let sampled = not_greedy(&answers);
        if let Some((finding, _)) = &sampled {
            findings.push(finding.clone());
        } else if repeats {
            findings.push(unstable(&different, pairs));
            examination.evidence.unstable = true;
        } else if ties > 0 {
            findings.push(
                Finding::new(self.id(), "near-ties", Severity::Info, "Greedy answers part where two tokens are as likely")
                    .detail(format!("{ties} of {pairs} repetitions. The distributions are the same: this is rounding, not a fault."))
                    .suggests("expected-nondeterminism", 3.0),
            );
        }
        let seeds = self.seeds(examination)?;
        let repeated = seeds.as_ref().map_or("a seed was not tried", |_| "one seed repeated");
        findings.extend(seeds.flatten());
        let draws = self.draws(examination)?;
        findings.extend(unlike_stated(&draws));
        let drawn = format!("{repeated}; {} draws at temperature 1", draws.draws());
        let interval = wilson(different.len() as u64, pairs as u64);
        Ok(Examined {
            findings,
            covered: format!(
                "{} greedy questions, {TIMES} times each: {} of {pairs} repetitions differ (95 % interval up to {:.0} %), {ties} near-ties; {drawn}",
                questions.len(),
                different.len(),
                interval.high * 100.0
            ),
        })
    }
}

impl Determinism {
    /// The same seed three times, hot; if all differ, another seed and question. `None` without a question; `Some(None)`: the draws repeat.
    fn seeds(&self, examination: &mut Examination<'_>) -> Result<Option<Option<Finding>>, Skip> {
        let endpoint = examination.endpoint()?;
        let mut first_of_all: Option<Sample> = None;
        // Open questions: one whose answer is certain repeats whatever the seed. A draw near the edge between two tokens may tip,
        // where sums come out in another order; three draws that all part, with two questions and two seeds, don't.
        for (messages, offset) in open_questions().into_iter().take(2).zip(0..) {
            let request = ChatRequest {
                temperature: Some(HOT),
                // A server's own default may cut the tail that draws differ in.
                top_p: Some(1.0),
                seed: Some(examination.seed.wrapping_add(offset) % (1 << 31)),
                ..greedy(messages, ANSWER)
            };
            let drawn: Vec<Sample> = examination
                .samples(&endpoint, &[request.clone(), request.clone(), request], 1)?
                .into_iter()
                .flatten()
                .collect();
            let [first, rest @ ..] = drawn.as_slice() else { return Ok(None) };
            let all_differ = rest.len() == 2
                && rest.iter().all(|other| other.text != first.text)
                && rest[0].text != rest[1].text;
            if !all_differ {
                return Ok(Some(None));
            }
            first_of_all.get_or_insert_with(|| first.clone());
        }
        let Some(first) = first_of_all else { return Ok(None) };
        let promised = matches!(endpoint.dialect(), Dialect::Vllm | Dialect::Lucid | Dialect::LlamaCpp);
        let finding = Finding::new(
            self.id(),
            "seed-ignored",
            if promised { Severity::Error } else { Severity::Info },
            "The same seed draws another answer each time",
        )
        .detail("Three sampled answers with one seed are all different, for two questions with a seed each. Either the parameter has no effect, or the distributions change from call to call.")
        .proof(ProofKind::Exchange, first.exchange.to_string(), first.text.chars().take(80).collect::<String>())
        .suggests("sampling-defaults", if examination.evidence.unstable { 1.0 } else { 7.0 });
        Ok(Some(Some(finding)))
    }
}

impl Determinism {
    /// Open answers at temperature 1, held against the distributions that come with them.
    fn draws(&self, examination: &mut Examination<'_>) -> Result<DrawTest, Skip> {
        let endpoint = examination.endpoint()?;
        let hot = |messages| ChatRequest {
            temperature: Some(1.0),
            top_p: Some(1.0),
            ..greedy(messages, OPEN_ANSWER)
        };
        let requests: Vec<ChatRequest> = open_questions().into_iter().map(hot).collect();
        let mut test = DrawTest::default();
        for answer in examination.samples(&endpoint, &requests, 1)?.into_iter().flatten() {
            for token in &answer.tokens {
                if let Some((listed, drawn)) = partition(token) {
                    test.observe(&listed, drawn);
                }
            }
        }
        Ok(test)
    }
}

/// The likeliest candidates of a token's place, and which of them was drawn.
///
/// Servers list the drawn token whether or not it is among the likeliest: vLLM leaves out the last of them for it. One fewer than were
/// asked for are the same whatever was drawn, and that is what the bet needs.
fn partition(token: &SampleToken) -> Option<(Vec<f64>, Option<usize>)> {
    let mut listed: Vec<&(TokenName, f64)> = token.top.iter().collect();
    listed.sort_by(|a, b| b.1.total_cmp(&a.1));
    listed.truncate(TOP as usize - 1);
    let drawn = listed.iter().position(|(name, _)| *name == token.name);
    (!listed.is_empty()).then(|| (listed.iter().map(|(_, logprob)| *logprob).collect(), drawn))
}

/// Draws that the stated distributions don't give.
fn unlike_stated(draws: &DrawTest) -> Option<Finding> {
    (draws.odds() >= ODDS).then(|| {
        Finding::new(
            "endpoint.determinism",
            "draws-unlike-stated",
            Severity::Error,
            "Answers at temperature 1 are not drawn from the distributions that come with them",
        )
        .detail(format!(
            "After {} tokens the odds are {:.1e} to 1 against it; a temperature of about {} would explain them. The server samples with settings of its own.",
            draws.draws(),
            draws.odds(),
            draws.likeliest()
        ))
        .confidence(0.99)
        .suggests("sampling-defaults", 8.0)
    })
}

/// Greedy answers in which tokens stand that are not the likeliest.
fn not_greedy(answers: &[Sample]) -> Option<(Finding, usize)> {
    let unlikely: Vec<(&Sample, usize, f64)> = answers
        .iter()
        .filter_map(|answer| answer.first_unlikely().map(|(at, behind)| (answer, at, behind)))
        .collect();
    let (answer, at, behind) = unlikely.first()?;
    // One such token may be a server's rounding of its own list.
    if unlikely.len() < 2 {
        return None;
    }
    let finding = Finding::new(
        "endpoint.determinism",
        "not-greedy",
        Severity::Error,
        "Temperature 0 is not greedy: answers have tokens that are not the likeliest",
    )
    .detail(format!(
        "{} of {} answers; in the first, token {at} is {behind:.1} nats behind the likeliest one. The server draws with a temperature of its own.",
        unlikely.len(),
        answers.len()
    ))
    .proof(ProofKind::Exchange, answer.exchange.to_string(), answer.text.chars().take(80).collect::<String>())
    .suggests("sampling-defaults", 9.0);
    Some((finding, unlikely.len()))
}

/// A repetition whose answer is unlike the first one.
struct Unlike {
    question: usize,
    /// Exchanges.
    first: usize,
    again: usize,
    alike: Alike,
}

/// Whether the differences prove that the server doesn't repeat itself.
///
/// All answers to a question are held against its first one, so one odd answer makes as many differences as there are repetitions:
/// honestly so when it was computed cold, the others from a cache by another kernel, and an expert was chosen by a hair. So it takes
/// two questions, or one whose answers are all unlike each other. A server of plain f32 has no hairs.
fn proves(
    different: &[Unlike],
    pairs: usize,
    answers: &[Result<Sample, String>],
    questions: usize,
    exact: bool,
) -> bool {
    if exact {
        return different.len() >= 2 || (!different.is_empty() && different.len() == pairs);
    }
    let mut odd: Vec<usize> = different.iter().map(|unlike| unlike.question).collect();
    odd.sort_unstable();
    odd.dedup();
    let all_unlike = |question: &usize| {
        let of: Vec<&Sample> = answers.iter().skip(*question).step_by(questions.max(1)).flatten().collect();
        let mut pairs = (0..of.len()).flat_map(|a| (a + 1..of.len()).map(move |b| (a, b)));
        of.len() > 2 && pairs.all(|(a, b)| of[a].compare(of[b], false).is_different())
    };
    odd.len() >= 2 || odd.iter().any(all_unlike)
}

fn unstable(different: &[Unlike], pairs: usize) -> Finding {
    let ended = different.iter().all(|unlike| unlike.alike.is_ended());
    let title = if ended {
        "A greedy request that came before is answered with nothing, or with less"
    } else {
        "The same greedy request gets answers from different distributions"
    };
    let slug = if ended { "repeats-end-early" } else { "greedy-differs" };
    let mut finding = Finding::new("endpoint.determinism", slug, Severity::Error, title).detail(format!(
        "{} of {pairs} repetitions, and not at near-ties: what the server computes depends on what it computed before.",
        different.len()
    ))
    .suggests("prefix-cache", if ended { 6.0 } else { 4.0 })
    .suggests("gpu-hardware", if ended { 0.0 } else { 1.5 })
    .suggests("attention-kernel", if ended { 0.0 } else { 1.0 });
    for unlike in different.iter().take(3) {
        finding = finding.proof(
            ProofKind::Exchange,
            unlike.again.to_string(),
            format!("against exchange {}: {}", unlike.first, unlike.alike.word()),
        );
    }
    finding
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token as vLLM lists it: the drawn one first, then the likeliest, four in all.
    fn token(drawn: &str, top: &[(&str, f64)]) -> SampleToken {
        let name = |text: &str| TokenName::Text(text.to_owned());
        SampleToken {
            name: name(drawn),
            logprob: -1.0,
            top: top.iter().map(|(text, logprob)| (name(text), *logprob)).collect(),
        }
    }

    #[test]
    fn what_is_listed_does_not_depend_on_what_was_drawn() {
        let likely = token("b", &[("b", -2.0), ("a", -1.0), ("c", -2.5), ("d", -3.0)]);
        assert_eq!(partition(&likely), Some((vec![-1.0, -2.0, -2.5], Some(1))));
        let unlikely = token("z", &[("z", -6.0), ("a", -1.0), ("b", -2.0), ("c", -2.5)]);
        assert_eq!(partition(&unlikely), Some((vec![-1.0, -2.0, -2.5], None)));
        assert_eq!(partition(&token("d", &[])), None);
    }
}
