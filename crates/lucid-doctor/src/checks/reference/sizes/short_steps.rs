//! Short steps are wrong, and long ones right: what do the short ones compute?
//!
//! Answers are written in steps of a token, so nearly all of them are wrong then, and prompts are by their length. Engines sum small
//! messages over their ranks by another all-reduce than large ones, replay captured graphs for few rows, and have kernels of their own for
//! them. The first of these can be told: a sum that lacks one rank's part is reproduced by leaving it out.

use super::super::hypotheses::{LostSum, lost_sum};
use super::INNOCENT;
use super::pattern::Trial;
use crate::evidence::{Examination, Observed, PromptScore};
use crate::report::html::nats;
use crate::report::{Finding, ProofKind, Severity};

/// Prompts that are re-scored.
const RE_SCORED: usize = 12;
/// Tokens of such a prompt, at the least: at fewer, little hangs on attention.
const LEAST: usize = 4;

/// `edge`: the longest wrong and the shortest right number of tokens; `bar`: the divergence above which one is wrong.
pub(super) fn finding(
    check: &str,
    examination: &mut Examination<'_>,
    trials: &[Trial],
    edge: [usize; 2],
    bar: f64,
    confirmed: &[Trial],
) -> Finding {
    let wrong = trials.iter().filter(|trial| trial.size <= edge[0] && trial.is_wrong(bar));
    let wrong: Vec<&Trial> = wrong.filter(|trial| trial.size >= LEAST).collect();
    // From all over the range.
    let step = wrong.len().div_ceil(RE_SCORED).max(1);
    let short: Vec<(Observed, PromptScore)> =
        wrong.iter().step_by(step).map(|trial| trial.said.clone()).collect();
    let lost = lost_sum(examination, &short);
    judge(check, edge, lost.as_ref(), confirmed)
}

fn judge(check: &str, [wrong, right]: [usize; 2], lost: Option<&LostSum>, confirmed: &[Trial]) -> Finding {
    let title = format!("Steps of up to {wrong} tokens are computed wrongly, longer ones rightly");
    let finding = Finding::new(check, "short-steps", Severity::Error, title);
    let edge = format!("Wrong up to {wrong} tokens, right from {right} on, and again so with fresh texts");
    // A prompt of which a part is cached is a short step, and so is every token of an answer.
    let finding = INNOCENT
        .into_iter()
        .filter(|cause| *cause != "kv-cache-scales")
        .fold(finding, |finding, cause| finding.suggests(cause, -6.0))
        .suggests("kv-cache-scales", -9.0)
        .suggests("prefix-cache", -6.0)
        .confidence(0.99);
    let mut finding = match lost {
        Some(LostSum { title, distances: [distance, of_right], remedy }) => {
            let numbers =
                format!("{} nats a token from a model with it, {} from the right one", nats(*distance), nats(*of_right));
            let finding = finding
                .detail(format!("{edge}. What is said there is what a model says in which {title}: small sums take another all-reduce than large ones, and that one loses a part."))
                .suggests("collectives", 15.0)
                .proof(ProofKind::Number, "lost sum", numbers);
            match remedy {
                Some(remedy) => finding.remedy(remedy.text.clone(), remedy.commands.clone()),
                None => finding,
            }
        }
        None => finding
            .detail(format!("{edge}: another kernel, a captured graph or another all-reduce is taken there. No sum that merely lacks a rank's part explains it."))
            .suggests("attention-kernel", 8.0)
            .suggests("cuda-graph", 6.0)
            .suggests("collectives", 5.0)
            .remedy(
                "Steps of few tokens are wrong: without captured graphs, and without the engine's own all-reduce, they are right or wrong still, which tells the three apart.",
                vec![
                    "vllm serve MODEL --enforce-eager".to_owned(),
                    "vllm serve MODEL --disable-custom-all-reduce".to_owned(),
                ],
            ),
    };
    for trial in confirmed {
        let numbers = format!("{} tokens: {} nats a token from the reference", trial.size, nats(trial.kl));
        finding = finding.proof(ProofKind::Exchange, trial.exchange.to_string(), numbers);
    }
    finding
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_part_is_a_collectives_and_anything_else_a_kernels() {
        let lost = LostSum { title: "x".to_owned(), distances: [0.0, 0.1], remedy: None };
        let first = |lost| judge("reference.sizes", [64, 65], lost, &[]);
        assert_eq!(first(Some(&lost)).suggested_cause(), Some("collectives"));
        assert_eq!(first(None).suggested_cause(), Some("attention-kernel"));
        let routing = first(None).suggests.iter().find(|s| s.cause == "moe-routing").map(|s| s.weight);
        assert!(routing.is_some_and(|weight| weight < -4.0), "routing is wrong at every size");
    }
}
