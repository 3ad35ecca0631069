//! `host.memory`: shared memory, limits, control groups, disks, clock.

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use crate::memory::MemoryEvidence;
use crate::patient::Patient;

/// Name of the check.
const CHECK: &str = "host.memory";
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// What container runtimes give when nothing is said.
const DEFAULT_SHARED_MEMORY: u64 = 64 * MIB;
/// NCCL's and the engines' buffers of eight ranks fit well into this.
const ENOUGH_SHARED_MEMORY: u64 = GIB;

/// Checks memory and limits around the deployment; `patient` adds what its container was promised.
///
/// # Errors
/// If nothing could be read.
pub fn host_memory(
    evidence: &MemoryEvidence,
    patient: Option<&Patient>,
    deployment: &Deployment,
) -> Result<Examined, Skip> {
    let container = patient.and_then(|patient| patient.service.container.as_ref());
    if evidence.total_bytes.is_none() && evidence.shared_memory.is_none() && container.is_none() {
        let why = evidence.notes.first().map_or("no machine was read", String::as_str);
        return Err(Skip(format!("nothing is known of the machine's memory: {why}")));
    }
    let mut findings = Vec::new();
    shared_memory(evidence, patient, deployment, &mut findings);
    killed(evidence, &mut findings);
    page_cache(evidence, &mut findings);
    limits(evidence, deployment, &mut findings);
    disks(evidence, &mut findings);
    machine(evidence, &mut findings);
    let gib = |bytes: Option<u64>| {
        bytes.map_or("?".to_owned(), |bytes| format!("{:.1}", bytes as f64 / GIB as f64))
    };
    let covered = format!(
        "{} of {} GiB available, /dev/shm {}, {} limits, {} disks, {} processes with {} GiB",
        gib(evidence.available_bytes),
        gib(evidence.total_bytes),
        evidence
            .shared_memory
            .as_ref()
            .map_or("unknown".to_owned(), |shm| format!("{} GiB", gib(Some(shm.bytes)))),
        evidence.limits.len(),
        evidence.disks.len(),
        evidence.processes,
        gib(Some(evidence.resident_bytes)),
    );
    Ok(Examined { findings, covered })
}

/// Several ranks on one machine talk through `/dev/shm`.
fn shared_memory(
    evidence: &MemoryEvidence,
    patient: Option<&Patient>,
    deployment: &Deployment,
    findings: &mut Vec<Finding>,
) {
    let container = patient.and_then(|patient| patient.service.container.as_ref());
    let host_ipc = container.is_some_and(|container| container.ipc.as_deref() == Some("host"));
    // A recorded container: what it was given; said nothing of, it is the runtime's default.
    let promised = container
        .filter(|_| !host_ipc)
        .map(|container| container.shared_memory_bytes.unwrap_or(DEFAULT_SHARED_MEMORY));
    // A Kubernetes volume in memory without a size is as large as the machine allows.
    let volume = patient.is_some_and(|patient| {
        patient.mounts.iter().any(|mount| mount.target == "/dev/shm" && mount.size_bytes.is_none())
    });
    let measured = evidence.shared_memory.as_ref().map(|shm| shm.bytes);
    let (Some(size), place) = (
        measured.or(promised.filter(|_| !volume)),
        if measured.is_some() { "/dev/shm" } else { "container settings" },
    ) else {
        return;
    };
    let ranks = deployment
        .tensor_parallel
        .unwrap_or(1)
        .max(1)
        .saturating_mul(deployment.pipeline_parallel.unwrap_or(1).max(1));
    if ranks > 1 && size < ENOUGH_SHARED_MEMORY {
        let default = size <= DEFAULT_SHARED_MEMORY;
        findings.push(
            Finding::new(
                CHECK,
                "small-shared-memory",
                if default { Severity::Error } else { Severity::Warning },
                format!("/dev/shm has {} MiB for {ranks} ranks", size / MIB),
            )
            .detail("NCCL and the engine's broadcast queues keep their buffers there: the start ends in NCCL's `unhandled system error`, or a bus error.")
            .confidence(if default { 0.9 } else { 0.6 })
            .suggests("collectives", if default { 5.0 } else { 2.0 })
            .suggests("out-of-memory", 0.5)
            .proof(ProofKind::Number, place, format!("{size} bytes"))
            .remedy(
                "Share the host's, or give it 16 GiB.",
                vec![
                    "docker run --ipc=host …".to_owned(),
                    "docker run --shm-size 16g …".to_owned(),
                    "# Kubernetes: emptyDir: {medium: Memory, sizeLimit: 16Gi} mounted at /dev/shm".to_owned(),
                ],
            ),
        );
        return;
    }
    if let Some(shm) = evidence.shared_memory.as_ref().filter(|shm| shm.bytes > 0) {
        let used = shm.bytes.saturating_sub(shm.free_bytes);
        if used as f64 > 0.9 * shm.bytes as f64 {
            findings.push(
                Finding::new(
                    CHECK,
                    "full-shared-memory",
                    Severity::Warning,
                    format!("/dev/shm is full: {} of {} MiB", used / MIB, shm.bytes / MIB),
                )
                .detail("Killed servers leave their segments behind (nccl-*, psm_*, vllm*, torch_*).")
                .suggests("collectives", 2.5)
                .suggests("memory-leak", 1.0)
                .proof(ProofKind::Number, "/dev/shm", format!("{used} of {} bytes", shm.bytes))
                .remedy(
                    "Look for segments that nobody holds.",
                    vec!["ls -lh /dev/shm".to_owned(), "sudo lsof +D /dev/shm".to_owned()],
                ),
            );
        } else if ranks > 1 {
            findings.push(
                Finding::new(
                    CHECK,
                    "shared-memory-fits",
                    Severity::Info,
                    format!("/dev/shm has {} GiB, {} MiB in use", shm.bytes / GIB, used / MIB),
                )
                .suggests("collectives", -0.5),
            );
        }
    }
}

/// Processes killed for memory, and a control group near its limit.
fn killed(evidence: &MemoryEvidence, findings: &mut Vec<Finding>) {
    let group = evidence.cgroup.as_ref();
    let kills = group.map_or(0, |group| group.kills);
    if let Some(group) = group.filter(|_| kills > 0) {
        findings.push(
            Finding::new(
                CHECK,
                "killed-in-group",
                Severity::Error,
                format!("the kernel killed {kills} processes of this control group for memory"),
            )
            .suggests("out-of-memory", 6.0)
            .proof(
                ProofKind::Number,
                format!("cgroup {}", group.path),
                format!("oom_kill {kills}, limit {:?}", group.limit_bytes),
            )
            .remedy(
                "Raise the limit.",
                vec![
                    "sudo systemctl set-property UNIT MemoryMax=infinity".to_owned(),
                    "docker update --memory 0 --memory-swap -1 NAME".to_owned(),
                ],
            ),
        );
    } else if evidence.kernel_kills > 0 {
        findings.push(
            Finding::new(
                CHECK,
                "killed-on-machine",
                Severity::Info,
                format!(
                    "the kernel killed {} processes of this machine for memory since it started",
                    evidence.kernel_kills
                ),
            )
            .detail("Whether one was of this deployment is in the kernel's log.")
            .active(None)
            .suggests("out-of-memory", 1.5)
            .proof(
                ProofKind::Number,
                "/proc/vmstat",
                format!("oom_kill {}", evidence.kernel_kills),
            ),
        );
    }
    if let Some((limit, used)) = group.and_then(|group| Some((group.limit_bytes?, group.used_bytes?))) {
        // Files in memory are given back under pressure; what can't be is the rest.
        let fixed = used.saturating_sub(group.and_then(|group| group.file_bytes).unwrap_or(0));
        if fixed as f64 > 0.92 * limit as f64 {
            findings.push(
                Finding::new(
                    CHECK,
                    "near-limit",
                    Severity::Warning,
                    format!(
                        "the control group holds {:.1} of {:.1} GiB that can't be given back",
                        fixed as f64 / GIB as f64,
                        limit as f64 / GIB as f64
                    ),
                )
                .suggests("out-of-memory", 2.5)
                .suggests("memory-leak", 1.0)
                .proof(ProofKind::Number, "cgroup", format!("{fixed} of {limit} bytes"))
                .remedy(
                    "Watch whether it grows, or raise the limit.",
                    vec!["watch -n 60 cat /sys/fs/cgroup/…/memory.current".to_owned()],
                ),
            );
        }
    }
    if let (Some(swapped), Some(swap)) = (evidence.swap_used_bytes, evidence.swap_bytes)
        && swapped > GIB
        && swapped * 2 > swap
    {
        findings.push(
            Finding::new(
                CHECK,
                "swapping",
                Severity::Warning,
                format!("{:.1} GiB are swapped out", swapped as f64 / GIB as f64),
            )
            .detail("Pinned buffers and the scheduler wait for the disk; host memory grows somewhere.")
            .suggests("memory-leak", 1.5)
            .suggests("out-of-memory", 1.0)
            .proof(ProofKind::Number, "/proc/meminfo", format!("{swapped} of {swap} bytes of swap"))
            .remedy("See who holds the memory.", vec!["ps -eo pid,rss,comm --sort -rss | head".to_owned()]),
        );
    }
}

/// A checkpoint larger than memory is read from the disk at every start: slow, not wrong.
fn page_cache(evidence: &MemoryEvidence, findings: &mut Vec<Finding>) {
    let (Some(checkpoint), Some(total)) = (evidence.checkpoint_bytes, evidence.total_bytes) else { return };
    // A limit counts the files that are read under it, too.
    let room =
        evidence.cgroup.as_ref().and_then(|group| group.limit_bytes).map_or(total, |limit| limit.min(total));
    if checkpoint > room {
        findings.push(
            Finding::new(
                CHECK,
                "checkpoint-beyond-memory",
                Severity::Info,
                format!("the checkpoint ({:.0} GiB) is larger than host memory ({:.0} GiB): every start reads the disk", checkpoint as f64 / GIB as f64, room as f64 / GIB as f64),
            )
            .detail("Starts are slow, and memory-mapped loading with several ranks may read files more than once.")
            .suggests("slow-start-benign", 1.5)
            .proof(ProofKind::Number, "memory", format!("{checkpoint} against {room} bytes")),
        );
    }
}

fn limits(evidence: &MemoryEvidence, deployment: &Deployment, findings: &mut Vec<Finding>) {
    let soft =
        |name: &str| evidence.limits.iter().find(|limit| limit.name == name).and_then(|limit| limit.soft);
    if let Some(files) = soft("Max open files").filter(|&files| files < 4_096) {
        findings.push(
            Finding::new(
                CHECK,
                "few-open-files",
                Severity::Warning,
                format!("only {files} files may be open; connections and shards use them up"),
            )
            .detail("The server stops accepting connections (`Too many open files`) under load.")
            .confidence(0.7)
            .proof(ProofKind::Number, "/proc/PID/limits", format!("Max open files {files}"))
            .remedy(
                "Raise the limit.",
                vec![
                    "sudo systemctl edit UNIT   # [Service] LimitNOFILE=1048576".to_owned(),
                    "docker run --ulimit nofile=1048576 …".to_owned(),
                ],
            ),
        );
    }
    // Locked memory matters for RDMA and for pinned pools only; NVIDIA's driver pins without it.
    let many_nodes = deployment.command.iter().any(|word| {
        let word = word.to_ascii_lowercase();
        word.starts_with("--nnodes") || word.contains("mooncake") || word.contains("nixl")
    });
    if let Some(locked) = soft("Max locked memory").filter(|&locked| locked < 64 * MIB && many_nodes) {
        findings.push(
            Finding::new(
                CHECK,
                "little-locked-memory",
                Severity::Warning,
                format!("only {} kB may be locked; RDMA registers its buffers that way", locked / 1024),
            )
            .confidence(0.7)
            .suggests("collectives", 2.0)
            .proof(ProofKind::Number, "/proc/PID/limits", format!("Max locked memory {locked}"))
            .remedy(
                "Lift the limit.",
                vec![
                    "docker run --ulimit memlock=-1 …".to_owned(),
                    "sudo systemctl edit UNIT   # [Service] LimitMEMLOCK=infinity".to_owned(),
                ],
            ),
        );
    }
}

fn disks(evidence: &MemoryEvidence, findings: &mut Vec<Finding>) {
    let mut told: Vec<(u64, u64)> = Vec::new();
    for disk in &evidence.disks {
        // Several folders lie on one file system: tell it once.
        if disk.bytes == 0 || disk.purpose == "checkpoint" || told.contains(&(disk.bytes, disk.free_bytes)) {
            continue;
        }
        if disk.free_bytes < GIB && (disk.free_bytes as f64) < 0.05 * disk.bytes as f64 {
            told.push((disk.bytes, disk.free_bytes));
            findings.push(
                Finding::new(
                    CHECK,
                    "full-disk",
                    Severity::Warning,
                    format!("{} ({}) has {} MiB left", disk.path, disk.purpose, disk.free_bytes / MIB),
                )
                .detail("Compiled kernels are cut short or cannot be written, downloads stay incomplete.")
                .suggests("stale-cache", 1.0)
                .proof(
                    ProofKind::Number,
                    disk.path.clone(),
                    format!("{} of {} bytes free", disk.free_bytes, disk.bytes),
                )
                .remedy(
                    "Make room.",
                    vec![format!("df -h {}", disk.path), format!("du -xsh {}/* | sort -h | tail", disk.path)],
                ),
            );
        }
    }
}

/// Facts of the machine as a whole.
fn machine(evidence: &MemoryEvidence, findings: &mut Vec<Finding>) {
    if let (Some(free), Some(total)) = (evidence.huge_free_bytes, evidence.total_bytes)
        && free as f64 > 0.2 * total as f64
    {
        findings.push(
            Finding::new(
                CHECK,
                "idle-huge-pages",
                Severity::Warning,
                format!("{:.0} GiB are set aside as huge pages that nobody uses", free as f64 / GIB as f64),
            )
            .suggests("out-of-memory", 1.0)
            .proof(ProofKind::Number, "/proc/meminfo", format!("{free} bytes of free huge pages"))
            .remedy("Give them back.", vec!["sudo sysctl vm.nr_hugepages=0".to_owned()]),
        );
    }
    if evidence.clock.synchronized == Some(false) {
        findings.push(
            Finding::new(CHECK, "clock-not-kept", Severity::Warning, "nothing keeps this machine's clock".to_owned())
                .detail("Tokens expire at the wrong time, downloads fail on certificates, and the logs of several nodes don't line up.")
                .confidence(0.8)
                .proof(ProofKind::File, evidence.clock.source.clone(), "not synchronized")
                .remedy("Turn on time synchronization.", vec!["sudo timedatectl set-ntp true".to_owned()]),
        );
    }
    if evidence.memory_nodes > 1 && evidence.node_balancing == Some(true) {
        findings.push(
            Finding::new(
                CHECK,
                "node-balancing",
                Severity::Info,
                format!("the kernel moves pages between {} memory nodes by itself", evidence.memory_nodes),
            )
            .detail("Costs some decode time on hosts with several sockets; nothing gets wrong.")
            .proof(ProofKind::File, "/proc/sys/kernel/numa_balancing", "1"),
        );
    }
}
