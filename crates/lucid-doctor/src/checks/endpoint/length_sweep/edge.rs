//! Where right answers end and wrong ones begin.

use crate::evidence::FEW_BEYOND;

/// Divergence of an answer from the reference at which it may be wrong, nats a token.
const WRONG: f64 = 5e-3;
/// How many times farther from the reference wrong answers are than right ones: honest servers of large models reach `WRONG`
/// by rounding, at all lengths alike, and a server whose arithmetic nobody has recognized is beyond f32's rounding at all lengths.
const APART: f64 = 10.0;

/// What one prompt gave.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub(super) tokens: usize,
    /// The code was found.
    pub(super) found: bool,
    /// How far it is from the reference, where it was compared.
    pub(super) distance: Option<Distance>,
    pub(super) exchange: usize,
    pub(super) text: String,
}

/// How far an answer is from the reference.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distance {
    /// Divergence, nats a token.
    pub(super) kl: f64,
    /// Of a server that declares an arithmetic that the reference has: share of the tokens beyond rounding, and mean of the tokens'
    /// largest |Δ log-probability|, nats.
    pub(super) rounding: Option<(f64, f64)>,
    /// The same server's first token is beyond rounding. It is computed with the prompt; where only the last layer is wrong there, nothing
    /// after it is.
    pub(super) first_is_beyond: bool,
}

impl Trial {
    pub(super) fn is_wrong(&self) -> bool {
        match self.distance {
            Some(Distance { rounding: Some((beyond, _)), first_is_beyond, .. }) => {
                beyond > FEW_BEYOND || first_is_beyond
            }
            Some(Distance { kl, .. }) => kl > WRONG,
            None => !self.found,
        }
    }

    /// What is compared between wrong and right answers.
    fn far(&self) -> Option<f64> {
        self.distance.map(|distance| distance.rounding.map_or(distance.kl, |(_, gap)| gap))
    }
}

/// The longest right prompt below the shortest wrong one; `None` if the wrong ones are not all longer than the right ones, up to
/// one exception.
pub(super) fn edge(trials: &[Trial]) -> Option<(usize, usize)> {
    let mut sorted: Vec<&Trial> = trials.iter().collect();
    sorted.sort_by_key(|trial| trial.tokens);
    // The cut with the fewest exceptions.
    let exceptions =
        |cut: usize| sorted.iter().enumerate().filter(|(i, trial)| trial.is_wrong() != (*i >= cut)).count();
    let cut = (1..sorted.len()).min_by_key(|&cut| exceptions(cut))?;
    let (right, wrong) = (sorted.get(cut - 1)?, sorted.get(cut)?);
    let wrongs = sorted.get(cut..)?.iter().filter(|trial| trial.is_wrong()).count();
    (exceptions(cut) <= 1 && wrongs >= 2 && wrong.is_wrong() && !right.is_wrong() && apart(trials))
        .then_some((right.tokens, wrong.tokens))
}

/// Whether wrong answers are far from right ones, where they were compared with the reference.
fn apart(trials: &[Trial]) -> bool {
    let mean = |wrong: bool| {
        let of = trials.iter().filter(|trial| trial.is_wrong() == wrong).filter_map(Trial::far);
        let (sum, count) = of.fold((0.0, 0), |(sum, count), far| (sum + far, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    };
    match (mean(true), mean(false)) {
        (Some(wrong), Some(right)) => wrong >= APART * right,
        _ => true,
    }
}

/// Lengths of two more prompts on either side, as far apart as those that were tried there.
pub(super) fn controls(trials: &[Trial], (right, wrong): (usize, usize)) -> [usize; 4] {
    let shortest = trials.iter().map(|trial| trial.tokens).min().unwrap_or(right);
    let longest = trials.iter().map(|trial| trial.tokens).max().unwrap_or(wrong);
    [shortest, right, wrong, longest]
}

/// Whether fresh prompts of such lengths come out as the edge has it, on both sides and without exception. What is between
/// the two lengths says nothing.
pub(super) fn is_reproduced(fresh: &[Trial], (right, wrong): (usize, usize)) -> bool {
    let below = || fresh.iter().filter(|trial| trial.tokens <= right);
    let above = || fresh.iter().filter(|trial| trial.tokens >= wrong);
    below().count() > 0
        && above().count() > 0
        && !below().any(Trial::is_wrong)
        && above().all(Trial::is_wrong)
        && apart(fresh)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn trials(list: &[(usize, bool)]) -> Vec<Trial> {
        let trial =
            |&(tokens, found)| Trial { tokens, found, distance: None, exchange: 1, text: String::new() };
        list.iter().map(trial).collect()
    }

    /// By length, the share of the tokens beyond rounding, and how far they are.
    fn compared(list: &[(usize, f64, f64)]) -> Vec<Trial> {
        let trial = |&(tokens, beyond, gap): &(usize, f64, f64)| Trial {
            distance: Some(Distance { kl: gap * gap, rounding: Some((beyond, gap)), first_is_beyond: false }),
            ..trials(&[(tokens, true)]).remove(0)
        };
        list.iter().map(trial).collect()
    }

    #[test]
    fn an_edge_needs_all_wrong_ones_above_it() {
        let list = [(56, true), (80, false), (120, false), (150, false)];
        assert_eq!(edge(&trials(&list)), Some((56, 80)));
        assert_eq!(
            edge(&trials(&[(56, true), (80, true), (120, true), (150, false)])),
            None,
            "one may be chance"
        );
        assert_eq!(edge(&trials(&[(56, false), (80, true), (120, false), (150, true)])), None);
        assert_eq!(edge(&trials(&[(56, true), (80, true)])), None);
        let one_exception = [(56, true), (80, false), (120, false), (150, true), (250, false), (280, false)];
        assert_eq!(edge(&trials(&one_exception)), Some((56, 80)));
    }

    #[test]
    fn another_honest_arithmetic_has_no_edge() {
        // An epsilon that nobody has recognized: a few tokens beyond rounding, at all lengths, and more of them here by chance.
        let honest = [(55, 0.05, 4e-4), (82, 0.025, 3e-4), (247, 0.1, 1e-3), (274, 0.15, 2e-3)];
        assert_eq!(edge(&compared(&honest)), None);
        let garbage = [(55, 0.05, 4e-4), (82, 0.025, 3e-4), (247, 1.0, 0.3), (274, 1.0, 0.5)];
        assert_eq!(edge(&compared(&garbage)), Some((82, 247)));
        let mut first_alone =
            compared(&[(55, 0.0, 1e-9), (82, 0.0, 1e-9), (247, 0.025, 4e-3), (274, 0.025, 5e-3)]);
        assert_eq!(edge(&first_alone), None);
        for distance in first_alone.iter_mut().skip(2).filter_map(|trial| trial.distance.as_mut()) {
            distance.first_is_beyond = true;
        }
        assert_eq!(edge(&first_alone), Some((82, 247)));
    }

    #[test]
    fn an_edge_is_found_again_by_fresh_prompts() {
        let again = |list: &[(usize, bool)]| is_reproduced(&trials(list), (82, 247));
        assert!(again(&[(50, true), (80, true), (250, false), (270, false)]));
        assert!(
            again(&[(50, true), (85, false), (240, true), (270, false)]),
            "between the two all is possible"
        );
        assert!(!again(&[(50, true), (80, true), (250, true), (270, false)]));
        assert!(!again(&[(50, false), (80, true), (250, false), (270, false)]));
        assert!(!again(&[(250, false), (270, false)]), "nothing below");
        assert_eq!(
            controls(&trials(&[(90, true), (55, true), (247, false), (280, false)]), (90, 247)),
            [55, 90, 247, 280]
        );
    }
}
