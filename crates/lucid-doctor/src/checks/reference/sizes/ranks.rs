//! An edge that no bar shows: are steps on one side of a length farther from the reference than on the other, as ranks have it?
//!
//! Where a server scores no prompts, one token tells of each, and a fault that is everywhere beyond a length may move each of them by less than any
//! fixed bar. An honest engine's distances don't fall apart at a length: they grow with it, by a factor of a few. So a cut has to part the
//! distances by their ranks, by far more than a factor, and again so with fresh texts near it.

use super::pattern::{Pattern, Trial};
use crate::statistics::mann_whitney;

/// Trials on the right and on the wrong side of a cut, at the least.
const RIGHT: usize = 8;
const WRONG: usize = 6;
/// Standard deviations at the best of some fifty cuts: by chance in one of 300 examinations.
const AT_BEST: f64 = 4.0;
/// The same for fresh texts at that cut alone: 1 %.
const AGAIN: f64 = 2.33;
/// Upper quartile on the wrong side, nats, and how many times that of the right side it is: what follows few tokens is seldom moved.
const LEAST: f64 = 1e-3;
const APART: f64 = 30.0;

/// An edge between right and wrong steps.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Edge {
    pub(super) pattern: Pattern,
    /// Divergence above which a step is wrong: between the two sides.
    pub(super) bar: f64,
}

impl Edge {
    /// The last size on either side, the wrong one first, and whether wrong ones are the longer ones.
    pub(super) fn sides(&self) -> Option<(usize, usize, bool)> {
        match self.pattern {
            Pattern::Above { right, wrong } => Some((wrong, right, true)),
            Pattern::Below { wrong, right } => Some((wrong, right, false)),
            _ => None,
        }
    }
}

/// The cut that parts the trials best, if it does; they stand in the order of their sizes.
pub(super) fn edge(trials: &[Trial]) -> Option<Edge> {
    let kl: Vec<f64> = trials.iter().map(|trial| trial.kl).collect();
    let least = RIGHT.min(WRONG);
    let cuts = least..(kl.len() + 1).saturating_sub(least);
    let parted = |cut: usize| mann_whitney(&kl[cut..], &kl[..cut]);
    let best = cuts.max_by(|a, b| parted(*a).abs().total_cmp(&parted(*b).abs()))?;
    let above = parted(best) > 0.0;
    let (short, long) = trials.split_at(best);
    let (wrong, right) = if above { (long, short) } else { (short, long) };
    if parted(best).abs() < AT_BEST || wrong.len() < WRONG || right.len() < RIGHT {
        return None;
    }
    let bar = apart(wrong, right)?;
    let (last, first) = (short.last()?.size, long.first()?.size);
    let pattern = if above {
        Pattern::Above { right: last, wrong: first }
    } else {
        Pattern::Below { wrong: last, right: first }
    };
    Some(Edge { pattern, bar })
}

/// Whether fresh trials of both sides show it again.
pub(super) fn is_again(wrong: &[Trial], right: &[Trial]) -> bool {
    let kl = |trials: &[Trial]| trials.iter().map(|trial| trial.kl).collect::<Vec<_>>();
    mann_whitney(&kl(wrong), &kl(right)) >= AGAIN && apart(wrong, right).is_some()
}

/// A divergence between two sides that are far apart.
fn apart(wrong: &[Trial], right: &[Trial]) -> Option<f64> {
    let (wrong, right) = (upper_quartile(wrong), upper_quartile(right));
    (wrong >= LEAST.max(APART * right)).then(|| (wrong * right.max(LEAST / APART)).sqrt())
}

fn upper_quartile(trials: &[Trial]) -> f64 {
    let mut kl: Vec<f64> = trials.iter().map(|trial| trial.kl).collect();
    kl.sort_by(f64::total_cmp);
    kl.get(kl.len() * 3 / 4).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::PositionScore;
    use crate::statistics::Random;

    /// The sizes of a quick look at a server that scores no prompts, with a distance by size that is noisy by a factor of up to 400.
    fn trials(seed: u64, typical: impl Fn(usize) -> f64) -> Vec<Trial> {
        let mut random = Random::new(seed);
        let sizes = (1..=33)
            .chain((40..=128).step_by(8))
            .chain([136, 161, 190, 223, 257, 265, 271, 282, 289, 303, 321, 337]);
        let mut trial = |size| Trial {
            size,
            kl: typical(size) * (6.0 * (random.below(1_000) as f64 / 1_000.0 - 0.5)).exp(),
            last: PositionScore::default(),
            beyond: None,
            exchange: 1,
            said: Default::default(),
        };
        sizes.map(&mut trial).collect()
    }

    #[test]
    fn edges_are_found_on_both_sides_below_any_bar() {
        for seed in 0..20 {
            // Nothing here reaches 5e-3 as a rule.
            let found = edge(&trials(seed, |size| if size > 64 { 1e-3 } else { 1e-6 })).unwrap();
            assert_eq!(found.pattern, Pattern::Above { right: 64, wrong: 72 }, "seed {seed}");
            assert!(found.bar > 1e-5 && found.bar < 1e-2, "{}", found.bar);
            let found = edge(&trials(seed, |size| if size <= 256 { 1e-3 } else { 1e-6 })).unwrap();
            assert_eq!(found.pattern, Pattern::Below { wrong: 223, right: 257 }, "seed {seed}");
        }
    }

    #[test]
    fn honest_distances_part_nowhere() {
        for seed in 0..200 {
            assert_eq!(edge(&trials(seed, |_| 1e-5)), None, "seed {seed}: bf16");
            assert_eq!(
                edge(&trials(seed, |size| 1e-6 * size as f64)),
                None,
                "seed {seed}: bf16 that grows with the length"
            );
            assert_eq!(edge(&trials(seed, |_| 5e-3)), None, "seed {seed}: fp8 caches");
            assert_eq!(
                edge(&trials(seed, |size| if size > 64 { 1e-6 } else { 1e-9 })),
                None,
                "seed {seed}: nothing to speak of"
            );
        }
    }

    #[test]
    fn fresh_texts_have_to_show_it_again() {
        let (wrong, right) = (trials(1, |_| 1e-3), trials(2, |_| 1e-6));
        assert!(is_again(&wrong[..8], &right[..8]));
        assert!(!is_again(&right[..8], &wrong[..8]) && !is_again(&right[8..16], &right[..8]));
        assert!(!is_again(&trials(3, |_| 1e-5)[..8], &right[..8]), "ten times is no step");
    }
}
