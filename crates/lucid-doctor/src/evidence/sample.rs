//! Short greedy answers with their log-probabilities, and whether two of them come from the same computation.

use lucid_client::{ChatAnswer, Endpoint, Exchange, TokenName};

use super::claim::ROUNDING;
use super::divergence::LEAST;
use crate::report::html::nats;

/// Two candidates that are so close (nats) may honestly change places: bfloat16 logits around 16 are an eighth apart, and
/// two sums in another order differ by that much on either side.
const TIE: f64 = 0.25;
/// Mean |Δ log-probability| over the common tokens that no honest order of sums explains. vLLM in bfloat16 on the canary:
/// 0.004; near-ties in routing move single tokens farther.
const SHIFTED: f64 = 0.15;
/// What a token counts for at the most in that mean.
const MOST: f64 = 2.0;

/// One answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Number of the exchange, from 1.
    pub(crate) exchange: usize,
    /// Reasoning and content.
    pub(crate) text: String,
    /// Its tokens, if the server tells log-probabilities.
    pub(crate) tokens: Vec<SampleToken>,
    /// Tokens of the prompt, as the server counts them; 0 if it doesn't.
    pub(crate) prompt_tokens: u64,
}

/// A token, and what else was likely in its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampleToken {
    pub(crate) name: TokenName,
    pub(crate) logprob: f64,
    pub(crate) top: Vec<(TokenName, f64)>,
}

impl SampleToken {
    /// Log-probability of another token in this place; `None` if it isn't listed.
    fn of(&self, name: &TokenName) -> Option<f64> {
        if *name == self.name {
            return Some(self.logprob);
        }
        self.top.iter().find(|(listed, _)| listed == name).map(|(_, logprob)| *logprob)
    }

    /// By how many nats the token is behind the likeliest one: 0 for a greedy choice.
    fn behind(&self) -> f64 {
        self.top.iter().map(|(_, logprob)| logprob - self.logprob).fold(0.0, f64::max)
    }
}

/// What two answers to the same question say about the computations behind them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Alike {
    /// Same tokens with about the same probabilities.
    Same,
    /// They part where two tokens are as likely: both are right.
    Tie {
        /// At which token.
        at: usize,
        /// Nats between the two.
        gap: f64,
    },
    /// They part, and the server doesn't tell probabilities.
    Untold,
    /// One ends where the other goes on, and no end was as likely there as what followed.
    Ended {
        /// After how many common tokens; 0: one of them is empty.
        at: usize,
    },
    /// They come from different distributions.
    Different {
        /// At which token they part, or how many they share.
        at: usize,
        /// Mean |Δ log-probability| up to there, nats.
        shift: f64,
    },
}

impl Sample {
    pub(crate) fn new(answer: &ChatAnswer, exchange: &Exchange, number: usize) -> Sample {
        let scored = Endpoint::chat_logprobs(exchange, answer).ok().flatten().unwrap_or_default();
        let token = |scored: lucid_client::ScoredToken| SampleToken {
            name: scored.token,
            logprob: scored.logprob,
            top: scored.top,
        };
        Sample {
            exchange: number,
            text: format!("{}{}", answer.reasoning().unwrap_or_default(), answer.content()),
            tokens: scored.into_iter().map(token).collect(),
            prompt_tokens: answer.usage.map_or(0, |usage| usage.prompt_tokens),
        }
    }

    /// The first token that is clearly not the likeliest, and by how many nats: a greedy answer has none.
    pub(crate) fn first_unlikely(&self) -> Option<(usize, f64)> {
        self.tokens.iter().map(SampleToken::behind).enumerate().find(|(_, behind)| *behind > TIE)
    }

    /// Compares with another answer to the same question, asked in the same way. `exact`: by a server that declares plain f32, whose
    /// answers are the same to the rounding whatever else happens.
    #[allow(clippy::cast_precision_loss)] // counts of tokens
    pub(crate) fn compare(&self, other: &Sample, exact: bool) -> Alike {
        if self.tokens.is_empty() || other.tokens.is_empty() {
            return match (self.text.trim().is_empty(), other.text.trim().is_empty()) {
                _ if self.text == other.text => Alike::Same,
                (true, false) => other.goes_on(0, exact),
                (false, true) => self.goes_on(0, exact),
                _ => Alike::Untold,
            };
        }
        let pairs = || self.tokens.iter().zip(&other.tokens);
        let at = pairs().position(|(a, b)| a.name != b.name);
        let common = at.unwrap_or_else(|| pairs().count());
        let mut moved: f64 = pairs().take(common).map(|(a, b)| (a.logprob - b.logprob).abs().min(MOST)).sum();
        let mut compared = common;
        let mut gap = f64::INFINITY;
        if let Some((a, b)) = at.and_then(|at| pairs().nth(at)) {
            // What each says about both tokens: how far apart they are, and how far the distributions moved.
            let behind = |own: &SampleToken, rival: &TokenName| {
                own.of(rival).map_or(f64::INFINITY, |rival| (own.logprob - rival).abs())
            };
            gap = f64::min(behind(a, &b.name), behind(b, &a.name));
            let moves = [(b.of(&a.name), a.logprob), (a.of(&b.name), b.logprob)];
            let moves = moves.map(|(there, here)| there.map_or(MOST, |there| (there - here).abs().min(MOST)));
            moved += f64::max(moves[0], moves[1]);
            compared += 1;
        }
        let shift = if compared == 0 { 0.0 } else { moved / compared as f64 };
        if exact && let Some(at) = self.moves_at(other, common) {
            return Alike::Different { at, shift };
        }
        match at {
            _ if shift > SHIFTED => Alike::Different { at: common, shift },
            Some(at) if gap <= TIE => Alike::Tie { at, gap },
            Some(at) => Alike::Different { at, shift },
            None if self.tokens.len() > common => self.goes_on(common, exact),
            None if other.tokens.len() > common => other.goes_on(common, exact),
            None => Alike::Same,
        }
    }

    /// The other answer ended before token `at` of this one: rightly so if something else was as likely there. (What ends an answer
    /// has no text, so it can't be told from other candidates.)
    fn goes_on(&self, at: usize, exact: bool) -> Alike {
        let gap = self.tokens.get(at).and_then(|token| {
            let rivals = token.top.iter().filter(|(name, _)| *name != token.name);
            rivals.map(|(_, logprob)| (token.logprob - logprob).abs()).min_by(f64::total_cmp)
        });
        match gap {
            Some(gap) if gap <= TIE && !exact => Alike::Tie { at, gap },
            _ => Alike::Ended { at },
        }
    }
}

impl Sample {
    /// The first of the common tokens whose candidates moved by more than f32's rounding; `None` if fewer than two did.
    fn moves_at(&self, other: &Sample, common: usize) -> Option<usize> {
        let moved = |(a, b): (&SampleToken, &SampleToken)| {
            let candidates = a.top.iter().map(|(name, logprob)| (name, *logprob));
            candidates
                .chain([(&a.name, a.logprob)])
                .filter(|(_, logprob)| *logprob > LEAST)
                .any(|(name, logprob)| b.of(name).is_some_and(|there| (there - logprob).abs() > ROUNDING))
        };
        let pairs = self.tokens.iter().zip(&other.tokens).take(common);
        let mut beyond = pairs.enumerate().filter(|(_, pair)| moved(*pair)).map(|(at, _)| at);
        let first = beyond.next()?;
        beyond.next().map(|_| first)
    }
}

impl Alike {
    pub(crate) fn is_different(self) -> bool {
        matches!(self, Alike::Different { .. } | Alike::Ended { .. })
    }

    /// Whether one of the two is cut short, or empty.
    pub(crate) fn is_ended(self) -> bool {
        matches!(self, Alike::Ended { .. })
    }

    /// For tables.
    pub(crate) fn word(self) -> String {
        match self {
            Alike::Same => "same".to_owned(),
            Alike::Tie { at, gap } => format!("near-tie at token {at} ({gap:.2} nats)"),
            Alike::Untold => "other text, no probabilities told".to_owned(),
            Alike::Ended { at: 0 } => "one of the two is empty".to_owned(),
            Alike::Ended { at } => format!("one of the two ends after {at} tokens"),
            Alike::Different { at, shift } => {
                format!("different from token {at} on ({} nats a token)", nats(shift))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token, its log-probability, and the listed candidates.
    type Said<'a> = (&'a str, f64, &'a [(&'a str, f64)]);

    fn sample(tokens: &[Said<'_>]) -> Sample {
        let name = |text: &str| TokenName::Text(text.to_owned());
        let token = |(text, logprob, top): &Said<'_>| SampleToken {
            name: name(text),
            logprob: *logprob,
            top: top.iter().map(|(text, logprob)| (name(text), *logprob)).collect(),
        };
        let text = tokens.iter().map(|(text, ..)| *text).collect();
        Sample { text, tokens: tokens.iter().map(token).collect(), ..Sample::default() }
    }

    #[test]
    fn ties_are_no_faults() {
        let a = sample(&[("The", -0.01, &[]), ("red", -0.65, &[("red", -0.65), ("blue", -0.74)])]);
        let b = sample(&[("The", -0.01, &[]), ("blue", -0.68, &[("blue", -0.68), ("red", -0.70)])]);
        assert!(matches!(a.compare(&b, false), Alike::Tie { at: 1, .. }), "{:?}", a.compare(&b, false));
        assert_eq!(a.compare(&a, false), Alike::Same);
    }

    #[test]
    fn clear_choices_that_change_are_faults() {
        let a = sample(&[("The", -0.01, &[]), ("red", -0.05, &[("red", -0.05), ("blue", -4.0)])]);
        let b = sample(&[("The", -0.01, &[]), ("blue", -0.1, &[("blue", -0.1), ("red", -3.0)])]);
        assert!(a.compare(&b, false).is_different());
        let unlisted = sample(&[("The", -0.01, &[]), ("green", -0.1, &[("green", -0.1)])]);
        assert!(a.compare(&unlisted, false).is_different());
    }

    #[test]
    fn a_moved_distribution_is_a_fault_even_with_the_same_text() {
        let a = sample(&[("a", -0.1, &[]), ("b", -0.2, &[]), ("c", -0.1, &[])]);
        let b = sample(&[("a", -0.5, &[]), ("b", -0.9, &[]), ("c", -0.1, &[])]);
        assert!(a.compare(&b, false).is_different());
        let near = sample(&[("a", -0.11, &[]), ("b", -0.23, &[]), ("c", -0.1, &[])]);
        assert_eq!(a.compare(&near, false), Alike::Same);
    }

    #[test]
    fn a_server_of_plain_f32_repeats_itself_to_the_rounding() {
        let of = |by: f64| {
            sample(&[("a", -1e-6, &[("a", -1e-6), ("b", -14.0 + by)]), ("b", -2e-6, &[("c", -13.0 - by)])])
        };
        assert_eq!(of(0.0).compare(&of(0.02), false), Alike::Same);
        assert!(of(0.0).compare(&of(0.02), true).is_different());
        assert_eq!(of(0.0).compare(&of(1e-5), true), Alike::Same);
    }

    #[test]
    fn without_probabilities_nothing_is_accused() {
        let silent = |text: &str| Sample { text: text.to_owned(), ..Sample::default() };
        assert_eq!(silent("x").compare(&silent("x"), false), Alike::Same);
        assert_eq!(silent("x").compare(&silent("y"), false), Alike::Untold);
        assert_eq!(
            silent("x").compare(&silent(""), false),
            Alike::Ended { at: 0 },
            "nothing is no other text"
        );
        assert_eq!(silent("").compare(&silent(""), false), Alike::Same);
    }

    #[test]
    fn an_answer_that_ends_early_is_another_one() {
        let whole = sample(&[
            ("The", -0.1, &[("The", -0.1), ("A", -3.0)]),
            ("red", -0.05, &[("red", -0.05), ("blue", -4.0)]),
        ]);
        let nothing = Sample::default();
        for (a, b) in [(&whole, &nothing), (&nothing, &whole)] {
            assert_eq!(a.compare(b, false), Alike::Ended { at: 0 });
            assert!(a.compare(b, false).is_different());
        }
        let cut = sample(&[("The", -0.1, &[("The", -0.1), ("A", -3.0)])]);
        assert_eq!(whole.compare(&cut, false), Alike::Ended { at: 1 });
        // An end that was as likely is listed without a text.
        let tied = sample(&[("The", -0.1, &[]), ("red", -0.7, &[("red", -0.7), ("", -0.75)])]);
        assert!(matches!(tied.compare(&cut, false), Alike::Tie { at: 1, .. }));
        assert_eq!(tied.compare(&cut, true), Alike::Ended { at: 1 }, "plain f32 has no ties with itself");
    }

    #[test]
    fn sampled_tokens_are_seen() {
        let greedy = sample(&[("a", -0.1, &[("a", -0.1), ("b", -2.0)])]);
        assert_eq!(greedy.first_unlikely(), None);
        let sampled = sample(&[("a", -0.1, &[]), ("c", -3.0, &[("b", -0.2), ("d", -1.0)])]);
        assert!(matches!(sampled.first_unlikely(), Some((1, behind)) if (behind - 2.8).abs() < 1e-9));
    }
}
