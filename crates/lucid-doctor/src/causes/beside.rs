//! A fault beside the first on the same machine: damaged shards beside packages that don't match.

use crate::knowledge::CauseEntry;
use crate::report::{Finding, Severity};

/// An error that speaks so loudly for a cause is a fault of its own, whatever else is wrong.
const LOUD: f64 = 3.0;

/// Checks of what a machine has and has logged. What a server answers is no state: a broken model breaks its tool calls, too.
const STATES: &[&str] = &["env.", "config.", "checkpoint.", "logs.", "host."];

/// Whether an error on the model's path accuses this cause above all, and not the first one: two faults at once share no findings.
/// Shares are for one cause that explains everything, so the lesser of two would look innocent.
pub(super) fn is_fault_beside(first: &str, cause: &CauseEntry, findings: &[Finding]) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::causes::rank;
    use crate::subject::Symptom;

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
}
