//! How well the doctor did, over all runs.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

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
    /// Faults that were called faulty, whatever the cause.
    pub found: Rate,
    /// The same as `top_1` for the faults that the doctor knows.
    pub known: Rate,
    /// And for those that it was not made with.
    pub held_out: Rate,
    /// Healthy runs that were called faulty.
    pub false_alarms: Rate,
    /// Faults by what the server told.
    pub by_guise: Vec<Surface>,
    /// How well the probabilities are meant: of the causes said with about this probability, so many were right.
    pub calibration: Vec<Calibration>,
    /// Median of the tokens that a run cost the server.
    pub median_tokens: u64,
    /// Median of its requests.
    pub median_requests: u64,
    /// Median of the seconds that a run took.
    pub median_seconds: f64,
    /// What should have been said, what was said first, and how often.
    pub confusion: Vec<Confusion>,
    /// Every run.
    pub outcomes: Vec<Outcome>,
}

/// Faults of servers that tell what one kind of server tells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Surface {
    /// `lucid`, or the guise.
    pub name: String,
    /// Faults whose cause was named first.
    pub top_1: Rate,
    /// Faults whose cause was among the first three.
    pub top_3: Rate,
}

/// Runs of one cause that were answered with one other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Confusion {
    /// The cause that should be said; `healthy` for a control.
    pub expected: String,
    /// What was said first; `healthy`, `undecided`, or `unknown` for a faulty verdict without a cause.
    pub said: String,
    /// How often.
    pub runs: u64,
}

/// First causes whose probability lies in a range.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// Lower end of the range.
    pub from: f64,
    /// Upper end.
    pub to: f64,
    /// Mean of the probabilities that were said.
    pub said: f64,
    /// How many were right.
    pub right: Rate,
}

impl Score {
    /// Counts.
    #[must_use]
    pub fn of(outcomes: Vec<Outcome>) -> Score {
        let (faults, healthy): (Vec<&Outcome>, Vec<&Outcome>) =
            outcomes.iter().partition(|outcome| outcome.expected.is_some());
        let (held_out, known): (Vec<&Outcome>, Vec<&Outcome>) =
            faults.iter().copied().partition(|outcome| outcome.held_out);
        let count = |outcomes: &[&Outcome], test: fn(&Outcome) -> bool| {
            wilson(outcomes.iter().filter(|outcome| test(outcome)).count() as u64, outcomes.len() as u64)
        };
        Score {
            top_1: count(&faults, Outcome::is_right),
            top_3: count(&faults, Outcome::is_among_three),
            found: count(&faults, Outcome::is_accused),
            known: count(&known, Outcome::is_right),
            held_out: count(&held_out, Outcome::is_right),
            false_alarms: count(&healthy, Outcome::is_false_alarm),
            by_guise: by_guise(&faults),
            calibration: calibration(&faults),
            median_tokens: median(outcomes.iter().map(|outcome| outcome.tokens).collect()),
            median_requests: median(outcomes.iter().map(|outcome| outcome.requests).collect()),
            median_seconds: middle_of(outcomes.iter().map(|outcome| outcome.seconds).collect()),
            confusion: confusion(&outcomes),
            outcomes,
        }
    }

    /// Whether every run was judged rightly.
    #[must_use]
    pub fn all_right(&self) -> bool {
        self.outcomes.iter().all(Outcome::is_right)
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

fn middle_of(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn confusion(outcomes: &[Outcome]) -> Vec<Confusion> {
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for outcome in outcomes {
        *counts.entry((outcome.expected.as_deref().unwrap_or("healthy"), outcome.word())).or_default() += 1;
    }
    counts
        .into_iter()
        .map(|((expected, said), runs)| Confusion {
            expected: expected.to_owned(),
            said: said.to_owned(),
            runs,
        })
        .collect()
}

fn by_guise(faults: &[&Outcome]) -> Vec<Surface> {
    let mut surfaces: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for outcome in faults.iter().filter(|outcome| !outcome.machine) {
        surfaces.entry(outcome.guise.as_deref().unwrap_or("lucid")).or_default().push(outcome);
    }
    let count = |of: &[&Outcome], test: fn(&Outcome) -> bool| {
        wilson(of.iter().filter(|outcome| test(outcome)).count() as u64, of.len() as u64)
    };
    let surface = |(name, of): (&str, Vec<&Outcome>)| Surface {
        name: name.to_owned(),
        top_1: count(&of, Outcome::is_right),
        top_3: count(&of, Outcome::is_among_three),
    };
    surfaces.into_iter().map(surface).collect()
}

/// In ranges that few runs can fill.
fn calibration(faults: &[&Outcome]) -> Vec<Calibration> {
    let said = |outcome: &Outcome| outcome.said.first().map(|(_, probability)| *probability);
    [(0.0, 0.6), (0.6, 0.8), (0.8, 0.95), (0.95, 1.01)]
        .into_iter()
        .filter_map(|(from, to)| {
            let inside: Vec<&&Outcome> = faults
                .iter()
                .filter(|outcome| outcome.is_accused())
                .filter(|outcome| said(outcome).is_some_and(|p| (from..to).contains(&p)))
                .collect();
            let right = inside.iter().filter(|outcome| outcome.is_right()).count() as u64;
            let mean = inside.iter().filter_map(|outcome| said(outcome)).sum::<f64>() / inside.len() as f64;
            (!inside.is_empty()).then(|| Calibration {
                from,
                to: f64::min(to, 1.0),
                said: mean,
                right: wilson(right, inside.len() as u64),
            })
        })
        .collect()
}

/// `7 of 9 (95 %: 45–94 %)`
pub(crate) fn rate(rate: &Rate) -> String {
    format!("{} of {} (95 %: {:.0}–{:.0} %)", rate.passed, rate.trials, 100.0 * rate.low, 100.0 * rate.high)
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", heading())?;
        self.outcomes.iter().try_for_each(|outcome| writeln!(f, "{}", line(outcome)))?;
        write!(f, "\n{}", self.summary())
    }
}

/// The rates alone: a [`Score`] without its lines.
#[derive(Debug)]
pub struct Summary<'a>(&'a Score);

impl Score {
    /// The rates alone.
    #[must_use]
    pub fn summary(&self) -> Summary<'_> {
        Summary(self)
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary(score) = self;
        if score.top_1.trials > 0 {
            writeln!(f, "called faulty          {}", rate(&score.found))?;
            writeln!(f, "right cause first      {}", rate(&score.top_1))?;
            writeln!(f, "among the first three  {}", rate(&score.top_3))?;
        }
        if score.held_out.trials > 0 {
            writeln!(f, "known faults, first    {}", rate(&score.known))?;
            writeln!(f, "held out, first        {}", rate(&score.held_out))?;
        }
        for surface in score.by_guise.iter().filter(|_| score.by_guise.len() > 1) {
            let three = surface.top_3.passed;
            writeln!(f, "as {:<19} {} first, {three} among three", surface.name, rate(&surface.top_1))?;
        }
        if score.false_alarms.trials > 0 {
            writeln!(f, "false alarms           {}", rate(&score.false_alarms))?;
        }
        for bin in &score.calibration {
            writeln!(f, "said with {:>3.0} %         {} right", 100.0 * bin.said, rate(&bin.right))?;
        }
        writeln!(
            f,
            "median                 {} requests, {} tokens, {:.1} s",
            score.median_requests, score.median_tokens, score.median_seconds
        )
    }
}

/// What stands above the [`line`]s.
#[must_use]
pub fn heading() -> String {
    format!("  {:<29} {:>4}  {:<20} {:<30} {:>7} {:>6}", "case", "seed", "should say", "said", "tokens", "s")
}

/// One run in a line: right or wrong, case, seed, what should be said, what was, tokens, seconds.
#[must_use]
pub fn line(outcome: &Outcome) -> String {
    let mark = if outcome.is_right() { "✓" } else { "✗" };
    let expected = outcome.expected.as_deref().unwrap_or("healthy");
    format!(
        "{mark} {:<29} {:>4}  {expected:<20} {:<30} {:>7} {:>6.1}",
        outcome.case,
        outcome.seed,
        said(outcome),
        outcome.tokens,
        outcome.seconds
    )
}

fn said(outcome: &Outcome) -> String {
    let mut text = String::new();
    match (outcome.is_accused(), outcome.said.first()) {
        (true, Some((cause, probability))) => {
            // Writing to a String can't fail.
            let _ = write!(text, "{cause} {:.0} %", 100.0 * probability);
        }
        (_, _) => text.push_str(outcome.word()),
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use lucid_doctor::Verdict;

    use super::*;

    pub(crate) fn outcome(expected: Option<&'static str>, verdict: Verdict, said: &[&str]) -> Outcome {
        Outcome {
            lucid: "0".to_owned(),
            case: "case".to_owned(),
            fault: None,
            seed: 1,
            depth: lucid_doctor::Depth::Standard,
            expected: expected.map(str::to_owned),
            held_out: expected == Some("b"),
            guise: expected.filter(|cause| *cause == "b").map(|_| "vllm".to_owned()),
            machine: false,
            verdict,
            said: said.iter().map(|cause| ((*cause).to_owned(), 0.9)).collect(),
            tokens: 10,
            requests: 1,
            seconds: 1.0,
            by_check: Vec::new(),
            findings: Vec::new(),
        }
    }

    #[test]
    fn counts_what_the_words_say() {
        let score = Score::of(vec![
            outcome(Some("a"), Verdict::Faulty, &["a", "b"]),
            outcome(Some("a"), Verdict::Faulty, &["b", "a"]),
            outcome(Some("a"), Verdict::Faulty, &["b", "c", "d", "a"]),
            outcome(Some("b"), Verdict::Healthy, &["a"]),
            outcome(None, Verdict::Healthy, &[]),
            outcome(None, Verdict::Faulty, &["a"]),
            outcome(None, Verdict::Undecided, &[]),
        ]);
        assert_eq!((score.top_1.passed, score.top_1.trials), (1, 4));
        assert_eq!((score.top_3.passed, score.top_3.trials), (2, 4));
        assert_eq!((score.found.passed, score.found.trials), (3, 4));
        assert_eq!((score.held_out.passed, score.held_out.trials), (0, 1));
        let surfaces: Vec<(&str, u64, u64)> = score
            .by_guise
            .iter()
            .map(|surface| (surface.name.as_str(), surface.top_3.passed, surface.top_1.trials))
            .collect();
        assert_eq!(surfaces, [("lucid", 2, 3), ("vllm", 0, 1)]);
        assert_eq!((score.false_alarms.passed, score.false_alarms.trials), (1, 3));
        assert_eq!((score.calibration.len(), score.calibration[0].right.passed), (1, 1));
        let confused = |expected: &str, said: &str| {
            let found = score.confusion.iter().find(|c| c.expected == expected && c.said == said);
            found.map_or(0, |confusion| confusion.runs)
        };
        assert_eq!(
            (confused("a", "b"), confused("b", "healthy"), confused("healthy", "undecided")),
            (2, 1, 1)
        );
        assert!(!score.all_right());
        assert!(Score::of(vec![outcome(None, Verdict::Healthy, &[])]).all_right());
    }
}
