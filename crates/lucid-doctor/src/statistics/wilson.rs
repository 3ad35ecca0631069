//! The Wilson score interval for a rate.

use serde::Serialize;

/// Passes out of trials, with a 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// Trials that passed.
    pub passed: u64,
    /// Trials in all.
    pub trials: u64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Rate {
    /// The observed rate; 0 without trials.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // counts of requests
    pub fn observed(&self) -> f64 {
        if self.trials == 0 { 0.0 } else { self.passed as f64 / self.trials as f64 }
    }
}

/// 97.5 % quantile of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// The 95 % Wilson score interval: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
/// JASA 22 (1927). Recommended for small n by Brown, Cai and DasGupta, Statistical Science 16 (2001).
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts of requests
pub fn wilson(passed: u64, trials: u64) -> Rate {
    if trials == 0 {
        return Rate { passed, trials, low: 0.0, high: 1.0 };
    }
    let n = trials as f64;
    let p = passed as f64 / n;
    let denominator = 1.0 + Z * Z / n;
    let center = (p + Z * Z / (2.0 * n)) / denominator;
    let half = Z / denominator * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    Rate { passed, trials, low: (center - half).max(0.0), high: (center + half).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17 (1998), table I,
    /// method 3 (score without continuity correction).
    #[test]
    fn newcombes_examples() {
        for (passed, trials, low, high) in [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0000, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ] {
            let rate = wilson(passed, trials);
            assert!((rate.low - low).abs() < 5e-5 && (rate.high - high).abs() < 5e-5, "{rate:?}");
        }
    }

    #[test]
    fn no_trials_say_nothing() {
        assert_eq!((wilson(0, 0).low, wilson(0, 0).high), (0.0, 1.0));
    }
}
