//! Which hypothesis do the numbers fit?

use super::super::logprobs::{HIGH, LOW, SCALE};
use crate::evidence::{FEW_BEYOND, PromptScore};

/// Share of a large divergence that a fitting hypothesis explains at least.
const EXPLAINED: f64 = 0.8;
/// Share that the nearest one explains at least, if it is to be evidence, and share of a small divergence: the rest of that
/// is rounding.
const EXPLAINED_PARTLY: f64 = 0.5;
/// How much farther the next one must be from the server.
const CLEARLY: f64 = 1.5;
/// Odds against "the server is as often nearer to the right model" at which a small effect counts: error rate 1 %, by the
/// argument of `statistics::SequentialTest` with a fair coin as the hypothesis.
const ODDS: f64 = 100.0;
/// A small divergence whose nearest hypothesis is worth a word: a hundred times what f32 leaves.
const SEEN: f64 = 1e-4;
/// Answers that a strength was not fitted to, at the least, if they are to say anything.
const LEAST_UNFITTED: usize = 4;
/// Divergences below this are the rounding of f32 and mean nothing (Lucid's own server: 1.6e-8 on the canary).
pub(super) const ROUNDING: f64 = 1e-6;

/// How far each recorded answer is from a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Distances {
    /// Mean divergence, nats a token.
    pub(super) kl: Vec<f64>,
    /// Share of the positions that are beyond f32's rounding.
    pub(super) beyond: Vec<f64>,
}

impl Distances {
    pub(super) fn of<'a>(scores: impl Iterator<Item = &'a PromptScore>) -> Distances {
        let mut distances = Distances::default();
        scores.for_each(|score| distances.push(score.mean_kl(), score.beyond()));
        distances
    }

    pub(super) fn push(&mut self, kl: f64, beyond: f64) {
        self.kl.push(kl);
        self.beyond.push(beyond);
    }
}

/// How a hypothesis did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It reproduces what the server says.
    Fits,
    /// It comes nearest, by half of the way: the same mistake in another strength.
    Nearest,
    /// It does not explain it.
    Excluded,
    /// Neither.
    Unclear,
}

impl Fit {
    pub(super) fn name(self) -> &'static str {
        match self {
            Fit::Fits => "fits",
            Fit::Nearest => "nearest",
            Fit::Excluded => "excluded",
            Fit::Unclear => "unclear",
        }
    }
}

/// Judges every hypothesis. `right` and each of `trials` hold the distances of each recorded answer, from the right model and
/// from the hypothesis; a trial that was given up early has fewer. `causes` are the trials' own. `claimed`: the server declares an
/// arithmetic that reference and hypotheses have as well.
pub(super) fn judge(
    right: &Distances,
    trials: &[Distances],
    causes: &[Option<&str>],
    different: bool,
    claimed: bool,
) -> Vec<Fit> {
    let mut fits: Vec<Fit> = trials.iter().map(|trial| alone(&right.kl, &trial.kl, different)).collect();
    let distance = |i: usize| mean(&trials[i].kl);
    let whole = |i: &usize| trials[*i].kl.len() == right.kl.len();
    // To the rounding, on every answer: nothing that is merely near comes up to that.
    let exact = |i: &usize| claimed && whole(i) && reproduces(right, &trials[*i]);
    if (0..trials.len()).any(|i| exact(&i)) {
        for (i, fit) in fits.iter_mut().enumerate() {
            *fit = match *fit {
                _ if exact(&i) => Fit::Fits,
                Fit::Fits => Fit::Unclear,
                other => other,
            };
        }
        return fits;
    }
    let mut order: Vec<usize> = (0..trials.len()).filter(whole).collect();
    order.sort_by(|a, b| distance(*a).total_cmp(&distance(*b)));
    let Some(&best) = order.first() else { return fits };
    // The same mistake in another strength, or in one layer, is no rival.
    let rival = order.iter().skip(1).find(|&&i| causes.get(i) != causes.get(best));
    let clear = rival.is_none_or(|&next| distance(next) >= CLEARLY * distance(best).max(ROUNDING));
    // Mistakes that do nearly the same fit together: only the nearest is the answer.
    for (i, fit) in fits.iter_mut().enumerate() {
        if *fit == Fit::Fits && i != best && distance(i) > CLEARLY * distance(best) {
            *fit = Fit::Unclear;
        }
    }
    // What is declared is computed to the rounding, so that small differences are as real as large ones; but a small one may come
    // half of the way by chance.
    let large = different || mean(&right.kl) >= SEEN;
    let share = if large { EXPLAINED_PARTLY } else { EXPLAINED };
    let near = distance(best) <= (1.0 - share) * mean(&right.kl);
    // One prompt may make a mean; a mistake that is there shows in most.
    let nearer = right.kl.iter().zip(&trials[best].kl).filter(|(right, trial)| trial < right).count();
    let seen = (large || (claimed && mean(&right.kl) >= ROUNDING)) && 4 * nearer >= 3 * right.kl.len();
    if seen && near && fits[best] != Fit::Fits && clear {
        fits[best] = Fit::Nearest;
    }
    fits
}

/// Whether the answers are beyond rounding from the right model, and within it from this one.
pub(super) fn reproduces(right: &Distances, trial: &Distances) -> bool {
    let (right, trial) = (mean(&right.beyond), mean(&trial.beyond));
    trial <= FEW_BEYOND && trial <= right / 4.0
}

fn alone(right: &[f64], trial: &[f64], different: bool) -> Fit {
    if trial.len() < right.len() {
        return Fit::Excluded;
    }
    let (right_mean, trial_mean) = (mean(right), mean(trial));
    if trial_mean <= LOW * SCALE && different && trial_mean <= (1.0 - EXPLAINED) * right_mean {
        return Fit::Fits;
    }
    // A fair coin's bets: 1.9 for each prompt that is nearer to the hypothesis, 0.1 for each that isn't.
    let odds = |nearer: &dyn Fn(f64, f64) -> bool| -> f64 {
        right.iter().zip(trial).map(|(right, trial)| if nearer(*right, *trial) { 1.9 } else { 0.1 }).product()
    };
    let small = trial_mean <= (1.0 - EXPLAINED_PARTLY) * right_mean && right_mean >= ROUNDING;
    if !different && small && odds(&|right, trial| trial < right) >= ODDS {
        return Fit::Fits;
    }
    // In the same way: farther from the hypothesis than from the right model on prompt after prompt, and by a margin.
    let against = odds(&|right, trial| trial > right) >= ODDS && trial_mean >= 2.0 * right_mean;
    let far = trial_mean >= HIGH * SCALE && trial_mean >= (1.0 - EXPLAINED_PARTLY) * right_mean;
    if far || (!different && against) { Fit::Excluded } else { Fit::Unclear }
}

/// Whether a fitted strength is nearer than a special one of the same mistake, on the answers beyond the first `used` that it was
/// fitted to: by the mean of the paired differences, which has to be twice its standard error. The rounding of an honest engine is the
/// same in both distances, and most of it cancels.
#[allow(clippy::cast_precision_loss)] // a dozen prompts
pub(super) fn is_nearer_unfitted(special: &[f64], fitted: &[f64], used: usize) -> bool {
    let gains: Vec<f64> =
        special.iter().zip(fitted).skip(used).map(|(special, fitted)| special - fitted).collect();
    if gains.len() < LEAST_UNFITTED {
        return false;
    }
    let gain = mean(&gains);
    let squares: f64 = gains.iter().map(|each| (each - gain).powi(2)).sum();
    let error = (squares / (gains.len() * (gains.len() - 1)) as f64).sqrt();
    gain > 0.0 && gain >= 2.0 * error
}

/// Whether the first answers already exclude it: then the others need not be computed.
pub(super) fn is_hopeless(right: &Distances, trial: &Distances, different: bool, claimed: bool) -> bool {
    // What reproduces even one answer to the rounding deserves the others.
    if claimed && trial.beyond.iter().any(|beyond| *beyond <= 0.5) {
        return false;
    }
    let right = &right.kl[..trial.kl.len().min(right.kl.len())];
    let (right, trial) = (mean(right), mean(&trial.kl));
    if different {
        trial > 0.7 * right && trial > LOW * SCALE
    } else {
        trial > 2.0 * right && trial > 20.0 * ROUNDING
    }
}

#[allow(clippy::cast_precision_loss)] // a dozen prompts
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of a server that declares nothing.
    fn only_kl(kl: &[f64]) -> Distances {
        Distances { kl: kl.to_vec(), beyond: vec![1.0; kl.len()] }
    }

    fn one(right: &[f64], trial: &[f64], different: bool) -> Fit {
        judge(&only_kl(right), &[only_kl(trial)], &[Some("a")], different, false)[0]
    }

    fn hopeless(right: &[f64], trial: &[f64], different: bool) -> bool {
        is_hopeless(&only_kl(right), &only_kl(trial), different, false)
    }

    #[test]
    fn large_effects_need_few_prompts() {
        assert_eq!(one(&[0.25; 4], &[1e-4; 4], true), Fit::Fits);
        assert_eq!(one(&[0.25; 4], &[0.25; 4], true), Fit::Excluded);
        assert_eq!(one(&[0.25; 4], &[0.04; 4], true), Fit::Nearest, "most of it, and not all");
        assert_eq!(one(&[0.25; 4], &[0.14; 4], true), Fit::Excluded);
    }

    #[test]
    fn only_the_nearest_is_the_answer() {
        let judged = |trials: &[&[f64]], causes: &[Option<&str>]| {
            let trials: Vec<Distances> = trials.iter().map(|kl| only_kl(kl)).collect();
            judge(&only_kl(&[0.25; 4]), &trials, causes, true, false)
        };
        let fits = judged(&[&[1e-4; 4], &[2e-3; 4], &[0.3; 4]], &[Some("a"), Some("b"), Some("c")]);
        assert_eq!(fits, [Fit::Fits, Fit::Unclear, Fit::Excluded]);
        let tied: [&[f64]; 2] = [&[0.05; 4], &[0.06; 4]];
        assert_eq!(judged(&tied, &[Some("a"), Some("b")]), [Fit::Unclear; 2], "two are as near");
        assert_eq!(judged(&tied, &[Some("a"); 2]), [Fit::Nearest, Fit::Unclear], "two strengths of one");
    }

    #[test]
    fn a_declared_arithmetic_is_reproduced_or_not() {
        let distances = |kl: f64, beyond: f64| Distances { kl: vec![kl; 4], beyond: vec![beyond; 4] };
        let judged = |trials: &[Distances], different| {
            judge(&distances(2e-6, 0.9), trials, &vec![Some("a"); trials.len()], different, true)
        };
        assert_eq!(judged(&[distances(1e-9, 0.0)], false), [Fit::Fits], "below what any divergence shows");
        assert_eq!(judged(&[distances(1e-6, 0.8)], false), [Fit::Unclear]);
        assert_eq!(judged(&[distances(1e-9, 0.0), distances(1e-4, 0.9)], true)[0], Fit::Fits);
        let half = Distances { kl: vec![1e-9, 1e-3], beyond: vec![0.0, 1.0] };
        assert!(!is_hopeless(&distances(2e-6, 0.9), &half, false, true), "one answer is reproduced");
        assert!(is_hopeless(&distances(2e-6, 0.9), &distances(1e-3, 0.9), false, true));
    }

    #[test]
    fn small_effects_need_every_prompt() {
        assert_eq!(one(&[3e-5; 8], &[2e-8; 8], false), Fit::Fits);
        assert_eq!(one(&[3e-5; 4], &[2e-8; 4], false), Fit::Unclear, "four prompts may be chance");
        assert_eq!(one(&[3e-5; 8], &[3.2e-5; 8], false), Fit::Unclear, "farther, but not by a margin");
        assert_eq!(one(&[2e-8; 8], &[3e-5; 8], false), Fit::Excluded);
        assert_eq!(one(&[2e-8; 8], &[1e-8; 8], false), Fit::Unclear, "rounding is no evidence");
        // Nearer on average, but not prompt after prompt.
        let mut right = [1e-5; 8];
        right[0] = 1e-3;
        let mut trial = [2e-5; 8];
        trial[0] = 1e-5;
        assert_eq!(one(&right, &trial, false), Fit::Unclear);
    }

    #[test]
    fn a_fitted_strength_has_to_be_nearer_elsewhere() {
        let special = [2e-5, 2e-5, 1.4e-5, 1.5e-5, 1.6e-5, 1.3e-5, 1.5e-5, 1.7e-5];
        let fitted = [1e-5, 1e-5, 1.3e-5, 1.3e-5, 1.5e-5, 1.25e-5, 1.35e-5, 1.55e-5];
        assert!(is_nearer_unfitted(&special, &fitted, 2));
        let elsewhere_as_far = [1e-5, 1e-5, 1.4e-5, 1.6e-5, 1.5e-5, 1.3e-5, 1.6e-5, 1.65e-5];
        assert!(!is_nearer_unfitted(&special, &elsewhere_as_far, 2), "nearer only where it was fitted");
        assert!(!is_nearer_unfitted(&special[..4], &fitted[..4], 2), "two answers say nothing");
    }

    #[test]
    fn what_was_given_up_is_excluded() {
        assert!(hopeless(&[0.25; 8], &[0.3, 0.2], true));
        assert!(!hopeless(&[0.25; 8], &[0.1, 0.1], true));
        assert!(hopeless(&[1e-5; 8], &[0.3, 0.2], false));
        assert!(hopeless(&[1e-5; 8], &[3e-5, 3e-5], false), "on no prompt nearer");
        assert!(!hopeless(&[1e-5; 8], &[1.5e-5, 1e-6], false));
        assert_eq!(one(&[0.25; 8], &[0.3, 0.2], true), Fit::Excluded);
    }
}
