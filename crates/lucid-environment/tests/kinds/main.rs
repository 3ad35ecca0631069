//! Every kind of finding of this crate: three ways or more in which it comes about, and twins without it.
#![allow(clippy::unwrap_used)]

#[path = "../patient/mod.rs"]
mod patient;

mod record_integrity;
mod startup;
mod surroundings;
mod versions;

use lucid_environment::{EnvironmentEvidence, checks};
use lucid_findings::Deployment;
use patient::Patient;

/// A patient, how it is served, and what its files can't say without another user's rights.
pub(crate) struct Scene {
    pub(crate) patient: Patient,
    pub(crate) deployment: Deployment,
    /// Changes the evidence after it was gathered: owners of files.
    pub(crate) edit: Option<fn(&mut EnvironmentEvidence)>,
}

impl Scene {
    fn empty() -> Scene {
        Scene { patient: Patient::new(), deployment: Deployment::default(), edit: None }
    }

    /// Installs `NAME VERSION`, with what it requires.
    pub(crate) fn install(&mut self, package: &str, requires: &[&str]) {
        let (name, version) = package.split_once(' ').unwrap();
        self.patient.install(name, version, requires, &[]);
    }

    /// Sets a variable of the serving process.
    pub(crate) fn variable(&mut self, name: &str, value: &str) {
        self.patient.options.environment.insert(name.to_owned(), value.to_owned());
        self.deployment.environment.insert(name.to_owned(), value.to_owned());
    }

    /// Sets the serving command.
    pub(crate) fn command(&mut self, line: &str) {
        self.deployment.command = line.split(' ').map(str::to_owned).collect();
    }
}

pub(crate) type Plant = fn(&mut Scene);

/// Ways in which a finding comes about, on top of a common scene.
pub(crate) struct Kind {
    id: &'static str,
    base: fn() -> Scene,
    ways: &'static [Plant],
    twins: &'static [Plant],
}

fn tables() -> impl Iterator<Item = &'static Kind> {
    versions::KINDS.iter().chain(startup::KINDS).chain(surroundings::KINDS)
}

fn found(kind: &Kind, plant: Plant) -> Vec<String> {
    let mut scene = (kind.base)();
    plant(&mut scene);
    let mut evidence = scene.patient.gather();
    if let Some(edit) = scene.edit {
        edit(&mut evidence);
    }
    let outcomes = checks::all(&evidence, &scene.deployment, None);
    let examined = outcomes.into_iter().filter_map(|(_, outcome)| outcome.ok());
    examined.flat_map(|examined| examined.findings).map(|finding| finding.id).collect()
}

#[test]
fn three_ways_are_found_and_the_twins_are_not() {
    let mut wrong = Vec::new();
    for kind in tables() {
        for (number, plant) in kind.ways.iter().enumerate() {
            let ids = found(kind, *plant);
            if !ids.iter().any(|id| id == kind.id) {
                wrong.push(format!("{}, way {number}: not among {}", kind.id, ids.join(", ")));
            }
        }
        for (number, twin) in kind.twins.iter().enumerate() {
            let ids = found(kind, *twin);
            if ids.iter().any(|id| id == kind.id) {
                wrong.push(format!("{}, twin {number}: found", kind.id));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_kind_is_left_out() {
    for (id, _) in lucid_environment::FINDINGS {
        let of_records = id
            .strip_prefix("env.record-integrity/")
            .is_some_and(|slug| record_integrity::KINDS.iter().any(|(kind, ..)| *kind == slug));
        let count = tables().filter(|kind| kind.id == *id).count() + usize::from(of_records);
        assert_eq!(count, 1, "{id} must stand once in a table");
    }
    for kind in tables() {
        assert!(
            lucid_environment::FINDINGS.iter().any(|(id, _)| *id == kind.id),
            "{} is no finding",
            kind.id
        );
        assert!(kind.ways.len() >= 3 && !kind.twins.is_empty(), "{}: three ways and a twin", kind.id);
    }
}
