//! Draws the next token, in vLLM's order: bias and penalties, temperature, min-p, top-k, top-p.

use std::collections::HashMap;

use lucid_checkpoint::TokenId;

use crate::Rejected;
use crate::choice::{Choice, pick};
use crate::request::Sampling;

/// Below this a temperature means greedy.
const GREEDY_BELOW: f32 = 1e-5;
/// Smaller positive temperatures are raised to this.
const LOWEST_TEMPERATURE: f32 = 0.01;

/// One request's sampler: its parameters, its random stream and what it has seen.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    seed: u64,
    drawn: u64,
    /// Tokens of prompt and answer, with how often the answer has them. Kept only when a penalty needs it.
    seen: HashMap<TokenId, u32>,
}

/// Checks parameters against the ranges of the API.
///
/// # Errors
/// The parameter that is out of range.
pub fn check(sampling: &Sampling, vocab_size: usize) -> Result<(), Rejected> {
    let s = sampling;
    let checks: [(&'static str, f32, bool, &'static str); 6] = [
        ("temperature", s.temperature, (0.0..=2.0).contains(&s.temperature), "it must be from 0 to 2"),
        ("top_p", s.top_p, s.top_p > 0.0 && s.top_p <= 1.0, "it must be above 0 and at most 1"),
        ("min_p", s.min_p, (0.0..=1.0).contains(&s.min_p), "it must be from 0 to 1"),
        (
            "repetition_penalty",
            s.repetition_penalty,
            s.repetition_penalty > 0.0 && s.repetition_penalty.is_finite(),
            "it must be above 0",
        ),
        (
            "presence_penalty",
            s.presence_penalty,
            (-2.0..=2.0).contains(&s.presence_penalty),
            "it must be from -2 to 2",
        ),
        (
            "frequency_penalty",
            s.frequency_penalty,
            (-2.0..=2.0).contains(&s.frequency_penalty),
            "it must be from -2 to 2",
        ),
    ];
    for (parameter, value, good, expected) in checks {
        if !good {
            return Err(Rejected::BadParameter { parameter, value: value.to_string(), expected });
        }
    }
    for &(token, bias) in &s.logit_bias {
        if token.row() >= vocab_size {
            return Err(Rejected::UnknownToken { token: token.0, vocab_size });
        }
        if !bias.is_finite() {
            let expected = "it must be a finite number";
            return Err(Rejected::BadParameter {
                parameter: "logit_bias",
                value: bias.to_string(),
                expected,
            });
        }
    }
    Ok(())
}

impl Sampler {
    /// A sampler for a request with this prompt; `entropy` is its seed if the request has none.
    #[must_use]
    pub fn new(sampling: Sampling, prompt: &[TokenId], entropy: u64) -> Sampler {
        let mut seen = HashMap::new();
        if sampling.repetition_penalty != 1.0 {
            seen.extend(prompt.iter().map(|&token| (token, 0)));
        }
        Sampler { seed: sampling.seed.unwrap_or(entropy), sampling, drawn: 0, seen }
    }

    /// Draws from finite `logits` `[vocab_size]`, which are changed. Tokens in `forbidden` are never drawn.
    pub fn draw(&mut self, logits: &mut [f32], forbidden: &[TokenId]) -> TokenId {
        self.adjust(logits);
        for token in forbidden {
            logits[token.row()] = f32::NEG_INFINITY;
        }
        let token = pick(&self.choose(), logits);
        if self.has_penalties() {
            *self.seen.entry(token).or_insert(0) += 1;
        }
        token
    }

    /// The next draw, for whoever has the logits, if it is from the logits as they are.
    pub fn plain(&mut self) -> Option<Choice> {
        let plain = self.sampling.logit_bias.is_empty() && !self.has_penalties();
        plain.then(|| self.choose())
    }

    fn choose(&mut self) -> Choice {
        let s = &self.sampling;
        if s.temperature < GREEDY_BELOW {
            return Choice::GREEDY;
        }
        let (inverse_temperature, min_p, top_p) =
            (1.0 / s.temperature.max(LOWEST_TEMPERATURE), s.min_p, s.top_p);
        let top_k = u32::try_from(s.top_k).unwrap_or(u32::MAX);
        Choice { point: self.point(), inverse_temperature, min_p, top_p, top_k }
    }

    fn has_penalties(&self) -> bool {
        let s = &self.sampling;
        s.repetition_penalty != 1.0 || s.presence_penalty != 0.0 || s.frequency_penalty != 0.0
    }

    /// The bias, then the penalties. The repetition penalty depends on a logit's sign, so these are raw logits.
    fn adjust(&self, logits: &mut [f32]) {
        let s = &self.sampling;
        for &(token, bias) in &s.logit_bias {
            logits[token.row()] += bias;
        }
        for (&token, &count) in &self.seen {
            let logit = &mut logits[token.row()];
            if s.repetition_penalty != 1.0 {
                *logit =
                    if *logit > 0.0 { *logit / s.repetition_penalty } else { *logit * s.repetition_penalty };
            }
            if count > 0 {
                *logit -= s.frequency_penalty * count as f32 + s.presence_penalty;
            }
        }
    }

    /// The next number, as a fraction of 2^64: a hash of seed and draw number (SplitMix64, Steele et al. 2014), so a draw depends on
    /// the request alone and not on who else is in the batch.
    fn point(&mut self) -> u64 {
        self.drawn += 1;
        let mut z = self.seed.wrapping_add(self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(sampling: Sampling, logits: &[f32], count: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(sampling, &[TokenId(0)], 7);
        (0..count).map(|_| sampler.draw(&mut logits.to_vec(), &[]).0).collect()
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
        let drawn = draws(Sampling { temperature: 1.0, ..Sampling::default() }, &logits, 40_000);
        for (token, p) in [0.5, 0.25, 0.125, 0.125].into_iter().enumerate() {
            let share = drawn.iter().filter(|&&t| t == token as u32).count() as f64 / 40_000.0;
            // Four standard deviations.
            assert!((share - p).abs() < 4.0 * (p * (1.0 - p) / 40_000.0).sqrt(), "{token}: {share}");
        }
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let logits = [0.0; 50];
        let sampling = |seed| Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::default() };
        assert_eq!(draws(sampling(5), &logits, 20), draws(sampling(5), &logits, 20));
        assert_ne!(draws(sampling(5), &logits, 20), draws(sampling(6), &logits, 20));
    }

    #[test]
    fn cuts_keep_what_they_should() {
        let logits = [0.5f32, 0.3, 0.15, 0.05].map(f32::ln);
        let only = |sampling: Sampling, allowed: &[u32]| {
            let drawn = draws(Sampling { temperature: 1.0, ..sampling }, &logits, 2_000);
            assert!(allowed.iter().all(|token| drawn.contains(token)), "{allowed:?} not all drawn");
            assert!(drawn.iter().all(|token| allowed.contains(token)), "more than {allowed:?} drawn");
        };
        only(Sampling { top_k: 2, ..Sampling::default() }, &[0, 1]);
        only(Sampling { top_p: 0.79, ..Sampling::default() }, &[0, 1]);
        only(Sampling { top_p: 0.81, ..Sampling::default() }, &[0, 1, 2]);
        only(Sampling { min_p: 0.2, ..Sampling::default() }, &[0, 1, 2]);
        only(Sampling { top_p: 1e-9, ..Sampling::default() }, &[0]);
        only(Sampling { logit_bias: vec![(TokenId(3), 100.0)], ..Sampling::default() }, &[3]);
    }

    #[test]
    fn penalties_move_greedy_choices() {
        let logits = [-0.1f32, -0.2, -5.0];
        let greedy = |sampling| draws(sampling, &logits, 3);
        assert_eq!(greedy(Sampling::default()), [0, 0, 0]);
        assert_eq!(greedy(Sampling { presence_penalty: 1.0, ..Sampling::default() }), [0, 1, 0]);
        assert_eq!(greedy(Sampling { frequency_penalty: 1.0, ..Sampling::default() }), [0, 1, 0]);
        // Token 0 stands in the prompt.
        assert_eq!(greedy(Sampling { repetition_penalty: 3.0, ..Sampling::default() })[0], 1);
        let mut sampler = Sampler::new(Sampling::default(), &[], 0);
        assert_eq!(sampler.draw(&mut logits.to_vec(), &[TokenId(0)]), TokenId(1));
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        let named = |sampling: Sampling| match check(&sampling, 10) {
            Err(Rejected::BadParameter { parameter, .. }) => parameter,
            other => panic!("{other:?}"),
        };
        assert_eq!(named(Sampling { temperature: -1.0, ..Sampling::default() }), "temperature");
        assert_eq!(named(Sampling { temperature: f32::NAN, ..Sampling::default() }), "temperature");
        assert_eq!(named(Sampling { top_p: 0.0, ..Sampling::default() }), "top_p");
        assert_eq!(named(Sampling { min_p: 1.5, ..Sampling::default() }), "min_p");
        assert_eq!(named(Sampling { repetition_penalty: 0.0, ..Sampling::default() }), "repetition_penalty");
        assert_eq!(named(Sampling { frequency_penalty: 3.0, ..Sampling::default() }), "frequency_penalty");
        assert!(
            check(&Sampling { logit_bias: vec![(TokenId(10), 0.0)], ..Sampling::default() }, 10).is_err()
        );
        assert!(check(&Sampling::default(), 10).is_ok());
    }
}
