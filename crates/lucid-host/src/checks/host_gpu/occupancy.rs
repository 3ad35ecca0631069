//! Who uses the GPUs: the patient, somebody else, or nobody although they are busy.

use lucid_findings::{Finding, ProofKind, Severity};

use super::{CHECK, place};
use crate::gpu::{GpuEvidence, GpuProcess};
use crate::patient::{Patient, titled_engine};

const GIB: u64 = 1 << 30;
/// A desktop or a monitor takes some hundred megabytes; more is competition.
const NOTABLE_BYTES: u64 = GIB;

pub(super) fn check(evidence: &GpuEvidence, patient: Option<&Patient>, findings: &mut Vec<Finding>) {
    wedged(evidence, findings);
    others(evidence, patient, findings);
    leftover(evidence, findings);
    uneven(evidence, patient, findings);
    instances(evidence, findings);
}

/// 100 % busy with no process: a collective that hung and left the card wedged.
fn wedged(evidence: &GpuEvidence, findings: &mut Vec<Finding>) {
    let wedged: Vec<_> = evidence
        .gpus
        .iter()
        .filter(|gpu| {
            gpu.utilization.is_some_and(|percent| percent >= 99)
                && gpu.processes.is_empty()
                && gpu.used_bytes < 2 * GIB
        })
        .collect();
    let Some(first) = wedged.first() else { return };
    findings.push(
        Finding::new(
            CHECK,
            "busy-without-process",
            Severity::Error,
            format!("{} GPUs are 100 % busy and nobody uses them", wedged.len()),
        )
        .detail("A collective that hung left them wedged; every later start hangs too.")
        .confidence(0.85)
        .suggests("collectives", 4.0)
        .suggests("gpu-hardware", 1.5)
        .proof(
            ProofKind::Number,
            place(first),
            format!("{:?} %, {:?} W, no process", first.utilization, first.power_w),
        )
        .remedy(
            "Reset them or reboot; then start without peer access.",
            vec![
                format!("sudo nvidia-smi --gpu-reset -i {}", first.index),
                "export NCCL_P2P_DISABLE=1".to_owned(),
            ],
        ),
    );
}

fn others(evidence: &GpuEvidence, patient: Option<&Patient>, findings: &mut Vec<Finding>) {
    // Without the patient's processes nobody can be called somebody else.
    let Some(patient) = patient.filter(|patient| !patient.processes.is_empty()) else { return };
    let own = |process: &GpuProcess| patient.processes.iter().any(|own| own.pid == process.pid);
    // Inside a container NVML's ids are the host's: if it knows none of ours, the two cannot be matched.
    if !evidence.gpus.iter().flat_map(|gpu| &gpu.processes).any(own) {
        return;
    }
    for gpu in &evidence.gpus {
        let ours = gpu.processes.iter().any(own);
        let strangers: Vec<&GpuProcess> = gpu
            .processes
            .iter()
            .filter(|process| !own(process) && process.used_bytes.unwrap_or(0) >= NOTABLE_BYTES)
            .collect();
        let Some(first) = strangers.first().filter(|_| ours) else { continue };
        let bytes: u64 = strangers.iter().filter_map(|process| process.used_bytes).sum();
        findings.push(
            Finding::new(
                CHECK,
                "shared-gpu",
                Severity::Warning,
                format!(
                    "{} is shared: {} (process {}) holds {:.1} GiB of it",
                    place(gpu),
                    first.name,
                    first.pid,
                    bytes as f64 / GIB as f64
                ),
            )
            .confidence(0.9)
            .suggests("out-of-memory", 2.0)
            .proof(
                ProofKind::Number,
                place(gpu),
                format!("{strangers:?}").chars().take(300).collect::<String>(),
            )
            .remedy(
                "End it, or give each its own GPUs.",
                vec![format!("ps -fp {}", first.pid), "export CUDA_VISIBLE_DEVICES=…".to_owned()],
            ),
        );
    }
}

/// An engine's helper process on a GPU that nobody serves from: it stayed behind. Only told where several helpers of one
/// engine exist without a server beside them, which only the process table can say; here, two engines on one GPU.
fn leftover(evidence: &GpuEvidence, findings: &mut Vec<Finding>) {
    for gpu in &evidence.gpus {
        // An API server or engine core that only opened a context holds some hundred megabytes.
        let holds = |process: &GpuProcess| process.used_bytes.is_none_or(|bytes| bytes >= NOTABLE_BYTES);
        let engines: Vec<&GpuProcess> = gpu
            .processes
            .iter()
            .filter(|process| titled_engine(&process.name).is_some() && holds(process))
            .collect();
        if engines.len() > 1 {
            findings.push(
                Finding::new(
                    CHECK,
                    "two-engines",
                    Severity::Warning,
                    format!("{} holds {} engine processes", place(gpu), engines.len()),
                )
                .detail("Two servers share it, or one that ended left its engine core behind.")
                .confidence(0.7)
                .active(None)
                .suggests("out-of-memory", 2.5)
                .proof(
                    ProofKind::Number,
                    place(gpu),
                    engines
                        .iter()
                        .map(|process| format!("{} {}", process.pid, process.name))
                        .collect::<Vec<_>>()
                        .join(", "),
                )
                .remedy(
                    "See which has no server any more.",
                    vec!["ps -eo pid,ppid,lstart,cmd | grep -i 'vllm\\|sglang'".to_owned()],
                ),
            );
        }
    }
}

/// Ranks of one deployment hold nearly the same; one that holds far less has not loaded.
fn uneven(evidence: &GpuEvidence, patient: Option<&Patient>, findings: &mut Vec<Finding>) {
    let Some(patient) = patient else { return };
    let held: Vec<(u32, u64)> = evidence
        .gpus
        .iter()
        .filter_map(|gpu| {
            let own = gpu
                .processes
                .iter()
                .filter(|process| patient.processes.iter().any(|own| own.pid == process.pid));
            let bytes: u64 = own.filter_map(|process| process.used_bytes).sum();
            (bytes > 0).then_some((gpu.index, bytes))
        })
        .collect();
    let (Some(least), Some(most)) =
        (held.iter().min_by_key(|held| held.1), held.iter().max_by_key(|held| held.1))
    else {
        return;
    };
    if held.len() > 1 && least.1 * 2 < most.1 {
        findings.push(
            Finding::new(
                CHECK,
                "uneven-memory",
                Severity::Info,
                format!(
                    "GPU {} holds {:.1} GiB of the deployment, GPU {} {:.1}",
                    least.0,
                    least.1 as f64 / GIB as f64,
                    most.0,
                    most.1 as f64 / GIB as f64
                ),
            )
            .detail("While loading this is ordinary; afterwards a rank has not loaded its part.")
            .active(None)
            .suggests("tp-sharding", 0.5),
        );
    }
}

fn instances(evidence: &GpuEvidence, findings: &mut Vec<Finding>) {
    let cut = evidence.gpus.iter().filter(|gpu| gpu.mig == Some(true)).count();
    if cut > 0 {
        findings.push(
            Finding::new(CHECK, "cut-into-instances", Severity::Info, format!("{cut} GPUs are cut into instances (MIG)"))
                .detail("An instance has a part of the memory and no peer access: collectives don't work between instances.")
                .active(None)
                .suggests("collectives", 1.0),
        );
    }
    let sleepy = evidence.gpus.iter().filter(|gpu| gpu.persistence == Some(false)).count();
    if sleepy > 0 {
        findings.push(
            Finding::new(
                CHECK,
                "no-persistence",
                Severity::Info,
                format!("{sleepy} GPUs unload their driver when idle (persistence mode is off)"),
            )
            .detail("Each start waits some seconds longer.")
            .suggests("slow-start-benign", 0.2),
        );
    }
}
