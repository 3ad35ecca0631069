//! Are tokens drawn from the distributions that the server states?

/// Temperatures that a server might draw with instead of 1.
const TEMPERATURES: [f64; 5] = [0.1, 0.4, 0.7, 1.4, 2.0];

/// A bet against "each token is drawn from the stated distribution": for every other temperature the wealth is multiplied by the
/// ratio of the drawn token's probability there to the stated one. Under the hypothesis each ratio has the expectation 1, so the
/// mean wealth exceeds 1/α with probability at most α, whenever one looks (Ville's inequality). Source: Grünwald, de Heide and
/// Koolen, "Safe testing", JRSS B 86 (2024), sections 1 and 2; a mean over alternatives is their section 2.2's mixture.
///
/// The distribution is known on the listed candidates and "all others"; any partition that is fixed before the draw will do.
#[derive(Clone, Debug, Default)]
pub struct DrawTest {
    /// Logarithms of the wealth against each temperature.
    wealth: [f64; TEMPERATURES.len()],
    draws: usize,
}

impl DrawTest {
    /// Takes a draw: `listed` are the stated log-probabilities of the candidates, `drawn` is the number of the drawn one among them,
    /// `None` for one that is not listed.
    pub fn observe(&mut self, listed: &[f64], drawn: Option<usize>) {
        let rest = (1.0 - listed.iter().map(|logprob| logprob.exp()).sum::<f64>()).max(LEAST).ln();
        let stated: Vec<f64> = listed.iter().copied().chain([rest]).collect();
        let Some(&of_drawn) = stated.get(drawn.unwrap_or(listed.len())) else { return };
        if stated.iter().any(|logprob| logprob.is_nan()) {
            return;
        }
        self.draws += 1;
        let total = log_sum(stated.iter().copied());
        for (wealth, temperature) in self.wealth.iter_mut().zip(TEMPERATURES) {
            let heated = log_sum(stated.iter().map(|logprob| logprob / temperature));
            *wealth += (of_drawn / temperature - heated) - (of_drawn - total);
        }
    }

    /// The odds reached against the stated distributions.
    #[must_use]
    pub fn odds(&self) -> f64 {
        self.wealth.iter().map(|wealth| wealth.min(MOST).exp()).sum::<f64>() / TEMPERATURES.len() as f64
    }

    /// The temperature that explains the draws best.
    #[must_use]
    pub fn likeliest(&self) -> f64 {
        let best = TEMPERATURES.iter().zip(&self.wealth).max_by(|a, b| a.1.total_cmp(b.1));
        best.map_or(1.0, |(temperature, _)| *temperature)
    }

    /// How many draws it took.
    #[must_use]
    pub fn draws(&self) -> usize {
        self.draws
    }
}

/// Mass that rounding leaves to tokens that are not listed.
const LEAST: f64 = 1e-6;
/// e^700 is the largest number there is, nearly.
const MOST: f64 = 600.0;

fn log_sum(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let highest = values.clone().fold(f64::NEG_INFINITY, f64::max);
    highest + values.map(|value| (value - highest).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Random;

    const STATED: [f64; 4] = [0.5, 0.25, 0.125, 0.0625];

    /// The odds after so many draws at a temperature from `STATED` and a rest of 1/16.
    fn odds(temperature: f64, draws: usize, seed: u64) -> f64 {
        let mut random = Random::new(seed);
        let mut test = DrawTest::default();
        let weights: Vec<f64> = STATED.iter().chain([&0.0625]).map(|p| p.powf(1.0 / temperature)).collect();
        let total: f64 = weights.iter().sum();
        for _ in 0..draws {
            let mut point = random.below(1 << 40) as f64 / (1_u64 << 40) as f64 * total;
            let drawn = weights.iter().position(|weight| {
                point -= weight;
                point < 0.0
            });
            test.observe(&STATED.map(f64::ln), drawn.filter(|drawn| *drawn < STATED.len()));
        }
        test.odds()
    }

    #[test]
    fn errs_at_most_at_the_promised_rate() {
        // 2,000 runs at 1 %: 20, and four standard errors are 18.
        let wrong = (0..2_000).filter(|seed| odds(1.0, 60, *seed) >= 100.0).count();
        assert!(wrong <= 38, "{wrong}");
    }

    #[test]
    fn other_temperatures_are_seen() {
        for (temperature, draws) in [(0.3, 120), (0.5, 120), (2.0, 300)] {
            let found = (0..100).filter(|seed| odds(temperature, draws, *seed) >= 100.0).count();
            assert!(found >= 90, "{temperature}: {found}");
        }
    }

    #[test]
    fn certain_tokens_say_nothing_against_the_server() {
        let mut test = DrawTest::default();
        for _ in 0..1_000 {
            test.observe(&[0.0, -30.0], Some(0));
        }
        assert!(test.odds() <= 1.0, "{}", test.odds());
        test.observe(&[f64::NAN], Some(0));
        assert_eq!(test.draws(), 1_000);
    }
}
