//! How long the start took, and with what.

use lucid_findings::{Finding, ProofKind, Severity};

use super::CHECK;
use crate::evidence::{LogEvidence, Place};
use crate::moment::spoken;
use crate::timeline::{PhaseKind, Run, RunEnd};

/// From here on a start is slow enough to be asked about.
const SLOW_START: f64 = 180.0;

/// `load 11 min (84 %), compile 60 s (8 %)`
fn breakdown(evidence: &LogEvidence, run: &Run) -> String {
    let mut parts: Vec<(PhaseKind, f64)> = Vec::new();
    for phase in evidence.timeline.phases_of(run.number).filter(|phase| phase.kind.is_starting()) {
        let seconds = phase.seconds().unwrap_or(0.0);
        match parts.iter_mut().find(|(kind, _)| *kind == phase.kind) {
            Some((_, sum)) => *sum += seconds,
            None => parts.push((phase.kind, seconds)),
        }
    }
    let total: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
    parts.retain(|(_, seconds)| *seconds >= 0.5);
    let shown = parts.iter().map(|(kind, seconds)| {
        format!("{kind} {} ({:.0} %)", spoken(*seconds), 100.0 * seconds / total.max(1.0))
    });
    shown.collect::<Vec<_>>().join(", ")
}

pub(super) fn starts(evidence: &LogEvidence) -> Option<Finding> {
    let run = evidence.timeline.runs.iter().rev().find(|run| run.served)?;
    let seconds = run.start_seconds()?;
    let parts = breakdown(evidence, run);
    let text = format!("The start took {}: {parts}", spoken(seconds));
    let place = evidence.describe(&run.first);
    if seconds < SLOW_START {
        return Some(
            Finding::new(CHECK, "start", Severity::Info, text)
                .proof(ProofKind::Log, place, "the first line")
                .active(None),
        );
    }
    Some(
        Finding::new(CHECK, "slow-start", Severity::Info, text)
            .detail("It ended well: waiting is all that it needed. A time-out or a probe must allow for it.")
            .proof(ProofKind::Log, place, "the first line")
            .active(None)
            .remedy(
                "Give unit and probes at least twice this time.",
                vec![format!(
                    "sudo systemctl edit UNIT  # [Service] TimeoutStartSec={:.0}",
                    (2.0 * seconds / 60.0).ceil() * 60.0
                )],
            )
            .suggests("slow-start-benign", if seconds >= 600.0 { 3.0 } else { 2.0 })
            .suggests("startup-killed", -1.0),
    )
}

pub(super) fn slow_load(evidence: &LogEvidence) -> Option<Finding> {
    let run = evidence.timeline.runs.last()?.number;
    let of = |what: &'static str| {
        evidence.timeline.measures.iter().filter(move |measure| measure.what == what && measure.run == run)
    };
    let slowest =
        of("weights").max_by(|a, b| a.seconds.unwrap_or(0.0).total_cmp(&b.seconds.unwrap_or(0.0)))?;
    let seconds = slowest.seconds?;
    let gib = of("checkpoint").find_map(|measure| measure.gib)?;
    let rate = gib / seconds;
    if seconds < 120.0 || rate > 0.5 {
        return None;
    }
    let filesystem = evidence.facts.get("filesystem").map_or("its file system", |fact| fact.value.as_str());
    Some(
        Finding::new(
            CHECK,
            "slow-load",
            if rate < 0.1 { Severity::Warning } else { Severity::Info },
            format!("Weights came at {rate:.2} GiB/s: {gib:.0} GiB in {} from {filesystem}", spoken(seconds)),
        )
        .detail("A local NVMe disk gives 3 to 7 GiB/s. It delays the start and changes no answer.")
        .proof(ProofKind::Log, evidence.describe(&slowest.place), format!("Loading weights took {seconds} seconds"))
        .active(None)
        .remedy("Measure the disk; copy the checkpoint to a local one, or prefetch it.", vec![
            "dd if=CHECKPOINT/model-00001-of-00064.safetensors of=/dev/null bs=16M iflag=direct status=progress".to_owned(),
            "vllm serve MODEL --safetensors-load-strategy prefetch".to_owned(),
        ])
        .suggests("slow-start-benign", 1.5),
    )
}

/// A draft model that is the whole model again.
pub(super) fn loaded_twice(evidence: &LogEvidence) -> Option<Finding> {
    let loads = || evidence.timeline.measures.iter().filter(|measure| measure.what == "weights");
    let (first, again) = loads().enumerate().find_map(|(index, first)| {
        let size = first.gib.filter(|size| *size > 10.0)?;
        let again = loads().skip(index + 1).find(|again| {
            again.run == first.run
                && again.place.process == first.place.process
                // Two servers' logs, or a restart that the log doesn't announce, are no draft.
                && again.place.source == first.place.source
                && !served_between(evidence, &first.place, &again.place)
                && again.gib.is_some_and(|other| (other - size).abs() < 0.05 * size)
        });
        Some((first, again?))
    })?;
    let size = first.gib?;
    Some(
        Finding::new(
            CHECK,
            "loaded-twice",
            Severity::Error,
            format!("{} loaded {size:.0} GiB of weights twice", first.place.process),
        )
        .detail("A draft model is a small part of the model. The same size again is the whole model: speculation was set up from the target's own checkpoint in a mode that doesn't know its draft layer.")
        .proof(ProofKind::Log, evidence.describe(&first.place), format!("{size:.2} GiB"))
        .proof(ProofKind::Log, evidence.describe(&again.place), format!("{:.2} GiB", again.gib.unwrap_or(size)))
        .remedy("Use the speculation mode that takes the checkpoint's draft layer, or none.", vec![
            "SGLANG_ENABLE_SPEC_V2=True python -m sglang.launch_server --model-path MODEL --speculative-algorithm NEXTN".to_owned(),
            "python -m sglang.launch_server --model-path MODEL  # without --speculative-algorithm".to_owned(),
        ])
        // Above what the memory error that follows says of itself.
        .suggests("wrong-flags", 6.5),
    )
}

/// Whether requests were answered between two lines.
fn served_between(evidence: &LogEvidence, first: &Place, again: &Place) -> bool {
    evidence.timeline.phases.iter().any(|phase| {
        phase.kind == PhaseKind::Serve
            && phase.first.source == first.source
            && (first.line..again.line).contains(&phase.first.line)
    })
}

pub(super) fn slow_rank(evidence: &LogEvidence) -> Option<Finding> {
    let run = evidence.timeline.runs.last()?.number;
    let mut ranks: Vec<(f64, &crate::Measure)> = evidence
        .timeline
        .measures
        .iter()
        .filter(|measure| measure.what == "weights" && measure.run == run)
        .filter_map(|measure| Some((measure.seconds?, measure)))
        .collect();
    ranks.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (slowest, measure) = *ranks.last()?;
    let median = ranks[ranks.len() / 2].0;
    if ranks.len() < 3 || slowest < 2.0 * median || slowest - median < 60.0 {
        return None;
    }
    Some(
        Finding::new(
            CHECK,
            "slow-rank",
            Severity::Warning,
            format!("{} loaded for {}, the others for {}", measure.place.process, spoken(slowest), spoken(median)),
        )
        .detail("All wait for the slowest rank. A page cache that one rank fills for the others gives such a picture once; when it stays, look at that GPU's PCIe link and its NUMA node.")
        .proof(ProofKind::Log, evidence.describe(&measure.place), format!("Loading weights took {slowest} seconds"))
        .active(None)
        .remedy("Compare the links of the GPUs.", vec![
            "nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current --format=csv".to_owned(),
            "nvidia-smi topo -m".to_owned(),
        ])
        .suggests("slow-start-benign", 0.5),
    )
}

pub(super) fn still_starting(evidence: &LogEvidence) -> Option<Finding> {
    let run = evidence.timeline.runs.last().filter(|run| run.end == RunEnd::Starting)?;
    let reached = run.reached?;
    let seconds = run.last.time?.seconds_since(run.first.time?);
    let finding = Finding::new(
        CHECK,
        "starting",
        Severity::Info,
        format!("The log ends after {} in phase {reached}", spoken(seconds)),
    )
    .proof(ProofKind::Log, evidence.describe(&run.last), "the last line")
    .active(None);
    let detail = format!("Nothing in it says that the start failed. So far: {}.", breakdown(evidence, run));
    // NCCL's first exchange comes right after its version line: a log that stays there hangs in it.
    let nccl = evidence.hits.iter().any(|hit| {
        hit.signature == "nccl-version"
            && hit.last.source == run.last.source
            && hit.last.line + 2 >= run.last.line
    });
    Some(if nccl {
        finding
            .detail(format!("{detail} Its last line is NCCL's: if minutes pass there, the GPUs can't reach each other (IOMMU, ACS, P2P)."))
            .remedy("If it stays there, try without P2P, then look at IOMMU and ACS.", vec![
                "NCCL_P2P_DISABLE=1 vllm serve MODEL".to_owned(),
                "nvidia-smi topo -m".to_owned(),
                "sudo lspci -vvv | grep -i acsctl".to_owned(),
            ])
            .suggests("collectives", 1.5)
    } else if seconds >= 60.0 && reached > PhaseKind::Start {
        finding.detail(detail).suggests("slow-start-benign", 1.5)
    } else {
        finding.detail(detail)
    })
}

pub(super) fn silence(evidence: &LogEvidence) -> Option<Finding> {
    let gaps = evidence.timeline.gaps.iter();
    let gap = gaps
        .filter(|gap| gap.phase.is_some_and(PhaseKind::is_starting) && gap.seconds >= 300.0)
        .max_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    let phase = gap.phase.map_or_else(String::new, |phase| format!(" in phase {phase}"));
    Some(
        Finding::new(
            CHECK,
            "silence",
            Severity::Info,
            format!("{} without a line{phase}", spoken(gap.seconds)),
        )
        .detail("The last thing that it said before is the thing that took so long.")
        .proof(ProofKind::Log, evidence.describe(&gap.before), gap.text.clone())
        .active(None),
    )
}
