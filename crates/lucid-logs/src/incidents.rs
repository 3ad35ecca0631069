//! What stands out on the time line.

use lucid_findings::Severity;

use crate::evidence::Hit;
use crate::knowledge::Knowledge;
use crate::timeline::{Incident, RunEnd, Timeline};
use crate::traceback::{Role, Traceback};

/// The last run died if nothing followed its last traceback.
pub(crate) fn end_in_traceback(timeline: &mut Timeline, tracebacks: &[Traceback]) {
    let Some(run) = timeline.runs.last_mut() else { return };
    if run.end != RunEnd::Starting {
        return;
    }
    if let Some(traceback) = tracebacks.iter().rev().find(|traceback| traceback.run == run.number)
        && traceback.last.source == run.last.source
        && run.last.line <= traceback.last.line + 50
    {
        run.end = RunEnd::Crashed;
        run.ended_at = Some(traceback.last.clone());
    }
}

/// Adds known faults and exceptions, in order.
pub(crate) fn incidents(
    timeline: &mut Timeline,
    hits: &[Hit],
    tracebacks: &[Traceback],
    knowledge: &Knowledge,
) {
    let known = hits.iter().filter_map(|hit| {
        let signature = knowledge.signature(&hit.signature)?;
        let (severity, meaning) = match signature.meaning_in(hit.phase, hit.count) {
            Some(when) => (when.severity, &when.meaning),
            None => (signature.severity, &signature.meaning),
        };
        (severity > Severity::Info).then(|| Incident {
            place: hit.first.clone(),
            run: hit.run,
            phase: hit.phase,
            severity,
            title: meaning.clone(),
            count: hit.count,
        })
    });
    let raised =
        tracebacks.iter().filter(|traceback| traceback.role == Role::Original).filter_map(|traceback| {
            Some(Incident {
                place: traceback.first.clone(),
                run: traceback.run,
                phase: traceback.phase,
                severity: Severity::Warning,
                title: traceback.root()?.text().chars().take(200).collect(),
                count: traceback.count,
            })
        });
    let mut all: Vec<Incident> = known.chain(raised).collect();
    all.sort_by_key(|incident| {
        (incident.run, incident.place.time, incident.place.source, incident.place.line)
    });
    timeline.left_out += all.len().saturating_sub(Timeline::MOST) as u64;
    all.truncate(Timeline::MOST);
    timeline.incidents = all;
}
