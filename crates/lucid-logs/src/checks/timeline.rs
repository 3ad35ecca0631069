//! `logs.timeline`: where the time went, what came back again and again, what grew.

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::readable;
use crate::evidence::{LogEvidence, Series};
use crate::moment::spoken;
use crate::timeline::{PhaseKind, Run, RunEnd};

const CHECK: &str = "logs.timeline";
/// From here on a start is slow enough to be asked about.
const SLOW_START: f64 = 180.0;

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
    findings.extend(starts(evidence));
    findings.extend(slow_load(evidence));
    findings.extend(slow_rank(evidence));
    findings.extend(still_starting(evidence));
    findings.extend(killed(evidence));
    findings.extend(restarts(evidence));
    findings.extend(vanished(evidence));
    findings.extend(stall(evidence));
    findings.extend(silence(evidence));
    findings.extend(memory(evidence));
    findings.extend(drafts(evidence));
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

fn starts(evidence: &LogEvidence) -> Option<Finding> {
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

fn slow_load(evidence: &LogEvidence) -> Option<Finding> {
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

fn slow_rank(evidence: &LogEvidence) -> Option<Finding> {
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

fn still_starting(evidence: &LogEvidence) -> Option<Finding> {
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

fn killed(evidence: &LogEvidence) -> Option<Finding> {
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

fn restarts(evidence: &LogEvidence) -> Option<Finding> {
    let counter = evidence
        .series
        .get("restart-counter")
        .map_or(0.0, |series| series.samples.iter().map(|sample| sample.value).fold(0.0, f64::max));
    let count = f64::from(evidence.timeline.restarts).max(counter);
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

fn vanished(evidence: &LogEvidence) -> Option<Finding> {
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
    .suggests("out-of-memory", 1.5);
    Some(if run.served { finding } else { finding.suggests("startup-killed", 1.5) })
}

fn stall(evidence: &LogEvidence) -> Option<Finding> {
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

fn silence(evidence: &LogEvidence) -> Option<Finding> {
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

/// Growth of a series while serving: Kendall's tau against time, and how much it grew.
fn growth(series: &Series) -> Option<(f64, f64, f64, usize)> {
    let run = series.samples.last()?.run;
    let values: Vec<f64> = series
        .samples
        .iter()
        .filter(|sample| sample.run == run && sample.phase == Some(PhaseKind::Serve))
        .map(|sample| sample.value)
        .collect();
    let count = values.len();
    if count < 12 {
        return None;
    }
    let mut concordant = 0i64;
    for (index, a) in values.iter().enumerate() {
        for b in &values[index + 1..] {
            concordant += i64::from(b > a) - i64::from(b < a);
        }
    }
    let tau = concordant as f64 / (count * (count - 1) / 2) as f64;
    // The first and last quarter's medians: one peak proves nothing.
    let median = |part: &[f64]| {
        let mut part = part.to_vec();
        part.sort_by(f64::total_cmp);
        part[part.len() / 2]
    };
    let quarter = count / 4;
    Some((tau, median(&values[..quarter]), median(&values[count - quarter..]), count))
}

fn memory(evidence: &LogEvidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, what) in [("host-memory-gib", "host memory"), ("gpu-memory-gib", "GPU memory")] {
        let Some((tau, first, last, count)) = evidence.series.get(name).and_then(growth) else { continue };
        let number = format!("{first:.1} GiB to {last:.1} GiB over {count} samples, Kendall's tau {tau:.2}");
        if tau >= 0.7 && last >= 1.15 * first && last - first >= 1.0 {
            findings.push(
                Finding::new(CHECK, "memory-growth", Severity::Warning, format!("While serving, {what} grew from {number}"))
                    .proof(ProofKind::Number, name, number)
                    .remedy("Watch it under a constant load; restart before it ends in the OOM killer, and look for a newer FlashInfer and engine.", vec![
                        "lucid watch URL".to_owned(),
                        "uv pip list | grep -i -e flashinfer -e vllm -e sglang".to_owned(),
                    ])
                    .suggests("memory-leak", 3.0),
            );
        } else if tau.abs() < 0.5 && last < 1.05 * first {
            findings.push(
                Finding::new(
                    CHECK,
                    "memory-steady",
                    Severity::Info,
                    format!("While serving, {what} did not grow: {number}"),
                )
                .proof(ProofKind::Number, name, number)
                .active(None)
                .suggests("memory-leak", -2.0),
            );
        }
    }
    findings
}

fn drafts(evidence: &LogEvidence) -> Option<Finding> {
    let median = |name: &str| {
        let series = evidence.series.get(name)?;
        let mut values: Vec<f64> = series.samples.iter().map(|sample| sample.value).collect();
        values.sort_by(f64::total_cmp);
        (values.len() >= 3).then(|| (values[values.len() / 2], values.len()))
    };
    let length = median("acceptance-length");
    let first = median("first-acceptance");
    // The length counts the token that the target adds: 1.0 is nothing accepted.
    let rejected =
        first.map_or_else(|| length.is_some_and(|(length, _)| length <= 1.05), |(rate, _)| rate < 0.05);
    if !rejected {
        return None;
    }
    let (length, count) = length?;
    let number = format!(
        "mean acceptance length {length:.2}{} over {count} statistics lines",
        first.map_or_else(String::new, |(rate, _)| format!(", first position {:.1} %", 100.0 * rate))
    );
    Some(
        Finding::new(CHECK, "draft-rejected", Severity::Warning, format!("Almost no drafted token is accepted: {number}"))
            .detail("Answers stay right, since the target checks every token, but the draft only costs time. Its weights, its position or its hidden states are wrong; with custom all-reduce over PCIe, look there too.")
            .proof(ProofKind::Number, "acceptance", number)
            .remedy("Compare with speculation off, and with --disable-custom-all-reduce.", vec![
                "vllm serve MODEL  # without --speculative-config".to_owned(),
                "vllm serve MODEL --disable-custom-all-reduce".to_owned(),
            ])
            .suggests("speculative-decoding", 3.0)
            .suggests("collectives", 0.5),
    )
}
