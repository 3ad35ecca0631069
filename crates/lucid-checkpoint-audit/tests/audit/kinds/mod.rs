//! Every kind of finding of this crate: three ways or more in which it comes about, and twins without it.

mod architecture;
mod files;
mod scales;
mod tokenizer;

use lucid_checkpoint_audit::{CheckpointEvidence, FINDINGS, Options};
use lucid_findings::Deployment;

use crate::patient::{Audit, Patient};

/// A finding, without `checkpoint.` in front, and what makes it or doesn't.
type Kind = (&'static str, &'static [fn() -> Audit], &'static [fn() -> Audit]);

fn tables() -> impl Iterator<Item = &'static Kind> {
    files::KINDS.iter().chain(architecture::KINDS).chain(scales::KINDS).chain(tokenizer::KINDS)
}

/// The canary as it is changed, its headers and small files looked at.
fn headers(edit: impl FnOnce(&Patient)) -> Audit {
    let patient = Patient::canary();
    edit(&patient);
    patient.audit_with(&Options::default())
}

/// The canary as it is changed, every byte read.
fn whole(edit: impl FnOnce(&Patient)) -> Audit {
    let patient = Patient::canary();
    edit(&patient);
    patient.audit()
}

/// The canary's evidence as it is changed: what no file can be made to say.
fn evidence(edit: impl FnOnce(&mut CheckpointEvidence)) -> Audit {
    let mut evidence = Patient::canary().gather(&Options::default());
    edit(&mut evidence);
    Audit::of(&evidence, &Deployment::default())
}

fn command(line: &str) -> Deployment {
    Deployment { command: line.split(' ').map(str::to_owned).collect(), ..Deployment::default() }
}

fn has(audit: &Audit, slug: &str) -> bool {
    audit.findings.iter().any(|finding| finding.id == format!("checkpoint.{slug}"))
}

fn hold(kinds: &[Kind]) {
    let mut wrong = Vec::new();
    for (slug, ways, twins) in kinds {
        for (number, way) in ways.iter().enumerate() {
            let audit = way();
            if !has(&audit, slug) {
                wrong.push(format!("{slug}, way {number}: not among\n{}", audit.titles()));
            }
        }
        for (number, twin) in twins.iter().enumerate() {
            let audit = twin();
            if has(&audit, slug) {
                wrong.push(format!("{slug}, twin {number}: found\n{}", audit.titles()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// One test a table, so that they run side by side.

#[test]
fn kinds_of_files() {
    hold(files::KINDS);
}

#[test]
fn kinds_of_architecture() {
    hold(architecture::KINDS);
}

#[test]
fn kinds_of_scales() {
    hold(scales::KINDS);
}

#[test]
fn kinds_of_tokenizers() {
    hold(tokenizer::KINDS);
}

#[test]
fn no_kind_is_left_out() {
    for (id, _) in FINDINGS {
        let count = tables().filter(|(slug, ..)| *id == format!("checkpoint.{slug}")).count();
        assert_eq!(count, 1, "{id} must stand once in a table");
    }
    for (slug, ways, twins) in tables() {
        assert!(FINDINGS.iter().any(|(id, _)| *id == format!("checkpoint.{slug}")), "{slug} is no finding");
        assert!(ways.len() >= 3 && !twins.is_empty(), "{slug}: three ways and a twin");
    }
}
