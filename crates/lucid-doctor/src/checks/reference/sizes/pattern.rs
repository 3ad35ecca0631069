//! Which numbers of tokens are wrong: none, all, those above an edge, or some among others.

use crate::evidence::{FEW_BEYOND, PositionScore};

/// Divergence of a step at which it may be wrong, nats a token: the same as for answers of a sweep.
const WRONG: f64 = 5e-3;
/// How many times farther than most steps a wrong one is: an honest server of a large model reaches `WRONG` by rounding, at all sizes.
const APART: f64 = 10.0;
/// Sizes on either side that make an edge; a mistake in positions, too, is small in the first few tokens.
const EDGE: usize = 8;
/// Share of wrong sizes above which no size is to blame.
const MOST: f64 = 0.6;

/// What one prompt gave.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// Tokens of the prompt, which are those of its step.
    pub(super) size: usize,
    /// Divergence from the reference, nats a token.
    pub(super) kl: f64,
    /// The prompt's last token alone: what follows it.
    pub(super) last: PositionScore,
    /// Of a server that declares an arithmetic that the reference has: share of the tokens beyond rounding, and whether the last one is.
    pub(super) beyond: Option<(f64, bool)>,
    pub(super) exchange: usize,
}

impl Trial {
    /// `bar`: see [`bar`].
    pub(super) fn is_wrong(&self, bar: f64) -> bool {
        match self.beyond {
            Some((beyond, last)) => beyond > FEW_BEYOND || last,
            None => self.kl > bar,
        }
    }
}

/// Which sizes are wrong.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Pattern {
    /// None.
    Right,
    /// Nearly all.
    Wrong,
    /// All that are longer: the longest right and the shortest wrong one.
    Above { right: usize, wrong: usize },
    /// These, among right ones.
    Some(Vec<usize>),
}

/// Divergence above which a step is wrong where no arithmetic is declared.
pub(super) fn bar(trials: &[Trial]) -> f64 {
    let mut kl: Vec<f64> = trials.iter().map(|trial| trial.kl).collect();
    kl.sort_by(f64::total_cmp);
    let usual = kl.get(kl.len() / 3).copied().unwrap_or(0.0);
    WRONG.max(APART * usual)
}

/// `trials` stand in the order of their sizes.
#[allow(clippy::cast_precision_loss)] // a few hundred sizes
pub(super) fn pattern(trials: &[Trial]) -> Pattern {
    let bar = bar(trials);
    let wrong: Vec<usize> =
        trials.iter().filter(|trial| trial.is_wrong(bar)).map(|trial| trial.size).collect();
    if wrong.is_empty() {
        return Pattern::Right;
    }
    // The cut with the fewest exceptions.
    let exceptions = |cut: usize| {
        trials.iter().enumerate().filter(|(i, trial)| trial.is_wrong(bar) != (*i >= cut)).count()
    };
    let cut = (0..=trials.len()).min_by_key(|&cut| exceptions(cut)).unwrap_or(0);
    let (below, above) = trials.split_at(cut);
    if below.len() >= EDGE && above.len() >= EDGE && exceptions(cut) <= 1 {
        let right = below.iter().rev().find(|trial| !trial.is_wrong(bar));
        let first = above.iter().find(|trial| trial.is_wrong(bar));
        if let (Some(right), Some(first)) = (right, first) {
            return Pattern::Above { right: right.size, wrong: first.size };
        }
    }
    if wrong.len() as f64 > MOST * trials.len() as f64 {
        return Pattern::Wrong;
    }
    Pattern::Some(wrong)
}

/// The nearest right sizes below and above.
pub(super) fn neighbours(trials: &[Trial], wrong: &[usize], size: usize) -> Vec<usize> {
    let right = || trials.iter().map(|trial| trial.size).filter(|size| !wrong.contains(size));
    let (below, above) = (right().rfind(|right| *right < size), right().find(|right| *right > size));
    below.into_iter().chain(above).collect()
}

/// The wrong sizes for people: a rule where there is one.
pub(super) fn words(trials: &[Trial], wrong: &[usize]) -> String {
    let divisor = wrong.iter().fold(0, |divisor, size| gcd(divisor, *size));
    let multiples = trials.iter().filter(|trial| divisor > 1 && trial.size.is_multiple_of(divisor)).count();
    if wrong.len() > 2 && multiples == wrong.len() {
        return format!("the multiples of {divisor}");
    }
    let shown: Vec<String> = wrong.iter().take(8).map(usize::to_string).collect();
    let more = if wrong.len() > 8 { " and more" } else { "" };
    format!("{}{more}", shown.join(", "))
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trials(is_wrong: impl Fn(usize) -> bool) -> Vec<Trial> {
        let trial = |size| Trial {
            size,
            kl: if is_wrong(size) { 0.2 } else { 1e-5 },
            last: PositionScore::default(),
            beyond: None,
            exchange: 1,
        };
        (1..=33).chain((40..=128).step_by(8)).map(trial).collect()
    }

    #[test]
    fn patterns_are_told_apart() {
        assert_eq!(pattern(&trials(|_| false)), Pattern::Right);
        // As far everywhere is alike. Of plain f32 it is wrong, and a single token is right in many mistakes.
        let mut most = trials(|size| size > 2);
        assert_eq!(pattern(&most), Pattern::Right);
        most.iter_mut()
            .for_each(|trial| trial.beyond = Some((if trial.size > 2 { 1.0 } else { 0.0 }, false)));
        assert_eq!(pattern(&most), Pattern::Wrong);
        assert_eq!(pattern(&trials(|size| size > 24)), Pattern::Above { right: 24, wrong: 25 });
        let exception = trials(|size| size > 24 && size != 88);
        assert_eq!(pattern(&exception), Pattern::Above { right: 24, wrong: 25 });
        let eights = trials(|size| size % 16 == 0);
        let Pattern::Some(wrong) = pattern(&eights) else { panic!("{:?}", pattern(&eights)) };
        assert_eq!(words(&eights, &wrong), "the multiples of 16");
        assert_eq!(neighbours(&eights, &wrong, 32), [31, 33]);
        let odd = trials(|size| size == 5);
        let Pattern::Some(wrong) = pattern(&odd) else { panic!("{:?}", pattern(&odd)) };
        assert_eq!((words(&odd, &wrong).as_str(), neighbours(&odd, &[1, 2, 5], 2)), ("5", vec![3]));
    }

    #[test]
    fn what_is_as_far_at_all_sizes_is_no_pattern() {
        let mut noisy = trials(|_| false);
        for (i, trial) in noisy.iter_mut().enumerate() {
            trial.kl = 4e-3 + 1e-3 * (i % 5) as f64;
        }
        assert_eq!(pattern(&noisy), Pattern::Right);
        // Of plain f32, the last token alone may show it.
        noisy.iter_mut().for_each(|trial| trial.beyond = Some((0.0, trial.size.is_multiple_of(8))));
        assert!(matches!(pattern(&noisy), Pattern::Some(_)));
    }
}
