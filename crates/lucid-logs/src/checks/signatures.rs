//! `logs.signatures`: known lines, and what they mean in the phase in which they came.

use std::collections::BTreeMap;

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::{readable, size, thousands};
use crate::evidence::{Hit, LogEvidence, Place};
use crate::knowledge::{Knowledge, Signature, knowledge};
use crate::timeline::PhaseKind;
use crate::traceback::Role;

const CHECK: &str = "logs.signatures";
/// Seconds after a fault in which its echoes come.
const ECHO_WINDOW: f64 = 900.0;

/// Reads known lines.
///
/// # Errors
///
/// Skips if no line could be read.
pub fn signatures(evidence: &LogEvidence, _deployment: &Deployment) -> Result<Examined, Skip> {
    readable(evidence)?;
    let knowledge = knowledge();
    // One finding for each signature and meaning: the same line while loading and while serving are two findings.
    let mut groups: BTreeMap<(usize, Option<usize>, Standing), Vec<&Hit>> = BTreeMap::new();
    for hit in &evidence.hits {
        let Some(index) = knowledge.signatures.iter().position(|(known, _)| known.id == hit.signature) else {
            // Evidence from another version that knows more lines.
            continue;
        };
        let signature = &knowledge.signatures[index].0;
        let count = evidence
            .hits
            .iter()
            .filter(|other| {
                other.signature == hit.signature && other.run == hit.run && other.phase == hit.phase
            })
            .map(|other| other.count)
            .sum();
        let meaning = signature.meaning_in(hit.phase, count);
        let when =
            meaning.and_then(|meaning| signature.when.iter().position(|when| std::ptr::eq(when, meaning)));
        let silenced = (when.is_none() && stopping(signature, hit))
            || (signature.echo && follows(evidence, knowledge, signature, hit));
        let standing = if silenced {
            Standing::Follows
        } else if survived(evidence, signature, hit) {
            Standing::Survived
        } else {
            Standing::Own
        };
        groups.entry((index, when, standing)).or_default().push(hit);
    }
    let mut findings: Vec<Finding> = groups
        .into_iter()
        .map(|((index, when, standing), hits)| {
            finding(evidence, &knowledge.signatures[index], when, standing, &hits)
        })
        .collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let known: u64 = evidence.hits.iter().map(|hit| hit.count).sum();
    let alarming = findings.iter().any(|finding| finding.severity > Severity::Info);
    if !alarming {
        let odd = evidence.unknown.iter().filter(|line| line.level == "error").count();
        findings.push(
            Finding::new(CHECK, "clean", Severity::Info, "No line of the log has a meaning that accuses anything")
                .detail(format!(
                    "{} lines were compared with {} known ones. A fault that only changes numbers writes no line: this \
                     clears nothing but what engines complain about. {odd} kinds of unknown error lines are in the evidence.",
                    thousands(evidence.lines()),
                    knowledge.signatures.len()
                ))
                .active(None),
        );
    }
    let unread: Vec<&str> = evidence.sources.iter().filter_map(|source| source.error.as_deref()).collect();
    let mut covered = format!(
        "{} lines ({}) of {} against {} known lines: {} came, {} of them notable",
        thousands(evidence.lines()),
        size(evidence.bytes()),
        match evidence.sources.len() {
            1 => "one source".to_owned(),
            count => format!("{count} sources"),
        },
        knowledge.signatures.len(),
        thousands(known),
        findings.iter().filter(|finding| finding.severity > Severity::Info).count(),
    );
    if !unread.is_empty() {
        covered.push_str(&format!("; not read: {}", unread.join("; ")));
    }
    Ok(Examined { findings, covered })
}

/// What a known line is to its run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// It tells of itself.
    Own,
    /// It only follows from another fault, or from being told to stop.
    Follows,
    /// It came while starting, and the service came up all the same.
    Survived,
}

/// Whether the service came up in spite of a line that mostly ends a start.
fn survived(evidence: &LogEvidence, signature: &Signature, hit: &Hit) -> bool {
    let starting = hit.phase.is_some_and(PhaseKind::is_starting);
    let served = || evidence.timeline.runs.iter().any(|run| run.number == hit.run && run.served);
    starting && !outside(signature) && served()
}

/// Whether something outside the service wrote the line: the kernel, systemd, Kubernetes.
fn outside(signature: &Signature) -> bool {
    signature.engines.iter().any(|engine| matches!(engine.as_str(), "kernel" | "systemd" | "kubernetes"))
}

/// Whether a line came while the service was told to stop: engines complain a lot then.
fn stopping(signature: &Signature, hit: &Hit) -> bool {
    hit.phase == Some(PhaseKind::Shutdown) && !outside(signature)
}

/// Whether a fault of its own came before this echo.
fn follows(evidence: &LogEvidence, knowledge: &Knowledge, signature: &Signature, hit: &Hit) -> bool {
    let by_line = evidence.hits.iter().any(|other| {
        let Some(known) = knowledge.signature(&other.signature) else { return false };
        let severity =
            known.meaning_in(other.phase, other.count).map_or(known.severity, |when| when.severity);
        other.run == hit.run
            && !known.echo
            && severity == Severity::Error
            && other.signature != hit.signature
            && near(&other.first, &hit.first)
    });
    by_line
        || evidence.tracebacks.iter().any(|traceback| {
            traceback.run == hit.run
                && traceback.role == Role::Original
                && near(&traceback.first, &hit.first)
                && traceback.root().is_some_and(|root| {
                    !knowledge.matching(&root.text()).any(|known| known.id == signature.id)
                })
        })
}

/// Whether one place lies before the other, not too long.
fn near(earlier: &Place, later: &Place) -> bool {
    match (earlier.time, later.time) {
        (Some(a), Some(b)) if earlier.source != later.source => {
            (0.0..=ECHO_WINDOW).contains(&b.seconds_since(a))
        }
        (Some(a), Some(b)) => earlier.line <= later.line && b.seconds_since(a) <= ECHO_WINDOW,
        _ => earlier.source == later.source && earlier.line <= later.line,
    }
}

fn finding(
    evidence: &LogEvidence,
    (signature, regex): &(Signature, regex::bytes::Regex),
    when: Option<usize>,
    standing: Standing,
    hits: &[&Hit],
) -> Finding {
    let when = when.map(|index| &signature.when[index]);
    let silenced = standing == Standing::Follows;
    let written = when.map_or(signature.severity, |when| when.severity);
    // What mostly ends a start did not end this one: worth a look, no more.
    let survived = standing == Standing::Survived && written == Severity::Error;
    let severity = match written {
        _ if silenced => Severity::Info,
        _ if survived => Severity::Warning,
        written => written,
    };
    let meaning = when.map_or(signature.meaning.as_str(), |when| when.meaning.as_str());
    let count: u64 = hits.iter().map(|hit| hit.count).sum();
    let mut processes: Vec<&str> =
        hits.iter().flat_map(|hit| hit.processes.iter().map(String::as_str)).collect();
    processes.sort_unstable();
    processes.dedup();
    let phases: Vec<String> = {
        let mut phases: Vec<_> = hits.iter().map(|hit| hit.phase).collect();
        phases.dedup();
        phases
            .iter()
            .map(|phase| phase.map_or_else(|| "an unknown phase".to_owned(), |phase| phase.to_string()))
            .collect()
    };
    let mut title = meaning.to_owned();
    if count > 1 {
        title.push_str(&format!(" ({} times", thousands(count)));
        if processes.len() > 1 {
            title.push_str(&format!(", {} processes", processes.len()));
        }
        title.push(')');
    }
    let mut detail = format!("In {}", phases.join(", "));
    if !processes.is_empty() {
        detail.push_str(&format!(", written by {}", processes.join(", ")));
    }
    detail.push('.');
    if silenced {
        detail.push_str(" It only follows from what came before it.");
    }
    if survived {
        detail.push_str(" The service came up all the same.");
    }
    if let Some(path) = signature.active.filter(|_| severity > Severity::Info) {
        detail.push_str(if path { " The serving process itself wrote it." } else { "" });
    }
    detail.push_str(&format!(" Known from {}.", signature.source));
    let mut finding = Finding::new(CHECK, &signature.id, severity, title)
        .detail(detail)
        .active(if severity > Severity::Info { signature.active } else { None });
    if let Some(first) = hits.first() {
        finding = finding.proof(ProofKind::Log, evidence.describe(&first.first), first.text.clone());
        let last = hits.last().map_or(&first.last, |hit| &hit.last);
        if *last != first.first {
            finding = finding.proof(ProofKind::Log, evidence.describe(last), "the last of them");
        }
    }
    if !silenced {
        for (cause, weight) in when.map_or(&signature.suggests, |when| &when.suggests) {
            finding = finding.suggests(cause, if survived { weight / 2.0 } else { *weight });
        }
    }
    let remedy = when.and_then(|when| when.remedy.as_ref()).unwrap_or(&signature.remedy);
    let commands = when.and_then(|when| when.commands.as_ref()).unwrap_or(&signature.commands);
    let told = !remedy.is_empty() || !commands.is_empty();
    if told && !silenced {
        let text = hits.first().map_or("", |hit| hit.text.as_str());
        let commands = commands.iter().map(|command| filled(command, regex, text)).collect();
        finding = finding.remedy(remedy.clone(), commands);
    }
    finding
}

/// A command with the pattern's groups filled in.
pub(super) fn filled(command: &str, regex: &regex::bytes::Regex, text: &str) -> String {
    let Some(captures) = regex.captures(text.as_bytes()) else { return command.to_owned() };
    let mut command = command.to_owned();
    for name in regex.capture_names().flatten() {
        if let Some(value) = captures.name(name) {
            // What a log says goes into a command only if it is a plain word.
            let value = String::from_utf8_lossy(value.as_bytes());
            let plain =
                value.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '+'));
            if plain {
                command = command.replace(&format!("{{{name}}}"), &value);
            }
        }
    }
    command
}
