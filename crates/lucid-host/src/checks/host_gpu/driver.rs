//! The driver against the CUDA that the patient brings.

use lucid_findings::{Finding, ProofKind, Severity};

use super::CHECK;
use crate::gpu::GpuEvidence;
use crate::patient::Patient;

pub(super) fn check(evidence: &GpuEvidence, patient: Option<&Patient>, findings: &mut Vec<Finding>) {
    if !compat(evidence, patient, findings) {
        runtime(evidence, findings);
    }
    mixed(evidence, findings);
    regression(evidence, findings);
}

/// A driver runs every CUDA of its own major version and older; a newer major needs a newer driver.
fn runtime(evidence: &GpuEvidence, findings: &mut Vec<Finding>) {
    let (Some(driver), Some(newest)) =
        (evidence.driver_cuda, evidence.runtimes.iter().max_by_key(|runtime| runtime.version))
    else {
        return;
    };
    let name = evidence.driver.as_deref().unwrap_or("unknown");
    if newest.version.0 > driver.0 {
        let needs = match newest.version.0 {
            13 => "580",
            12 => "525",
            _ => "a newer one",
        };
        findings.push(
            Finding::new(
                CHECK,
                "driver-too-old",
                Severity::Error,
                format!("driver {name} runs CUDA up to {}.{}; {} needs CUDA {}", driver.0, driver.1, newest.source, newest.version.0),
            )
            .detail("The start ends in `Error 803` or `Error 804: forward compatibility was attempted on non supported HW`, or finds no CUDA device.")
            .confidence(0.9)
            .suggests("package-version-skew", 5.0)
            .proof(ProofKind::Number, "driver", format!("{name}, CUDA {}.{}", driver.0, driver.1))
            .proof(ProofKind::File, newest.source.clone(), format!("CUDA {}.{}", newest.version.0, newest.version.1))
            .remedy(
                format!("Install driver {needs} or later, or an engine built for CUDA {}.", driver.0),
                vec![format!("uv pip install --reinstall torch --index-url https://download.pytorch.org/whl/cu{}{}", driver.0, driver.1)],
            ),
        );
        return;
    }
    findings.push(
        Finding::new(
            CHECK,
            "driver-fits",
            Severity::Info,
            format!(
                "driver {name} runs CUDA {}.{}, and {} needs no newer one",
                driver.0, driver.1, newest.source
            ),
        )
        .suggests("package-version-skew", -0.5),
    );
    let majors: std::collections::BTreeSet<u32> =
        evidence.runtimes.iter().map(|runtime| runtime.version.0).collect();
    if majors.len() > 1 {
        findings.push(
            Finding::new(
                CHECK,
                "two-cuda-majors",
                Severity::Info,
                format!("CUDA runtimes of {} major versions are installed together", majors.len()),
            )
            .detail("Kernel wheels of both kinds work beside each other if each finds its own libraries.")
            .active(None)
            .suggests("package-version-skew", 1.0)
            .proof(
                ProofKind::File,
                "packages",
                evidence.runtimes.iter().map(|runtime| runtime.source.clone()).collect::<Vec<_>>().join(", "),
            ),
        );
    }
}

/// A `libcuda` from a compat folder in front of the driver's own: right only on data-center GPUs with a driver older than it.
/// Says whether it is there, because then the driver's own CUDA decides nothing.
fn compat(evidence: &GpuEvidence, patient: Option<&Patient>, findings: &mut Vec<Finding>) -> bool {
    let Some(patient) = patient else { return false };
    let mapped =
        patient.libraries.iter().find(|path| path.contains("/compat/") && path.contains("libcuda.so"));
    let asked = patient.deployment.environment.get("LD_LIBRARY_PATH").filter(|path| path.contains("/compat"));
    let Some(shown) = mapped.or(asked) else { return false };
    let consumer =
        evidence.gpus.iter().any(|gpu| ["GeForce", "RTX", "GB10"].iter().any(|name| gpu.name.contains(name)));
    let newest = evidence.runtimes.iter().map(|runtime| runtime.version.0).max();
    let needed = evidence.driver_cuda.zip(newest).is_some_and(|(driver, newest)| newest > driver.0);
    let (severity, confidence, weight) = match (consumer, needed) {
        (true, _) => (Severity::Error, 0.9, 5.0),
        // What forward compatibility is for.
        (false, true) => (Severity::Info, 0.7, 0.5),
        (false, false) => (Severity::Warning, 0.6, 2.5),
    };
    let finding = Finding::new(
        CHECK,
        "compat-libcuda",
        severity,
        "a compatibility libcuda stands in front of the driver's own".to_owned(),
    )
    .detail("Forward compatibility exists for data-center GPUs only, and the compat library must be newer than the driver: else `Error 803` or `Error 804`.")
    .confidence(confidence)
    .suggests("package-version-skew", weight)
    .proof(ProofKind::File, if mapped.is_some() { "/proc/PID/maps" } else { "LD_LIBRARY_PATH" }, shown.clone())
    .remedy(
        "Take the folder out of the library path, or mount an empty one over it.",
        vec![
            "docker run --mount type=tmpfs,destination=/usr/local/cuda/compat …".to_owned(),
            "export LD_LIBRARY_PATH=".to_owned(),
        ],
    );
    findings.push(finding);
    true
}

fn mixed(evidence: &GpuEvidence, findings: &mut Vec<Finding>) {
    let names: std::collections::BTreeSet<&str> = evidence.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    if names.len() > 1 {
        findings.push(
            Finding::new(CHECK, "mixed-gpus", Severity::Warning, format!("this machine has different GPUs: {}", names.into_iter().collect::<Vec<_>>().join(", ")))
                .detail("Ranks on different GPUs run different kernels and have different memory; CUDA and nvidia-smi number them differently unless CUDA_DEVICE_ORDER=PCI_BUS_ID.")
                .active(None)
                .confidence(0.7)
                .suggests("wrong-flags", 1.0)
                .remedy("Choose equal ones.", vec!["export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1".to_owned()]),
        );
    }
}

/// Reported of one driver generation on one GPU generation.
fn regression(evidence: &GpuEvidence, findings: &mut Vec<Finding>) {
    let workstation = evidence.gpus.iter().any(|gpu| {
        gpu.compute_capability.is_some_and(|(major, _)| major == 12) || gpu.name.contains("RTX PRO 6000")
    });
    if evidence.driver_cuda == Some((13, 2)) && workstation {
        findings.push(
            Finding::new(CHECK, "reported-driver", Severity::Warning, "drivers with CUDA 13.2 were reported to let long answers ramble on compute capability 12.0".to_owned())
                .detail("Only the host's driver had changed; containers with CUDA 13.0 were fine. CUDA 13.2's compiler also miscompiles some GGUF kernels; 13.3 fixes it.")
                .confidence(0.5)
                .suggests("package-version-skew", 2.5)
                .suggests("attention-kernel", 1.0)
                .proof(ProofKind::Number, "driver", format!("{}, CUDA 13.2", evidence.driver.as_deref().unwrap_or("unknown")))
                .remedy("Compare with a container or a driver of CUDA 13.0 or 13.3.", vec!["nvidia-smi | head -4".to_owned()]),
        );
    }
}
