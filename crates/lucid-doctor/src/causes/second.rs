//! A second fault beside the first.
//!
//! Causes are weighed against each other, as if one of them had done everything. A server that stands still and one that writes the
//! wrong text are two troubles: answers that don't come say nothing of distributions, and wrong distributions keep no answer back.
//! So each is weighed by itself, and what only the other one shows is a second cause.

use super::rank;
use crate::knowledge::causes;
use crate::report::{Cause, Finding, Severity};
use crate::subject::Symptom;

/// A cause is a second one only if it is likelier than not among what the first leaves.
const LIKELY: f64 = 0.5;

/// What explains the errors that the first cause of `ranked` does not: answers that stand still beside a model that is wrong, or
/// wrong text beside answers that stand still.
#[must_use]
pub fn second(findings: &[Finding], ranked: &[Cause]) -> Option<Cause> {
    let first = ranked.first()?;
    let is_hang = |finding: &Finding| causes().hangs.contains(&finding.id);
    let (hangs, others): (Vec<Finding>, Vec<Finding>) = findings.iter().cloned().partition(is_hang);
    let accuses = |finding: &Finding| finding.severity == Severity::Error && finding.active != Some(false);
    if !hangs.iter().any(accuses) || !others.iter().any(accuses) {
        return None;
    }
    let supports = |of: &[Finding]| of.iter().any(|finding| first.supported_by.contains(&finding.id));
    let explains_hangs =
        causes().causes.iter().any(|cause| cause.id == first.id && cause.explains.contains(&Symptom::Hang));
    let left = match (supports(&hangs), supports(&others)) {
        // It rests on the wrong text, and holds up no answers.
        (false, true) if !explains_hangs => &hangs,
        // It rests on the answers that stand still, and nothing else points to it.
        (true, false) => &others,
        _ => return None,
    };
    let cause = rank(left, None).causes.into_iter().next()?;
    (cause.id != first.id && !cause.benign && cause.probability > LIKELY).then_some(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(check: &str, slug: &str, causes: &[(&str, f64)]) -> Finding {
        let finding = Finding::new(check, slug, Severity::Error, "x");
        causes.iter().fold(finding, |finding, (cause, weight)| finding.suggests(*cause, *weight))
    }

    fn named(findings: &[Finding]) -> (String, Option<String>) {
        let ranked = rank(findings, None).causes;
        (ranked[0].id.clone(), second(findings, &ranked).map(|cause| cause.id))
    }

    #[test]
    fn a_hang_and_wrong_text_are_two_faults() {
        let hang = error("endpoint.streaming", "stalls", &[("collectives", 6.0), ("cuda-graph", 2.0)]);
        let rope = error("reference.hypotheses", "rope-half-split-fits", &[("rope-scaling", 12.0)]);
        let tools = error("endpoint.tools", "broken", &[("tool-parser", 5.0)]);
        let both = [hang.clone(), rope.clone()];
        assert_eq!(named(&both), ("rope-scaling".to_owned(), Some("collectives".to_owned())));
        let weaker = [hang.clone(), error("endpoint.cold-warm", "warm-differs", &[("prefix-cache", 5.0)])];
        assert_eq!(named(&weaker), ("collectives".to_owned(), Some("prefix-cache".to_owned())));
        assert_eq!(named(std::slice::from_ref(&hang)).1, None, "nothing else is wrong");
        assert_eq!(named(&[rope, tools]).1, None, "a broken model breaks its tool calls too");
    }

    #[test]
    fn what_explains_both_is_one_fault() {
        let hang = error("endpoint.streaming", "stalls", &[("collectives", 6.0)]);
        let hardware = error("endpoint.soak", "calls-failed", &[("gpu-hardware", 9.0)]);
        assert_eq!(named(&[hang.clone(), hardware]), ("gpu-hardware".to_owned(), None), "a faulty GPU hangs");
        let unclear =
            error("reference.hypotheses", "unexplained", &[("wrong-checkpoint", 1.5), ("moe-routing", 1.0)]);
        assert_eq!(
            named(&[hang, unclear]),
            ("collectives".to_owned(), None),
            "sums that are wrong may be the ranks' too"
        );
    }
}
