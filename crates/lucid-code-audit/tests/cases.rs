//! Real reports whose evidence is in the code: each names the cause that must come out.
#![allow(clippy::unwrap_used)]

mod patient;

use lucid_code_audit::{debug_code, monkeypatch};
use lucid_findings::Finding;
use patient::{Patient, accusations, kimi, told};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    why: String,
    /// Empty: nobody is to be accused.
    cause: String,
    file: Vec<File>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    path: String,
    text: String,
}

#[test]
fn cases_name_their_cause() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let case: Case = toml::from_str(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!case.why.is_empty());
        let patient = Patient::small();
        for file in &case.file {
            patient.write(&file.path, &file.text);
        }
        let evidence = patient.gather();
        let debug = debug_code(&evidence, &kimi(), &|_, _| None).unwrap();
        let patches = monkeypatch(&evidence, &kimi(), &|_, _| None).unwrap();
        let all: Vec<&Finding> = debug.findings.iter().chain(&patches.findings).collect();
        let words: Vec<String> = all.iter().map(|finding| told(finding)).collect();
        let strongest = all
            .iter()
            .flat_map(|finding| &finding.suggests)
            .filter(|suggestion| suggestion.weight > 0.0)
            .max_by(|a, b| a.weight.total_cmp(&b.weight));
        match strongest {
            Some(strongest) => assert_eq!(strongest.cause, case.cause, "{name}: {words:#?}"),
            None => assert!(case.cause.is_empty(), "{name}: {words:#?}"),
        }
        if case.cause.is_empty() {
            assert!(accusations(&debug).is_empty() && accusations(&patches).is_empty(), "{name}: {words:#?}");
        }
        count += 1;
    }
    assert_eq!(count, 3);
}
