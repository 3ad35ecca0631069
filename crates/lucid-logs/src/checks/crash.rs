//! `logs.crash`: the exception that a crash follows from, not the last line.

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::signatures::filled;
use super::{readable, thousands};
use crate::evidence::LogEvidence;
use crate::first_cause::of_run;
use crate::knowledge::knowledge;
use crate::timeline::{PhaseKind, Run, RunEnd};
use crate::traceback::{Frame, Role, Traceback};

const CHECK: &str = "logs.crash";

/// Finds the first cause of each crash.
///
/// # Errors
///
/// Skips if no line could be read.
pub fn crash(evidence: &LogEvidence, _deployment: &Deployment) -> Result<Examined, Skip> {
    readable(evidence)?;
    let mut findings = Vec::new();
    // A service that is restarted dies of the same thing again and again: one finding.
    let mut reasons: Vec<(String, Vec<&Run>, Vec<&Traceback>)> = Vec::new();
    for run in &evidence.timeline.runs {
        let tracebacks = of_run(evidence, run);
        match tracebacks.first().filter(|traceback| traceback.role == Role::Original) {
            Some(first) => {
                let text = first.root().map(crate::Part::text).unwrap_or_default();
                match reasons.iter_mut().find(|(known, _, _)| *known == text) {
                    Some((_, runs, _)) => runs.push(run),
                    None => reasons.push((text, vec![run], tracebacks)),
                }
            }
            None if run.end == RunEnd::Crashed && !explained(evidence, run) => {
                findings.push(without_reason(evidence, run, &tracebacks));
            }
            None => {}
        }
    }
    findings.extend(reasons.iter().map(|(_, runs, tracebacks)| first_cause(evidence, runs, tracebacks)));
    findings.extend(debug_code(evidence));
    findings.extend(request_errors(evidence));
    let crashed = evidence.timeline.runs.iter().any(|run| run.end == RunEnd::Crashed);
    let served = evidence.timeline.runs.iter().any(|run| run.served);
    if served && !crashed {
        findings.push(
            Finding::new(CHECK, "none", Severity::Info, "The service came up, and the log has no crash")
                .detail("Its packages could be imported and its weights loaded; whether its answers are right is another matter.")
                .suggests("startup-killed", -1.5)
                .suggests("out-of-memory", -1.0)
                .suggests("package-version-skew", -1.0),
        );
    }
    let lines: u64 = evidence.tracebacks.iter().map(|traceback| traceback.count).sum();
    let covered = format!(
        "{} tracebacks of {} kinds in {} runs, joined by process",
        thousands(lines),
        evidence.tracebacks.len(),
        evidence.timeline.runs.len()
    );
    Ok(Examined { findings, covered })
}

/// Whether a known line already says why a run died.
fn explained(evidence: &LogEvidence, run: &Run) -> bool {
    evidence.hits.iter().filter(|hit| hit.run == run.number).any(|hit| {
        knowledge().signature(&hit.signature).is_some_and(|known| {
            let severity =
                known.meaning_in(hit.phase, hit.count).map_or(known.severity, |when| when.severity);
            severity == Severity::Error && !known.echo
        })
    })
}

fn first_cause(evidence: &LogEvidence, runs: &[&Run], tracebacks: &[&Traceback]) -> Finding {
    let first = tracebacks[0];
    let root = first.root();
    let text = root.map(crate::Part::text).unwrap_or_default();
    let place = root.and_then(|part| part.frames.last());
    let head: String = text.lines().next().unwrap_or("").chars().take(240).collect();
    let mut title = match place {
        Some(frame) => {
            format!("Died of {head} (in {}, {}:{})", frame.function, frame.short_file(), frame.line)
        }
        None => format!("Died of {head}"),
    };
    if runs.len() > 1 {
        title.push_str(&format!(", {} times", runs.len()));
    }
    let phase = runs.first().and_then(|run| run.reached);
    let mut detail = match phase {
        Some(phase) => format!("It was in phase {phase}. "),
        None => "It died before it said anything about itself. ".to_owned(),
    };
    let others = tracebacks.len() - 1 + first.parts.len().saturating_sub(first.root + 1);
    if others > 0 {
        detail.push_str(&format!("{others} later exceptions only follow from it. "));
    }
    if first.count > 1 {
        detail.push_str(&format!("{} processes raised it. ", first.count));
    }
    let known = knowledge().matching(&text).find(|known| known.severity > Severity::Info);
    let mut finding = Finding::new(CHECK, "first-cause", Severity::Error, title);
    finding = finding.proof(ProofKind::Log, evidence.describe(&first.first), text.clone());
    for frame in root.into_iter().flat_map(|part| part.frames.iter().rev().take(3)) {
        finding = finding.proof(
            ProofKind::File,
            format!("{}:{}", frame.file, frame.line),
            format!("in {}: {}", frame.function, frame.code),
        );
    }
    match known {
        Some(known) => {
            // The known line itself speaks for the cause in `logs.signatures`: said once, not twice.
            detail.push_str(&format!("Known: {}.", known.meaning));
            let regex =
                knowledge().signatures.iter().find(|(other, _)| other.id == known.id).map(|(_, regex)| regex);
            let commands = known
                .commands
                .iter()
                .map(|command| regex.map_or_else(|| command.clone(), |regex| filled(command, regex, &text)))
                .collect();
            finding = finding.remedy(known.remedy.clone(), commands);
        }
        None => {
            let (suggestions, why) = suspects(&text, root.map_or(&[][..], |part| &part.frames), phase);
            detail.push_str(why);
            for (cause, weight) in suggestions {
                finding = finding.suggests(*cause, *weight);
            }
            let package = place.map(|frame| frame.short_file().split('/').next().unwrap_or("").to_owned());
            finding = finding.confidence(0.7).remedy(
                "Start from this exception, not from the last line of the log.",
                vec![match package
                    .filter(|package| package.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
                {
                    Some(package) if !package.is_empty() => {
                        format!("lucid doctor --env VENV  # and look at {package}")
                    }
                    _ => "lucid doctor --env VENV".to_owned(),
                }],
            );
        }
    }
    finding.detail(detail.trim_end())
}

/// What an unknown exception hints at.
fn suspects(
    text: &str,
    frames: &[Frame],
    phase: Option<PhaseKind>,
) -> (&'static [(&'static str, f64)], &'static str) {
    let kind = text.split(':').next().unwrap_or("");
    let starting = phase.is_none_or(PhaseKind::is_starting);
    let interface = text.contains("unexpected keyword argument")
        || text.contains("positional argument")
        || text.contains("has no attribute")
        || text.contains("cannot import name");
    if kind.ends_with("ImportError") || kind.ends_with("ModuleNotFoundError") {
        return (
            &[("package-version-skew", 2.5), ("modified-package-files", 0.5)],
            "An import failed: packages don't fit.",
        );
    }
    if kind.ends_with("SyntaxError") || kind.ends_with("IndentationError") {
        return (&[("modified-package-files", 4.0)], "A package's file is no valid Python: it was edited.");
    }
    if interface && starting && frames.len() > 1 {
        return (
            &[("package-version-skew", 1.5), ("modified-package-files", 1.0)],
            "Code calls what the other side doesn't have: packages of different versions, or an edited file.",
        );
    }
    if kind.ends_with("MemoryError") || text.contains("out of memory") {
        return (&[("out-of-memory", 3.0)], "Memory ran out.");
    }
    (&[], "No signature knows it.")
}

fn without_reason(evidence: &LogEvidence, run: &Run, tracebacks: &[&Traceback]) -> Finding {
    let place = run.ended_at.as_ref().unwrap_or(&run.last);
    let only = tracebacks.first().and_then(|traceback| traceback.root()).map(crate::Part::text);
    let detail = match &only {
        Some(text) => format!("The log only has what follows from it: {text}"),
        None => "No exception stands before its end.".to_owned(),
    };
    Finding::new(CHECK, "without-reason", Severity::Warning, "The service died, and this log doesn't hold the reason")
        .detail(format!(
            "{detail}. Look for the first error of the worker processes, and for what the kernel says; a process that is killed \
             from outside writes nothing."
        ))
        .proof(ProofKind::Log, evidence.describe(place), only.unwrap_or_default())
        .remedy(
            "Read the kernel's log and the other ranks' logs of that minute.",
            vec![
                "sudo dmesg -T | grep -i -e xid -e 'killed process' -e segfault".to_owned(),
                "lucid doctor --log RANK0.log --log RANK1.log --unit kernel".to_owned(),
            ],
        )
        .suggests("out-of-memory", 0.5)
        .suggests("gpu-hardware", 0.5)
}

/// Code that nobody leaves in a model's file on purpose.
fn debug_code(evidence: &LogEvidence) -> Option<Finding> {
    const WRITES: [&str; 7] =
        ["torch.save(", ".save(", "pickle.dump(", "np.save", "breakpoint()", "set_trace(", ".tofile("];
    const PLACES: [&str; 5] = ["/model_executor/", "/models/", "/layers/", "/attention/", "/model_runner"];
    let (traceback, frame) = evidence.tracebacks.iter().find_map(|traceback| {
        let frames = traceback.parts.iter().flat_map(|part| &part.frames);
        let mut ours = frames.filter(|frame| {
            PLACES.iter().any(|place| frame.file.contains(place))
                && frame.file.contains("-packages/")
                && WRITES.iter().any(|write| frame.code.contains(write))
        });
        ours.next().map(|frame| (traceback, frame))
    })?;
    Some(
        Finding::new(
            CHECK,
            "debug-code-in-stack",
            Severity::Error,
            format!("A stack passes through debugging code in {}:{}", frame.short_file(), frame.line),
        )
        .detail(format!(
            "`{}` in {}: a model's own code saves nothing and stops nowhere.",
            frame.code, frame.function
        ))
        .proof(ProofKind::File, format!("{}:{}", frame.file, frame.line), frame.code.clone())
        .proof(ProofKind::Log, evidence.describe(&traceback.first), "the traceback")
        .remedy(
            "Put the package's own file back.",
            vec![
                "lucid doctor --env VENV".to_owned(),
                "uv pip install --reinstall --no-deps vllm".to_owned(),
            ],
        )
        .suggests("leftover-debug-code", 5.0),
    )
}

/// Exceptions while serving that the service survived.
fn request_errors(evidence: &LogEvidence) -> Option<Finding> {
    let survived: Vec<&Traceback> = evidence
        .tracebacks
        .iter()
        .filter(|traceback| traceback.phase == Some(PhaseKind::Serve) && traceback.role == Role::Original)
        .filter(|traceback| {
            evidence.timeline.runs.iter().any(|run| {
                run.number == traceback.run && matches!(run.end, RunEnd::Serving | RunEnd::Stopped)
            })
        })
        .collect();
    let worst = survived.iter().max_by_key(|traceback| traceback.count)?;
    let count: u64 = survived.iter().map(|traceback| traceback.count).sum();
    let text = worst.root().map(crate::Part::text).unwrap_or_default();
    let head: String = text.lines().next().unwrap_or("").chars().take(160).collect();
    Some(
        Finding::new(
            CHECK,
            "request-errors",
            Severity::Warning,
            format!("{} exceptions while serving, most often {head}", thousands(count)),
        )
        .detail("The service lived on: requests were answered with an error.")
        .proof(ProofKind::Log, evidence.describe(&worst.first), text)
        .active(None)
        .remedy(
            "Send such a request by itself and read the answer.",
            vec!["lucid doctor --endpoint http://HOST:8000".to_owned()],
        ),
    )
}
