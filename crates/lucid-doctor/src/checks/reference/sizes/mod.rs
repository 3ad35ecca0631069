//! Is the model computed rightly whatever the number of tokens in a step?
//!
//! Engines choose their kernels, tiles and captured graphs by the number of rows that a step has, and most of them are only ever tried at
//! powers of two. So prompts of exact lengths are sent, one at a time: every small number, multiples of 8, 16 and 64, and their neighbours.
//! Each begins elsewhere in a known text, so that no prefix cache shortens it, and what follows is compared with the reference.
//!
//! Numbers of tokens that came out wrong are an accusation only if fresh texts of the same length are wrong again, and fresh ones of
//! neighbouring lengths are right. Where short steps are wrong and long ones right, what the short ones compute is looked for
//! ([`short_steps`]). Where all of them are right and answers are not, the same contexts are read as prompts and decoded ([`decoding`]).

mod decoding;
mod pattern;
mod probe;
mod ranks;
mod short_steps;

use lucid_checkpoint::TokenId;
use pattern::{Pattern, Trial, pattern};
use probe::Probe;

use super::places::{Measure, only_beyond, only_while_decoding};
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Examination, PromptScore};
use crate::report::html::nats;
use crate::report::{Finding, ProbeTable, ProofKind, Severity};
use crate::subject::Depth;

pub(crate) struct Sizes;

/// Tokens of text, at the least: fewer would give the same beginnings again and again.
const TEXT: usize = 150;
/// Requests in a row that fail, until no more are sent.
const FAILURES: usize = 3;
/// Numbers of tokens that are asked for besides where prompts are not scored, so that only the last token of each tells: some beyond
/// each of the powers of two at which kernels usually change.
const OF_LAST_TOKENS: [usize; 12] = [136, 161, 190, 223, 257, 265, 271, 282, 289, 303, 321, 337];
/// Steps so many times as long as the longest are tried where all are wrong.
const LONGER: [usize; 2] = [2, 4];

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

/// Where prompts are scored and no arithmetic is declared, so that few of them were compared: longer ones, of which every token tells.
fn whole_prompts(depth: Depth) -> &'static [usize] {
    match depth {
        Depth::Quick => &[320, 352, 384],
        Depth::Standard => &[600, 640],
        Depth::Thorough => &[],
    }
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
        let mut probe =
            Probe { endpoint, scorer, text, unsure: None, begins: examination.seed as usize % TEXT };
        let mut sizes = sizes(examination.depth, longest);
        let last_alone = !probe.endpoint.dialect().capabilities().prompt_logprobs;
        let undeclared = examination.evidence.claim.is_none();
        if last_alone {
            probe.look_for_unsure_places()?;
            sizes.extend(OF_LAST_TOKENS.into_iter().filter(|size| *size < longest));
            sizes.sort_unstable();
            sizes.dedup();
        }
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
        if pattern::may_end(&trials) {
            let last = trials.last().map_or(0, |trial| trial.size);
            for size in LONGER.map(|times| times * last).into_iter().filter(|size| *size < longest) {
                examination.step(trials.len(), trials.len() + 1, &format!("{size} tokens"));
                trials.extend(probe.ask(examination, size));
            }
        }
        let mut found = pattern(&trials, last_alone);
        let mut bar = pattern::bar(&trials);
        let mut confirmed = match &found {
            Pattern::Above { right, wrong } if last_alone => {
                probe.is_seldom_right(examination, &trials, *right, *wrong)
            }
            Pattern::Above { right, wrong } => probe.is_edge(examination, &trials, *right, *wrong),
            Pattern::Below { wrong, right } => probe.ends(examination, &trials, *wrong, *right),
            Pattern::Some(wrong) => probe.confirmed(examination, &trials, wrong),
            Pattern::Right | Pattern::Wrong => Vec::new(),
        };
        if undeclared && confirmed.is_empty() {
            // No single step is far enough: all on one side of a length may be, or all of a tile's multiples.
            if let Some(edge) = ranks::parted(&trials) {
                confirmed = probe.is_parted(examination, &edge);
                if !confirmed.is_empty() {
                    (found, bar) = (edge.pattern, edge.bar);
                }
            }
        }
        examination.evidence.probes.push(table(self.id(), &trials, &found, bar));
        examination.evidence.threshold |= matches!(found, Pattern::Above { .. }) && !confirmed.is_empty();
        let (first, last) = (trials.first().map_or(0, |t| t.size), trials.last().map_or(0, |t| t.size));
        let covered = format!("{} numbers of tokens from {first} to {last}", trials.len());
        if let Pattern::Below { wrong, right } = found
            && !confirmed.is_empty()
        {
            examination.evidence.short_steps = true;
            let findings =
                vec![short_steps::finding(self.id(), examination, &trials, [wrong, right], bar, &confirmed)];
            return Ok(Examined { findings, covered });
        }
        let mut findings = findings(self.id(), &trials, &found, &confirmed);
        if undeclared && !last_alone && confirmed.is_empty() {
            let mut scores: Vec<PromptScore> = trials.iter().map(|trial| trial.said.1.clone()).collect();
            for size in whole_prompts(examination.depth).iter().filter(|size| **size < longest) {
                examination.step(trials.len(), trials.len() + 1, &format!("{size} tokens"));
                scores.extend(probe.ask(examination, *size).map(|trial| trial.said.1));
            }
            let beyond = only_beyond(self.id(), &scores, Measure { exact: false });
            if beyond.is_some() {
                examination.evidence.threshold = true;
                findings.retain(|finding| !finding.id.ends_with("/alike"));
            }
            findings.extend(beyond);
        }
        // Prompts are read rightly, whatever their length: are answers written from all of their context?
        let partial = if matches!(found, Pattern::Right) && decoding::is_suspected(examination) {
            decoding::look(self.id(), examination, &mut probe, longest)
        } else {
            None
        };
        if last_alone && partial.is_none() {
            findings.extend(answers_alone(self.id(), examination, &trials));
        }
        findings.extend(partial);
        Ok(Examined { findings, covered })
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

fn table(check: &str, trials: &[Trial], found: &Pattern, bar: f64) -> ProbeTable {
    let mut table = ProbeTable::new(
        check,
        "By the number of tokens in a step",
        &["tokens", "nats a token from the reference", "judged"],
    );
    for trial in trials {
        let wrong = *found != Pattern::Right && trial.is_wrong(bar);
        table.row(&[&trial.size, &nats(trial.kl), &if wrong { "wrong" } else { "right" }]);
    }
    table
}

/// The same weights, positions and scales are right at other sizes.
const INNOCENT: [&str; 6] = [
    "rope-scaling",
    "moe-routing",
    "quantization-loader",
    "wrong-checkpoint",
    "tp-sharding",
    "kv-cache-scales",
];

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
        Pattern::Below { .. } => return Vec::new(),
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
    let mut finding = INNOCENT.into_iter().fold(finding, |finding, cause| finding.suggests(cause, -4.0));
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
        let said = Default::default();
        Trial { size, kl: 0.3, last: PositionScore::default(), beyond: None, exchange: 1, said }
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
