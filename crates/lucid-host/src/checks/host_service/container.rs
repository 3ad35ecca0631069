//! Container runtimes: restarts and kills.

use lucid_findings::{Finding, ProofKind, Severity};

use super::{CHECK, MANY_RESTARTS};
use crate::service::ContainerFacts;

pub(super) fn check(container: &ContainerFacts, findings: &mut Vec<Finding>) {
    let place = format!("{} container", container.runtime);
    let memory_killed =
        container.out_of_memory_killed == Some(true) || container.last_reason.as_deref() == Some("OOMKilled");
    if memory_killed {
        findings.push(
            Finding::new(
                CHECK,
                "container-out-of-memory",
                Severity::Error,
                "the container was killed for memory".to_owned(),
            )
            .suggests("out-of-memory", 6.0)
            .proof(
                ProofKind::File,
                place.clone(),
                format!("OOMKilled, limit {:?} bytes", container.memory_limit_bytes),
            )
            .remedy(
                "Raise the limit; loading needs host memory beside the weights on the GPUs.",
                vec!["docker update --memory 0 --memory-swap -1 NAME".to_owned()],
            ),
        );
    }
    let restarts = container.restarts.unwrap_or(0);
    let looping = container.state.as_deref() == Some("CrashLoopBackOff");
    if restarts >= MANY_RESTARTS || looping {
        // 137 is SIGKILL, 143 SIGTERM: somebody outside ended it. 1 is the engine's own failure.
        let outside = matches!(container.exit_code, Some(137 | 143)) && !memory_killed;
        let run = container.last_run_s.map_or(String::new(), |s| format!("; the last run lasted {s:.0} s"));
        let detail = if outside {
            "The exit code says that a signal from outside ended it: a probe, a watcher or an operator, not the engine."
        } else {
            "Why is in the log of the run before: docker logs NAME, kubectl logs POD --previous."
        };
        findings.push(
            Finding::new(
                CHECK,
                "restart-loop",
                Severity::Warning,
                format!("the container was restarted {restarts} times{run}"),
            )
            .detail(detail)
            .suggests("startup-killed", if outside { 3.0 } else { 0.5 })
            .proof(
                ProofKind::File,
                place,
                format!(
                    "state {:?}, exit code {:?}, reason {:?}",
                    container.state, container.exit_code, container.last_reason
                ),
            )
            .remedy(
                "Read how the last run ended.",
                vec![
                    "kubectl logs POD --previous | tail -200".to_owned(),
                    "docker logs --tail 200 NAME".to_owned(),
                ],
            ),
        );
    }
}
