//! What do steps of few tokens lack? The reference leaves each rank's part out of its sums, and re-scores prompts that are wrong where longer
//! ones are right.

use super::super::logprobs::{HIGH, SCALE};
use super::Budget;
use super::candidates::lost_sums;
use super::fit::{Distances, Fit, is_hopeless, judge, mean};
use crate::evidence::{Examination, Observed, PromptScore, compare};
use crate::report::Remedy;

/// Prompts that have to be re-scored before a rank is given up.
const LEAST: usize = 3;

/// A rank's part that is missing, and by how much nearer a model without it is to the server.
pub(in super::super) struct LostSum {
    pub(in super::super) title: String,
    /// Divergence from a model that lacks it, and from the right one, nats a token.
    pub(in super::super) distances: [f64; 2],
    pub(in super::super) remedy: Option<&'static Remedy>,
}

/// The rank whose missing part reproduces what the server said of these prompts; `None` if none does.
pub(in super::super) fn lost_sum(
    examination: &mut Examination<'_>,
    short: &[(Observed, PromptScore)],
) -> Option<LostSum> {
    let (claim, subject) = (examination.evidence.claim, examination.subject);
    let right = Distances::of(short.iter().map(|(_, score)| score));
    let budget = Budget::new(subject.depth, false, subject.threads.unwrap_or(1));
    let different = mean(&right.kl) >= HIGH * SCALE;
    let (mut tried, mut trials) = (Vec::new(), Vec::new());
    for hypothesis in lost_sums(claim) {
        let known = |plant: lucid_engine::Plant| !subject.unknown.iter().any(|name| name == plant.name());
        if budget.is_exhausted() || !hypothesis.plant().is_some_and(known) {
            continue;
        }
        examination.step(tried.len(), tried.len() + 1, &hypothesis.name);
        let Ok(mut scorer) = examination.reference.as_ref()?.scorer_with(&hypothesis.semantics) else {
            continue;
        };
        let mut distances = Distances::default();
        for (observed, _) in short {
            match compare(&mut scorer, observed) {
                Ok(score) => distances.push(score.mean_kl(), score.beyond()),
                Err(_) => distances.push(1.0, 1.0),
            }
            if distances.kl.len() >= LEAST && is_hopeless(&right, &distances, different, claim.is_some()) {
                break;
            }
        }
        tried.push(hypothesis);
        trials.push(distances);
    }
    // Ranks are each other's rivals: a sum that lacks another one is another mistake.
    let names: Vec<Option<&str>> = tried.iter().map(|hypothesis| Some(hypothesis.name.as_str())).collect();
    let fits = judge(&right, &trials, &names, different, claim.is_some());
    let i = fits.iter().position(|fit| *fit == Fit::Fits)?;
    Some(LostSum {
        title: tried[i].title.clone(),
        distances: [mean(&trials[i].kl), mean(&right.kl)],
        remedy: tried[i].remedy,
    })
}
