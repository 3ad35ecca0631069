//! Re-scores what the server said, token by token, and compares the distributions.

use std::time::Instant;

use super::epsilon::recognize;
use super::places::{Measure, mean_kl, places};
use super::witness::Witness;
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{
    Divergence, Examination, Observation, PositionBin, PositionScore, PromptScore, holds, share,
};
use crate::report::html::nats;
use crate::report::{Finding, ProofKind, Severity};
use crate::statistics::{Decision, Estimate, SequentialTest, mean_with_interval};

pub(crate) struct Logprobs;

// Calibration, 2026-11-29, the canary, prompts as below, exact reference. Mean divergence in nats a token:
//   Lucid's own server (f32, bf16 KV cache)        1.6e-8
//   vLLM 0.32 CPU in bfloat16                      1.2e-5 (mean |Δ log-probability| 0.0044)
//   planted router-bias-missing                    2.7e-5: below any threshold, found by `reference.hypotheses`
//   planted rope-half-split                        0.25
//   planted nvfp4-global-scale-inverted            0.98
// The thresholds leave room for honest losses that the canary's peers don't have: FP8 KV caches and W4A4 activations.
/// A prompt's mean divergence at which it counts as wholly different, in nats a token. The sequential test sees
/// `min(1, mean / SCALE)`.
pub(crate) const SCALE: f64 = 0.1;
/// Below this mean (times `SCALE`: 0.02 nats a token) the server is the model.
pub(crate) const LOW: f64 = 0.2;
/// Above this mean (0.05 nats a token) it is not.
pub(crate) const HIGH: f64 = 0.5;
/// Error rate of either decision.
const ALPHA: f64 = 0.01;
/// No decision before so many prompts.
const LEAST: usize = 3;

impl Check for Logprobs {
    fn id(&self) -> &'static str {
        "reference.logprobs"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server, Need::Reference]
    }

    fn covers(&self) -> &'static str {
        "the server's token distributions are those of the checkpoint, computed exactly or recorded"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 8, tokens: 2_400 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        if examination.subject.record.is_some() {
            // A record has the arithmetic that it has: nobody is held to another one.
            examination.evidence.claim = None;
        }
        let claim = examination.evidence.claim;
        let mut witness = Witness::call(examination)?;
        let texts = witness.texts(examination.subject);
        let mut test = SequentialTest::new(LOW, HIGH, ALPHA);
        let mut scores: Vec<PromptScore> = Vec::new();
        let mut refused = None;
        let started = Instant::now();
        for (number, text) in texts.iter().enumerate() {
            examination.step(number, texts.len(), "re-scoring what the server says");
            if let Some(reason) = examination.out_of_patience() {
                refused.get_or_insert(reason);
                break;
            }
            let (observed, score) = match witness.ask(examination, &endpoint, text) {
                Ok(compared) => compared,
                Err(reason) => {
                    // The first refusals tell what the server lacks; more of them would be no news.
                    let last = refused.is_some() && scores.is_empty();
                    refused.get_or_insert(reason);
                    if last {
                        break;
                    }
                    continue;
                }
            };
            if score.positions.is_empty() {
                continue;
            }
            let decision = test.observe(score.mean_kl() / SCALE);
            scores.push(score.clone());
            examination.evidence.observed.push((observed, score));
            // A declared arithmetic has to be decided as well.
            let open = claim.is_some() && decision == Decision::Same && holds(&scores).is_none();
            if decision != Decision::Open && scores.len() >= LEAST && !open {
                break;
            }
        }
        if scores.is_empty() {
            return Err(Skip(
                refused.unwrap_or_else(|| "the server returned no log-probabilities".to_owned()),
            ));
        }
        let mut semantics = witness.to_string();
        let mut other_arithmetic = None;
        if let Some(claim) = claim
            && let Some(recognized) = recognize(examination, claim, &scores)?
        {
            examination.evidence.claim = Some(recognized.claim);
            for ((_, kept), score) in examination.evidence.observed.iter_mut().zip(&recognized.scores) {
                kept.clone_from(score);
            }
            test = SequentialTest::new(LOW, HIGH, ALPHA);
            for score in &recognized.scores {
                test.observe(score.mean_kl() / SCALE);
            }
            (scores, semantics) = (recognized.scores, recognized.semantics);
            other_arithmetic = Some(recognized.title);
        }
        let decision = test.decision();
        let places = places(self.id(), &scores, Measure { exact: claim.is_some() });
        // Wrong in one place is wrong, however small its share of all.
        let wrong_place = places.iter().any(|finding| finding.severity > Severity::Info);
        let exact = claim.and_then(|_| if wrong_place { Some(false) } else { holds(&scores) });
        examination.evidence.exact = exact;
        examination.evidence.threshold |=
            places.iter().any(|finding| finding.suggested_cause() == Some("size-threshold"));
        let capabilities = endpoint.dialect().capabilities();
        let of =
            if capabilities.prompt_logprobs { "prompt and generated tokens" } else { "generated tokens" };
        let mut divergence = summarize(&scores, decision, of, semantics, witness.word());
        let (mut finding, covered) = conclude(
            self.id(),
            &divergence,
            decision,
            exact.map(|exact| (exact, share(&scores))),
            started.elapsed().as_secs_f64(),
            examination.evidence.observed.first().map_or(0, |(observed, _)| observed.exchange),
        );
        if decision == Decision::Same && exact == Some(false) {
            divergence.decision = "near".to_owned();
        }
        examination.evidence.divergence = Some(divergence);
        if let (Some(finding), Some(title)) = (&mut finding, other_arithmetic) {
            finding.detail.push_str(&format!(" It computes with an honest arithmetic of its own: {title}."));
        }
        let even = even(self.id(), examination);
        match finding {
            Some(finding) => {
                let mut findings = vec![finding];
                findings.extend(places);
                findings.extend(even);
                Ok(Examined { findings, covered })
            }
            // Not decided as a whole, and wrong in one place.
            None if wrong_place => Ok(Examined { findings: places, covered }),
            None => Err(Skip(covered)),
        }
    }
}

/// Positions of an even distribution that are no chance.
const EVEN: usize = 4;

/// Distributions in which every token is as likely: no model says that. Behind it are logits that all vanished: NaNs that something hides
/// (SGLang #33187), or scales so wrong that the numbers overflow. Who answered rightly before has the right scales.
#[allow(clippy::cast_precision_loss)] // tokens of a vocabulary
fn even(check: &str, examination: &Examination<'_>) -> Option<Finding> {
    let vocabulary = examination.reference.as_ref()?.config().vocab_size;
    let all = -(vocabulary as f64).ln();
    let is_even = |observation: &&Observation| {
        let candidates = || observation.top.iter().map(|(_, logprob)| *logprob).chain([observation.logprob]);
        observation.top.len() >= 2 && candidates().all(|logprob| (logprob - all).abs() < 0.01)
    };
    let observed = || examination.evidence.observed.iter().map(|(observed, _)| observed);
    let count = observed().flat_map(|observed| &observed.observations).filter(is_even).count();
    let exchange = observed().find(|observed| observed.observations.iter().any(|o| is_even(&o)))?.exchange;
    if count < EVEN {
        return None;
    }
    let was_right = examination.evidence.answers.iter().any(|answer| answer.right);
    let proof = (exchange.to_string(), format!("{count} positions"));
    Some(of_even_positions(check, count, vocabulary, was_right).proof(ProofKind::Exchange, proof.0, proof.1))
}

fn of_even_positions(check: &str, count: usize, vocabulary: usize, was_right: bool) -> Finding {
    let all = -(vocabulary as f64).ln();
    let title = "Every token of the vocabulary is as likely as any other";
    let finding = Finding::new(check, "even-distribution", Severity::Error, title)
        .detail(format!(
            "At {count} positions all candidates have the log-probability {all:.2}, which is 1 in {vocabulary}.{}",
            if was_right { " Earlier answers of this server were right." } else { "" }
        ))
        .confidence(0.99);
    if !was_right {
        return finding.suggests("nan-logits", 3.0);
    }
    // A hypothesis about weights fits by collapsing too, however well: but with such weights nothing was ever right.
    let of_weights = ["quantization-loader", "tp-sharding", "wrong-checkpoint"];
    let finding = finding.suggests("nan-logits", 18.0);
    of_weights.into_iter().fold(finding, |finding, cause| finding.suggests(cause, -24.0))
}

#[allow(clippy::cast_precision_loss)] // counts of tokens
fn summarize(
    scores: &[PromptScore],
    decision: Decision,
    of: &str,
    semantics: String,
    witness: String,
) -> Divergence {
    let positions: Vec<_> = scores.iter().flat_map(PromptScore::known).collect();
    let over_prompts = |value: &dyn Fn(&PositionScore) -> f64| {
        let clusters: Vec<(f64, f64)> = scores
            .iter()
            .map(|score| (score.known().map(value).sum(), score.known().count() as f64))
            .collect();
        mean_with_interval(&clusters, 1).unwrap_or(Estimate { mean: 0.0, low: 0.0, high: 0.0 })
    };
    let agreeing = positions.iter().filter(|position| position.top1).count();
    // 1–8, 8–16, 16–32, …: mistakes in positions grow with the distance.
    let edges: Vec<usize> = std::iter::once(1).chain((3..).map(|power| 1 << power)).take(20).collect();
    let bins = edges.windows(2).filter_map(|edge| {
        let &[from, to] = edge else { return None };
        let inside: Vec<_> =
            positions.iter().filter(|position| (from..to).contains(&position.position)).collect();
        let mean = |value: &dyn Fn(&PositionScore) -> f64| {
            inside.iter().map(|position| value(position)).sum::<f64>() / inside.len() as f64
        };
        (!inside.is_empty()).then(|| PositionBin {
            from,
            to,
            positions: inside.len(),
            kl: mean(&|p| p.kl.min(1.0)),
            delta: mean(&|p| p.delta),
        })
    });
    Divergence {
        decision: match decision {
            Decision::Same => "same",
            Decision::Different => "different",
            Decision::Open => "open",
        }
        .to_owned(),
        prompts: scores.len(),
        positions: positions.len(),
        of: of.to_owned(),
        kl: over_prompts(&|position| position.kl.min(1.0)),
        delta: over_prompts(&|position| position.delta.min(30.0)),
        top1_agreement: agreeing as f64 / positions.len() as f64,
        prefill: mean_kl(positions.iter().copied().filter(|position| !position.decoded)),
        decode: mean_kl(positions.iter().copied().filter(|position| position.decoded)),
        by_position: bins.collect(),
        semantics,
        witness,
        hypotheses: Vec::new(),
    }
}

fn conclude(
    check: &str,
    divergence: &Divergence,
    decision: Decision,
    exact: Option<(bool, f64)>,
    seconds: f64,
    exchange: usize,
) -> (Option<Finding>, String) {
    let numbers = format!(
        "{} nats a token (95 % interval {} to {}), likeliest token equal or tied at {:.1} % of positions",
        nats(divergence.kl.mean),
        nats(divergence.kl.low),
        nats(divergence.kl.high),
        divergence.top1_agreement * 100.0
    );
    let effort = format!(
        "{} {} of {} prompts, {seconds:.1} s",
        divergence.positions, divergence.of, divergence.prompts
    );
    let finding = match decision {
        Decision::Same => match exact {
            Some((false, share)) => Finding::new(
                check,
                "near",
                Severity::Info,
                "The server is near the checkpoint, but not as near as the arithmetic that it declares",
            )
            .detail(format!(
                "Divergence at least {numbers}. It declares f32, and {:.0} % of the tokens deviate by more than f32's rounding.",
                share * 100.0
            )),
            _ => Finding::new(check, "agrees", Severity::Info, format!("The server computes {}", divergence.witness))
                .detail(format!("Divergence at least {numbers}.")),
        },
        Decision::Different => Finding::new(
            check,
            "differs",
            Severity::Error,
            format!("The server does not compute {}", divergence.witness),
        )
        .detail(format!("Divergence at least {numbers}; an honest server stays below {:.2}.", LOW * SCALE))
        .proof(ProofKind::Exchange, exchange.to_string(), "the first of the compared answers"),
        Decision::Open => return (None, format!("not decided after {effort}: {numbers}")),
    };
    let finding = finding.confidence(1.0 - ALPHA).proof(
        ProofKind::Number,
        "divergence",
        format!("{numbers}; decided after {effort}"),
    );
    (Some(finding), format!("{effort}; decided at an error rate of {:.0} %", ALPHA * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::causes::rank;

    /// As the drill has it (seed 8500): inverted scales collapse to the same even distribution, and fit to the last digit.
    #[test]
    fn what_was_right_before_has_the_right_weights() {
        let fits =
            Finding::new("reference.hypotheses", "nvfp4-global-scale-inverted-fits", Severity::Error, "")
                .confidence(0.99)
                .suggests("quantization-loader", 12.0)
                .suggests("size-threshold", -8.0);
        let first = |was_right| {
            let even = of_even_positions("reference.logprobs", 12, 4_096, was_right);
            rank(&[even, fits.clone()], None).causes[0].id.clone()
        };
        assert_eq!(first(true), "nan-logits");
        assert_eq!(first(false), "quantization-loader");
    }
}
