//! Re-scores what the server said, token by token, and compares the distributions.

use std::time::Instant;

use lucid_client::{ChatRequest, Endpoint, Message};

use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Divergence, Examination, Observed, PositionBin, PositionScore, PromptScore, compare};
use crate::knowledge::ladder;
use crate::ladder::questions;
use crate::report::html::nats;
use crate::report::{Finding, ProofKind, Severity};
use crate::statistics::{Decision, Estimate, Random, SequentialTest, mean_with_interval};

pub(crate) struct Logprobs;

/// Candidates beside each token.
const TOP: u32 = 5;
/// Tokens to generate for each prompt.
const GENERATED: u32 = 64;
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
        &[Need::Server, Need::Checkpoint]
    }

    fn covers(&self) -> &'static str {
        "the server's token distributions are those of the checkpoint, computed exactly"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 8, tokens: 1_200 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        let reference = || "the checkpoint can't be read".to_owned();
        let mut scorer = examination.reference.as_ref().ok_or_else(reference)?.scorer()?;
        let prompts = prompts(examination.subject.seed, examination.subject.depth.most_compared_prompts());
        let mut test = SequentialTest::new(LOW, HIGH, ALPHA);
        let mut scores: Vec<PromptScore> = Vec::new();
        let mut refused = None;
        let started = Instant::now();
        for (number, messages) in prompts.iter().enumerate() {
            examination.step(number, prompts.len(), "re-scoring what the server says");
            let observed = match ask(examination, &endpoint, messages) {
                Ok(observed) => observed,
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
            let score =
                compare(&mut scorer, &observed).map_err(|error| format!("the reference failed: {error}"))?;
            if score.positions.is_empty() {
                continue;
            }
            let decision = test.observe(score.mean_kl() / SCALE);
            scores.push(score.clone());
            examination.evidence.observed.push((observed, score));
            if decision != Decision::Open && scores.len() >= LEAST {
                break;
            }
        }
        if scores.is_empty() {
            return Err(Skip(
                refused.unwrap_or_else(|| "the server returned no log-probabilities".to_owned()),
            ));
        }
        let decision = test.decision();
        let capabilities = endpoint.dialect().capabilities();
        let of =
            if capabilities.prompt_logprobs { "prompt and generated tokens" } else { "generated tokens" };
        let divergence = summarize(&scores, decision, of, scorer.semantics().to_string());
        let (finding, covered) = conclude(
            self.id(),
            &divergence,
            decision,
            started.elapsed().as_secs_f64(),
            examination.evidence.observed.first().map_or(0, |(observed, _)| observed.exchange),
        );
        examination.evidence.divergence = Some(divergence);
        match finding {
            Some(finding) => {
                let mut findings = vec![finding];
                findings.extend(places(self.id(), &scores));
                Ok(Examined { findings, covered })
            }
            None => Err(Skip(covered)),
        }
    }
}

/// The questions of the ladder, shuffled: text that models of this family are at home in. One needle among the first, for
/// the positions beyond a few hundred; more of them would only cost.
fn prompts(seed: u64, most: usize) -> Vec<Vec<Message>> {
    let ladder = ladder();
    let of = |needles: bool| {
        let rungs = ladder.rungs.iter().filter(move |rung| match rung.needle_sentences {
            Some(sentences) => needles && sentences < 200,
            None => !needles,
        });
        rungs.flat_map(|rung| questions(rung, &ladder.haystack, 1, seed)).map(|question| question.messages)
    };
    let mut prompts: Vec<Vec<Message>> = of(false).collect();
    Random::new(seed).shuffle(&mut prompts);
    if let Some(needle) = of(true).next() {
        prompts.insert(prompts.len().min(2), needle);
    }
    prompts.truncate(most);
    prompts
}

/// Asks for log-probabilities the best way that the dialect has.
fn ask(
    examination: &mut Examination<'_>,
    endpoint: &Endpoint,
    messages: &[Message],
) -> Result<Observed, String> {
    let reference = |examination: &Examination<'_>| {
        examination.reference.as_ref().map(|reference| (reference.prompt(messages), reference.max_len()))
    };
    let (prompt, max_len) = reference(examination).ok_or("the checkpoint can't be read")?;
    let prompt = prompt?;
    if prompt.len() + GENERATED as usize > max_len {
        return Err(format!("a prompt of {} tokens is too long for the reference", prompt.len()));
    }
    let (number, of_prompt, generated) = if endpoint.dialect().capabilities().token_prompts {
        let ids: Vec<u32> = prompt.iter().map(|id| id.0).collect();
        let (number, outcome) = examination.take(endpoint.score_tokens(&ids, GENERATED, TOP));
        let (of_prompt, generated) = outcome.map_err(|error| error.to_string())?;
        (number, of_prompt, generated)
    } else {
        let request = ChatRequest {
            max_tokens: Some(GENERATED),
            temperature: Some(0.0),
            logprobs: Some(true),
            top_logprobs: Some(TOP),
            ..ChatRequest::new(messages.to_vec())
        };
        let reply = endpoint.chat(&request);
        let exchange = reply.exchange.clone();
        let (number, outcome) = examination.take(reply);
        let answer = outcome.map_err(|error| error.to_string())?;
        let scored = Endpoint::chat_logprobs(&exchange, &answer).map_err(|error| error.to_string())?;
        (number, Vec::new(), scored.ok_or("the server returned no log-probabilities")?)
    };
    let reference = examination.reference.as_ref().ok_or("the checkpoint can't be read")?;
    Ok(reference.observed(&prompt, &of_prompt, &generated, number))
}

#[allow(clippy::cast_precision_loss)] // counts of tokens
fn summarize(scores: &[PromptScore], decision: Decision, of: &str, semantics: String) -> Divergence {
    let positions: Vec<_> = scores.iter().flat_map(|score| &score.positions).collect();
    let over_prompts = |value: &dyn Fn(&PositionScore) -> f64| {
        let clusters: Vec<(f64, f64)> = scores
            .iter()
            .map(|score| (score.positions.iter().map(value).sum(), score.positions.len() as f64))
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
        prefill: mean_where(&positions, |position| !position.decoded),
        decode: mean_where(&positions, |position| position.decoded),
        by_position: bins.collect(),
        semantics,
        hypotheses: Vec::new(),
    }
}

fn mean_where(positions: &[&PositionScore], wanted: impl Fn(&PositionScore) -> bool) -> Option<f64> {
    let (sum, count) = positions
        .iter()
        .filter(|position| wanted(position))
        .fold((0.0, 0.0), |(sum, count), position| (sum + position.kl.min(1.0), count + 1.0));
    (count >= FEW).then(|| sum / count)
}

/// Fewer positions give no mean worth comparing.
const FEW: f64 = 16.0;
/// How many times larger a divergence has to be to lie in one place and not in another.
const APART: f64 = 10.0;

/// Divergence while decoding that is worth a word, nats a token: a hundred times what honest bf16 servers have.
const VISIBLE: f64 = 2e-3;

/// Where the difference lies: in what is read from the KV cache, or beyond a length.
fn places(check: &str, scores: &[PromptScore]) -> Vec<Finding> {
    let positions: Vec<_> = scores.iter().flat_map(|score| &score.positions).collect();
    let prefill: Vec<_> = positions.iter().copied().filter(|position| !position.decoded).collect();
    let mut findings = Vec::new();
    let means = (mean_where(&positions, |p| !p.decoded), mean_where(&positions, |p| p.decoded));
    if let (Some(prefill), Some(decode)) = means
        && decode > VISIBLE
        && decode >= APART * prefill
    {
        // Scales are wrong for everybody, pages for some.
        // Short answers say nothing of it.
        let decoded: Vec<f64> = scores
            .iter()
            .filter_map(|score| mean_where(&score.positions.iter().collect::<Vec<_>>(), |p| p.decoded))
            .collect();
        let everybody = decoded.iter().filter(|kl| **kl > VISIBLE).count() * 5 >= decoded.len() * 4;
        let wrong = decode > HIGH * SCALE;
        let (scales, pages) = match (wrong, everybody) {
            (true, true) => (6.0, 1.0),
            (true, false) => (2.0, 4.0),
            // An honest fp8 cache looks like this.
            (false, _) => (2.0, 0.0),
        };
        findings.push(
            Finding::new(
                check,
                "only-while-decoding",
                if wrong { Severity::Error } else { Severity::Info },
                "Prompts are computed rightly, what is generated after them is not",
            )
            .detail(format!(
                "{} nats a token where the server computed the prompt, {} where it read its KV cache step by step: entries are rounded, or written or read wrongly.",
                nats(prefill), nats(decode)
            ))
            .suggests("kv-cache-scales", scales)
            .suggests("prefix-cache", pages),
        );
    }
    // The largest power of two below which all is right.
    let edge = (4..12).rev().map(|power| 1_usize << power).find_map(|edge| {
        let below = mean_where(&prefill, |p| p.position <= edge)?;
        let beyond = mean_where(&prefill, |p| p.position > edge)?;
        (beyond > VISIBLE && beyond >= APART * below.max(VISIBLE / APART)).then_some((edge, below, beyond))
    });
    if let Some((edge, below, beyond)) = edge {
        findings.push(
            Finding::new(
                check,
                "only-beyond-a-length",
                Severity::Error,
                format!("The difference begins after about {edge} tokens of a prompt"),
            )
            .detail(format!("{} nats a token up to there, {} beyond.", nats(below), nats(beyond)))
            .suggests("size-threshold", 5.0)
            .suggests("rope-scaling", 1.0),
        );
    }
    findings
}

fn conclude(
    check: &str,
    divergence: &Divergence,
    decision: Decision,
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
        Decision::Same => {
            Finding::new(check, "agrees", Severity::Info, "The server computes what the checkpoint says")
                .detail(format!("Divergence at least {numbers}."))
        }
        Decision::Different => Finding::new(
            check,
            "differs",
            Severity::Error,
            "The server does not compute what the checkpoint says",
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

    /// Prompts of 300 positions, of which the last 30 were decoded, with a divergence by position and by whether it was decoded.
    fn found(kl: impl Fn(usize, bool) -> f64) -> Vec<String> {
        let prompt = || PromptScore {
            positions: (1..300)
                .map(|position| {
                    let decoded = position > 270;
                    PositionScore { position, kl: kl(position, decoded), delta: 0.0, decoded, top1: true }
                })
                .collect(),
        };
        let scores = [prompt(), prompt(), prompt()];
        places("reference.logprobs", &scores)
            .into_iter()
            .map(|finding| format!("{} {}", finding.id, finding.suggested_cause().unwrap_or_default()))
            .collect()
    }

    #[test]
    fn the_place_of_a_difference_names_its_cause() {
        let decoding = found(|_, decoded| if decoded { 0.3 } else { 1e-5 });
        assert_eq!(decoding, ["reference.logprobs/only-while-decoding kv-cache-scales"]);
        let long = found(|position, decoded| if position > 130 && !decoded { 0.1 } else { 1e-5 });
        assert_eq!(long, ["reference.logprobs/only-beyond-a-length size-threshold"]);
        assert!(found(|_, _| 0.3).is_empty(), "everywhere is no place");
        assert!(found(|_, _| 1e-5).is_empty(), "rounding is no difference");
        let grows = found(|position, _| 1e-6 * position as f64);
        assert!(grows.is_empty(), "bf16 at long distances: {grows:?}");
    }
}
