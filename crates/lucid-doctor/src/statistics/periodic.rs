//! Do failures come back with a period?

use super::Random;

/// Relabellings of the permutation test.
const SHUFFLES: usize = 999;
/// Fewer failures show no pattern.
const LEAST: usize = 3;

/// The period out of `periods` whose multiples the failing positions lie around the most, with its p-value; `None` with too few
/// failures, or without anything that did not fail.
///
/// The statistic is Rayleigh's: the length of the mean of `exp(2πi · position / period)` over the failures (Mardia and Jupp,
/// "Directional Statistics" (2000), 6.3.1). Positions that were tried need not be uniform, so the p-value comes from
/// relabelling which of them failed (Fisher's permutation test), the largest statistic over all periods against the largest:
/// trying several periods costs nothing.
#[must_use]
#[allow(clippy::cast_precision_loss)] // positions of tokens
pub fn periodic(positions: &[usize], failed: &[bool], periods: &[usize], seed: u64) -> Option<(usize, f64)> {
    let failures = failed.iter().filter(|failed| **failed).count();
    if failures < LEAST || failures == positions.len() || positions.len() != failed.len() {
        return None;
    }
    let length = |labels: &[bool], period: usize| {
        let (mut x, mut y) = (0.0, 0.0);
        for (&position, _) in positions.iter().zip(labels).filter(|(_, failed)| **failed) {
            let angle = std::f64::consts::TAU * (position % period) as f64 / period as f64;
            (x, y) = (x + angle.cos(), y + angle.sin());
        }
        f64::hypot(x, y) / failures as f64
    };
    let largest = |labels: &[bool]| {
        let all =
            periods.iter().filter(|period| **period > 0).map(|&period| (period, length(labels, period)));
        all.max_by(|a, b| a.1.total_cmp(&b.1))
    };
    let (period, observed) = largest(failed)?;
    let mut random = Random::new(seed);
    let mut labels = failed.to_vec();
    let as_large = (0..SHUFFLES)
        .filter(|_| {
            random.shuffle(&mut labels);
            largest(&labels).is_some_and(|(_, length)| length >= observed - 1e-12)
        })
        .count();
    Some((period, (as_large + 1) as f64 / (SHUFFLES + 1) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_at_page_edges_are_seen() {
        let positions: Vec<usize> = (0..64).map(|i| i * 7 % 256).collect();
        let failed: Vec<bool> = positions.iter().map(|position| position % 64 < 8).collect();
        let (period, p) = periodic(&positions, &failed, &[16, 32, 64, 128], 1).unwrap();
        assert_eq!(period, 64);
        assert!(p < 0.01, "{p}");
    }

    /// Under the hypothesis p-values are uniform: 200 runs, 5 % of them below 0.05 is 10, and four standard errors are 12.
    #[test]
    fn chance_is_called_chance() {
        let low = (0..200)
            .filter(|&seed| {
                let mut random = Random::new(seed);
                let positions: Vec<usize> = (0..24).map(|_| random.below(300)).collect();
                let failed: Vec<bool> = (0..24).map(|_| random.below(3) == 0).collect();
                periodic(&positions, &failed, &[16, 32, 64, 128], seed).is_some_and(|(_, p)| p < 0.05)
            })
            .count();
        assert!(low <= 22, "{low} of 200");
    }

    #[test]
    fn too_little_is_no_pattern() {
        assert_eq!(periodic(&[1, 2, 3], &[true, true, false], &[16], 1), None);
        assert_eq!(periodic(&[1, 2, 3], &[true, true, true], &[16], 1), None);
    }
}
