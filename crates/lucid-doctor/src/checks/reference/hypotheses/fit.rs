//! Which hypothesis do the numbers fit?

use super::super::logprobs::{HIGH, LOW, SCALE};

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
/// Divergences below this are the rounding of f32 and mean nothing (Lucid's own server: 1.6e-8 on the canary).
pub(super) const ROUNDING: f64 = 1e-6;

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

/// Judges every hypothesis. `right` and each of `trials` hold the divergence of each recorded answer, from the right model and
/// from the hypothesis, in nats a token; a trial that was given up early has fewer.
pub(super) fn judge(right: &[f64], trials: &[Vec<f64>], different: bool) -> Vec<Fit> {
    let mut fits: Vec<Fit> = trials.iter().map(|trial| alone(right, trial, different)).collect();
    let distance = |i: usize| mean(&trials[i]);
    let whole = |i: &usize| trials[*i].len() == right.len();
    let mut order: Vec<usize> = (0..trials.len()).filter(whole).collect();
    order.sort_by(|a, b| distance(*a).total_cmp(&distance(*b)));
    let Some(&best) = order.first() else { return fits };
    let clear =
        |of: usize| order.get(1).is_none_or(|&next| distance(next) >= CLEARLY * distance(of).max(ROUNDING));
    // Mistakes that do nearly the same fit together: only the nearest is the answer.
    for (i, fit) in fits.iter_mut().enumerate() {
        if *fit == Fit::Fits && i != best && distance(i) > CLEARLY * distance(best) {
            *fit = Fit::Unclear;
        }
    }
    let near = distance(best) <= (1.0 - EXPLAINED_PARTLY) * mean(right);
    // One prompt may make a mean; a mistake that is there shows in most.
    let nearer = right.iter().zip(&trials[best]).filter(|(right, trial)| trial < right).count();
    let seen = (different || mean(right) >= SEEN) && 4 * nearer >= 3 * right.len();
    if seen && near && fits[best] != Fit::Fits && clear(best) {
        fits[best] = Fit::Nearest;
    }
    fits
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

/// Whether the first answers already exclude it: then the others need not be computed.
pub(super) fn is_hopeless(right: &[f64], trial: &[f64], different: bool) -> bool {
    let right = &right[..trial.len().min(right.len())];
    let (right, trial) = (mean(right), mean(trial));
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

    fn one(right: &[f64], trial: &[f64], different: bool) -> Fit {
        judge(right, &[trial.to_vec()], different)[0]
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
        let trials = [vec![1e-4; 4], vec![2e-3; 4], vec![0.3; 4]];
        assert_eq!(judge(&[0.25; 4], &trials, true), [Fit::Fits, Fit::Unclear, Fit::Excluded]);
        let tied = [vec![0.05; 4], vec![0.06; 4]];
        assert_eq!(judge(&[0.25; 4], &tied, true), [Fit::Unclear, Fit::Unclear], "two are as near");
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
    fn what_was_given_up_is_excluded() {
        assert!(is_hopeless(&[0.25; 8], &[0.3, 0.2], true));
        assert!(!is_hopeless(&[0.25; 8], &[0.1, 0.1], true));
        assert!(is_hopeless(&[1e-5; 8], &[0.3, 0.2], false));
        assert!(is_hopeless(&[1e-5; 8], &[3e-5, 3e-5], false), "on no prompt nearer");
        assert!(!is_hopeless(&[1e-5; 8], &[1.5e-5, 1e-6], false));
        assert_eq!(one(&[0.25; 8], &[0.3, 0.2], true), Fit::Excluded);
    }
}
