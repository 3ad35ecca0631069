//! A fault beside the first one. Causes are weighed against each other, as if one of them had done everything, so the lesser of two faults
//! would look innocent. There are two signs of it:
//!
//! - an error on the machine that accuses this cause above all and not the first: damaged shards beside packages that don't match;
//! - answers that stand still beside wrong text. Answers that don't come say nothing of distributions, and wrong distributions keep no
//!   answer back: each is weighed by itself, and what only the other one shows is a second fault.

use super::rank;
use crate::knowledge::{CauseEntry, causes};
use crate::report::{Finding, Severity};
use crate::subject::Symptom;

/// An error that speaks so loudly for a cause is a fault of its own, whatever else is wrong.
const LOUD: f64 = 3.0;

/// Checks of what a machine has and has logged. What a server answers is no state: a broken model breaks its tool calls, too.
const STATES: &[&str] = &["env.", "config.", "checkpoint.", "logs.", "host."];

/// What the first cause leaves unexplained is this cause's only if it is likelier than not, of those findings alone.
const LIKELY: f64 = 0.5;

/// Whether an error on the model's path accuses this cause above all, and not the first one: two faults at once share no findings.
pub(super) fn is_accused_alone(first: &str, cause: &CauseEntry, findings: &[Finding]) -> bool {
    let weight = |finding: &Finding, id: &str| {
        finding.suggests.iter().filter(|s| s.cause == id).map(|s| s.weight).fold(0.0, f64::max)
    };
    !cause.benign
        && findings.iter().any(|finding| {
            finding.severity == Severity::Error
                && STATES.iter().any(|area| finding.check.starts_with(area))
                && finding.active != Some(false)
                && finding.suggested_cause() == Some(cause.id.as_str())
                && weight(finding, &cause.id) >= LOUD
                && weight(finding, first) == 0.0
        })
}

/// The cause of the errors that the first one, which rests on `supported_by`, does not explain: answers that stand still beside a model
/// that is wrong, or wrong text beside answers that stand still.
pub(super) fn of_the_other_kind(
    findings: &[Finding],
    first: &CauseEntry,
    supported_by: &[String],
) -> Option<String> {
    let is_hang = |finding: &Finding| causes().hangs.contains(&finding.id);
    let (hangs, others): (Vec<Finding>, Vec<Finding>) = findings.iter().cloned().partition(is_hang);
    let accuses = |finding: &Finding| finding.severity == Severity::Error && finding.active != Some(false);
    if !hangs.iter().any(accuses) || !others.iter().any(accuses) {
        return None;
    }
    let supports = |of: &[Finding]| of.iter().any(|finding| supported_by.contains(&finding.id));
    let explains_hangs = first.explains.contains(&Symptom::Hang);
    let left = match (supports(&hangs), supports(&others)) {
        // It rests on the wrong text, and holds up no answers.
        (false, true) if !explains_hangs => &hangs,
        // It rests on the answers that stand still, and nothing else points to it.
        (true, false) => &others,
        _ => return None,
    };
    let cause = rank(left, None).causes.into_iter().next()?;
    (cause.id != first.id && !cause.benign && cause.probability > LIKELY).then_some(cause.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(check: &str, cause: &str, weight: f64) -> Finding {
        Finding::new(check, "x", Severity::Error, "").suggests(cause, weight)
    }

    #[test]
    fn two_faults_at_once_are_both_told() {
        let skew = error("env.version-sets", "package-version-skew", 9.0);
        let cut = error("checkpoint.extents", "checkpoint-corrupt", 6.0);
        let sound =
            Finding { severity: Severity::Info, ..error("checkpoint.index", "checkpoint-corrupt", -0.5) };
        let told = |findings: &[Finding], symptom| {
            let ranking = rank(findings, symptom);
            let also = ranking.causes.iter().filter(|cause| cause.also).map(|cause| cause.id.clone());
            (ranking.causes[0].id.clone(), also.collect::<Vec<_>>())
        };
        for symptom in [None, Some(Symptom::Crash), Some(Symptom::Incoherent)] {
            let (first, also) = told(&[skew.clone(), cut.clone(), sound.clone()], symptom);
            let both = [first, also.concat()];
            assert!(
                also.len() == 1 && both.contains(&"checkpoint-corrupt".to_owned()),
                "{symptom:?}: {both:?}"
            );
        }
        // What doesn't run, a warning, and an error that the first one explains too are no second fault.
        for lesser in [
            cut.clone().active(Some(false)),
            Finding { severity: Severity::Warning, ..cut.clone() },
            error("endpoint.tools", "tool-parser", 6.0),
            cut.suggests("package-version-skew", 1.0),
        ] {
            assert_eq!(told(&[skew.clone(), lesser], None), ("package-version-skew".to_owned(), vec![]));
        }
    }

    fn accusing(check: &str, slug: &str, causes: &[(&str, f64)]) -> Finding {
        let finding = Finding::new(check, slug, Severity::Error, "x");
        causes.iter().fold(finding, |finding, (cause, weight)| finding.suggests(*cause, *weight))
    }

    fn named(findings: &[Finding]) -> (String, Option<String>) {
        let ranked = rank(findings, None).causes;
        let also: Vec<String> =
            ranked.iter().filter(|cause| cause.also).map(|cause| cause.id.clone()).collect();
        assert!(also.len() <= 1, "{also:?}");
        (ranked[0].id.clone(), also.into_iter().next())
    }

    #[test]
    fn a_hang_and_wrong_text_are_two_faults() {
        let hang = accusing("endpoint.streaming", "stalls", &[("collectives", 6.0), ("cuda-graph", 2.0)]);
        let rope = accusing("reference.hypotheses", "rope-half-split-fits", &[("rope-scaling", 12.0)]);
        let tools = accusing("endpoint.tools", "broken", &[("tool-parser", 5.0)]);
        let both = [hang.clone(), rope.clone()];
        assert_eq!(named(&both), ("rope-scaling".to_owned(), Some("collectives".to_owned())));
        let weaker = [hang.clone(), accusing("endpoint.cold-warm", "warm-differs", &[("prefix-cache", 5.0)])];
        assert_eq!(named(&weaker), ("collectives".to_owned(), Some("prefix-cache".to_owned())));
        assert_eq!(named(std::slice::from_ref(&hang)).1, None, "nothing else is wrong");
        assert_eq!(named(&[rope, tools]).1, None, "a broken model breaks its tool calls too");
    }

    #[test]
    fn what_explains_both_is_one_fault() {
        let hang = accusing("endpoint.streaming", "stalls", &[("collectives", 6.0)]);
        let hardware = accusing("endpoint.soak", "calls-failed", &[("gpu-hardware", 9.0)]);
        assert_eq!(named(&[hang.clone(), hardware]), ("gpu-hardware".to_owned(), None), "a faulty GPU hangs");
        let unclear = accusing(
            "reference.hypotheses",
            "unexplained",
            &[("wrong-checkpoint", 1.5), ("moe-routing", 1.0)],
        );
        assert_eq!(
            named(&[hang, unclear]),
            ("collectives".to_owned(), None),
            "sums that are wrong may be the ranks' too"
        );
    }
}
