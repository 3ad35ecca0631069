//! Runs the checks on a subject and puts the report together.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Instant, SystemTime};

use lucid_checkpoint::Files;

use crate::causes;
use crate::checks::{self, Check, Examined, Need, Skip};
use crate::evidence::{Evidence, Examination, MachineEvidence, Reference};
use crate::report::{
    CheckOutcome, CheckResult, Cost, Finding, Report, SCHEMA, Severity, SubjectSummary, Verdict,
};
use crate::subject::{Depth, Subject, Symptom};

/// What happens while the diagnosis runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// A check begins.
    Started {
        /// The check.
        check: &'static str,
    },
    /// A check goes on.
    Step {
        /// The check.
        check: &'static str,
        /// Steps done.
        done: usize,
        /// Steps in all, at the most.
        of: usize,
        /// What is being done.
        text: String,
    },
    /// A check ended.
    Finished {
        /// The check.
        check: &'static str,
        /// How.
        outcome: CheckOutcome,
    },
}

/// Examines the subject with every check whose evidence is there.
pub fn diagnose(mut subject: Subject, progress: &mut dyn FnMut(Progress)) -> Report {
    let (started, clock) = (SystemTime::now(), Instant::now());
    let mut summary = SubjectSummary { endpoint: subject.endpoint.clone(), ..SubjectSummary::default() };
    let mut evidence = Evidence { obstacles: std::mem::take(&mut subject.obstacles), ..Evidence::default() };
    let checkpoint = subject.checkpoint.take();
    let has_checkpoint = checkpoint.is_some();
    summary.checkpoint = checkpoint.as_ref().map(Files::root);
    // The reference is a witness against a server; without one, nobody asks it.
    let reference = checkpoint.filter(|_| subject.endpoint.is_some()).and_then(|files| {
        Reference::open(files, subject.threads).map_err(|error| evidence.obstacles.push(error)).ok()
    });
    if let Some(machine) = &subject.machine {
        machine.describe(&mut summary);
        evidence.obstacles.extend(machine.failures.iter().cloned());
    }
    let mut examination = Examination {
        subject: &subject,
        depth: subject.depth,
        seed: subject.seed,
        endpoint: None,
        reference,
        evidence,
        deadline: clock + subject.patience(),
        check: "",
        progress,
    };
    let (mut findings, mut results) = (Vec::new(), Vec::new());
    for check in checks::registry() {
        let (result, found) = run(check.as_ref(), &mut examination, has_checkpoint);
        findings.extend(found);
        results.push(result);
    }
    if subject.deep {
        deepen(&mut examination, &mut findings, &mut results, has_checkpoint);
    }
    summary.server = examination.endpoint.as_ref().map(|endpoint| endpoint.info().clone());
    let mut evidence = examination.evidence;
    summary.reference = evidence.divergence.as_ref().map(|divergence| divergence.semantics.clone());
    evidence.timeline = subject.machine.and_then(|machine| machine.logs).map(|logs| logs.timeline);
    assemble(started, clock, summary, evidence, findings, results, subject.symptom)
}

/// Causes that are as sure as this need no further test.
const SURE: f64 = 0.95;

/// Runs the test that the first cause names, with the means of a thorough examination and other questions. What it finds joins what was
/// found; where it finds the same again, the later finding stands.
fn deepen(
    examination: &mut Examination<'_>,
    findings: &mut Vec<Finding>,
    results: &mut [CheckResult],
    has_checkpoint: bool,
) {
    let ranking = causes::rank(findings, examination.subject.symptom);
    let Some(first) = ranking.causes.first().filter(|cause| cause.probability < SURE) else { return };
    let Some(deeper) = causes::deeper(&first.id) else { return };
    let registry = checks::registry();
    let Some(check) = registry.iter().find(|check| check.id() == deeper) else { return };
    examination.depth = Depth::Thorough;
    examination.seed = examination.seed.wrapping_add(1);
    let (again, found) = run(check.as_ref(), examination, has_checkpoint);
    let ended = matches!(again.outcome, CheckOutcome::Passed | CheckOutcome::Found);
    let Some(result) = results.iter_mut().find(|result| result.id == deeper).filter(|_| ended) else {
        return;
    };
    findings.retain(|finding| found.iter().all(|again| again.id != finding.id));
    if found.iter().any(|finding| finding.severity > Severity::Info) {
        result.outcome = CheckOutcome::Found;
    }
    findings.extend(found);
    result.covered =
        format!("{}; once more, as the test for {}: {}", result.covered, first.id, again.covered);
    result.seconds += again.seconds;
    result.cost = result.cost.plus(again.cost);
}

fn run(
    check: &dyn Check,
    examination: &mut Examination<'_>,
    has_checkpoint: bool,
) -> (CheckResult, Vec<Finding>) {
    let id = check.id();
    let clock = Instant::now();
    let result = |outcome, covered: String, reason| CheckResult {
        id: id.to_owned(),
        outcome,
        covered,
        reason,
        seconds: clock.elapsed().as_secs_f64(),
        cost: Cost::default(),
    };
    let has = |section: &dyn Fn(&MachineEvidence) -> bool| {
        examination.subject.machine.as_ref().is_some_and(section)
    };
    let unless = |there: bool, reason: &'static str| (!there).then_some(reason);
    let missing = check.needs().iter().find_map(|need| match need {
        Need::Address if examination.subject.endpoint.is_none() => Some("no endpoint was given"),
        Need::Server if examination.subject.endpoint.is_none() => Some("no endpoint was given"),
        Need::Server if examination.endpoint.is_none() => Some("no server answers at the endpoint"),
        Need::Checkpoint if !has_checkpoint => Some("no checkpoint was given"),
        Need::Checkpoint if examination.reference.is_none() => Some("the checkpoint can't be read"),
        Need::Reference if examination.subject.record.is_none() && !has_checkpoint => {
            Some("no checkpoint and no record was given")
        }
        Need::Reference if examination.subject.record.is_none() && examination.reference.is_none() => {
            Some("the checkpoint can't be read")
        }
        Need::Address | Need::Server | Need::Checkpoint | Need::Reference => None,
        Need::Environment => unless(
            has(&|machine| machine.environment.is_some()),
            "no Python environment was given (--env, --pid, --container)",
        ),
        Need::Logs => {
            unless(has(&|machine| machine.logs.is_some()), "no log was given (--log, --unit, --container)")
        }
        Need::Command => unless(
            has(&|machine| machine.serving.is_some()),
            "no serving command was given (--pid, --unit, --container, --service-file, --command)",
        ),
        Need::Patient => unless(
            has(&|machine| machine.patient.is_some()),
            "no process, container or unit was given (--pid, --container, --unit)",
        ),
        Need::Host => unless(
            has(&|machine| machine.gpu.is_some() || machine.memory.is_some()),
            "no machine was given (--host local, --pid, --unit)",
        ),
        Need::CheckpointFiles => unless(
            has(&|machine| machine.checkpoint.is_some()),
            "no checkpoint's files were given (--checkpoint)",
        ),
    });
    if let Some(missing) = missing {
        return (
            result(CheckOutcome::Skipped, check.covers().to_owned(), Some(missing.to_owned())),
            Vec::new(),
        );
    }
    examination.check = id;
    let before = examination.evidence.cost;
    (examination.progress)(Progress::Started { check: id });
    // A check that breaks down is a result; what it has gathered until then stays.
    let ended = catch_unwind(AssertUnwindSafe(|| check.run(examination)));
    let (mut outcome, findings) = match ended {
        Ok(Ok(Examined { findings, covered })) => {
            let found = findings.iter().any(|finding| finding.severity > Severity::Info);
            (result(if found { CheckOutcome::Found } else { CheckOutcome::Passed }, covered, None), findings)
        }
        Ok(Err(Skip(reason))) => {
            (result(CheckOutcome::Skipped, check.covers().to_owned(), Some(reason)), Vec::new())
        }
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            let reason = format!(
                "the check itself broke down: {}. Please report it",
                text.unwrap_or_else(|| "no message".to_owned())
            );
            (result(CheckOutcome::Crashed, check.covers().to_owned(), Some(reason)), Vec::new())
        }
    };
    outcome.cost = examination.evidence.cost.since(before);
    (examination.progress)(Progress::Finished { check: id, outcome: outcome.outcome });
    (outcome, findings)
}

fn assemble(
    started: SystemTime,
    clock: Instant,
    subject: SubjectSummary,
    evidence: Evidence,
    mut findings: Vec<Finding>,
    checks: Vec<CheckResult>,
    symptom: Option<Symptom>,
) -> Report {
    let verdict = verdict(&findings, &checks, &evidence.obstacles, subject.endpoint.is_some());
    let ranking = causes::rank(&findings, symptom);
    // Of those that are as severe, what speaks for the first cause comes first.
    let speaks = |finding: &Finding| {
        ranking.causes.first().is_some_and(|cause| cause.supported_by.contains(&finding.id))
    };
    findings.sort_by_key(|finding| std::cmp::Reverse((finding.severity, speaks(finding))));
    Report {
        schema: SCHEMA,
        lucid: env!("CARGO_PKG_VERSION").to_owned(),
        started: humantime::format_rfc3339_seconds(started).to_string(),
        seconds: clock.elapsed().as_secs_f64(),
        subject,
        verdict,
        obstacles: evidence.obstacles,
        causes: ranking.causes,
        something_else: ranking.something_else,
        findings,
        checks,
        cost: evidence.cost,
        ladder: evidence.ladder,
        divergence: evidence.divergence,
        probes: evidence.probes,
        timeline: evidence.timeline,
        exchanges: evidence.exchanges,
    }
}

/// Faulty if a check found an error in the subject; undecided if something stood in the way, or if nothing came to an end that
/// says something about what was asked: with a server, a check that looks at the model's output; without one, any check.
fn verdict(findings: &[Finding], checks: &[CheckResult], obstacles: &[String], has_server: bool) -> Verdict {
    let error = findings
        .iter()
        .any(|finding| finding.severity == Severity::Error && finding.check != "endpoint.liveness");
    let decisive = |check: &CheckResult| {
        let asks = matches!(check.id.as_str(), "endpoint.ladder" | "reference.logprobs");
        (asks || !has_server) && matches!(check.outcome, CheckOutcome::Passed | CheckOutcome::Found)
    };
    if error {
        Verdict::Faulty
    } else if !obstacles.is_empty() || !checks.iter().any(decisive) {
        Verdict::Undecided
    } else {
        Verdict::Healthy
    }
}
