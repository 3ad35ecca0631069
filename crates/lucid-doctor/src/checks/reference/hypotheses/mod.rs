//! What else reproduces what the server says: a known mistake, or another honest arithmetic?
//!
//! For each hypothesis the reference computes with it and re-scores the recorded answers. A hypothesis fits
//! - when the server is far from the right model, and the hypothesis explains it: the divergence falls to the honest floor; or
//! - when the server is near the right model, but nearer to the hypothesis, prompt after prompt. A small effect (a router
//!   bias that seldom changes the choice) hides in no threshold this way: both distances have the same rounding noise.
//!
//! Mistakes that sit in single layers are tried layer by layer when none fits as a whole.

mod fit;

use std::time::{Duration, Instant};

use fit::{Fit, ROUNDING, is_hopeless, judge, mean};
use lucid_client::Dialect;
use lucid_engine::{Dosage, Mode, Plant, Planted, SemanticsOptions};

use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Examination, HypothesisFit, compare};
use crate::knowledge::{Mistake, hypotheses};
use crate::report::html::nats;
use crate::report::{Finding, ProofKind, Severity};
use crate::subject::Depth;

pub(crate) struct Hypotheses;

/// Recorded answers that are re-scored for each hypothesis, at the most.
const ANSWERS: usize = 12;
/// Of these, how many come first and may already exclude it.
const SCREENED: usize = 2;
/// A server that is farther than this from the right model, though near enough for the honest loss of an fp8 cache or of W4A4
/// activations, has to be explained. Honest bf16 servers: 1.2e-5 nats a token on the canary.
const UNEXPLAINED: f64 = 3e-4;
/// The same for Lucid's own server, which declares f32 activations: its honest distance is 1.6e-8.
const UNEXPLAINED_BY_F32: f64 = 2e-5;

/// Positions that count as a prompt's beginning.
const BEGINNING: usize = 32;

/// What the reference computes with.
struct Hypothesis {
    name: String,
    title: String,
    semantics: SemanticsOptions,
    /// The cause that a mistake speaks for; `None` for an honest arithmetic.
    cause: Option<&'static str>,
}

impl Check for Hypotheses {
    fn id(&self) -> &'static str {
        "reference.hypotheses"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server, Need::Checkpoint]
    }

    fn covers(&self) -> &'static str {
        "no known mistake (positions, routing, scales, shards, masks) and no other arithmetic explains what the server says better than the right model"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 0, tokens: 0 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let Some(divergence) = &examination.evidence.divergence else {
            return Err(Skip("there was no comparison with the reference".to_owned()));
        };
        let different = divergence.decision == "different";
        let lucid =
            examination.endpoint.as_ref().is_some_and(|endpoint| endpoint.dialect() == Dialect::Lucid);
        let floor = if lucid { UNEXPLAINED_BY_F32 } else { UNEXPLAINED };
        // Weights are the same whether a token is read or written: what differs in decoding alone is the cache's doing.
        // And as wrong at a prompt's beginning as later on.
        let beginning = divergence.by_position.iter().filter(|bin| bin.to <= BEGINNING);
        let (sum, count) = beginning
            .fold((0.0, 0), |(sum, count), bin| (sum + bin.kl * bin.positions as f64, count + bin.positions));
        let in_prompts = divergence.prefill.is_none_or(|prefill| prefill >= floor / 3.0)
            && (count == 0 || sum / count as f64 >= floor / 10.0);
        // Short answers first: they exclude as well as long ones.
        let order = &mut examination.evidence.observed;
        order.sort_by_key(|(observed, _)| observed.tokens.len());
        let right: Vec<f64> = order.iter().take(ANSWERS).map(|(_, score)| score.mean_kl()).collect();
        if !different && mean(&right) < ROUNDING {
            let finding = Finding::new(
                self.id(),
                "exact",
                Severity::Info,
                "The server computes the checkpoint to the rounding of f32: no mistake is left to look for",
            );
            return Ok(Examined {
                findings: vec![finding],
                covered: "nothing has to be explained".to_owned(),
            });
        }
        let deadline = Instant::now() + patience(examination.subject.depth, different);
        let mut tried = Tried::default();
        for hypothesis in general() {
            tried.add(examination, hypothesis, &right, different, deadline)?;
        }
        if different && !tried.is_explained(&right, different) {
            for hypothesis in
                layered(examination.reference.as_ref().map_or(0, |r| r.config().num_hidden_layers))
            {
                tried.add(examination, hypothesis, &right, different, deadline)?;
            }
        }
        if tried.hypotheses.is_empty() {
            return Err(Skip("no hypothesis applies to this checkpoint".to_owned()));
        }
        let fits = judge(&right, &tried.distances, different);
        let overall = over_tokens(examination, &right);
        let other_weights = mean(&right) >= floor && in_prompts;
        let findings = tried.findings(self.id(), &fits, overall, different, other_weights);
        let left = if tried.left_out > 0 {
            format!("; {} not tried for lack of time (see --depth)", tried.left_out)
        } else {
            String::new()
        };
        let covered =
            format!("{} hypotheses tried on {} recorded answers{left}", tried.hypotheses.len(), right.len());
        let mistaken = tried.any(&fits, Fit::Fits);
        if let Some(divergence) = &mut examination.evidence.divergence {
            divergence.hypotheses = tried
                .hypotheses
                .iter()
                .zip(&tried.distances)
                .zip(&fits)
                .map(|((hypothesis, distance), fit)| HypothesisFit {
                    name: hypothesis.name.clone(),
                    kl: mean(distance),
                    outcome: fit.name().to_owned(),
                })
                .collect();
            divergence.hypotheses.sort_by(|a, b| a.kl.total_cmp(&b.kl));
            if mistaken && !different {
                divergence.decision = "mistaken".to_owned();
            }
        }
        Ok(Examined { findings, covered })
    }
}

/// How long the reference may compute for hypotheses: longer when something is wrong, and the question is what.
fn patience(depth: Depth, different: bool) -> Duration {
    // Wall-clock time, on purpose generous: all hypotheses on the canary take seconds, and a loaded machine must not change
    // what is found. The limit is there for checkpoints of hundreds of gigabytes.
    Duration::from_secs(match (depth, different) {
        (Depth::Quick, _) => 60,
        (Depth::Standard, false) => 120,
        (Depth::Standard, true) => 300,
        (Depth::Thorough, _) => 3_600,
    })
}

/// Every mistake as it is usually made, and the honest arithmetics.
fn general() -> Vec<Hypothesis> {
    let table = hypotheses();
    let mistakes = table.mistakes.iter().flat_map(|mistake| of_mistake(mistake, None));
    let variations = table.variations.iter().map(|variation| Hypothesis {
        name: variation.name.clone(),
        title: variation.title.clone(),
        semantics: variation.semantics(),
        cause: variation.cause.as_deref(),
    });
    mistakes.chain(variations).collect()
}

/// Mistakes that can sit in one layer, in each layer.
fn layered(layers: usize) -> Vec<Hypothesis> {
    let mistakes = hypotheses().mistakes.iter();
    mistakes
        .filter(|mistake| mistake.plant().is_some_and(Plant::has_layers))
        .flat_map(|mistake| (0..layers).flat_map(move |layer| of_mistake(mistake, Some(layer))))
        .collect()
}

/// A mistake in every strength, in one layer or in all.
fn of_mistake(mistake: &'static Mistake, layer: Option<usize>) -> Vec<Hypothesis> {
    let Some(plant) = mistake.plant() else { return Vec::new() };
    let place = layer.map_or_else(String::new, |layer| format!("-in-layer-{layer}"));
    let alone = layer.map_or_else(String::new, |layer| format!(", in layer {layer} alone"));
    let usual = (format!("{plant}{place}"), layer.map_or(Dosage::Typical, Dosage::InLayer));
    let others = mistake
        .strengths
        .iter()
        .map(|&strength| (format!("{plant}-by-{strength}{place}"), Dosage::Strength(strength, layer)));
    std::iter::once(usual)
        .chain(others)
        .map(|(name, dosage)| Hypothesis {
            name,
            title: format!("{}{alone}", mistake.title),
            semantics: with(Planted { plant, dosage }),
            cause: Some(&mistake.cause),
        })
        .collect()
}

fn with(planted: Planted) -> SemanticsOptions {
    SemanticsOptions { mode: Mode::Reference, plant: Some(planted), ..SemanticsOptions::default() }
}

/// Hypotheses with the divergences under them.
#[derive(Default)]
struct Tried {
    hypotheses: Vec<Hypothesis>,
    distances: Vec<Vec<f64>>,
    left_out: usize,
}

impl Tried {
    /// Re-scores the recorded answers. A hypothesis that can't be made on this checkpoint (no NVFP4 weights, for one) is not
    /// tried. A mistaken model whose logits are not finite is as far away as can be.
    fn add(
        &mut self,
        examination: &mut Examination<'_>,
        hypothesis: Hypothesis,
        right: &[f64],
        different: bool,
        deadline: Instant,
    ) -> Result<(), String> {
        if Instant::now() > deadline {
            self.left_out += 1;
            return Ok(());
        }
        examination.step(self.hypotheses.len(), self.hypotheses.len() + 1, &hypothesis.name);
        let reference = examination.reference.as_ref().ok_or("the checkpoint can't be read")?;
        let Ok(mut scorer) = reference.scorer_with(&hypothesis.semantics) else { return Ok(()) };
        let mut distances = Vec::with_capacity(right.len());
        for (observed, _) in examination.evidence.observed.iter().take(right.len()) {
            distances.push(compare(&mut scorer, observed).map_or(1.0, |score| score.mean_kl()));
            if distances.len() == SCREENED && is_hopeless(right, &distances, different) {
                break;
            }
        }
        self.hypotheses.push(hypothesis);
        self.distances.push(distances);
        Ok(())
    }

    fn is_explained(&self, right: &[f64], different: bool) -> bool {
        judge(right, &self.distances, different).contains(&Fit::Fits)
    }

    /// Whether a mistake did so.
    fn any(&self, fits: &[Fit], wanted: Fit) -> bool {
        self.hypotheses.iter().zip(fits).any(|(hypothesis, fit)| hypothesis.cause.is_some() && *fit == wanted)
    }

    fn findings(
        &self,
        check: &str,
        fits: &[Fit],
        overall: f64,
        different: bool,
        other_weights: bool,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        for ((hypothesis, distances), fit) in self.hypotheses.iter().zip(&self.distances).zip(fits) {
            findings.extend(self.finding(check, hypothesis, mean(distances), *fit, overall, different));
        }
        let explained = fits.iter().any(|fit| matches!(fit, Fit::Fits | Fit::Nearest));
        if explained {
            return findings;
        }
        let names: Vec<&str> = self.hypotheses.iter().map(|hypothesis| hypothesis.name.as_str()).collect();
        if different {
            // Whatever is wrong, a difference this small leaves the model working: kernels that fail do more.
            let mild = overall < 0.15;
            let finding = Finding::new(
                check,
                "unexplained",
                Severity::Info,
                "No known mistake explains the difference",
            )
            .detail(format!("Tried: {}. It is something else.", names.join(", ")))
            .suggests("wrong-checkpoint", if mild { 4.0 } else { 1.5 })
            .suggests("attention-kernel", if mild { 1.5 } else { 2.5 });
            findings.push(finding);
        } else if other_weights {
            findings.push(
                Finding::new(
                    check,
                    "other-weights",
                    Severity::Error,
                    "The server is near the checkpoint, but does not compute with these weights",
                )
                .detail(format!(
                    "{} nats a token: no honest arithmetic explains it (tried: {}). Weights that were quantized another time, or another revision, do.",
                    nats(overall),
                    names.join(", ")
                ))
                .confidence(0.9)
                .suggests("wrong-checkpoint", 7.0)
                .suggests("quantization-loader", 2.0),
            );
        }
        findings
    }

    fn finding(
        &self,
        check: &str,
        hypothesis: &Hypothesis,
        distance: f64,
        fit: Fit,
        right: f64,
        different: bool,
    ) -> Option<Finding> {
        let numbers = format!(
            "{} nats a token from a model with it, {} from the right one",
            nats(distance),
            nats(right)
        );
        let named = |slug: &str, severity, title: String| {
            Finding::new(check, &format!("{}-{slug}", hypothesis.name), severity, title)
                .confidence(0.99)
                .proof(ProofKind::Number, hypothesis.name.clone(), numbers.clone())
        };
        let title = &hypothesis.title;
        Some(match (fit, hypothesis.cause) {
            (Fit::Fits, Some(cause)) => named(
                "fits",
                Severity::Error,
                format!("The known mistake `{}` reproduces what the server says: {title}", hypothesis.name),
            )
            .suggests(cause, 12.0)
            // What the mistake explains, lengths and caches need not: positions that are wrong look like a threshold.
            .suggests("size-threshold", -8.0)
            .suggests("kv-cache-scales", -4.0),
            (Fit::Nearest, Some(cause)) => named(
                "nearest",
                Severity::Warning,
                format!(
                    "The known mistake `{}` comes nearest to what the server says: {title}",
                    hypothesis.name
                ),
            )
            .confidence(0.8)
            .suggests(cause, 5.0),
            (Fit::Fits | Fit::Nearest, None) if different => named(
                "fits",
                Severity::Warning,
                format!("The server computes with another arithmetic: {title}"),
            )
            .suggests("wrong-flags", 6.0),
            (Fit::Fits | Fit::Nearest, None) => named(
                "fits",
                Severity::Info,
                format!("The server computes with an honest arithmetic: {title}"),
            ),
            (Fit::Excluded, Some(cause)) => {
                let finding = named(
                    "excluded",
                    Severity::Info,
                    format!("The known mistake `{}` does not explain it", hypothesis.name),
                );
                if self.is_cause_excluded(cause) { finding.suggests(cause, -3.0) } else { finding }
            }
            _ => return None,
        })
    }

    /// Whether all mistakes of a cause were given up early or are far: then it is out, as far as we know its ways.
    fn is_cause_excluded(&self, cause: &str) -> bool {
        let complete = self.distances.iter().map(Vec::len).max().unwrap_or(0);
        self.hypotheses
            .iter()
            .zip(&self.distances)
            .filter(|(hypothesis, _)| hypothesis.cause == Some(cause))
            .all(|(_, distances)| distances.len() < complete)
    }
}

/// The answers' means together, each weighing as many tokens as it has: comparable with the report's divergence.
#[allow(clippy::cast_precision_loss)] // counts of tokens
fn over_tokens(examination: &Examination<'_>, means: &[f64]) -> f64 {
    let lengths = examination.evidence.observed.iter().map(|(_, score)| score.positions.len() as f64);
    let (sum, tokens) = means
        .iter()
        .zip(lengths)
        .fold((0.0, 0.0), |(sum, all), (mean, tokens)| (sum + mean * tokens, all + tokens));
    sum / f64::max(tokens, 1.0)
}
