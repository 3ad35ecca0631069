//! Stops a comparison when it is decided, with an error rate that holds at whatever time it stops.

/// What a sequential test says so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Go on.
    Open,
    /// The mean is below the upper threshold: the same.
    Same,
    /// The mean is above the lower threshold: different.
    Different,
}

/// Two bets on the mean of observations in 0..=1.
///
/// Against "the mean is at most `low`" the wealth is multiplied by `1 + λ(x − low)`, against "the mean is at least
/// `high`" by `1 + μ(high − x)`. Under its hypothesis each wealth is a nonnegative supermartingale, so it exceeds 1/α with
/// probability at most α, at any time (Ville's inequality). Source: Waudby-Smith and Ramdas, "Estimating means of bounded
/// random variables by betting", JRSS B 86 (2024), sections 3 and 4; Ramdas et al., "Game-theoretic statistics and safe
/// anytime-valid inference", Statistical Science 38 (2023). The stakes are fixed in advance, which keeps it simple: the
/// observations need not be independent, only their conditional means must obey the hypothesis.
#[derive(Clone, Debug)]
pub struct SequentialTest {
    low: f64,
    high: f64,
    alpha: f64,
    against_same: f64,
    against_different: f64,
    observations: usize,
}

/// Share of the largest stake that can't go broke.
const BOLDNESS: f64 = 0.9;

impl SequentialTest {
    /// `0 < low < high < 1`; `alpha` is the error rate of either decision.
    #[must_use]
    pub fn new(low: f64, high: f64, alpha: f64) -> SequentialTest {
        SequentialTest { low, high, alpha, against_same: 1.0, against_different: 1.0, observations: 0 }
    }

    /// Takes the next observation, cut to 0..=1.
    pub fn observe(&mut self, x: f64) -> Decision {
        let x = if x.is_nan() { 1.0 } else { x.clamp(0.0, 1.0) };
        self.observations += 1;
        self.against_same *= 1.0 + BOLDNESS / self.low * (x - self.low);
        self.against_different *= 1.0 + BOLDNESS / (1.0 - self.high) * (self.high - x);
        self.decision()
    }

    /// What it says so far.
    #[must_use]
    pub fn decision(&self) -> Decision {
        if self.against_same >= 1.0 / self.alpha {
            Decision::Different
        } else if self.against_different >= 1.0 / self.alpha {
            Decision::Same
        } else {
            Decision::Open
        }
    }

    /// How many observations it took.
    #[must_use]
    pub fn observations(&self) -> usize {
        self.observations
    }

    /// The odds reached against "the same" and against "different".
    #[must_use]
    pub fn evidence(&self) -> (f64, f64) {
        (self.against_same, self.against_different)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Random;

    /// Runs the test on observations that are 1 with probability `p`, else 0, and counts wrong decisions.
    fn wrong(p: f64, right: Decision, runs: u64) -> u64 {
        (0..runs)
            .filter(|&seed| {
                let mut random = Random::new(seed);
                let mut test = SequentialTest::new(0.2, 0.5, 0.01);
                let decided = (0..200)
                    .map(|_| test.observe(f64::from(u8::from(random.below(1_000_000) < (p * 1e6) as usize))))
                    .find(|decision| *decision != Decision::Open);
                decided.is_some_and(|decision| decision != right)
            })
            .count() as u64
    }

    #[test]
    fn errs_at_most_at_the_promised_rate_at_the_edges() {
        // At the edge of each hypothesis, where erring is easiest. 4,000 runs: 1 % is 40, and five standard errors are 32.
        assert!(wrong(0.2, Decision::Same, 4_000) <= 40 + 32);
        assert!(wrong(0.5, Decision::Different, 4_000) <= 40 + 32);
    }

    #[test]
    fn clear_cases_are_decided_soon() {
        let mut same = SequentialTest::new(0.2, 0.5, 0.01);
        let decided = (1..20).find(|_| same.observe(0.01) == Decision::Same);
        assert_eq!(decided, Some(8));
        let mut different = SequentialTest::new(0.2, 0.5, 0.01);
        let decided = (1..20).find(|_| different.observe(1.0) == Decision::Different);
        assert_eq!(decided, Some(4));
    }

    #[test]
    fn broken_numbers_count_as_different() {
        let mut test = SequentialTest::new(0.2, 0.5, 0.01);
        for _ in 0..4 {
            test.observe(f64::NAN);
        }
        assert_eq!(test.decision(), Decision::Different);
    }
}
