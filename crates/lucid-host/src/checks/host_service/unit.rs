//! systemd: time-outs, watchdogs, and how the last run ended.

use lucid_findings::{Deployment, EngineKind, Finding, ProofKind, Severity};

use super::{CHECK, MANY_RESTARTS, Startup};
use crate::service::UnitFacts;

pub(super) fn check(
    unit: &UnitFacts,
    deployment: &Deployment,
    startup: &Startup,
    findings: &mut Vec<Finding>,
) {
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
