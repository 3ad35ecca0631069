//! `logs.timeline`: where the time went, what came back again and again, what grew.

mod runs;
mod start;
mod trends;

use lucid_findings::{Deployment, Examined, Skip};

use super::readable;
use crate::evidence::LogEvidence;
use crate::moment::spoken;

pub(crate) use trends::growth;

const CHECK: &str = "logs.timeline";

/// Reads the time line.
///
/// # Errors
///
/// Skips if no line could be read, or if no line tells of a phase or a time.
pub fn timeline(evidence: &LogEvidence, _deployment: &Deployment) -> Result<Examined, Skip> {
    readable(evidence)?;
    let timeline = &evidence.timeline;
    if timeline.phases.is_empty() && evidence.sources.iter().all(|source| source.first.is_none()) {
        return Err(Skip(
            "no line tells of a phase or has a time; give the engine's whole log, from its start".to_owned(),
        ));
    }
    let mut findings = Vec::new();
    findings.extend(start::starts(evidence));
    findings.extend(start::slow_load(evidence));
    findings.extend(start::slow_rank(evidence));
    findings.extend(start::loaded_twice(evidence));
    findings.extend(start::still_starting(evidence));
    findings.extend(runs::killed(evidence));
    findings.extend(runs::restarts(evidence));
    findings.extend(runs::vanished(evidence));
    findings.extend(runs::stall(evidence));
    findings.extend(start::silence(evidence));
    findings.extend(trends::memory(evidence));
    findings.extend(trends::drafts(evidence));
    let span = evidence
        .sources
        .iter()
        .filter_map(|source| source.first)
        .min()
        .zip(evidence.sources.iter().filter_map(|source| source.last).max());
    let covered = format!(
        "{} phases in {} runs{}",
        timeline.phases.len(),
        timeline.runs.len(),
        span.map_or_else(
            || ", no times".to_owned(),
            |(first, last)| format!(" over {}, {first} to {last}", spoken(last.seconds_since(first)))
        )
    );
    Ok(Examined { findings, covered })
}
