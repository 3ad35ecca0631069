//! Does a series change its level, and where?

use super::Random;

/// Reorderings of the permutation test.
const SHUFFLES: usize = 999;
/// Observations on either side of a change, at the least.
const LEAST: usize = 4;

/// A change of level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Observations before it.
    pub at: usize,
    /// Their mean.
    pub before: f64,
    /// The mean of the others.
    pub after: f64,
    /// One minus the p-value of "there is no change".
    pub confidence: f64,
}

/// The most likely single change of a series' mean; `None` for a short or constant one.
///
/// The statistic is the range of the cumulative sums of deviations from the mean, and its p-value comes from reordering the
/// series (W. A. Taylor, "Change-point analysis: a powerful new tool for detecting changes" (2000); the statistic is
/// Page's, "Continuous inspection schemes", Biometrika 41 (1954)). Observations that depend on their neighbours make it too sure.
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts of requests
pub fn change_point(series: &[f64], seed: u64) -> Option<Change> {
    if series.len() < 2 * LEAST || series.iter().any(|x| !x.is_finite()) {
        return None;
    }
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let all = mean(series);
    let sums = |series: &[f64]| {
        let mut sum = 0.0;
        let sums: Vec<f64> = series
            .iter()
            .map(|x| {
                sum += x - all;
                sum
            })
            .collect();
        sums
    };
    let range =
        |sums: &[f64]| sums.iter().copied().fold(0.0, f64::max) - sums.iter().copied().fold(0.0, f64::min);
    let cumulative = sums(series);
    let observed = range(&cumulative);
    if observed <= 1e-12 * series.len() as f64 {
        return None;
    }
    let inner = LEAST..series.len() - LEAST + 1;
    let at = inner.max_by(|&a, &b| cumulative[a - 1].abs().total_cmp(&cumulative[b - 1].abs()))?;
    let mut random = Random::new(seed);
    let mut reordered = series.to_vec();
    let as_large = (0..SHUFFLES)
        .filter(|_| {
            random.shuffle(&mut reordered);
            range(&sums(&reordered)) >= observed
        })
        .count();
    Some(Change {
        at,
        before: mean(&series[..at]),
        after: mean(&series[at..]),
        confidence: 1.0 - (as_large + 1) as f64 / (SHUFFLES + 1) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Taylor's own example: the U.S. trade deficit of 1987 and 1988 by month, in billions; it falls after October 1987
    /// and his analysis has more than 99 % confidence in a change around month 10.
    #[test]
    fn taylors_trade_deficits() {
        let deficits = [
            10.7, 13.0, 11.4, 11.5, 12.5, 14.1, 14.8, 14.1, 12.6, 16.0, 11.7, 10.6, 10.0, 11.4, 7.9, 9.5,
            8.0, 11.8, 10.5, 11.2, 9.2, 10.1, 10.4, 10.5,
        ];
        let change = change_point(&deficits, 1).unwrap();
        assert!((10..=11).contains(&change.at), "{change:?}");
        assert!(change.confidence > 0.99 && change.before > change.after, "{change:?}");
    }

    #[test]
    fn chance_is_called_chance() {
        // 200 series without a change: 1 % is 2, and four standard errors are 6.
        let sure = (0..200)
            .filter(|&seed| {
                let mut random = Random::new(seed);
                let series: Vec<f64> = (0..40).map(|_| random.below(1_000) as f64).collect();
                change_point(&series, seed).is_some_and(|change| change.confidence >= 0.99)
            })
            .count();
        assert!(sure <= 8, "{sure} of 200");
        assert_eq!(change_point(&[1.0; 40], 1), None);
        assert_eq!(change_point(&[1.0, 2.0, 3.0], 1), None);
    }
}
