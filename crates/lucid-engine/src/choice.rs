//! One draw from logits, the same to the bit wherever it is made: `cuda/kernels/sample.cu` follows it step by step.
//!
//! Weights are whole numbers, multiples of 2^-40 of the likeliest token's, so that their sums don't depend on an order.

use lucid_checkpoint::TokenId;

use crate::cpu::exp;
use crate::logprobs::highest;

/// The weight of the likeliest token.
pub const ONE: f32 = (1u64 << 40) as f32;

/// How one token is drawn. `Choice` of `sample.cu`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Choice {
    /// Where in the sum of the kept weights the draw falls, as a fraction of 2^64.
    pub point: u64,
    /// One over the temperature; 0 takes the likeliest token.
    pub inverse_temperature: f32,
    /// Less likely tokens than this share of the likeliest are dropped.
    pub min_p: f32,
    /// Of the rest the best are kept whose weights together reach this share; 1 keeps all.
    pub top_p: f32,
    /// Before that: so many of the best are kept; 0 keeps all.
    pub top_k: u32,
}

impl Choice {
    /// The likeliest token; at equal logits the lowest.
    pub const GREEDY: Choice =
        Choice { point: 0, inverse_temperature: 0.0, min_p: 0.0, top_p: 1.0, top_k: 0 };

    fn weight(&self, logit: f32, highest: f32) -> u64 {
        let p = exp((logit - highest) * self.inverse_temperature);
        if p < self.min_p { 0 } else { (p * ONE) as u64 }
    }
}

/// Draws from `logits`, none of which is NaN or plus infinity.
#[must_use]
pub fn pick(choice: &Choice, logits: &[f32]) -> TokenId {
    let highest = highest(logits);
    if choice.inverse_temperature == 0.0 {
        return TokenId(logits.iter().position(|&logit| logit == highest).unwrap_or(0) as u32);
    }
    let weights = (0u32..).zip(logits).map(|(token, &logit)| (token, choice.weight(logit, highest)));
    if choice.top_k == 0 && choice.top_p >= 1.0 {
        let total = weights.clone().map(|(_, weight)| weight).sum();
        return at(choice.point, total, weights);
    }
    let mut best: Vec<(u32, u64)> = weights.filter(|&(_, weight)| weight > 0).collect();
    // Minus zero ties with zero.
    let logit = |token: u32| logits[token as usize] + 0.0;
    let order = |&(a, _): &(u32, u64), &(b, _): &(u32, u64)| logit(b).total_cmp(&logit(a)).then(a.cmp(&b));
    best.sort_unstable_by(order);
    if choice.top_k > 0 {
        best.truncate(choice.top_k as usize);
    }
    if choice.top_p < 1.0 {
        let total: u64 = best.iter().map(|&(_, weight)| weight).sum();
        let wanted = ((total as f64 * f64::from(choice.top_p)) as u64).max(1);
        let mut reached = 0;
        let inside = best.iter().take_while(|&&(_, weight)| {
            let open = reached < wanted;
            reached += weight;
            open
        });
        let keep = inside.count();
        best.truncate(keep);
    }
    best.sort_unstable();
    let total = best.iter().map(|&(_, weight)| weight).sum();
    at(choice.point, total, best.into_iter())
}

/// The token, in their order, at which the sum of weights passes the point.
fn at(point: u64, total: u64, weights: impl Iterator<Item = (u32, u64)>) -> TokenId {
    let point = ((u128::from(point) * u128::from(total)) >> 64) as u64;
    let mut reached = 0;
    let mut passed = weights.map(|(token, weight)| {
        reached += weight;
        (token, reached)
    });
    // The total is above the point, so there is one.
    TokenId(passed.find(|&(_, reached)| reached > point).map_or(0, |(token, _)| token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_point_falls_where_the_weights_say() {
        let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
        let at = |share: f64, choice: Choice| {
            pick(
                &Choice { point: (share * 2f64.powi(64)) as u64, inverse_temperature: 1.0, ..choice },
                &logits,
            )
            .0
        };
        for (share, token) in [(0.0, 0), (0.49, 0), (0.51, 1), (0.74, 1), (0.76, 2), (0.88, 3), (1.0, 3)] {
            assert_eq!(at(share, Choice::GREEDY), token, "{share}");
        }
        // Of the two last ones the lower number is kept.
        let three = Choice { top_k: 3, ..Choice::GREEDY };
        assert_eq!((at(1.0, three), at(0.57, three), at(0.58, three)), (2, 0, 1));
        let most = Choice { top_p: 0.76, ..Choice::GREEDY };
        assert_eq!(at(1.0, most), 2);
        let likely = Choice { min_p: 0.4, ..Choice::GREEDY };
        assert_eq!((at(1.0, likely), at(0.66, likely), at(0.67, likely)), (1, 0, 1));
    }

    #[test]
    fn equal_logits_are_taken_by_number_and_zero_has_no_sign() {
        let logits = [-0.0f32, 0.0, -0.0, 0.0];
        assert_eq!(pick(&Choice::GREEDY, &logits), TokenId(0));
        let two = Choice { point: u64::MAX, inverse_temperature: 1.0, top_k: 2, ..Choice::GREEDY };
        assert_eq!(pick(&two, &logits), TokenId(1));
    }

    #[test]
    fn forbidden_tokens_have_no_weight() {
        let logits = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
        for point in [0, u64::MAX] {
            let choice = Choice { point, inverse_temperature: 1.0, ..Choice::GREEDY };
            assert_eq!(pick(&choice, &logits), TokenId(1));
        }
    }
}
