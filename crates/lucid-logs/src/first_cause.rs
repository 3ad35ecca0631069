//! Which exception the others follow from.

use crate::evidence::LogEvidence;
use crate::knowledge::Knowledge;
use crate::timeline::{PhaseKind, Run, RunEnd};
use crate::traceback::{Link, Part, Role, Traceback};

/// Exceptions that code raises to find its way; a second one raised while handling them is the news.
const ROUTINE: [&str; 9] = [
    "KeyError",
    "AttributeError",
    "IndexError",
    "StopIteration",
    "ModuleNotFoundError",
    "LookupError",
    "Empty",
    "CancelledError",
    "FileNotFoundError",
];

/// The part of a chain that the others follow from, and its role.
pub(crate) fn root(parts: &[Part], knowledge: &Knowledge) -> (usize, Role) {
    let role = |index: usize| knowledge.role(&parts[index].text());
    // Chains are printed oldest first; a part without a link begins a chain of its own (another process's).
    let mut start = 0;
    for (index, part) in parts.iter().enumerate() {
        if part.link == Link::None && index > 0 && role(start) == Role::Original {
            break;
        }
        if part.link == Link::None {
            start = index;
        }
    }
    let mut root = start;
    while let Some(next) = parts.get(root + 1) {
        let name = parts[root].exception.rsplit('.').next().unwrap_or("");
        let cut = parts[root].exception.is_empty();
        let routine = next.link == Link::DuringHandling && ROUTINE.contains(&name);
        let echo =
            next.link != Link::None && role(root) != Role::Original && role(root + 1) == Role::Original;
        if !(cut || routine || echo) {
            break;
        }
        root += 1;
    }
    if parts.is_empty() { (0, Role::Original) } else { (root, role(root)) }
}

/// Seconds before a crash in which its reason is looked for: a watchdog or a collective waits up to 10 minutes for a
/// rank that died.
const WINDOW: f64 = 900.0;

/// The tracebacks that belong to the end of a run, the reason first: originals before echoes before wrappers, in each the
/// earliest first.
pub(crate) fn of_run<'a>(evidence: &'a LogEvidence, run: &Run) -> Vec<&'a Traceback> {
    if !matches!(run.end, RunEnd::Crashed | RunEnd::Vanished) {
        return Vec::new();
    }
    let mut found: Vec<&Traceback> = evidence
        .tracebacks
        .iter()
        .filter(|traceback| traceback.run == run.number && traceback.phase != Some(PhaseKind::Shutdown))
        .filter(|traceback| {
            !run.served || traceback.phase == Some(PhaseKind::Serve) || traceback.phase.is_none()
        })
        .filter(|traceback| {
            let end = run.ended_at.as_ref().unwrap_or(&run.last);
            match (traceback.last.time, end.time) {
                // A request's own error long before the crash is not its reason.
                (Some(time), Some(end)) => !run.served || end.seconds_since(time) <= WINDOW,
                _ => {
                    !run.served
                        || traceback.last.source != end.source
                        || traceback.last.line + 5_000 > end.line
                }
            }
        })
        .collect();
    found.sort_by_key(|traceback| {
        let order = match traceback.role {
            Role::Original => 0,
            Role::Echo => 1,
            Role::Wrapper => 2,
        };
        (
            order,
            traceback.first.time.filter(|_| evidence.sources.len() > 1),
            traceback.first.source,
            traceback.first.line,
        )
    });
    found
}
