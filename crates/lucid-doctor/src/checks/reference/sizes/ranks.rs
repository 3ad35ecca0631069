//! An edge that no bar shows: are steps on one side of a length, or those of a tile's multiples, farther from the reference than the others, as
//! ranks have it?
//!
//! Where a server scores no prompts, one token tells of each, and a fault that is everywhere beyond a length may move each of them by less than any
//! fixed bar. An honest engine's distances don't fall apart at a length: they grow with it, by a factor of a few. So a cut has to part the
//! distances by their ranks, by far more than a factor, and again so with fresh texts near it.

use super::pattern::{Pattern, Trial};
use crate::statistics::mann_whitney;

/// Trials on the right and on the wrong side of a cut, at the least.
const RIGHT: usize = 8;
const WRONG: usize = 6;
/// Numbers of rows whose multiples kernels treat in their own way.
const TILES: [usize; 5] = [4, 8, 16, 32, 64];
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
    /// Sizes near the edge to ask for once more, `count` that are wrong and `count` that are right: up to half as long again, or half as long;
    /// of multiples, those and their neighbours.
    pub(super) fn sides(&self, count: usize) -> [Vec<usize>; 2] {
        let near = |from: usize, longer: bool| -> Vec<usize> {
            let steps = (0..count).map(|i| i * from / (2 * count));
            steps.map(|step| if longer { from + step } else { from - step }).collect()
        };
        match &self.pattern {
            Pattern::Above { right, wrong } => [near(*wrong, true), near(*right, false)],
            Pattern::Below { wrong, right } => [near(*wrong, false), near(*right, true)],
            Pattern::Some(wrong) => {
                // The longer ones: at few tokens little hangs on any kernel.
                let wrong: Vec<usize> = wrong.iter().rev().cycle().take(count).copied().collect();
                [wrong.clone(), wrong.iter().map(|size| size + 1).collect()]
            }
            Pattern::Right | Pattern::Wrong => [Vec::new(), Vec::new()],
        }
    }
}

/// The edge or the multiples that part the trials best, if any do.
pub(super) fn parted(trials: &[Trial]) -> Option<Edge> {
    edge(trials).or_else(|| multiples(trials))
}

/// Multiples of a tile that are wrong where nothing else is.
fn multiples(trials: &[Trial]) -> Option<Edge> {
    let split = |tile: usize| -> (Vec<Trial>, Vec<Trial>) {
        trials.iter().cloned().partition(|trial| trial.size.is_multiple_of(tile))
    };
    let apart_by = |tile: &usize| {
        let (wrong, right) = split(*tile);
        if wrong.len() < WRONG || right.len() < RIGHT {
            return 0.0;
        }
        let kl = |trials: &[Trial]| trials.iter().map(|trial| trial.kl).collect::<Vec<_>>();
        mann_whitney(&kl(&wrong), &kl(&right))
    };
    let best = TILES.into_iter().max_by(|a, b| apart_by(a).total_cmp(&apart_by(b)))?;
    let (wrong, right) = split(best);
    let bar = apart(&wrong, &right).filter(|_| apart_by(&best) >= AT_BEST)?;
    Some(Edge { pattern: Pattern::Some(wrong.iter().map(|trial| trial.size).collect()), bar })
}

/// The cut that parts the trials best, if it does; they stand in the order of their sizes.
pub(super) fn edge(trials: &[Trial]) -> Option<Edge> {
    let kl: Vec<f64> = trials.iter().map(|trial| trial.kl).collect();
    let least = RIGHT.min(WRONG);
    let cuts = least..(kl.len() + 1).saturating_sub(least);
    let parted = |cut: usize| mann_whitney(&kl[cut..], &kl[..cut]);
    // Ranks say that there is an edge. Where it is, distances say: the lowest wrong one may as well stand with the right ones, by its rank.
    let best = cuts
        .filter(|cut| parted(*cut).abs() >= AT_BEST)
        .max_by(|a, b| between(&kl, *a).total_cmp(&between(&kl, *b)))?;
    let above = parted(best) > 0.0;
    let (short, long) = trials.split_at(best);
    let (wrong, right) = if above { (long, short) } else { (short, long) };
    if wrong.len() < WRONG || right.len() < RIGHT {
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

/// How much of the variance of the distances' logarithms lies between the two sides of a cut.
#[allow(clippy::cast_precision_loss)] // a few hundred sizes
fn between(kl: &[f64], cut: usize) -> f64 {
    let mean = |kl: &[f64]| kl.iter().map(|kl| kl.max(f64::MIN_POSITIVE).ln()).sum::<f64>() / kl.len() as f64;
    let (short, long) = kl.split_at(cut);
    (mean(short) - mean(long)).powi(2) * (short.len() * long.len()) as f64
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

    /// A distance by size that is noisy by a factor of up to 400.
    fn at(sizes: impl IntoIterator<Item = usize>, seed: u64, typical: &dyn Fn(usize) -> f64) -> Vec<Trial> {
        let mut random = Random::new(seed);
        let mut trial = |size| Trial {
            size,
            kl: typical(size) * (6.0 * (random.below(1_000) as f64 / 1_000.0 - 0.5)).exp(),
            last: PositionScore::default(),
            beyond: None,
            exchange: 1,
            said: Default::default(),
        };
        sizes.into_iter().map(&mut trial).collect()
    }

    /// The sizes of a quick look at a server that scores no prompts, and fresh ones if they show an edge: what is found in the end.
    fn found(seed: u64, typical: impl Fn(usize) -> f64) -> Option<Edge> {
        let longer = [136, 161, 190, 223, 257, 265, 271, 282, 289, 303, 321, 337];
        let sizes = (1..=33).chain((40..=128).step_by(8)).chain(longer);
        let edge = parted(&at(sizes, seed, &typical))?;
        let [wrong, right] = edge.sides(8);
        is_again(&at(wrong, seed + 1_000, &typical), &at(right, seed + 2_000, &typical)).then_some(edge)
    }

    #[test]
    fn edges_are_found_on_both_sides_below_any_bar() {
        // Nothing here reaches 5e-3 as a rule. The lowest of the wrong ones may stand with the right ones.
        let (mut above, mut below) = (0, 0);
        for seed in 0..20 {
            let edge = found(seed, |size| if size > 64 { 1e-3 } else { 1e-6 });
            above +=
                usize::from(edge.is_some_and(|edge| edge.pattern == Pattern::Above { right: 64, wrong: 72 }));
            let edge = found(seed, |size| if size <= 256 { 1e-3 } else { 1e-6 });
            below += usize::from(
                edge.is_some_and(|edge| edge.pattern == Pattern::Below { wrong: 223, right: 257 }),
            );
        }
        assert!(above >= 16 && below >= 16, "{above} and {below} of 20");
    }

    #[test]
    fn multiples_of_a_tile_are_found_as_such() {
        for seed in 0..20 {
            let typical = |size: usize| if size.is_multiple_of(8) { 3e-3 } else { 1e-6 };
            let found = found(seed, typical).unwrap();
            let Pattern::Some(wrong) = &found.pattern else { panic!("{:?}", found.pattern) };
            assert!(
                wrong.len() > 10 && wrong.iter().all(|size| size.is_multiple_of(8)),
                "seed {seed}: {wrong:?}"
            );
            let [wrong, right] = found.sides(4);
            assert_eq!((wrong.len(), right), (4, wrong.iter().map(|size| size + 1).collect()));
        }
    }

    #[test]
    fn honest_distances_part_nowhere() {
        for seed in 0..200 {
            assert_eq!(found(seed, |_| 1e-5), None, "seed {seed}: bf16");
            assert_eq!(found(seed, |size| 1e-6 * size as f64), None, "seed {seed}: it grows with the length");
            assert_eq!(found(seed, |_| 5e-3), None, "seed {seed}: fp8 caches");
            let little = |size| if size > 64 { 1e-6 } else { 1e-9 };
            assert_eq!(found(seed, little), None, "seed {seed}: nothing to speak of");
        }
    }

    #[test]
    fn fresh_texts_have_to_show_it_again() {
        let of = |seed, typical: f64| at(1..9, seed, &|_| typical);
        assert!(is_again(&of(1, 1e-3), &of(2, 1e-6)));
        assert!(!is_again(&of(2, 1e-6), &of(1, 1e-3)) && !is_again(&of(3, 1e-6), &of(4, 1e-6)));
        assert!(!is_again(&of(5, 1e-5), &of(6, 1e-6)), "ten times is no step");
    }
}
