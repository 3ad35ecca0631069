//! What the tests share: read a text, run all checks, hold that what they find is announced.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::path::Path;

use lucid_findings::{Finding, Severity};
use lucid_logs::checks::CHECKS;
use lucid_logs::{LogEvidence, Moment, Options, Source, deployment_from, findings, gather};

/// The moment after which no line of the tests was written: 2026-12-01.
pub fn latest() -> Options {
    Options { latest: Some(Moment::from_millis(1_796_083_200_000)) }
}

/// Reads a text as one log.
pub fn read(text: &str) -> LogEvidence {
    read_bytes(text.as_bytes())
}

/// Reads bytes as one log.
pub fn read_bytes(bytes: &[u8]) -> LogEvidence {
    let sources = [Source::Text { name: "log".to_owned(), bytes: bytes.to_vec() }];
    gather(Path::new("/"), &sources, &latest(), &mut |_| {})
}

/// Runs all checks, on evidence that has been through an archive.
pub fn check(evidence: &LogEvidence) -> Vec<Finding> {
    let json = serde_json::to_string(evidence).unwrap();
    let stored: LogEvidence = serde_json::from_str(&json).unwrap();
    assert_eq!(&stored, evidence, "evidence changes in an archive");
    let announced: BTreeSet<String> = findings().map(|(id, _)| id).collect();
    let deployment = deployment_from(&stored);
    let mut found = Vec::new();
    for (id, check) in CHECKS {
        let Ok(examined) = check(&stored, &deployment) else { continue };
        assert!(!examined.covered.is_empty(), "{id}");
        for finding in examined.findings {
            assert!(announced.contains(&finding.id), "{} is not announced", finding.id);
            assert_eq!(&finding.check, id);
            if finding.severity > Severity::Info {
                let remedy = finding.remedy.as_ref();
                assert!(
                    remedy.is_some_and(|remedy| !remedy.commands.is_empty()),
                    "{}: no remedy",
                    finding.id
                );
            }
            found.push(finding);
        }
    }
    found
}

/// The strongest suggestion of all findings.
pub fn strongest(findings: &[Finding]) -> Option<(&str, f64)> {
    findings
        .iter()
        .flat_map(|finding| &finding.suggests)
        .filter(|suggestion| suggestion.weight > 0.0)
        .max_by(|a, b| a.weight.total_cmp(&b.weight))
        .map(|suggestion| (suggestion.cause.as_str(), suggestion.weight))
}

/// Ids of warnings and errors.
pub fn accusations(findings: &[Finding]) -> Vec<&str> {
    findings
        .iter()
        .filter(|finding| finding.severity > Severity::Info)
        .map(|finding| finding.id.as_str())
        .collect()
}

/// Whether a finding of that id is there.
pub fn has(findings: &[Finding], id: &str) -> bool {
    findings.iter().any(|finding| finding.id == id)
}
