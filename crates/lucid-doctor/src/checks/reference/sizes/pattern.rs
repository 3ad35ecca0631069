//! Which numbers of tokens are wrong: none, all, those above an edge, or some among others.

use crate::evidence::{FEW_BEYOND, Observed, PositionScore, PromptScore};

/// Divergence of a step at which it may be wrong, nats a token: the same as for answers of a sweep.
const WRONG: f64 = 5e-3;
/// How many times farther than most steps a wrong one is: an honest server of a large model reaches `WRONG` by rounding, at all sizes.
const APART: f64 = 10.0;
/// Sizes on either side that make an edge; a mistake in positions, too, is small in the first few tokens.
const EDGE: usize = 8;
/// The same for short steps: no mistake of the model is right from a length on.
const SHORT_EDGE: (usize, usize) = (4, 2);
/// Share of wrong sizes above which no size is to blame.
const MOST: f64 = 0.6;
/// Of prompts of which the last token alone is known: wrong ones that make an edge, and their share of all that are as long.
const SEEN: usize = 4;
const SEEN_SHARE: f64 = 0.4;
/// Share of wrong sizes at which longer steps are worth asking for.
const NEARLY_ALL: f64 = 0.9;

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
    /// What was asked and said, and how far that is from the reference.
    pub(super) said: (Observed, PromptScore),
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
    /// All that are shorter: the longest wrong and the shortest right one.
    Below { wrong: usize, right: usize },
    /// These, among right ones.
    Some(Vec<usize>),
}

/// Divergence above which a step is wrong where no arithmetic is declared: of what is usual, by a third of all and by the longest two, the lesser.
pub(super) fn bar(trials: &[Trial]) -> f64 {
    let longest = trials.iter().rev().take(2).map(|trial| trial.kl).fold(0.0, f64::max);
    WRONG.max(APART * usual(trials).min(longest))
}

fn usual(trials: &[Trial]) -> f64 {
    let mut kl: Vec<f64> = trials.iter().map(|trial| trial.kl).collect();
    kl.sort_by(f64::total_cmp);
    kl.get(kl.len() / 3).copied().unwrap_or(0.0)
}

/// Whether all of these steps may be short ones that are wrong.
#[allow(clippy::cast_precision_loss)] // a few hundred sizes
pub(super) fn may_end(trials: &[Trial]) -> bool {
    let is_wrong = |trial: &&Trial| trial.is_wrong(if trial.beyond.is_some() { 0.0 } else { WRONG });
    trials.iter().filter(is_wrong).count() as f64 >= NEARLY_ALL * trials.len() as f64
}

/// `trials` stand in the order of their sizes. `last_alone`: only what follows a prompt's last token is known, which a mistake need not
/// move every time.
#[allow(clippy::cast_precision_loss)] // a few hundred sizes
pub(super) fn pattern(trials: &[Trial], last_alone: bool) -> Pattern {
    let bar = bar(trials);
    let is_wrong = |trial: &&Trial| trial.is_wrong(bar);
    let wrong: Vec<usize> = trials.iter().filter(is_wrong).map(|trial| trial.size).collect();
    if wrong.is_empty() {
        return Pattern::Right;
    }
    // The cut with the fewest exceptions, where `long` steps are wrong or short ones.
    let exceptions = |cut: usize, long: bool| {
        trials.iter().enumerate().filter(|(i, trial)| trial.is_wrong(bar) != ((*i >= cut) == long)).count()
    };
    let best = |long: bool| (0..=trials.len()).min_by_key(|&cut| exceptions(cut, long)).unwrap_or(0);
    let cut = best(true);
    let (below, above) = trials.split_at(cut);
    if below.len() >= EDGE && above.len() >= EDGE && exceptions(cut, true) <= 1 {
        let right = below.iter().rev().find(|trial| !trial.is_wrong(bar));
        let first = above.iter().find(is_wrong);
        if let (Some(right), Some(first)) = (right, first) {
            return Pattern::Above { right: right.size, wrong: first.size };
        }
    }
    let first = trials.iter().position(|trial| trial.is_wrong(bar)).unwrap_or(0);
    let (below, above) = trials.split_at(first);
    let enough = below.len() >= EDGE && wrong.len() >= SEEN;
    if let (true, Some(right), [first, ..]) = (last_alone && enough, below.last(), above)
        && wrong.len() as f64 >= SEEN_SHARE * above.len() as f64
    {
        return Pattern::Above { right: right.size, wrong: first.size };
    }
    let cut = best(false);
    let (below, above) = trials.split_at(cut);
    let many = below.len().min(above.len()) >= EDGE;
    let enough = below.len() >= SHORT_EDGE.0 && above.len() >= SHORT_EDGE.1;
    if enough && exceptions(cut, false) <= usize::from(many) {
        let last = below.iter().rev().find(is_wrong);
        let right = above.iter().find(|trial| !trial.is_wrong(bar));
        if let (Some(last), Some(right)) = (last, right) {
            return Pattern::Below { wrong: last.size, right: right.size };
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
            said: Default::default(),
        };
        (1..=33).chain((40..=128).step_by(8)).map(trial).collect()
    }

    #[test]
    fn patterns_are_told_apart() {
        assert_eq!(pattern(&trials(|_| false), false), Pattern::Right);
        // As far everywhere is alike. Of plain f32 it is wrong, and a single token is right in many mistakes.
        let mut most = trials(|size| size > 2);
        assert_eq!(pattern(&most, false), Pattern::Right);
        most.iter_mut()
            .for_each(|trial| trial.beyond = Some((if trial.size > 2 { 1.0 } else { 0.0 }, false)));
        assert_eq!(pattern(&most, false), Pattern::Wrong);
        assert_eq!(pattern(&trials(|size| size > 24), false), Pattern::Above { right: 24, wrong: 25 });
        let exception = trials(|size| size > 24 && size != 88);
        assert_eq!(pattern(&exception, false), Pattern::Above { right: 24, wrong: 25 });
        assert_eq!(pattern(&trials(|size| size <= 16), false), Pattern::Below { wrong: 16, right: 17 });
        assert_eq!(
            pattern(&trials(|size| size <= 16 && size != 3), false),
            Pattern::Below { wrong: 16, right: 17 },
            "one exception"
        );
        assert_eq!(pattern(&trials(|size| size <= 2), false), Pattern::Some(vec![1, 2]));
        let eights = trials(|size| size % 16 == 0);
        let Pattern::Some(wrong) = pattern(&eights, false) else { panic!("{:?}", pattern(&eights, false)) };
        assert_eq!(words(&eights, &wrong), "the multiples of 16");
        assert_eq!(neighbours(&eights, &wrong, 32), [31, 33]);
        let odd = trials(|size| size == 5);
        let Pattern::Some(wrong) = pattern(&odd, false) else { panic!("{:?}", pattern(&odd, false)) };
        assert_eq!((words(&odd, &wrong).as_str(), neighbours(&odd, &[1, 2, 5], 2)), ("5", vec![3]));
    }

    #[test]
    fn what_is_as_far_at_all_sizes_is_no_pattern() {
        let mut noisy = trials(|_| false);
        for (i, trial) in noisy.iter_mut().enumerate() {
            trial.kl = 4e-3 + 1e-3 * (i % 5) as f64;
        }
        assert_eq!(pattern(&noisy, false), Pattern::Right);
        // Where only last tokens tell, a weak mistake shows in some of them; in multiples of 8 it is no edge.
        let weak = trials(|size| size > 33 && !size.is_multiple_of(16));
        assert_eq!(pattern(&weak, true), Pattern::Above { right: 33, wrong: 40 });
        assert!(matches!(pattern(&weak, false), Pattern::Some(_)));
        assert!(matches!(pattern(&trials(|size| size.is_multiple_of(8)), true), Pattern::Some(_)));
        // Longest steps that are right tell more than a third that is wrong.
        let mut short = trials(|size| size <= 64);
        assert!(!may_end(&short));
        assert_eq!(pattern(&short, false), Pattern::Below { wrong: 64, right: 72 });
        short.iter_mut().for_each(|trial| trial.kl = 0.2);
        assert!(may_end(&short), "longer ones may be right still");
        assert_eq!(pattern(&short, false), Pattern::Right, "as far at all sizes");
        let longer = |size| Trial { size, kl: 1e-5, ..short[0].clone() };
        short.extend([longer(256), longer(512)]);
        assert_eq!(pattern(&short, false), Pattern::Below { wrong: 128, right: 256 });
        // Of plain f32, the last token alone may show it.
        noisy.iter_mut().for_each(|trial| trial.beyond = Some((0.0, trial.size.is_multiple_of(8))));
        assert!(matches!(pattern(&noisy, false), Pattern::Some(_)));
    }
}
