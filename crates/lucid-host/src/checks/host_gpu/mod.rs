//! `host.gpu`: the GPUs' health, their driver, their links, and who else uses them.

mod driver;
mod errors;
mod links;
mod occupancy;

use lucid_findings::{Deployment, Examined, Finding, Severity, Skip};

use crate::gpu::{Gpu, GpuEvidence};
use crate::patient::Patient;

/// Name of the check.
const CHECK: &str = "host.gpu";

/// Checks the GPUs. `patient` tells which processes are its own and which libraries it maps.
///
/// # Errors
/// If neither a GPU nor a line of the kernel's log nor a CUDA runtime is known.
pub fn host_gpu(
    evidence: &GpuEvidence,
    patient: Option<&Patient>,
    deployment: &Deployment,
) -> Result<Examined, Skip> {
    if evidence.gpus.is_empty() && evidence.kernel_events.is_empty() {
        let reason = evidence.absent.clone().unwrap_or_else(|| "no GPU was found".to_owned());
        return Err(Skip(format!(
            "{reason}; record it where the GPUs are: nvidia-smi -q -x > gpu.xml, sudo dmesg > kernel.log"
        )));
    }
    let mut findings = Vec::new();
    errors::check(evidence, &mut findings);
    driver::check(evidence, patient, &mut findings);
    links::check(evidence, deployment, &mut findings);
    occupancy::check(evidence, patient, &mut findings);
    if !evidence.gpus.is_empty() && findings.iter().all(|finding| finding.severity == Severity::Info) {
        let errors_read =
            evidence.gpus.iter().all(|gpu| gpu.uncorrected_now.is_some() && gpu.remapped.is_some());
        findings.push(
            Finding::new(
                CHECK,
                "healthy",
                Severity::Info,
                format!("{} GPUs report no error", evidence.gpus.len()),
            )
            // Without counters or log, silence is a weaker word.
            .suggests("gpu-hardware", if errors_read { -3.0 } else { -1.0 }),
        );
    }
    let xids = evidence.kernel_events.len();
    let covered = format!(
        "{} GPUs by {}, driver {}, {} pairs, {xids} kernel events, {} CUDA runtimes",
        evidence.gpus.len(),
        if evidence.source.is_empty() { "nobody" } else { &evidence.source },
        evidence.driver.as_deref().unwrap_or("unknown"),
        evidence.links.len(),
        evidence.runtimes.len(),
    );
    Ok(Examined { findings, covered })
}

fn place(gpu: &Gpu) -> String {
    format!("GPU {} ({})", gpu.index, gpu.name)
}
