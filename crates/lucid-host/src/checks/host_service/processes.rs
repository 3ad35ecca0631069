//! The processes themselves: orphans, dead ranks, files replaced under them.

use lucid_findings::{Finding, ProofKind, Severity};

use super::CHECK;
use crate::patient::{Patient, titled_engine};

pub(super) fn check(patient: &Patient, findings: &mut Vec<Finding>) {
    for process in patient.processes.iter().chain(&patient.neighbours) {
        // An engine core whose parent is gone: its API server exited, and it still holds the GPUs. In a container the server
        // itself may be process 1.
        let server_is_first = patient.processes.iter().any(|process| process.pid == 1);
        if process.parent == 1 && !server_is_first && titled_engine(&process.title).is_some() {
            findings.push(
                Finding::new(
                    CHECK,
                    "orphan-engine",
                    Severity::Error,
                    format!("{} (process {}) has outlived its server and holds its GPUs", process.title, process.pid),
                )
                .detail("The API server exited (a ready timer, a kill) and left it behind; the next start may find no free memory.")
                .confidence(0.85)
                .suggests("startup-killed", 4.0)
                .suggests("out-of-memory", 2.0)
                .proof(ProofKind::File, format!("/proc/{}", process.pid), format!("parent {}, title {}", process.parent, process.title))
                .remedy("End it before the next start, and raise the timer.", vec![format!("kill {}", process.pid), "export VLLM_ENGINE_READY_TIMEOUT_S=3600".to_owned()]),
            );
        }
        if process.state == "Z" {
            findings.push(
                Finding::new(
                    CHECK,
                    "dead-rank",
                    Severity::Warning,
                    format!("process {} ({}) is dead and not collected", process.pid, process.title),
                )
                .detail("A rank died while its parent goes on: requests hang until a time-out.")
                .confidence(0.7)
                .proof(ProofKind::File, format!("/proc/{}/status", process.pid), "State: Z (zombie)")
                .remedy(
                    "Read how it ended, and restart the whole deployment.",
                    vec!["journalctl -k --no-pager | tail -50".to_owned()],
                ),
            );
        }
    }
    let servers: Vec<String> = patient
        .neighbours
        .iter()
        .filter(|process| titled_engine(&process.title).is_none())
        .map(|process| format!("{} ({})", process.pid, process.title))
        .collect();
    if !servers.is_empty() {
        findings.push(
            Finding::new(
                CHECK,
                "other-servers",
                Severity::Info,
                format!("{} other servers run on this machine: {}", servers.len(), servers.join(", ")),
            )
            .detail("If they share a home, they write into each other's compile cache; if they share GPUs, each finds less memory.")
            .active(None)
            .suggests("stale-cache", 0.5)
            .suggests("out-of-memory", 0.5),
        );
    }
    let replaced = &patient.replaced_libraries;
    if let Some(first) = replaced.first() {
        findings.push(
            Finding::new(
                CHECK,
                "replaced-files",
                Severity::Warning,
                format!("the process still runs {} files that were replaced on disk, {first} first", replaced.len()),
            )
            .detail("Packages were installed under the running server: what is on disk is not what runs, and modules imported from now on are the new ones.")
            .confidence(0.9)
            .suggests("package-version-skew", 2.5)
            .proof(ProofKind::File, "/proc/PID/maps", replaced.iter().take(5).cloned().collect::<Vec<_>>().join(", "))
            .remedy("Restart the server.", vec!["sudo systemctl restart UNIT   # or: docker restart NAME".to_owned()]),
        );
    }
    // Two files of one library in one process: the first symbol wins, the other's callers get the wrong one.
    let nccl: Vec<&String> = patient.libraries.iter().filter(|path| path.contains("libnccl.so")).collect();
    if nccl.len() > 1 {
        findings.push(
            Finding::new(
                CHECK,
                "two-nccl",
                Severity::Warning,
                format!("{} different NCCL libraries are mapped", nccl.len()),
            )
            .confidence(0.7)
            .suggests("package-version-skew", 2.0)
            .suggests("collectives", 1.5)
            .proof(
                ProofKind::File,
                "/proc/PID/maps",
                nccl.iter().map(|path| path.as_str()).collect::<Vec<_>>().join(", "),
            )
            .remedy(
                "Leave the one that torch was built with.",
                vec![
                    "uv pip list | grep -i nccl".to_owned(),
                    "unset LD_PRELOAD VLLM_NCCL_SO_PATH".to_owned(),
                ],
            ),
        );
    }
}
