//! From logits to log-probabilities.

use lucid_checkpoint::TokenId;

use crate::choice::ONE;
use crate::cpu::exp;
use crate::request::{Candidate, TokenLogprobs};

/// A logit was NaN or infinite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFinite;

/// Whether no value is NaN or infinite. Looks at all of them, many at a time: a vocabulary has up to 163,840.
#[must_use]
pub fn all_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    let wrong = |x: &f32| u32::from(x.to_bits() & EXPONENT == EXPONENT);
    values.iter().fold(0, |found, x| found | wrong(x)) == 0
}

/// The highest of values that are not NaN; minus infinity if there are none.
#[must_use]
pub fn highest(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (blocks, tail) = values.as_chunks::<16>();
    let higher = |lane: f32, x: f32| if x > lane { x } else { lane };
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane = higher(*lane, x);
        }
    }
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |lane, &x| higher(lane, x))
}

/// What is subtracted from logits to get log-probabilities: the highest logit, and the logarithm of the sum of all weights. `total` is
/// that sum in [`ONE`]ths of the highest one's weight, whole numbers as in `choice.rs`: they have no order, so a GPU gets the same bits. What is cut off
/// is below 1.5e-7 for the largest vocabulary.
#[must_use]
pub fn shift(highest: f32, total: u64) -> f64 {
    f64::from(highest) + (total as f64 / f64::from(ONE)).ln()
}

/// The natural log-probability of a logit.
#[must_use]
pub fn logprob(logit: f32, shift: f64) -> f32 {
    (f64::from(logit) - shift) as f32
}

fn shift_of(logits: &[f32]) -> Result<f64, NotFinite> {
    if !all_finite(logits) {
        return Err(NotFinite);
    }
    let highest = highest(logits);
    Ok(shift(highest, logits.iter().map(|&logit| (exp(logit - highest) * ONE) as u64).sum()))
}

/// Replaces logits by natural log-probabilities, in place.
///
/// # Errors
/// When a logit is NaN or infinite; the values are then unchanged.
pub fn log_softmax(logits: &mut [f32]) -> Result<(), NotFinite> {
    let shift = shift_of(logits)?;
    for x in logits {
        *x = logprob(*x, shift);
    }
    Ok(())
}

/// The entry for `token` under `logits` `[vocab_size]`, with the `top` most likely tokens beside it. Ranks and order are those of the
/// logits, of which some may have the same log-probability.
///
/// # Errors
/// When a logit is NaN or infinite.
pub fn score(logits: &[f32], token: TokenId, top: usize) -> Result<TokenLogprobs, NotFinite> {
    let shift = shift_of(logits)?;
    let mut entry = token_logprobs(logits, token, top);
    for candidate in entry.top.iter_mut().chain([&mut entry.token]) {
        candidate.logprob = logprob(candidate.logprob, shift);
    }
    Ok(entry)
}

/// The entry for `token` under `logprobs` `[vocab_size]`, with the `top` most likely tokens beside it.
#[must_use]
pub fn token_logprobs(logprobs: &[f32], token: TokenId, top: usize) -> TokenLogprobs {
    let logprob = logprobs[token.row()];
    let rank = 1 + logprobs.iter().filter(|&&other| other > logprob).count();
    let mut best: Vec<Candidate> = Vec::with_capacity(top + 1);
    for (id, &logprob) in logprobs.iter().enumerate() {
        if best.len() == top && best.last().is_none_or(|last| logprob <= last.logprob) {
            continue;
        }
        let at = best.partition_point(|other| other.logprob >= logprob);
        best.insert(at, Candidate { id: TokenId(id as u32), logprob, rank: 0 });
        best.truncate(top);
    }
    for (i, candidate) in best.iter_mut().enumerate() {
        candidate.rank = i + 1;
    }
    TokenLogprobs { token: Candidate { id: token, logprob, rank }, top: best }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_also_far_from_zero() {
        let mut logits = [1000.0f32, 999.0, 0.0, -1000.0];
        log_softmax(&mut logits).unwrap();
        assert!((logits[0] - -0.313_261_7).abs() < 1e-6);
        assert!((logits.iter().map(|&x| f64::from(x).exp()).sum::<f64>() - 1.0).abs() < 1e-6);
        assert_eq!(log_softmax(&mut [0.0, f32::NAN]), Err(NotFinite));
        assert_eq!(log_softmax(&mut [0.0, f32::INFINITY]), Err(NotFinite));
    }

    #[test]
    fn what_is_not_finite_is_found_wherever_it_is() {
        let mut values: Vec<f32> = (0..101).map(|i| (i as f32 * 0.7).sin() * f32::MAX).collect();
        assert!(all_finite(&values) && all_finite(&[]) && all_finite(&[-0.0, f32::MIN_POSITIVE / 2.0]));
        for (at, wrong) in [(0, f32::NAN), (15, f32::INFINITY), (16, f32::NEG_INFINITY), (100, -f32::NAN)] {
            let right = std::mem::replace(&mut values[at], wrong);
            assert!(!all_finite(&values), "{wrong} at {at}");
            values[at] = right;
        }
        assert_eq!(highest(&values), values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        assert_eq!(highest(&values[3..9]), values[3..9].iter().copied().fold(f32::NEG_INFINITY, f32::max));
        assert_eq!(highest(&[]), f32::NEG_INFINITY);
    }

    #[test]
    fn an_entry_has_the_log_probabilities_of_the_whole_distribution() {
        let logits: Vec<f32> = (0..1_000).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let mut logprobs = logits.clone();
        log_softmax(&mut logprobs).unwrap();
        for token in [0, 1, 500, 999] {
            let entry = score(&logits, TokenId(token), 5).unwrap();
            assert_eq!(entry.token.logprob, logprobs[token as usize]);
            assert!(
                (f64::from(entry.token.logprob) - (f64::from(logits[token as usize]) - sum.ln())).abs()
                    < 1e-6
            );
            assert_eq!(entry, token_logprobs(&logprobs, TokenId(token), 5));
        }
        // Two logits that rounding makes one log-probability keep their order.
        let near = [0.0f32, 1e-8, 3e-8, 18.0];
        let entry = score(&near, TokenId(1), 4).unwrap();
        assert_eq!((entry.token.rank, entry.top[1].id, entry.top[3].id), (3, TokenId(2), TokenId(0)));
        assert_eq!(entry.top[1].logprob, entry.top[3].logprob);
        assert_eq!(score(&[0.0, f32::NAN], TokenId(0), 1), Err(NotFinite));
    }

    #[test]
    fn the_best_come_in_order_and_ties_go_to_the_lower_id() {
        let logprobs = [-3.0, -1.0, -1.0, -2.0, -0.5];
        let entry = token_logprobs(&logprobs, TokenId(3), 3);
        assert_eq!(entry.token, Candidate { id: TokenId(3), logprob: -2.0, rank: 4 });
        let ids: Vec<u32> = entry.top.iter().map(|candidate| candidate.id.0).collect();
        assert_eq!(ids, [4, 1, 2]);
        assert_eq!(token_logprobs(&logprobs, TokenId(0), 0).top, []);
        assert_eq!(token_logprobs(&logprobs, TokenId(0), 99).top.len(), 5);
    }
}
