//! Weights learned from outcomes, beside those that people chose.
//!
//! The chosen weights give each cause a score (natural log-odds). To it comes, for every class of findings that is there, a weight of
//! its own: multinomial logistic regression with the chosen scores as an offset. All weights are fitted together, so that three
//! probes that speak of one broken cache share what they say. A Gaussian prior around 0 (deviation 1) keeps a weight where few runs
//! speak about it, and a class that was seen in fewer than [`LEAST`] runs gets none. (Bishop, "Pattern Recognition and Machine
//! Learning", 4.3.4; the penalty is the logarithm of the prior.)
//!
//! Learned on known faults of all seeds but one, tested on that one and on the held-out faults, which nothing is learned from.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use lucid_doctor::causes::{chosen_scores, class_of};

use crate::Outcome;

/// Runs in which a class of findings has to be seen.
const LEAST: usize = 4;
/// Steps of the ascent; the objective is concave and small.
const STEPS: usize = 3_000;
/// Weights below this are left out.
const SMALL: f64 = 0.05;

/// What a class of findings adds for a cause.
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    /// The class.
    pub finding: String,
    /// The cause.
    pub cause: String,
    /// Natural log-odds.
    pub weight: f64,
}

/// How well weights do on some runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fitness {
    /// Runs.
    pub runs: usize,
    /// Right cause first.
    pub first: usize,
    /// Mean of the right cause's negative log-probability, nats; each at most 10.
    pub surprise: f64,
}

/// Weights, and how they do on runs that they were not learned from.
#[derive(Clone, Debug, PartialEq)]
pub struct Lesson {
    /// Largest first.
    pub weights: Vec<Learned>,
    /// The seed that was kept for the test.
    pub seed: u64,
    /// On what was learned from: with chosen weights, with learned ones.
    pub taught: [Fitness; 2],
    /// On the kept seed.
    pub tested: [Fitness; 2],
    /// On the held-out faults.
    pub held_out: [Fitness; 2],
}

/// A run as the regression sees it.
struct Example<'a> {
    /// Chosen scores; the last one is "something else".
    scores: Vec<(String, f64)>,
    classes: BTreeSet<String>,
    right: &'a str,
}

impl<'a> Example<'a> {
    fn new(outcome: &'a Outcome) -> Option<Example<'a>> {
        let right = outcome.expected.as_deref().filter(|_| outcome.is_accused())?;
        let classes = outcome.findings.iter().map(|finding| class_of(&finding.id)).collect();
        Some(Example { scores: chosen_scores(&outcome.findings), classes, right })
    }

    /// Probabilities in the order of `scores`.
    fn probabilities(&self, weights: &BTreeMap<(String, String), f64>) -> Vec<f64> {
        let score = |(cause, score): &(String, f64)| {
            let of_class =
                |class: &String| weights.get(&(class.clone(), cause.clone())).copied().unwrap_or(0.0);
            score + self.classes.iter().map(of_class).sum::<f64>()
        };
        let scores: Vec<f64> = self.scores.iter().map(score).collect();
        let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.into_iter().map(|power| power / sum).collect()
    }
}

/// Learns; `None` where one seed or less was run, so that nothing could be tested.
#[must_use]
pub fn learn(outcomes: &[Outcome]) -> Option<Lesson> {
    let known = || outcomes.iter().filter(|outcome| !outcome.held_out);
    let seeds: BTreeSet<u64> = known().filter(|o| o.expected.is_some()).map(|outcome| outcome.seed).collect();
    let seed = *seeds.last().filter(|_| seeds.len() > 1)?;
    let examples = |of: &dyn Fn(&Outcome) -> bool| -> Vec<Example<'_>> {
        outcomes.iter().filter(|outcome| of(outcome)).filter_map(Example::new).collect()
    };
    let taught = examples(&|outcome| !outcome.held_out && outcome.seed != seed);
    let tested = examples(&|outcome| !outcome.held_out && outcome.seed == seed);
    let held_out = examples(&|outcome| outcome.held_out);
    let weights = fit(&taught);
    let both = |examples: &[Example<'_>]| [fitness(examples, &BTreeMap::new()), fitness(examples, &weights)];
    let mut learned: Vec<Learned> = weights
        .iter()
        .filter(|(_, weight)| weight.abs() >= SMALL)
        .map(|((finding, cause), weight)| Learned {
            finding: finding.clone(),
            cause: cause.clone(),
            weight: (weight * 100.0).round() / 100.0,
        })
        .collect();
    learned.sort_by(|a, b| b.weight.abs().total_cmp(&a.weight.abs()));
    Some(Lesson {
        weights: learned,
        seed,
        taught: both(&taught),
        tested: both(&tested),
        held_out: both(&held_out),
    })
}

fn fit(examples: &[Example<'_>]) -> BTreeMap<(String, String), f64> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for class in examples.iter().flat_map(|example| &example.classes) {
        *seen.entry(class).or_default() += 1;
    }
    let mut weights: BTreeMap<(String, String), f64> = BTreeMap::new();
    for example in examples {
        for class in example.classes.iter().filter(|class| seen[class.as_str()] >= LEAST) {
            for (cause, _) in example.scores.iter().filter(|(cause, _)| !cause.is_empty()) {
                weights.insert((class.clone(), cause.clone()), 0.0);
            }
        }
    }
    // The curvature is at most 1 (the prior) and a half of the classes of each example: a step that never overshoots.
    let most = examples.iter().map(|example| example.classes.len()).max().unwrap_or(0);
    let step = 1.0 / (1.0 + 0.5 * (most * examples.len()) as f64).max(1.0);
    for _ in 0..STEPS {
        let mut gradient: BTreeMap<&(String, String), f64> =
            weights.iter().map(|(key, weight)| (key, -weight)).collect();
        for example in examples {
            let probabilities = example.probabilities(&weights);
            for ((cause, _), probability) in example.scores.iter().zip(probabilities) {
                let pull = f64::from(u8::from(cause == example.right)) - probability;
                for class in &example.classes {
                    if let Some((key, _)) = weights.get_key_value(&(class.clone(), cause.clone())) {
                        *gradient.entry(key).or_default() += pull;
                    }
                }
            }
        }
        let moves: Vec<f64> = gradient.into_values().map(|slope| step * slope).collect();
        weights.values_mut().zip(moves).for_each(|(weight, by)| *weight += by);
    }
    weights
}

fn fitness(examples: &[Example<'_>], weights: &BTreeMap<(String, String), f64>) -> Fitness {
    let mut fitness = Fitness { runs: examples.len(), ..Fitness::default() };
    for example in examples {
        let probabilities = example.probabilities(weights);
        let pairs =
            || example.scores.iter().map(|(cause, _)| cause.as_str()).zip(probabilities.iter().copied());
        let right =
            pairs().find(|(cause, _)| *cause == example.right).map_or(0.0, |(_, probability)| probability);
        // "Something else" is never first in a list of causes.
        let best = pairs().filter(|(cause, _)| !cause.is_empty()).max_by(|a, b| a.1.total_cmp(&b.1));
        fitness.first += usize::from(best.is_some_and(|(cause, _)| cause == example.right));
        fitness.surprise += (-right.ln()).min(10.0);
    }
    fitness.surprise /= examples.len().max(1) as f64;
    fitness
}

impl Lesson {
    /// Whether the weights do better than the chosen ones on runs that they don't know, and not worse on faults that they don't know.
    #[must_use]
    pub fn helps(&self) -> bool {
        let better = |[chosen, learned]: [Fitness; 2]| {
            learned.surprise < chosen.surprise && learned.first >= chosen.first
        };
        let no_worse = |[chosen, learned]: [Fitness; 2]| {
            learned.surprise <= chosen.surprise + 0.05 && learned.first >= chosen.first
        };
        !self.weights.is_empty() && better(self.tested) && no_worse(self.held_out)
    }

    /// The weights in the form of `knowledge/learned.toml`.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = format!(
            "# Written by `lucid drill --score OUTCOMES… --learn FILE`; seed {} was kept for the test:\n",
            self.seed
        );
        for line in self.to_string().lines() {
            // Writing to a String can't fail.
            let _ = writeln!(text, "# {line}");
        }
        text.push_str("weights = [\n");
        for Learned { finding, cause, weight } in &self.weights {
            let _ =
                writeln!(text, "  {{ finding = \"{finding}\", cause = \"{cause}\", weight = {weight:?} }},");
        }
        text.push_str("]\n");
        text
    }
}

impl fmt::Display for Lesson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, [chosen, learned]) in
            [("learned from", self.taught), ("kept seed", self.tested), ("held out", self.held_out)]
        {
            writeln!(
                f,
                "{name:<13} {} runs: right first {} -> {}, surprise {:.3} -> {:.3} nats",
                chosen.runs, chosen.first, learned.first, chosen.surprise, learned.surprise
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lucid_doctor::{Finding, Severity, Verdict};

    use super::*;
    use crate::score::tests::outcome;

    /// A finding that suggests two causes alike, and one beside it that people gave no weight.
    fn run(cause: &'static str, seed: u64, beside: &str) -> Outcome {
        let both = Finding::new("endpoint.cold-warm", "x", Severity::Error, "")
            .suggests("prefix-cache", 5.0)
            .suggests("kv-cache-scales", 5.0);
        let silent = Finding::new("endpoint.soak", beside, Severity::Info, "");
        Outcome { seed, findings: vec![both, silent], ..outcome(Some(cause), Verdict::Faulty, &[cause]) }
    }

    fn runs() -> Vec<Outcome> {
        (1..=6).flat_map(|seed| [run("prefix-cache", seed, "a"), run("kv-cache-scales", seed, "b")]).collect()
    }

    #[test]
    fn what_tells_causes_apart_is_learned_and_tested() {
        let lesson = learn(&runs()).unwrap();
        assert_eq!((lesson.seed, lesson.tested[0].runs, lesson.taught[0].runs), (6, 2, 10));
        let weight = |finding: &str, cause: &str| {
            let found = lesson.weights.iter().find(|w| w.finding == finding && w.cause == cause);
            found.map_or(0.0, |found| found.weight)
        };
        assert!(weight("endpoint.soak/a", "prefix-cache") > 0.3, "{lesson:?}");
        assert!(weight("endpoint.soak/b", "kv-cache-scales") > 0.3, "{lesson:?}");
        assert!(lesson.helps() && lesson.tested[1].first == 2, "{lesson}");
        assert!(lesson.to_toml().contains("endpoint.soak/a"));
    }

    #[test]
    fn nothing_is_learned_from_held_out_faults_or_few_runs() {
        let mut held_out = runs();
        held_out.iter_mut().for_each(|outcome| outcome.held_out = true);
        assert_eq!(learn(&held_out), None);
        let few: Vec<Outcome> = runs().into_iter().filter(|outcome| outcome.seed <= 2).collect();
        let lesson = learn(&few).unwrap();
        assert!(lesson.weights.is_empty() && !lesson.helps(), "two runs teach nothing: {lesson:?}");
    }
}
