//! Is the model computed rightly whatever the number of tokens in a step?
//!
//! Engines choose their kernels, tiles and captured graphs by the number of rows that a step has, and most of them are only ever tried at
//! powers of two. So prompts of exact lengths are sent, one at a time: every small number, multiples of 8, 16 and 64, and their neighbours.
//! Each begins elsewhere in a known text, so that no prefix cache shortens it, and what follows is compared with the reference.
//!
//! Numbers of tokens that came out wrong are an accusation only if fresh texts of the same length are wrong again, and fresh ones of
//! neighbouring lengths are right.

mod pattern;

use lucid_checkpoint::TokenId;
use lucid_client::Endpoint;
use lucid_engine::Scorer;
use pattern::{Pattern, Trial, neighbours, pattern};

use super::places::{Measure, only_while_decoding};
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Examination, PromptScore, compare, observed};
use crate::report::html::nats;
use crate::report::{Finding, ProbeTable, ProofKind, Severity};
use crate::subject::Depth;

pub(crate) struct Sizes;

/// Candidates beside each token.
const TOP: u32 = 5;
/// How far apart prompts begin in the text.
const STRIDE: usize = 37;
/// Tokens of text, at the least: fewer would give the same beginnings again and again.
const TEXT: usize = 150;
/// Requests in a row that fail, until no more are sent.
const FAILURES: usize = 3;
/// Sizes that are looked at again, and fresh texts for each.
const CANDIDATES: usize = 4;
const FRESH: usize = 3;
/// Sizes that were wrong again which suffice.
const CONFIRMED: usize = 2;

/// Numbers of tokens by depth.
fn sizes(depth: Depth, longest: usize) -> Vec<usize> {
    // Every number up to the first; multiples of 8 up to the second, of 16 up to the third; neighbours of multiples of 64 up to the third.
    let (every, eights, sixteens) = match depth {
        Depth::Quick => (33, 80, 128),
        Depth::Standard => (66, 128, 256),
        Depth::Thorough => (130, 512, 1_024),
    };
    let mut sizes: Vec<usize> = (1..=every).collect();
    sizes.extend((8..=eights).step_by(8));
    sizes.extend((16..=sixteens).step_by(16));
    sizes.extend((64..=sixteens).step_by(64).flat_map(|size| [size - 1, size + 1]));
    sizes.sort_unstable();
    sizes.dedup();
    sizes.retain(|size| *size < longest);
    sizes
}

impl Check for Sizes {
    fn id(&self) -> &'static str {
        "reference.sizes"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server, Need::Checkpoint]
    }

    fn covers(&self) -> &'static str {
        "steps of any number of tokens are computed alike: every small number, multiples of 8, 16 and 64, and their neighbours"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 90, tokens: 6_000 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        if !endpoint.dialect().capabilities().token_prompts {
            return Err(Skip("the server takes no token ids, and lengths have to be exact".to_owned()));
        }
        let text: Vec<TokenId> =
            examination.evidence.observed.iter().flat_map(|(observed, _)| observed.tokens.clone()).collect();
        if text.len() < TEXT {
            return Err(Skip("too little text was compared to cut prompts from it".to_owned()));
        }
        let reference =
            examination.reference.as_ref().ok_or_else(|| "the checkpoint can't be read".to_owned())?;
        let scorer = reference.scorer_as(examination.evidence.claim)?;
        let longest = endpoint.info().max_model_len.map_or(4_096, |length| length as usize);
        let longest = longest.min(reference.max_len());
        let mut probe = Probe { endpoint, scorer, text, begins: examination.seed as usize % TEXT };
        let sizes = sizes(examination.depth, longest);
        let (mut trials, mut failures): (Vec<Trial>, Vec<String>) = (Vec::new(), Vec::new());
        for (number, &size) in sizes.iter().enumerate() {
            examination.step(number, sizes.len(), &format!("{size} tokens"));
            if examination.out_of_patience().is_some() || failures.len() >= FAILURES {
                break;
            }
            match probe.ask(examination, size) {
                Ok(trial) => {
                    trials.push(trial);
                    failures.clear();
                }
                Err(reason) => failures.push(reason),
            }
        }
        if trials.len() * 2 < sizes.len() {
            let why = failures.pop().or_else(|| examination.out_of_patience());
            return Err(Skip(why.unwrap_or_else(|| "too few prompts were answered".to_owned())));
        }
        let found = pattern(&trials);
        let confirmed = match &found {
            Pattern::Above { right, wrong } => probe.is_edge(examination, &trials, *right, *wrong),
            Pattern::Some(wrong) => probe.confirmed(examination, &trials, wrong),
            Pattern::Right | Pattern::Wrong => Vec::new(),
        };
        examination.evidence.probes.push(table(self.id(), &trials, &found));
        examination.evidence.threshold |= matches!(found, Pattern::Above { .. }) && !confirmed.is_empty();
        let (first, last) = (trials.first().map_or(0, |t| t.size), trials.last().map_or(0, |t| t.size));
        let covered = format!("{} numbers of tokens from {first} to {last}", trials.len());
        let mut findings = findings(self.id(), &trials, &found, &confirmed);
        if !probe.endpoint.dialect().capabilities().prompt_logprobs {
            findings.extend(answers_alone(self.id(), examination, &trials));
        }
        Ok(Examined { findings, covered })
    }
}

/// What prompts are asked with.
struct Probe {
    endpoint: Endpoint,
    scorer: Scorer,
    /// A known text; prompts are cut from it as if it went round.
    text: Vec<TokenId>,
    /// Where the next prompt begins.
    begins: usize,
}

impl Probe {
    /// A prompt of so many tokens, and how far what follows is from the reference.
    fn ask(&mut self, examination: &mut Examination<'_>, size: usize) -> Result<Trial, String> {
        self.begins = (self.begins + STRIDE) % self.text.len();
        let tokens: Vec<TokenId> = self.text.iter().cycle().skip(self.begins).take(size).copied().collect();
        let ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
        let (exchange, outcome) = examination.take(self.endpoint.score_tokens(&ids, 1, TOP, false));
        let (of_prompt, generated) = outcome.map_err(|error| error.to_string())?;
        let observed = observed(&|name| examination.id(name), &tokens, &of_prompt, &generated, exchange);
        let score =
            compare(&mut self.scorer, &observed).map_err(|error| format!("the reference failed: {error}"))?;
        let Some(last) = score.positions.last().copied() else {
            return Err("the server returned no log-probabilities".to_owned());
        };
        let exact = examination.evidence.claim.is_some();
        // Where the last layer is wrong, the last token alone may show it.
        let beyond = exact.then(|| (score.beyond(), last.is_beyond()));
        Ok(Trial { size, kl: score.mean_kl(), last, beyond, exchange })
    }

    /// Wrong sizes that are wrong again with fresh texts while their neighbours are right.
    fn confirmed(
        &mut self,
        examination: &mut Examination<'_>,
        trials: &[Trial],
        wrong: &[usize],
    ) -> Vec<Trial> {
        let mut confirmed = Vec::new();
        // From all over the range.
        let step = wrong.len().div_ceil(CANDIDATES).max(1);
        for &size in wrong.iter().step_by(step) {
            if confirmed.len() >= CONFIRMED {
                break;
            }
            let right = neighbours(trials, wrong, size);
            if let Some(trial) = self.again(examination, trials, &[size; FRESH], &right) {
                confirmed.push(trial);
            }
        }
        confirmed
    }

    /// Fresh prompts at either side of an edge; empty if they don't show it again.
    fn is_edge(
        &mut self,
        examination: &mut Examination<'_>,
        trials: &[Trial],
        right: usize,
        wrong: usize,
    ) -> Vec<Trial> {
        let longest = trials.last().map_or(wrong, |trial| trial.size);
        let wrong = [wrong, wrong.midpoint(longest), longest];
        self.again(examination, trials, &wrong, &[right, right.midpoint(1), right]).into_iter().collect()
    }

    /// Asks fresh prompts; one of the wrong ones, if all come out as they should.
    fn again(
        &mut self,
        examination: &mut Examination<'_>,
        trials: &[Trial],
        wrong: &[usize],
        right: &[usize],
    ) -> Option<Trial> {
        let bar = pattern::bar(trials);
        let asked = wrong.iter().map(|size| (*size, true)).chain(right.iter().map(|size| (*size, false)));
        let mut last = None;
        for (size, is_wrong) in asked {
            examination.step(0, 1, &format!("{size} tokens, once more"));
            let trial = self.ask(examination, size).ok()?;
            if trial.is_wrong(bar) != is_wrong {
                return None;
            }
            if is_wrong {
                last = Some(trial);
            }
        }
        last
    }
}

/// Where a server scores no prompts, what follows these is what is known of how it reads them: is it right, and what it goes on to write is not?
fn answers_alone(check: &str, examination: &Examination<'_>, trials: &[Trial]) -> Option<Finding> {
    let of_prompts = PromptScore { positions: trials.iter().map(|trial| trial.last).collect() };
    let mut scores: Vec<PromptScore> =
        examination.evidence.observed.iter().map(|(_, score)| score.clone()).collect();
    scores.push(of_prompts);
    only_while_decoding(check, &scores, Measure { exact: examination.evidence.claim.is_some() })
}

fn table(check: &str, trials: &[Trial], found: &Pattern) -> ProbeTable {
    let mut table = ProbeTable::new(
        check,
        "By the number of tokens in a step",
        &["tokens", "nats a token from the reference", "judged"],
    );
    let bar = pattern::bar(trials);
    for trial in trials {
        let wrong = *found != Pattern::Right && trial.is_wrong(bar);
        table.row(&[&trial.size, &nats(trial.kl), &if wrong { "wrong" } else { "right" }]);
    }
    table
}

/// `confirmed`: prompts that were wrong again.
fn findings(check: &str, trials: &[Trial], found: &Pattern, confirmed: &[Trial]) -> Vec<Finding> {
    let finding = match found {
        Pattern::Right => {
            return vec![
                Finding::new(check, "alike", Severity::Info, "Steps of all tried numbers of tokens are computed alike")
                    .suggests("size-threshold", -3.0),
            ];
        }
        Pattern::Wrong => {
            let title = "Steps of nearly every number of tokens are computed wrongly: no number is to blame";
            return vec![
                Finding::new(check, "all-sizes", Severity::Info, title).suggests("size-threshold", -2.0),
            ];
        }
        Pattern::Above { .. } | Pattern::Some(_) if confirmed.is_empty() => return Vec::new(),
        Pattern::Above { right, wrong } => Finding::new(
            check,
            "threshold",
            Severity::Error,
            format!("Steps of more than {right} tokens are computed wrongly"),
        )
        .detail(format!(
            "Right up to {right} tokens, wrong from {wrong} on, and again so with fresh texts: another kernel is chosen there."
        ))
        .suggests("size-threshold", 11.0)
        .suggests("attention-kernel", 2.0),
        Pattern::Some(wrong) => Finding::new(
            check,
            "some-sizes",
            Severity::Error,
            format!("Steps are computed wrongly at some numbers of tokens: {}", pattern::words(trials, wrong)),
        )
        .detail(format!(
            "{} of {} numbers of tokens. Fresh texts of {} tokens are wrong again, of their neighbours' lengths right: a kernel or a graph of these sizes is wrong, not the weights.",
            wrong.len(),
            trials.len(),
            confirmed.iter().map(|trial| trial.size.to_string()).collect::<Vec<_>>().join(" and ")
        ))
        .suggests("attention-kernel", 12.0)
        .suggests("size-threshold", 2.0)
        .remedy(
            "One kernel, or the captured graph of one size, is wrong. Without graphs these sizes are right or wrong still: that tells which. Then choose another backend for matrix products and experts.",
            vec![
                "vllm serve MODEL --enforce-eager".to_owned(),
                "vllm serve MODEL --moe-backend triton".to_owned(),
            ],
        ),
    };
    // The same weights, positions and scales are right at other sizes.
    let innocent = [
        "rope-scaling",
        "moe-routing",
        "quantization-loader",
        "wrong-checkpoint",
        "tp-sharding",
        "kv-cache-scales",
    ];
    let mut finding = innocent.into_iter().fold(finding, |finding, cause| finding.suggests(cause, -4.0));
    for trial in confirmed {
        let numbers = format!("{} tokens: {} nats a token from the reference", trial.size, nats(trial.kl));
        finding = finding.proof(ProofKind::Exchange, trial.exchange.to_string(), numbers);
    }
    vec![finding.confidence(0.99)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::PositionScore;

    #[test]
    fn sizes_are_more_than_powers_of_two() {
        let quick = sizes(Depth::Quick, 4_096);
        for size in [1, 7, 23, 33, 40, 56, 63, 64, 65, 72, 96, 127, 128, 129] {
            assert!(quick.contains(&size), "{size}");
        }
        assert!(quick.iter().sum::<usize>() < 2_000, "the price of a quick look");
        assert!(sizes(Depth::Thorough, 100).iter().all(|size| *size < 100));
    }

    fn trial(size: usize) -> Trial {
        Trial { size, kl: 0.3, last: PositionScore::default(), beyond: None, exchange: 1 }
    }

    #[test]
    fn nothing_is_said_before_it_was_seen_again() {
        let found = Pattern::Some(vec![8, 16]);
        assert!(findings("reference.sizes", &[], &found, &[]).is_empty());
        let finding = findings("reference.sizes", &[trial(8), trial(16)], &found, &[trial(8)]).remove(0);
        assert_eq!(
            (finding.severity, finding.suggested_cause()),
            (Severity::Error, Some("attention-kernel"))
        );
        let edge = Pattern::Above { right: 64, wrong: 65 };
        assert!(findings("reference.sizes", &[], &edge, &[]).is_empty());
        let finding = findings("reference.sizes", &[], &edge, &[trial(65)]).remove(0);
        assert_eq!(finding.suggested_cause(), Some("size-threshold"));
    }
}
