//! Health checks from outside against the time that a start takes.

use lucid_findings::{Finding, ProofKind, Severity};

use super::{CHECK, Startup};
use crate::service::{Probe, ProbeKind};

pub(super) fn check(probes: &[Probe], startup: &Startup, findings: &mut Vec<Finding>) {
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
