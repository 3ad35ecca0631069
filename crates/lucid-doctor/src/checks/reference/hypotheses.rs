//! Which known mistake reproduces what the server says?
//!
//! For each mistake the reference makes it on purpose and re-scores the recorded answers. A mistake is found
//! - when the server is far from the right model, and the mistake explains it: the divergence falls to the honest floor; or
//! - when the server is near the right model, but nearer to the mistaken one, prompt after prompt. A small effect (a router
//!   bias that seldom changes the choice) hides in no threshold this way: both distances have the same rounding noise.
//!
//! The mistakes that don't fit are evidence against their causes.

use lucid_engine::Plant;

use super::logprobs::{HIGH, LOW, SCALE};
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Examination, HypothesisFit, compare};
use crate::report::html::nats;
use crate::report::{Finding, ProofKind, Severity};

pub(crate) struct Hypotheses;

/// Prompts that are re-scored for each mistake, at the most.
const PROMPTS: usize = 12;
/// Share of a large divergence that a fitting mistake explains at least.
const EXPLAINED: f64 = 0.8;
/// Share of a small one: the rest is rounding.
const EXPLAINED_SMALL: f64 = 0.5;
/// Odds against "the server is as often nearer to the right model" at which a small effect counts: error rate 1 %, by the
/// argument of `statistics::SequentialTest` with a fair coin as the hypothesis.
const ODDS: f64 = 100.0;
/// Divergences below this are the rounding of f32 and mean nothing (Lucid's own server: 1.6e-8 on the canary).
const ROUNDING: f64 = 1e-6;

impl Check for Hypotheses {
    fn id(&self) -> &'static str {
        "reference.hypotheses"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server, Need::Checkpoint]
    }

    fn covers(&self) -> &'static str {
        "no known mistake (RoPE pairing, router bias, NVFP4 scales) explains what the server says better than the right model"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 0, tokens: 0 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let Some(divergence) = &examination.evidence.divergence else {
            return Err(Skip("there was no comparison with the reference".to_owned()));
        };
        let different = divergence.decision == "different";
        let right: Vec<f64> =
            examination.evidence.observed.iter().take(PROMPTS).map(|(_, score)| score.mean_kl()).collect();
        let mut fits = Vec::new();
        for (number, plant) in Plant::ALL.into_iter().enumerate() {
            examination.step(number, Plant::ALL.len(), plant.name());
            let Some(mistaken) = divergences_under(examination, plant)? else { continue };
            fits.push(HypothesisFit {
                name: plant.name().to_owned(),
                kl: mean(&mistaken),
                outcome: outcome(&right, &mistaken, different).to_owned(),
            });
        }
        if fits.is_empty() {
            return Err(Skip("no known mistake applies to this checkpoint".to_owned()));
        }
        let right_overall = over_tokens(examination, &right);
        let mut findings: Vec<Finding> =
            fits.iter().filter_map(|fit| finding(self.id(), fit, right_overall)).collect();
        let any = fits.iter().any(|fit| fit.outcome == "fits");
        if different && fits.iter().all(|fit| fit.outcome == "excluded") {
            let names: Vec<&str> = fits.iter().map(|fit| fit.name.as_str()).collect();
            let finding = Finding::new(
                self.id(),
                "none-fits",
                Severity::Info,
                "No known mistake explains the difference",
            )
            .detail(format!("Tried: {}. It is something else.", names.join(", ")));
            findings.push(finding);
        }
        let covered = format!("{} known mistakes tried on {} recorded answers", fits.len(), right.len());
        if let Some(divergence) = &mut examination.evidence.divergence {
            divergence.hypotheses = fits;
            if any && !different {
                divergence.decision = "mistaken".to_owned();
            }
        }
        Ok(Examined { findings, covered })
    }
}

/// Mean divergence of each recorded answer from a model that makes the mistake. `None` if the mistake can't be made on this
/// checkpoint (no NVFP4 weights, for one). A mistaken model whose logits are not finite is as far away as can be.
fn divergences_under(examination: &Examination<'_>, plant: Plant) -> Result<Option<Vec<f64>>, String> {
    let reference = examination.reference.as_ref().ok_or("the checkpoint can't be read")?;
    let Ok(mut scorer) = reference.scorer(Some(plant)) else { return Ok(None) };
    let observed = examination.evidence.observed.iter().take(PROMPTS);
    Ok(Some(
        observed
            .map(|(observed, _)| compare(&mut scorer, observed).map_or(1.0, |score| score.mean_kl()))
            .collect(),
    ))
}

/// The prompts' means together, each prompt weighing as many tokens as it has: comparable with the report's divergence.
#[allow(clippy::cast_precision_loss)] // counts of tokens
fn over_tokens(examination: &Examination<'_>, means: &[f64]) -> f64 {
    let lengths = examination.evidence.observed.iter().map(|(_, score)| score.positions.len() as f64);
    let (sum, tokens) = means
        .iter()
        .zip(lengths)
        .fold((0.0, 0.0), |(sum, all), (mean, tokens)| (sum + mean * tokens, all + tokens));
    sum / f64::max(tokens, 1.0)
}

#[allow(clippy::cast_precision_loss)] // a dozen prompts
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// `fits`, `excluded` or `unclear`, from each prompt's divergence from the right and from the mistaken model.
fn outcome(right: &[f64], mistaken: &[f64], different: bool) -> &'static str {
    let (right_mean, mistaken_mean) = (mean(right), mean(mistaken));
    if mistaken_mean <= LOW * SCALE && different && mistaken_mean <= (1.0 - EXPLAINED) * right_mean {
        return "fits";
    }
    // A fair coin's bets: 1.9 for each prompt that is nearer to the mistake, 0.1 for each that isn't.
    let odds: f64 = right
        .iter()
        .zip(mistaken)
        .map(|(right, mistaken)| if mistaken < right { 1.9 } else { 0.1 })
        .product();
    let small = mistaken_mean <= (1.0 - EXPLAINED_SMALL) * right_mean && right_mean >= ROUNDING;
    if !different && odds >= ODDS && small {
        return "fits";
    }
    // In the same way: further from the mistake than from the right model on prompt after prompt, and by a margin.
    let against: f64 = right
        .iter()
        .zip(mistaken)
        .map(|(right, mistaken)| if mistaken > right { 1.9 } else { 0.1 })
        .product();
    if mistaken_mean >= HIGH * SCALE || (!different && against >= ODDS && mistaken_mean >= 2.0 * right_mean) {
        "excluded"
    } else {
        "unclear"
    }
}

fn finding(check: &str, fit: &HypothesisFit, right: f64) -> Option<Finding> {
    let numbers = format!(
        "{} nats a token from a model with this mistake, {} from the right one",
        nats(fit.kl),
        nats(right)
    );
    let (slug, severity, title) = match fit.outcome.as_str() {
        "fits" => (
            "fits",
            Severity::Error,
            format!("The known mistake `{}` reproduces what the server says", fit.name),
        ),
        "excluded" => {
            ("excluded", Severity::Info, format!("The known mistake `{}` does not explain it", fit.name))
        }
        _ => return None,
    };
    Some(Finding::new(check, &format!("{}-{slug}", fit.name), severity, title).confidence(0.99).proof(
        ProofKind::Number,
        fit.name.clone(),
        numbers,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_effects_need_few_prompts() {
        assert_eq!(outcome(&[0.25; 4], &[1e-4; 4], true), "fits");
        assert_eq!(outcome(&[0.25; 4], &[0.25; 4], true), "excluded");
        assert_eq!(outcome(&[0.25; 4], &[0.04; 4], true), "unclear", "half explained is not explained");
    }

    #[test]
    fn small_effects_need_every_prompt() {
        assert_eq!(outcome(&[3e-5; 8], &[2e-8; 8], false), "fits");
        assert_eq!(outcome(&[3e-5; 4], &[2e-8; 4], false), "unclear", "four prompts may be chance");
        assert_eq!(outcome(&[3e-5; 8], &[3.2e-5; 8], false), "unclear", "farther, but not by a margin");
        assert_eq!(outcome(&[2e-8; 8], &[3e-5; 8], false), "excluded");
        assert_eq!(outcome(&[2e-8; 8], &[1e-8; 8], false), "unclear", "rounding is no evidence");
        // Nearer on average, but not prompt after prompt.
        assert_eq!(
            outcome(
                &[1e-3, 1e-5, 1e-5, 1e-5, 1e-5, 1e-5, 1e-5, 1e-5],
                &[1e-5, 2e-5, 2e-5, 2e-5, 2e-5, 2e-5, 2e-5, 2e-5],
                false
            ),
            "unclear"
        );
    }
}
