//! If the server differs: which known mistake reproduces what it says?
//!
//! For each mistake the reference makes it on purpose and re-scores the same exchanges. The mistake under which the
//! divergence falls to the honest floor, while the right model's does not, is strong evidence for that cause; the others are
//! evidence against theirs.

use lucid_engine::Plant;

use super::logprobs::{HIGH, LOW, SCALE};
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Examination, HypothesisFit, compare};
use crate::report::{Finding, ProofKind, Severity};

pub(crate) struct Hypotheses;

/// Prompts that are re-scored for each mistake, at the most.
const PROMPTS: usize = 8;
/// A mistake fits only if it explains at least this share of the divergence.
const EXPLAINED: f64 = 0.8;

impl Check for Hypotheses {
    fn id(&self) -> &'static str {
        "reference.hypotheses"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server, Need::Checkpoint]
    }

    fn covers(&self) -> &'static str {
        "if the server differs: whether a known mistake reproduces exactly what it says"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 0, tokens: 0 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let different = match &examination.evidence.divergence {
            Some(divergence) if divergence.decision == "different" => divergence.kl.mean,
            Some(_) => return Err(Skip("nothing to explain: the distributions don't differ".to_owned())),
            None => return Err(Skip("there was no comparison with the reference".to_owned())),
        };
        let mut fits = Vec::new();
        for (number, plant) in Plant::ALL.into_iter().enumerate() {
            examination.step(number, Plant::ALL.len(), plant.name());
            let Some(kl) = divergence_under(examination, plant)? else { continue };
            let outcome = match () {
                () if kl <= LOW * SCALE && kl <= (1.0 - EXPLAINED) * different => "fits",
                () if kl >= HIGH * SCALE => "excluded",
                () => "unclear",
            };
            fits.push(HypothesisFit { name: plant.name().to_owned(), kl, outcome: outcome.to_owned() });
        }
        if fits.is_empty() {
            return Err(Skip("no known mistake applies to this checkpoint".to_owned()));
        }
        let mut findings: Vec<Finding> = fits.iter().filter_map(|fit| finding(self.id(), fit, different)).collect();
        if fits.iter().all(|fit| fit.outcome == "excluded") {
            let names: Vec<&str> = fits.iter().map(|fit| fit.name.as_str()).collect();
            let finding = Finding::new(self.id(), "none-fits", Severity::Info, "No known mistake explains the difference")
                .detail(format!("Tried: {}. It is something else.", names.join(", ")));
            findings.push(finding);
        }
        let covered = format!("{} known mistakes tried on {} recorded answers", fits.len(), examination.evidence.observed.len().min(PROMPTS));
        if let Some(divergence) = &mut examination.evidence.divergence {
            divergence.hypotheses = fits;
        }
        Ok(Examined { findings, covered })
    }
}

/// Mean divergence of the recorded answers from a model that makes the mistake. `None` if the mistake can't be made on this
/// checkpoint (no NVFP4 weights, for one). A mistaken model whose logits are not finite is as far away as can be.
#[allow(clippy::cast_precision_loss)] // counts of tokens
fn divergence_under(examination: &Examination<'_>, plant: Plant) -> Result<Option<f64>, String> {
    let reference = examination.reference.as_ref().ok_or("the checkpoint can't be read")?;
    let Ok(mut scorer) = reference.scorer(Some(plant)) else { return Ok(None) };
    let (mut sum, mut positions) = (0.0, 0);
    for observed in examination.evidence.observed.iter().take(PROMPTS) {
        match compare(&mut scorer, observed) {
            Ok(score) => {
                sum += score.mean_kl() * score.positions.len() as f64;
                positions += score.positions.len();
            }
            Err(_) => {
                sum += observed.observations.len() as f64;
                positions += observed.observations.len();
            }
        }
    }
    Ok((positions > 0).then(|| sum / positions as f64))
}

fn finding(check: &str, fit: &HypothesisFit, different: f64) -> Option<Finding> {
    let numbers = format!("{:.4} nats a token from a model with this mistake, {different:.4} from the right one", fit.kl);
    let (slug, title) = match fit.outcome.as_str() {
        "fits" => ("fits", format!("The known mistake `{}` reproduces what the server says", fit.name)),
        "excluded" => ("excluded", format!("The known mistake `{}` does not explain it", fit.name)),
        _ => return None,
    };
    let severity = if slug == "fits" { Severity::Error } else { Severity::Info };
    Some(Finding::new(check, &format!("{}-{slug}", fit.name), severity, title).confidence(0.99).proof(ProofKind::Number, fit.name.clone(), numbers))
}
