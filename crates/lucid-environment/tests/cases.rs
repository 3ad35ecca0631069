//! Real reports, as fixtures: the strongest suggestion names the cause that the report had.
#![allow(clippy::unwrap_used)]

mod patient;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use lucid_findings::{Deployment, Severity};
use patient::{Patient, elf, find, ids};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    case: String,
    /// The cause that must come out first.
    cause: Option<String>,
    /// No accusation may come out.
    #[serde(default)]
    benign: bool,
    /// A finding that must be there.
    finding: Option<String>,
    why: String,
    #[serde(default)]
    package: Vec<Package>,
    #[serde(default)]
    file: Vec<File>,
    #[serde(default)]
    shared_object: Vec<SharedObject>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    deployment: Deployment,
    mountinfo: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Package {
    name: String,
    version: String,
    #[serde(default)]
    requires: Vec<String>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    entry_points: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    path: String,
    text: String,
    #[serde(default)]
    age_hours: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SharedObject {
    path: String,
    needs: Vec<String>,
}

fn patient(case: &Case) -> Patient {
    let mut patient = Patient::new();
    for package in &case.package {
        let requires: Vec<&str> = package.requires.iter().map(String::as_str).collect();
        let files: Vec<(&str, &str)> =
            package.files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        patient.install(&package.name, &package.version, &requires, &files);
        if let Some(text) = &package.entry_points {
            let info = format!("{}-{}.dist-info", package.name.replace('-', "_"), package.version);
            patient.write(&format!("{}/{info}/entry_points.txt", patient::SITE), text);
        }
    }
    for file in &case.file {
        let path = patient.write(&file.path, &file.text);
        let then = SystemTime::now() - Duration::from_secs(file.age_hours * 3600);
        fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
    }
    for object in &case.shared_object {
        patient.write(&object.path, elf(&object.needs));
    }
    patient.options.environment.extend(case.environment.clone());
    patient.options.mountinfo.clone_from(&case.mountinfo);
    patient
}

#[test]
fn every_case_comes_out_with_its_cause() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 35, "{} cases", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let case: Case = toml::from_str(&fs::read_to_string(&file).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert!(!case.why.is_empty() && file.file_stem().unwrap() == case.case.as_str());
        let findings = patient(&case).findings(&case.deployment);
        let strongest = findings
            .iter()
            .flat_map(|finding| &finding.suggests)
            .filter(|suggestion| suggestion.weight > 0.0)
            .max_by(|a, b| a.weight.total_cmp(&b.weight))
            .map(|suggestion| suggestion.cause.as_str());
        let accused = findings.iter().any(|finding| finding.severity > Severity::Info);
        let right = if case.benign { !accused } else { strongest == case.cause.as_deref() };
        let there = case.finding.as_ref().is_none_or(|id| find(&findings, id).is_some());
        if !right || !there {
            wrong.push(format!("{}: {strongest:?}, {:?}", case.case, ids(&findings)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
