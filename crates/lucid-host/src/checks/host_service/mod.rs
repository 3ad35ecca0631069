//! `host.service`: whether what keeps the deployment alive may be what kills it.

mod container;
mod probes;
mod processes;
mod unit;

use lucid_findings::{Deployment, Examined, Finding, Severity, Skip};

use crate::patient::Patient;

/// Name of the check.
const CHECK: &str = "host.service";
/// Restarts within a time in which a healthy server has none.
const MANY_RESTARTS: u64 = 3;
/// A start of a large MoE model from a cold page cache; measured on real deployments between 10 and 25 minutes.
const LARGE_START_S: f64 = 780.0;
/// A small model starts in one to two minutes: only budgets that end before that are told without an observed start.
const SMALL_START_S: f64 = 75.0;

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
        unit::check(unit, deployment, &startup, &mut findings);
    }
    if let Some(container) = &service.container {
        container::check(container, &mut findings);
    }
    probes::check(&service.probes, &startup, &mut findings);
    processes::check(patient, &mut findings);
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
            None => Startup { seconds: SMALL_START_S, observed, source: "expected" },
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
