//! How well the doctor did, over all runs.

use std::fmt::{self, Write};

use lucid_doctor::Verdict;
use lucid_doctor::statistics::{Rate, wilson};
use serde::Serialize;

use crate::Outcome;

/// The drill's result.
#[derive(Clone, Debug, Serialize)]
pub struct Score {
    /// Faults whose cause was named first.
    pub top_1: Rate,
    /// Faults whose cause was among the first three.
    pub top_3: Rate,
    /// Healthy runs that were called faulty.
    pub false_alarms: Rate,
    /// Median of the tokens that a run cost the server.
    pub median_tokens: u64,
    /// Median of the seconds that a run took.
    pub median_seconds: f64,
    /// Every run.
    pub outcomes: Vec<Outcome>,
}

impl Score {
    /// Counts.
    #[must_use]
    pub fn of(outcomes: Vec<Outcome>) -> Score {
        let (faults, healthy): (Vec<&Outcome>, Vec<&Outcome>) =
            outcomes.iter().partition(|outcome| outcome.expected.is_some());
        let count = |outcomes: &[&Outcome], test: fn(&Outcome) -> bool| {
            wilson(outcomes.iter().filter(|outcome| test(outcome)).count() as u64, outcomes.len() as u64)
        };
        let mut tokens: Vec<u64> = outcomes.iter().map(|outcome| outcome.tokens).collect();
        tokens.sort_unstable();
        let mut seconds: Vec<f64> = outcomes.iter().map(|outcome| outcome.seconds).collect();
        seconds.sort_unstable_by(f64::total_cmp);
        let middle = outcomes.len() / 2;
        Score {
            top_1: count(&faults, Outcome::is_right),
            top_3: count(&faults, Outcome::is_among_three),
            false_alarms: count(&healthy, Outcome::is_false_alarm),
            median_tokens: tokens.get(middle).copied().unwrap_or(0),
            median_seconds: seconds.get(middle).copied().unwrap_or(0.0),
            outcomes,
        }
    }

    /// Whether every run was judged rightly.
    #[must_use]
    pub fn all_right(&self) -> bool {
        self.outcomes.iter().all(Outcome::is_right)
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {:<29} {:>4}  {:<20} {:<30} {:>7} {:>6}",
            "case", "seed", "should say", "said", "tokens", "s"
        )?;
        for outcome in &self.outcomes {
            let mark = if outcome.is_right() { "✓" } else { "✗" };
            let expected = outcome.expected.unwrap_or("healthy");
            writeln!(
                f,
                "{mark} {:<29} {:>4}  {expected:<20} {:<30} {:>7} {:>6.1}",
                outcome.case,
                outcome.seed,
                said(outcome),
                outcome.tokens,
                outcome.seconds
            )?;
        }
        let rate = |rate: &Rate| {
            format!(
                "{} of {} (95 %: {:.0}–{:.0} %)",
                rate.passed,
                rate.trials,
                100.0 * rate.low,
                100.0 * rate.high
            )
        };
        writeln!(f)?;
        if self.top_1.trials > 0 {
            writeln!(f, "right cause first      {}", rate(&self.top_1))?;
            writeln!(f, "among the first three  {}", rate(&self.top_3))?;
        }
        if self.false_alarms.trials > 0 {
            writeln!(f, "false alarms           {}", rate(&self.false_alarms))?;
        }
        writeln!(f, "median                 {} tokens, {:.1} s", self.median_tokens, self.median_seconds)
    }
}

fn said(outcome: &Outcome) -> String {
    let mut text = String::new();
    match (outcome.verdict, outcome.said.first()) {
        (Verdict::Faulty, Some((cause, probability))) => {
            // Writing to a String can't fail.
            let _ = write!(text, "{cause} {:.0} %", 100.0 * probability);
        }
        (verdict, _) => text.push_str(verdict.name()),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(expected: Option<&'static str>, verdict: Verdict, said: &[&str]) -> Outcome {
        Outcome {
            case: "case",
            seed: 1,
            expected,
            verdict,
            said: said.iter().map(|cause| ((*cause).to_owned(), 0.5)).collect(),
            tokens: 10,
            requests: 1,
            seconds: 1.0,
        }
    }

    #[test]
    fn counts_what_the_words_say() {
        let score = Score::of(vec![
            outcome(Some("a"), Verdict::Faulty, &["a", "b"]),
            outcome(Some("a"), Verdict::Faulty, &["b", "a"]),
            outcome(Some("a"), Verdict::Faulty, &["b", "c", "d", "a"]),
            outcome(Some("a"), Verdict::Healthy, &["a"]),
            outcome(None, Verdict::Healthy, &[]),
            outcome(None, Verdict::Faulty, &["a"]),
            outcome(None, Verdict::Undecided, &[]),
        ]);
        assert_eq!((score.top_1.passed, score.top_1.trials), (1, 4));
        assert_eq!((score.top_3.passed, score.top_3.trials), (2, 4));
        assert_eq!((score.false_alarms.passed, score.false_alarms.trials), (1, 3));
        assert!(!score.all_right());
        assert!(Score::of(vec![outcome(None, Verdict::Healthy, &[])]).all_right());
    }
}
