//! How GPUs reach the host and each other.

use lucid_findings::{Deployment, Finding, ProofKind, Severity};

use super::{CHECK, place};
use crate::gpu::{GpuEvidence, GpuLink};

pub(super) fn check(evidence: &GpuEvidence, deployment: &Deployment, findings: &mut Vec<Finding>) {
    slots(evidence, findings);
    let ranks =
        deployment.tensor_parallel.unwrap_or(1).saturating_mul(deployment.pipeline_parallel.unwrap_or(1));
    if ranks > 1 {
        peers(evidence, deployment, findings);
    }
}

/// Fewer lanes than the card has: a bad seat, riser or slot. The generation falls by itself when idle, so only lanes count
/// unless the GPU works.
fn slots(evidence: &GpuEvidence, findings: &mut Vec<Finding>) {
    for gpu in &evidence.gpus {
        let here = place(gpu);
        let busy = gpu.utilization.is_some_and(|percent| percent >= 20);
        let lanes = gpu.pcie_lanes.filter(|(now, most)| now < most);
        let generation = gpu.pcie_generation.filter(|(now, most)| now < most && busy);
        let Some(((now, most), what)) =
            lanes.map(|pair| (pair, "lanes")).or(generation.map(|pair| (pair, "generation")))
        else {
            continue;
        };
        findings.push(
            Finding::new(CHECK, "narrow-bus", Severity::Warning, format!("{here} runs at PCIe {what} {now} of {most}"))
                .detail("Loading and, without NVLink, every collective is slower; a bad seat or riser also makes errors.")
                .confidence(0.7)
                .suggests("gpu-hardware", 1.0)
                .proof(ProofKind::Number, here, format!("lanes {:?}, generation {:?}, replays {:?}", gpu.pcie_lanes, gpu.pcie_generation, gpu.pcie_replays))
                .remedy("Reseat the card; see what the slot offers.", vec![format!("sudo lspci -vv -s {} | grep -i lnk", gpu.bus.trim_start_matches("0000"))]),
        );
    }
}

/// Peer access over PCIe that an IOMMU or a bridge sends elsewhere: the first collective hangs.
fn peers(evidence: &GpuEvidence, deployment: &Deployment, findings: &mut Vec<Finding>) {
    let over_pcie: Vec<&GpuLink> =
        evidence.links.iter().filter(|link| !link.kind.starts_with("NV")).collect();
    let variable = |name: &str| deployment.environment.get(name).map(String::as_str);
    let off =
        variable("NCCL_P2P_DISABLE") == Some("1") || matches!(variable("NCCL_P2P_LEVEL"), Some("LOC" | "0"));
    if over_pcie.is_empty() && evidence.redirecting_bridges.is_empty() {
        return;
    }
    let command_line = &evidence.kernel_command_line;
    let passed = command_line.contains("iommu=pt")
        || command_line.contains("iommu=off")
        || command_line.contains("pci=noacs");
    let translating = evidence.iommu_groups.is_some_and(|groups| groups > 0) && !passed;
    let kinds: std::collections::BTreeSet<&str> = over_pcie.iter().map(|link| link.kind.as_str()).collect();
    if !off
        && !over_pcie.is_empty()
        && !evidence.redirecting_bridges.is_empty()
        && !command_line.contains("pci=noacs")
    {
        findings.push(
            Finding::new(
                CHECK,
                "redirected-peers",
                Severity::Warning,
                format!(
                    "{} PCIe bridges send GPU-to-GPU traffic up to the root (ACS)",
                    evidence.redirecting_bridges.len()
                ),
            )
            .detail("The first collective hangs right after NCCL's start, with every GPU at 100 %.")
            .confidence(0.8)
            .suggests("collectives", 4.0)
            .proof(
                ProofKind::File,
                "PCI configuration space",
                evidence.redirecting_bridges.iter().take(8).cloned().collect::<Vec<_>>().join(", "),
            )
            .remedy(
                "Turn the redirection off, or peer access.",
                vec![
                    "export NCCL_P2P_DISABLE=1".to_owned(),
                    "sudo setpci -s BRIDGE ECAP_ACS+6.w=0000".to_owned(),
                    "# or boot with pci=noacs / iommu=pt".to_owned(),
                ],
            ),
        );
    } else if !off
        && translating
        && !over_pcie.is_empty()
        && evidence.processor.as_deref() == Some("AuthenticAMD")
    {
        findings.push(
            Finding::new(
                CHECK,
                "translated-peers",
                Severity::Warning,
                format!("GPUs reach each other over PCIe ({}) through an IOMMU that translates", kinds.iter().copied().collect::<Vec<_>>().join(", ")),
            )
            .detail("On AMD hosts the first collective was reported to hang right after `vLLM is using nccl==…`, until the IOMMU was off or in pass-through.")
            .active(None)
            .confidence(0.6)
            .suggests("collectives", 3.0)
            .proof(ProofKind::Number, "/sys/kernel/iommu_groups", format!("{:?} groups; command line: {command_line}", evidence.iommu_groups))
            .remedy(
                "Boot with iommu=pt, or turn peer access off.",
                vec!["export NCCL_P2P_DISABLE=1".to_owned(), "sudo grubby --update-kernel=ALL --args='amd_iommu=on iommu=pt'".to_owned()],
            ),
        );
    }
    let custom = !deployment.command.iter().any(|word| {
        word.starts_with("--disable-custom-all-reduce") || word.starts_with("--disable_custom_all_reduce")
    });
    let granted = over_pcie.iter().any(|link| link.peer == Some(true));
    // GeForce drivers grant no peer access: one that does is patched.
    if custom && granted && evidence.gpus.iter().any(|gpu| gpu.name.contains("GeForce")) {
        findings.push(
            Finding::new(CHECK, "patched-peers", Severity::Warning, "GeForce cards with peer access: a patched driver, and custom all-reduce is on".to_owned())
                .detail("Writes over BAR1 were reported lost in the custom kernel, while NCCL over the same link is right: every token is `!`, and drafts are never accepted.")
                .confidence(0.7)
                .suggests("collectives", 3.5)
                .proof(ProofKind::Number, "peer access", format!("{} pairs over {}", over_pcie.len(), kinds.iter().copied().collect::<Vec<_>>().join(", ")))
                .remedy("Turn custom all-reduce off and compare.", vec!["vllm serve MODEL --disable-custom-all-reduce".to_owned()]),
        );
    }
    if !over_pcie.is_empty()
        && findings.iter().all(|finding| finding.suggested_cause() != Some("collectives"))
    {
        findings.push(
            Finding::new(
                CHECK,
                "no-nvlink",
                Severity::Info,
                format!(
                    "{} pairs of GPUs have no NVLink between them ({})",
                    over_pcie.len(),
                    kinds.into_iter().collect::<Vec<_>>().join(", ")
                ),
            )
            .detail("Tensor parallelism then waits for PCIe; nothing gets wrong.")
            .suggests("collectives", 0.3),
        );
    }
}
