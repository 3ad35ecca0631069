//! A mean over prompts with its interval.

use serde::Serialize;

use super::Random;

/// A mean with a 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Resamples of the bootstrap.
const RESAMPLES: usize = 2_000;

/// The ratio of two totals over clusters, `Σ sums / Σ counts`, with a percentile-bootstrap interval that resamples whole
/// clusters: tokens of one prompt are not independent, prompts are.
/// Sources: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13; for clusters, Field and Welsh,
/// "Bootstrapping clustered data", JRSS B 69 (2007). With fewer than about eight clusters the interval is too narrow:
/// it describes, the sequential test decides.
///
/// `clusters`: (sum, count) of each prompt. `None` without a single observation.
#[must_use]
pub fn mean_with_interval(clusters: &[(f64, f64)], seed: u64) -> Option<Estimate> {
    let ratio = |sum: f64, count: f64| (count > 0.0).then(|| sum / count);
    let total = clusters.iter().fold((0.0, 0.0), |(s, n), (sum, count)| (s + sum, n + count));
    let mean = ratio(total.0, total.1)?;
    let mut random = Random::new(seed);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            let (sum, count) = (0..clusters.len()).fold((0.0, 0.0), |(s, n), _| {
                let (sum, count) = random.choose(clusters).copied().unwrap_or_default();
                (s + sum, n + count)
            });
            ratio(sum, count)
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let at = |per_mille: usize| means.get(means.len() * per_mille / 1000).copied().unwrap_or(mean);
    Some(Estimate { mean, low: at(25), high: at(975) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Efron and Tibshirani, table 2.1: survival times of the 7 treated mice; mean 86.86, and the bootstrap standard
    /// error tends to 23.36 (their table 2.2), so the percentile interval is near 86.86 ± 1.96 × 23.36.
    #[test]
    fn mouse_data() {
        let mice: Vec<(f64, f64)> =
            [94.0, 197.0, 16.0, 38.0, 99.0, 141.0, 23.0].map(|days| (days, 1.0)).to_vec();
        let estimate = mean_with_interval(&mice, 7).unwrap();
        assert!((estimate.mean - 86.857).abs() < 1e-3, "{estimate:?}");
        assert!((estimate.low - 41.1).abs() < 6.0 && (estimate.high - 132.6).abs() < 6.0, "{estimate:?}");
    }

    #[test]
    fn weighs_by_length_and_needs_data() {
        let estimate = mean_with_interval(&[(1.0, 1.0), (9.0, 9.0)], 1).unwrap();
        assert!((estimate.mean - 1.0).abs() < 1e-12);
        assert_eq!(mean_with_interval(&[], 1), None);
    }
}
