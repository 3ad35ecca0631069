//! Real reports of failing deployments: for each whose evidence is a log, the strongest suggestion must name its cause.
#![allow(clippy::unwrap_used)]

mod reading;

use std::path::Path;

use lucid_findings::Severity;
use reading::{accusations, check, read, strongest};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    /// The cause, or `none`: no accusation.
    cause: String,
    /// What decides.
    why: String,
    log: String,
}

#[test]
fn every_case_names_its_cause() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut wrong = Vec::new();
    let mut count = 0;
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let case: Case = toml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert!(!case.why.is_empty(), "{name}");
        count += 1;
        let findings = check(&read(&case.log));
        let found = strongest(&findings);
        let right = match case.cause.as_str() {
            "none" => accusations(&findings).is_empty() && found.is_none_or(|(_, weight)| weight < 1.0),
            cause => found.is_some_and(|(found, _)| found == cause),
        };
        // What is harmless must not be called anything else.
        let benign = matches!(case.cause.as_str(), "slow-start-benign" | "reasoning-budget");
        let loud = findings.iter().find(|finding| finding.severity == Severity::Error);
        if !right || (benign && loud.is_some()) {
            let list: Vec<String> = findings
                .iter()
                .map(|finding| {
                    format!("\n    {:?} {} {:?}", finding.severity, finding.title, finding.suggests)
                })
                .collect();
            wrong.push(format!("{name}: wanted {}, found {found:?}{}", case.cause, list.concat()));
        }
    }
    assert!(count >= 50, "{count} cases");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}
