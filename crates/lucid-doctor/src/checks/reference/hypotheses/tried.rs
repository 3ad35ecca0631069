//! Hypotheses with the distances under them, and what they say together.

use lucid_engine::Plant;

use super::SCREENED;
use super::budget::Budget;
use super::candidates::{Copied, Hypothesis};
use super::fit::{Distances, Fit, is_hopeless, is_nearer_unfitted, judge, mean, reproduces};
use super::screen::{Screen, Screened};
use crate::evidence::{Examination, FEW_BEYOND, compare};
use crate::report::html::nats;
use crate::report::{Finding, ProofKind, Severity};

/// What it says against a cause that none of its known mistakes explains the difference: others are thinkable.
const EXCLUDED: f64 = -1.5;

/// Hypotheses that are re-scored on the answers themselves, of those that are tried together: what is farther than so many others on the
/// beginnings does not win on the rest.
const MOST_WHOLE: usize = 8;
/// How near a hypothesis has to come, as a share of the right model's own distance, to a server that is held to an arithmetic.
const WORTH: f64 = 0.75;

/// Hypotheses with the distances under them.
pub(super) struct Tried {
    pub(super) right: Distances,
    /// The server is far from the right model.
    different: bool,
    /// The server is held to a declared arithmetic.
    claimed: bool,
    pub(super) screen: Screen,
    hypotheses: Vec<Hypothesis>,
    /// From the beginnings.
    screened: Vec<Screened>,
    /// From the answers, as far as they were re-scored.
    distances: Vec<Distances>,
    pub(super) budget: Budget,
    pub(super) left_out: usize,
}

impl Tried {
    pub(super) fn new(
        right: Distances,
        screen: Screen,
        different: bool,
        claimed: bool,
        budget: Budget,
    ) -> Tried {
        Tried {
            right,
            different,
            claimed,
            screen,
            hypotheses: Vec::new(),
            screened: Vec::new(),
            distances: Vec::new(),
            budget,
            left_out: 0,
        }
    }

    /// Tries hypotheses beside each other: the beginnings say which of them are worth the answers. The nearest come first, and it ends
    /// when one reproduces a declared arithmetic.
    pub(super) fn add_all(
        &mut self,
        examination: &mut Examination<'_>,
        hypotheses: Vec<Hypothesis>,
    ) -> Result<(), String> {
        let before = self.hypotheses.len();
        for hypothesis in hypotheses {
            let Some(i) = self.screen(examination, hypothesis)? else { continue };
            // Reproduced on the beginnings: no other one can be.
            if self.claimed && self.screened[i].distances.beyond.iter().all(|beyond| *beyond <= FEW_BEYOND) {
                self.complete(examination, i)?;
                if self.is_reproduced() {
                    return Ok(());
                }
            }
        }
        let mut order: Vec<usize> = (before..self.hypotheses.len()).filter(|i| self.is_worth(*i)).collect();
        order.sort_by(|a, b| self.screened[*a].apart.total_cmp(&self.screened[*b].apart));
        for i in order.into_iter().take(MOST_WHOLE) {
            self.complete(examination, i)?;
            if self.claimed && self.is_reproduced() {
                break;
            }
        }
        Ok(())
    }

    /// Tries one, on the answers if it is worth that.
    pub(super) fn add(
        &mut self,
        examination: &mut Examination<'_>,
        hypothesis: Hypothesis,
    ) -> Result<(), String> {
        match self.screen(examination, hypothesis)? {
            Some(i) if self.is_worth(i) => self.complete(examination, i),
            _ => Ok(()),
        }
    }

    /// Measures it on the beginnings. A hypothesis that can't be made on this checkpoint (no NVFP4 weights, for one) is not tried, nor is
    /// one that would come too late.
    fn screen(
        &mut self,
        examination: &mut Examination<'_>,
        hypothesis: Hypothesis,
    ) -> Result<Option<usize>, String> {
        if self.budget.is_exhausted() {
            self.left_out += 1;
            return Ok(None);
        }
        examination.step(self.hypotheses.len(), self.hypotheses.len() + 1, &hypothesis.name);
        let Some(screened) = self.screen.load_and_screen(examination, &hypothesis.semantics) else {
            return Ok(None);
        };
        self.hypotheses.push(hypothesis);
        self.screened.push(screened);
        self.distances.push(Distances::default());
        Ok(Some(self.hypotheses.len() - 1))
    }

    /// Re-scores the answers, as long as it can still win.
    fn complete(&mut self, examination: &mut Examination<'_>, i: usize) -> Result<(), String> {
        if self.is_whole(i) {
            return Ok(());
        }
        if self.budget.is_exhausted() {
            self.left_out += 1;
            return Ok(());
        }
        examination.step(i, self.hypotheses.len(), &self.hypotheses[i].name);
        let reference = examination.reference.as_ref().ok_or("the checkpoint can't be read")?;
        let Ok(mut scorer) = reference.scorer_with(&self.hypotheses[i].semantics) else { return Ok(()) };
        let mut distances = Distances::default();
        for (observed, _) in examination.evidence.observed.iter().take(self.right.kl.len()) {
            match compare(&mut scorer, observed) {
                Ok(score) => distances.push(score.mean_kl(), score.beyond()),
                // A mistaken model whose logits are not finite is as far away as can be.
                Err(_) => distances.push(1.0, 1.0),
            }
            let seen = distances.kl.len();
            if seen >= SCREENED && is_hopeless(&self.right, &distances, self.different, self.claimed) {
                break;
            }
        }
        self.distances[i] = distances;
        Ok(())
    }

    /// Whether the beginnings leave it a chance.
    fn is_worth(&self, i: usize) -> bool {
        let screened = &self.screened[i];
        let near = !self.claimed || screened.apart <= WORTH * self.screen.right_apart;
        near && !is_hopeless(&self.screen.right, &screened.distances, self.different, self.claimed)
    }

    /// Whether beginnings or answers exclude it.
    fn is_out(&self, i: usize) -> bool {
        !self.is_whole(i) && (!self.is_worth(i) || !self.distances[i].kl.is_empty())
    }

    pub(super) fn len(&self) -> usize {
        self.hypotheses.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hypotheses.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Hypothesis, &Distances)> {
        let distances = self.distances.iter().zip(&self.screened);
        let shown = distances.map(
            |(distances, screened)| {
                if distances.kl.is_empty() { &screened.distances } else { distances }
            },
        );
        self.hypotheses.iter().zip(shown)
    }

    pub(super) fn fits(&self) -> Vec<Fit> {
        let causes: Vec<Option<&str>> = self.hypotheses.iter().map(|hypothesis| hypothesis.cause).collect();
        let mut fits = judge(&self.right, &self.distances, &causes, self.different, self.claimed);
        for (i, fit) in fits.iter_mut().enumerate() {
            // Farther than others is not excluded.
            if *fit == Fit::Excluded && !self.is_whole(i) && !self.is_out(i) {
                *fit = Fit::Unclear;
            }
        }
        for (i, hypothesis) in self.hypotheses.iter().enumerate() {
            let Some(wider) = hypothesis.within.filter(|_| fits[i] == Fit::Fits) else { continue };
            for j in 0..fits.len() {
                if fits[j] == Fit::Fits && self.hypotheses[j].plant() == Some(wider) {
                    // One of the two: they are the same mistake.
                    let nearer = is_nearer_unfitted(&self.distances[i].kl, &self.distances[j].kl, SCREENED);
                    fits[if nearer { i } else { j }] = Fit::Unclear;
                }
            }
        }
        fits
    }

    /// Wider mistakes than those that fit, where these are a single strength of them.
    pub(super) fn wider(&self) -> Vec<Plant> {
        if self.is_reproduced() {
            return Vec::new();
        }
        let fits = self.fits();
        let fitting = self.hypotheses.iter().zip(&fits).filter(|(_, fit)| **fit == Fit::Fits);
        fitting.filter_map(|(hypothesis, _)| hypothesis.within).collect()
    }

    /// Copied projections that are nearer to the server than the right model is, the nearest first; each place once.
    pub(super) fn nearest_copies(&self, most: usize) -> Vec<Copied> {
        let mut near: Vec<(f64, Copied)> = self
            .hypotheses
            .iter()
            .zip(&self.screened)
            .filter_map(|(hypothesis, screened)| Some((screened.apart, Copied::of(hypothesis)?)))
            .filter(|(apart, _)| *apart < self.screen.right_apart)
            .collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut places: Vec<Copied> = Vec::new();
        for (_, copied) in near {
            if places.len() < most
                && !places.iter().any(|known| Copied { share: copied.share, ..*known } == copied)
            {
                places.push(copied);
            }
        }
        places
    }

    pub(super) fn is_explained(&self) -> bool {
        self.fits().contains(&Fit::Fits)
    }

    /// Whether there is nothing left to look for: a server that declares its arithmetic is reproduced, any other one explained.
    pub(super) fn is_settled(&self) -> bool {
        if self.claimed { self.is_reproduced() } else { self.is_explained() }
    }

    /// Whether one reproduces every answer to the rounding.
    pub(super) fn is_reproduced(&self) -> bool {
        (0..self.distances.len()).any(|i| self.is_whole(i) && reproduces(&self.right, &self.distances[i]))
    }

    fn is_whole(&self, i: usize) -> bool {
        self.distances[i].kl.len() == self.right.kl.len()
    }

    /// How many were re-scored on every answer.
    pub(super) fn whole(&self) -> usize {
        (0..self.distances.len()).filter(|i| self.is_whole(*i)).count()
    }

    /// Whether a mistake fits.
    pub(super) fn is_mistaken(&self, fits: &[Fit]) -> bool {
        self.hypotheses
            .iter()
            .zip(fits)
            .any(|(hypothesis, fit)| hypothesis.cause.is_some() && *fit == Fit::Fits)
    }

    /// `right` is the distance from the right model, nats a token. `unexplained`: farther than honest servers are, everywhere.
    pub(super) fn findings(&self, check: &str, fits: &[Fit], right: f64, unexplained: bool) -> Vec<Finding> {
        let mut findings: Vec<Finding> = self
            .iter()
            .zip(fits)
            .filter_map(|((hypothesis, distances), fit)| {
                self.finding(check, hypothesis, mean(&distances.kl), *fit, right)
            })
            .collect();
        if fits.iter().any(|fit| matches!(fit, Fit::Fits | Fit::Nearest)) {
            return findings;
        }
        let names: Vec<&str> = self.hypotheses.iter().map(|hypothesis| hypothesis.name.as_str()).collect();
        if self.different {
            // Whatever is wrong, a difference this small leaves the model working: kernels that fail do more.
            let mild = right < 0.15;
            findings.push(
                Finding::new(
                    check,
                    "unexplained",
                    Severity::Info,
                    "No known mistake explains the difference",
                )
                .detail(format!("Tried: {}. It is something else.", names.join(", ")))
                // Mistakes that nobody has thought of look the same: no more than a hint.
                .suggests("wrong-checkpoint", if mild { 2.5 } else { 1.5 })
                .suggests("attention-kernel", if mild { 1.5 } else { 2.5 })
                .suggests("moe-routing", 1.0)
                .suggests("quantization-loader", 1.0)
                .suggests("rope-scaling", 1.0)
                .suggests("tp-sharding", 1.0),
            );
        } else if unexplained {
            let title = "The server is near the checkpoint, but does not compute with these weights";
            findings.push(
                Finding::new(check, "other-weights", Severity::Error, title)
                    .detail(format!(
                        "{} nats a token: no honest arithmetic explains it (tried: {}). Weights that were quantized another time, or another revision, do.",
                        nats(right),
                        names.join(", ")
                    ))
                    .confidence(if self.claimed { 0.99 } else { 0.9 })
                    // A mistake of the model that nobody has thought of looks the same.
                    .suggests("wrong-checkpoint", 4.8)
                    .suggests("quantization-loader", 3.0)
                    .suggests("moe-routing", 2.0)
                    .suggests("rope-scaling", 1.0)
                    .suggests("attention-kernel", 1.0),
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
    ) -> Option<Finding> {
        let numbers = format!(
            "{} nats a token from a model with it, {} from the right one",
            nats(distance),
            nats(right)
        );
        let named = |slug: &str, severity, title: String| {
            let finding = Finding::new(check, &format!("{}-{slug}", hypothesis.name), severity, title)
                .confidence(0.99)
                .proof(ProofKind::Number, hypothesis.name.clone(), numbers.clone());
            match hypothesis.remedy.filter(|_| severity > Severity::Info) {
                Some(remedy) => finding.remedy(remedy.text.clone(), remedy.commands.clone()),
                None => finding,
            }
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
            .suggests("kv-cache-scales", if cause == "kv-cache-scales" { 0.0 } else { -4.0 }),
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
            (Fit::Fits | Fit::Nearest, None) if self.different => named(
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
                if self.is_cause_excluded(cause) { finding.suggests(cause, EXCLUDED) } else { finding }
            }
            _ => return None,
        })
    }

    /// Whether all mistakes of a cause are excluded: then it is out, as far as we know its ways.
    fn is_cause_excluded(&self, cause: &str) -> bool {
        let of_cause = |i: &usize| self.hypotheses[*i].cause == Some(cause);
        (0..self.hypotheses.len()).filter(of_cause).all(|i| self.is_out(i))
    }
}
