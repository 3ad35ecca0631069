//! How runs ended, and where they hung.

use lucid_findings::{Finding, ProofKind, Severity};

use super::CHECK;
use crate::evidence::LogEvidence;
use crate::moment::spoken;
use crate::timeline::{PhaseKind, Run, RunEnd};

pub(super) fn killed(evidence: &LogEvidence) -> Option<Finding> {
    let killed: Vec<&Run> =
        evidence.timeline.runs.iter().filter(|run| run.end == RunEnd::StoppedStarting).collect();
    let run = *killed.last()?;
    let place = run.ended_at.as_ref().unwrap_or(&run.last);
    let after = run.first.time.zip(place.time).map(|(first, end)| spoken(end.seconds_since(first)));
    let phase = run.reached.map_or_else(|| "its start".to_owned(), |phase| format!("phase {phase}"));
    let again = killed.len() > 1;
    let mut title = format!("It was told to stop in {phase}, before it had served");
    if let Some(after) = &after {
        title.push_str(&format!(", after {after}"));
    }
    if again {
        title.push_str(&format!(" ({} times)", killed.len()));
    }
    Some(
        Finding::new(CHECK, "killed-while-starting", if again { Severity::Error } else { Severity::Warning }, title)
            .detail("No error of its own stands before it: a time-out, a probe, an orchestrator or a person stopped it. Equal durations in several starts are a time-out's.")
            .proof(ProofKind::Log, evidence.describe(place), "told to stop")
            .remedy("Find who stops it, and give the start the time that it needs.", vec![
                "systemctl show UNIT -p TimeoutStartUSec -p WatchdogUSec".to_owned(),
                "kubectl describe pod POD | grep -i -A3 -e liveness -e startup -e killing".to_owned(),
                "sudo systemctl edit UNIT  # [Service] TimeoutStartSec=infinity".to_owned(),
            ])
            .suggests("startup-killed", if again { 5.0 } else { 3.0 })
            .suggests("slow-start-benign", -1.0),
    )
}

pub(super) fn restarts(evidence: &LogEvidence) -> Option<Finding> {
    let counter = evidence
        .series
        .get("restart-counter")
        .map_or(0.0, |series| series.samples.iter().map(|sample| sample.value).fold(0.0, f64::max));
    // A restart after an orderly stop is somebody's wish.
    let runs = &evidence.timeline.runs;
    let before = &runs[..runs.len().saturating_sub(1)];
    let unplanned = before.iter().filter(|run| run.end != RunEnd::Stopped).count();
    let count = (unplanned as f64).max(counter);
    if count < 2.0 {
        return None;
    }
    let ends = |end: RunEnd| evidence.timeline.runs.iter().filter(|run| run.end == end).count();
    let served = evidence.timeline.runs.iter().filter(|run| run.served).count();
    Some(
        Finding::new(CHECK, "restarts", Severity::Warning, format!("The service was started again {count:.0} times"))
            .detail(format!(
                "Of {} runs in this log {served} ever served; {} crashed, {} were stopped while starting, {} ended without a word.",
                evidence.timeline.runs.len(),
                ends(RunEnd::Crashed),
                ends(RunEnd::StoppedStarting),
                ends(RunEnd::Vanished)
            ))
            .proof(ProofKind::Number, "restarts", format!("{count:.0}"))
            .remedy("Look at the first run's first error; stop the restarts while you do.", vec![
                "sudo systemctl stop UNIT".to_owned(),
                "journalctl -u UNIT -o short-iso | head -300".to_owned(),
            ]),
    )
}

pub(super) fn vanished(evidence: &LogEvidence) -> Option<Finding> {
    let runs: Vec<&Run> = evidence.timeline.runs.iter().filter(|run| run.end == RunEnd::Vanished).collect();
    let run = *runs.last()?;
    // A run that only shows its first lines belongs to a log that was cut.
    let reached = run.reached?;
    let finding = Finding::new(
        CHECK,
        "vanished",
        Severity::Warning,
        format!("A run ends in phase {reached} without a word, and the next begins"),
    )
    .detail("Killed from outside with a signal that can't be caught: the OOM killer, a container limit, a probe that lost patience, a reboot. The log of the process itself can't tell which.")
    .proof(ProofKind::Log, evidence.describe(&run.last), "its last line")
    .remedy("Ask the kernel and the orchestrator.", vec![
        "journalctl -k --since '2 days ago' | grep -i -e 'killed process' -e xid".to_owned(),
        "kubectl describe pod POD | grep -A6 'Last State'".to_owned(),
        "last -x reboot | head".to_owned(),
    ])
    .suggests("out-of-memory", 1.0);
    Some(if run.served { finding } else { finding.suggests("startup-killed", 1.5) })
}

pub(super) fn stall(evidence: &LogEvidence) -> Option<Finding> {
    let stalls =
        evidence.timeline.gaps.iter().filter(|gap| {
            gap.phase == Some(PhaseKind::Serve) && gap.running.is_some_and(|running| running > 0)
        });
    let gap = stalls.max_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    Some(
        Finding::new(
            CHECK,
            "stall",
            Severity::Warning,
            format!(
                "{} without a line while {} requests were running",
                spoken(gap.seconds),
                gap.running.unwrap_or(0)
            ),
        )
        .detail("Engines print their throughput every few seconds while they work.")
        .proof(ProofKind::Log, evidence.describe(&gap.before), gap.text.clone())
        .remedy(
            "Next time dump the stacks of all ranks before restarting.",
            vec![
                "for p in $(pgrep -f 'EngineCore|Worker_|sglang::'); do py-spy dump --pid $p; done"
                    .to_owned(),
                "sudo dmesg -T | grep -i xid".to_owned(),
            ],
        )
        .suggests("collectives", 2.0),
    )
}
