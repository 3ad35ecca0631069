//! `host.service`: whether what keeps the deployment alive may be what kills it.

use lucid_findings::{Deployment, EngineKind, Examined, Finding, ProofKind, Severity, Skip};

use crate::patient::{Patient, titled_engine};
use crate::service::{ContainerFacts, Probe, ProbeKind, UnitFacts};

/// Name of the check.
const CHECK: &str = "host.service";
/// Restarts within a time in which a healthy server has none.
const MANY_RESTARTS: u64 = 3;
/// A start of a large MoE model from a cold page cache; measured on real deployments between 10 and 25 minutes.
const LARGE_START_S: f64 = 780.0;
/// Below this no model of hundreds of gigabytes is up.
const SHORTEST_LARGE_START_S: f64 = 180.0;

/// Checks how the patient is kept alive. `observed_startup_s` is what a start really took, by the log.
///
/// # Errors
/// If nothing is known of a service, container, probe or process.
pub fn host_service(
    patient: &Patient,
    deployment: &Deployment,
    observed_startup_s: Option<f64>,
) -> Result<Examined, Skip> {
    let service = &patient.service;
    if service.unit.is_none()
        && service.container.is_none()
        && service.probes.is_empty()
        && patient.processes.is_empty()
    {
        return Err(Skip("no systemd unit, container, probe or process is known".to_owned()));
    }
    let startup = Startup::new(observed_startup_s, deployment);
    let mut findings = Vec::new();
    if let Some(unit) = &service.unit {
        check_unit(unit, deployment, &startup, &mut findings);
    }
    if let Some(container) = &service.container {
        check_container(container, &mut findings);
    }
    check_probes(&service.probes, &startup, &mut findings);
    check_processes(patient, &mut findings);
    if findings.iter().all(|finding| finding.severity == Severity::Info) && startup.observed.is_some() {
        findings.push(
            Finding::new(
                CHECK,
                "start-fits",
                Severity::Info,
                format!("nothing that watches it ends a start of {:.0} s", startup.seconds),
            )
            .suggests("startup-killed", -3.0),
        );
    }
    let covered = format!(
        "{} unit, {} container, {} probes, {} processes; start of {:.0} s ({})",
        u8::from(service.unit.is_some()),
        u8::from(service.container.is_some()),
        service.probes.len(),
        patient.processes.len(),
        startup.seconds,
        startup.source
    );
    Ok(Examined { findings, covered })
}

/// How long a start takes.
struct Startup {
    seconds: f64,
    observed: Option<f64>,
    source: &'static str,
}

impl Startup {
    fn new(observed: Option<f64>, deployment: &Deployment) -> Startup {
        let ranks =
            deployment.tensor_parallel.unwrap_or(1).saturating_mul(deployment.pipeline_parallel.unwrap_or(1));
        match observed {
            Some(seconds) => Startup { seconds, observed, source: "observed" },
            // Eight ranks hold a model of hundreds of gigabytes.
            None if ranks >= 8 => {
                Startup { seconds: LARGE_START_S, observed, source: "expected of a model over 8 ranks" }
            }
            None => Startup { seconds: SHORTEST_LARGE_START_S, observed, source: "expected" },
        }
    }

    /// Whether a budget is too short: surely if the start was observed, probably if it is far below what is expected.
    fn too_long_for(&self, budget_s: f64) -> bool {
        if self.observed.is_some() { self.seconds > budget_s } else { self.seconds > 1.3 * budget_s }
    }

    fn confidence(&self) -> f64 {
        if self.observed.is_some() { 0.9 } else { 0.6 }
    }

    fn weight(&self) -> f64 {
        if self.observed.is_some() { 5.0 } else { 3.0 }
    }
}

fn check_unit(unit: &UnitFacts, deployment: &Deployment, startup: &Startup, findings: &mut Vec<Finding>) {
    let proof = |finding: Finding, text: String| {
        finding.proof(ProofKind::File, format!("systemctl show {}", unit.name), text)
    };
    let edit = |setting: &str| {
        vec![
            format!("sudo systemctl edit {}   # [Service] {setting}", unit.name),
            format!("sudo systemctl daemon-reload && sudo systemctl restart {}", unit.name),
        ]
    };
    let kind = unit.kind.as_deref().unwrap_or("simple");
    // A simple or exec unit is started as soon as its program runs: its start-up time-out never comes into play.
    if matches!(kind, "notify" | "notify-reload" | "forking" | "oneshot")
        && let Some(timeout) = unit.start_timeout_s
        && startup.too_long_for(timeout)
    {
        let finding = Finding::new(
            CHECK,
            "start-timeout",
            Severity::Error,
            format!(
                "systemd ends a start of {} after {timeout:.0} s; it takes {:.0} s ({})",
                unit.name, startup.seconds, startup.source
            ),
        )
        .confidence(startup.confidence())
        .suggests("startup-killed", startup.weight());
        findings.push(
            proof(finding, format!("Type={kind}, TimeoutStartUSec={timeout:.0}s"))
                .remedy("Give the start more time.", edit("TimeoutStartSec=3600")),
        );
    }
    let engine =
        matches!(deployment.engine, Some(EngineKind::Vllm | EngineKind::Sglang | EngineKind::LlamaCpp));
    if matches!(kind, "notify" | "notify-reload") && engine {
        let finding = Finding::new(
            CHECK,
            "never-notifies",
            Severity::Warning,
            format!("{} waits for a readiness message (Type={kind}) that the engine never sends", unit.name),
        )
        .detail("Neither vLLM nor SGLang nor llama-server speaks systemd's notification protocol: unless a wrapper does, the start ends in a time-out every time.")
        .confidence(0.8)
        .suggests("startup-killed", 4.0);
        findings.push(
            proof(finding, format!("Type={kind}"))
                .remedy("Let systemd take the program as started.", edit("Type=exec")),
        );
    }
    if let Some(watchdog) = unit.watchdog_s.filter(|_| engine) {
        let finding = Finding::new(
            CHECK,
            "watchdog",
            Severity::Warning,
            format!(
                "systemd kills {} when no keep-alive arrives for {watchdog:.0} s, and the engine sends none",
                unit.name
            ),
        )
        .confidence(0.8)
        .suggests("startup-killed", 4.0);
        findings.push(
            proof(finding, format!("WatchdogUSec={watchdog:.0}s"))
                .remedy("Turn the watchdog off; ask /health instead.", edit("WatchdogSec=0")),
        );
    }
    if let Some(most) = unit.most_runtime_s {
        let finding = Finding::new(
            CHECK,
            "runtime-limit",
            Severity::Warning,
            format!("systemd ends {} after {most:.0} s of running, healthy or not", unit.name),
        )
        .suggests("startup-killed", if startup.too_long_for(most) { 5.0 } else { 1.0 });
        findings.push(
            proof(finding, format!("RuntimeMaxUSec={most:.0}s"))
                .remedy("Lift the limit.", edit("RuntimeMaxSec=infinity")),
        );
    }
    unit_ended(unit, &proof, &edit, findings);
}

/// How the unit last ended, and whether it loops.
fn unit_ended(
    unit: &UnitFacts,
    proof: &dyn Fn(Finding, String) -> Finding,
    edit: &dyn Fn(&str) -> Vec<String>,
    findings: &mut Vec<Finding>,
) {
    let result = unit.result.as_deref().unwrap_or("success");
    let (cause, words, setting) = match result {
        "timeout" => ("startup-killed", "systemd ended it for a time-out", "TimeoutStartSec=3600"),
        "watchdog" => ("startup-killed", "systemd's watchdog killed it", "WatchdogSec=0"),
        "oom-kill" => ("out-of-memory", "the kernel killed it for memory", "MemoryMax=infinity"),
        _ => ("", "", ""),
    };
    if !cause.is_empty() {
        let finding =
            Finding::new(CHECK, "ended-by-system", Severity::Error, format!("{}: {words}", unit.name))
                .suggests(cause, 6.0);
        findings.push(
            proof(finding, format!("Result={result}, ExecMainStatus={:?}", unit.exit_status))
                .remedy("Take away what ended it.", edit(setting)),
        );
    }
    let restarts = unit.restarts.unwrap_or(0);
    if restarts >= MANY_RESTARTS || result == "start-limit-hit" {
        let uptime = unit.uptime_s.map_or(String::new(), |s| format!(", up for {s:.0} s now"));
        let finding = Finding::new(
            CHECK,
            "restart-loop",
            Severity::Warning,
            format!("{} was restarted {restarts} times without being asked{uptime}", unit.name),
        )
        .detail("Why is in the log of each run's end; the settings here say only that it happened.")
        .suggests("startup-killed", if result == "start-limit-hit" { 0.5 } else { 1.0 });
        findings.push(
            proof(
                finding,
                format!(
                    "NRestarts={restarts}, Restart={}, Result={result}",
                    unit.restart.as_deref().unwrap_or("?")
                ),
            )
            .remedy(
                "Read how the runs ended.",
                vec![format!("journalctl -u {} --no-pager -n 200", unit.name)],
            ),
        );
    }
    // With KillMode=process only the API server is ended; ranks stay behind and hold the GPUs.
    if unit.kill_mode.as_deref() == Some("process") || unit.kill_mode.as_deref() == Some("none") {
        let mode = unit.kill_mode.as_deref().unwrap_or_default();
        let finding = Finding::new(
            CHECK,
            "ranks-survive",
            Severity::Warning,
            format!(
                "KillMode={mode}: a stop of {} leaves engine core and ranks behind, with the GPUs' memory",
                unit.name
            ),
        )
        .suggests("out-of-memory", 2.0);
        findings.push(
            proof(finding, format!("KillMode={mode}"))
                .remedy("End the whole group.", edit("KillMode=control-group")),
        );
    }
}

fn check_container(container: &ContainerFacts, findings: &mut Vec<Finding>) {
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

fn check_probes(probes: &[Probe], startup: &Startup, findings: &mut Vec<Finding>) {
    let startup_probe = probes.iter().find(|probe| probe.kind == ProbeKind::Startup);
    for probe in probes {
        let kills = match probe.kind {
            ProbeKind::Startup => true,
            // A liveness probe waits until the startup probe has succeeded.
            ProbeKind::Liveness => startup_probe.is_none(),
            // A container's own check only marks it; orchestrators and watchers act on the mark.
            ProbeKind::Healthcheck => true,
            ProbeKind::Readiness => false,
        };
        let budget = probe.budget_s();
        if !kills || !startup.too_long_for(budget) {
            continue;
        }
        let (word, slug, severity, weight) = match probe.kind {
            ProbeKind::Startup => ("startup probe", "startup-probe", Severity::Error, startup.weight()),
            ProbeKind::Liveness => ("liveness probe", "liveness-probe", Severity::Error, startup.weight()),
            _ => ("health check", "healthcheck", Severity::Warning, startup.weight() - 2.0),
        };
        let severity = if startup.observed.is_some() { severity } else { Severity::Warning };
        let failures = (startup.seconds * 2.0 / probe.period_s.max(1.0)).ceil() as u64;
        let (text, commands) = if probe.kind == ProbeKind::Healthcheck {
            (
                "Let the check begin after the start.",
                vec![format!("docker run --health-start-period {:.0}s …", startup.seconds * 2.0)],
            )
        } else {
            (
                "Add a startup probe with a long budget; the liveness probe waits for it.",
                vec![format!(
                    r#"kubectl patch deployment NAME --type=json -p '[{{"op":"add","path":"/spec/template/spec/containers/0/startupProbe","value":{{"httpGet":{{"path":"/health","port":8000}},"periodSeconds":{:.0},"failureThreshold":{failures}}}}}]'"#,
                    probe.period_s
                )],
            )
        };
        findings.push(
            Finding::new(
                CHECK,
                slug,
                severity,
                format!("the {word} gives up after {budget:.0} s; a start takes {:.0} s ({})", startup.seconds, startup.source),
            )
            .detail(format!(
                "{:.0} s delay + {} failures × {:.0} s. The log of a killed start is clean, or ends in `KeyboardInterrupt: terminated`.",
                probe.delay_s, probe.failures, probe.period_s
            ))
            .confidence(startup.confidence())
            .suggests("startup-killed", weight)
            .proof(ProofKind::File, word, probe.asks.clone())
            .remedy(text, commands),
        );
    }
}

fn check_processes(patient: &Patient, findings: &mut Vec<Finding>) {
    for process in &patient.processes {
        // An engine core whose parent is gone: its API server exited, and it still holds the GPUs.
        if process.parent == 1 && titled_engine(&process.title).is_some() {
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
