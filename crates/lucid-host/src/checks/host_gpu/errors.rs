//! Errors of memory, bus and links, by counters and by the kernel's log.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use lucid_findings::{Finding, ProofKind, Severity};
use serde::Deserialize;

use super::{CHECK, place};
use crate::gpu::{Gpu, GpuEvidence};
use crate::kernel_log::{KernelEvent, KernelEventKind};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Knowledge {
    xid: Vec<Xid>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Xid {
    number: u32,
    meaning: String,
    hardware: bool,
    cause: Option<String>,
    #[serde(default)]
    weight: f64,
}

static KNOWLEDGE: LazyLock<Knowledge> = LazyLock::new(|| {
    toml::from_str(include_str!("../../../knowledge/xid.toml"))
        .unwrap_or_else(|error| panic!("knowledge/xid.toml: {error}"))
});

/// Corrected errors are ordinary; a card that makes thousands a day wears out.
const MANY_CORRECTED: u64 = 10_000;
/// Corrected bus errors that are no longer noise.
const MANY_BUS_ERRORS: u32 = 100;

pub(super) fn check(evidence: &GpuEvidence, findings: &mut Vec<Finding>) {
    for gpu in &evidence.gpus {
        memory_errors(gpu, findings);
    }
    kernel(&evidence.kernel_events, findings);
    fabric(evidence, findings);
}

fn memory_errors(gpu: &Gpu, findings: &mut Vec<Finding>) {
    let here = place(gpu);
    let diagnose =
        vec![format!("nvidia-smi -q -d ECC,ROW_REMAPPER -i {}", gpu.index), "dcgmi diag -r 3".to_owned()];
    if let Some(count) = gpu.uncorrected_now.filter(|&count| count > 0) {
        findings.push(
            Finding::new(
                CHECK,
                "uncorrected-errors",
                Severity::Error,
                format!("{here} has {count} uncorrected memory errors since the driver was loaded"),
            )
            .detail("Weights or cache on it may be wrong; output that changes by restart fits.")
            .suggests("gpu-hardware", 5.0)
            .proof(
                ProofKind::Number,
                here.clone(),
                format!("volatile uncorrected {count}, aggregate {:?}", gpu.uncorrected_ever),
            )
            .remedy("Take it out of service, reset it, and test it.", diagnose.clone()),
        );
    } else if let Some(count) = gpu.uncorrected_ever.filter(|&count| count > 0) {
        findings.push(
            Finding::new(CHECK, "past-errors", Severity::Info, format!("{here} had {count} uncorrected memory errors in its life, none since the driver was loaded"))
                .active(Some(false))
                .suggests("gpu-hardware", 0.5)
                .proof(ProofKind::Number, here.clone(), format!("aggregate uncorrected {count}")),
        );
    }
    if let Some(count) = gpu.corrected_now.filter(|&count| count >= MANY_CORRECTED) {
        findings.push(
            Finding::new(
                CHECK,
                "many-corrected-errors",
                Severity::Warning,
                format!("{here} corrected {count} memory errors since the driver was loaded"),
            )
            .detail(
                "Each was repaired; so many announce uncorrectable ones. Read this before blaming software.",
            )
            .confidence(0.8)
            .suggests("gpu-hardware", 3.5)
            .proof(ProofKind::Number, here.clone(), format!("volatile corrected {count}"))
            .remedy("Test it.", diagnose.clone()),
        );
    }
    if let Some(rows) = gpu.remapped.as_ref().filter(|rows| rows.failed || rows.pending) {
        let (slug, severity, words, weight) = if rows.failed {
            (
                "remapping-failed",
                Severity::Error,
                "has a memory row that could not be replaced: it must be exchanged",
                6.0,
            )
        } else {
            (
                "remapping-pending",
                Severity::Warning,
                "has a memory row that is replaced only after a reset",
                3.5,
            )
        };
        findings.push(
            Finding::new(CHECK, slug, severity, format!("{here} {words}"))
                .suggests("gpu-hardware", weight)
                .proof(ProofKind::Number, here.clone(), format!("{rows:?}"))
                .remedy(
                    "Stop its users and reset it; exchange it if the failure stays.",
                    vec![format!("sudo nvidia-smi --gpu-reset -i {}", gpu.index)],
                ),
        );
    }
    if gpu.retirement_pending == Some(true) {
        findings.push(
            Finding::new(
                CHECK,
                "retirement-pending",
                Severity::Warning,
                format!("{here} has pages that are retired only after a reboot"),
            )
            .suggests("gpu-hardware", 3.0)
            .proof(ProofKind::Number, here.clone(), "pending retirement: yes")
            .remedy("Reboot.", vec!["sudo reboot".to_owned()]),
        );
    }
    if gpu.ecc == Some(false)
        && ["H100", "H200", "B200", "B300", "A100", "GB200"].iter().any(|name| gpu.name.contains(name))
    {
        findings.push(
            Finding::new(
                CHECK,
                "ecc-off",
                Severity::Warning,
                format!("{here} runs without error correction"),
            )
            .detail("Memory errors stay unnoticed and change weights or cache.")
            .suggests("gpu-hardware", 1.5)
            .proof(ProofKind::Number, here.clone(), "ECC mode: disabled")
            .remedy("Turn it on; a reset follows.", vec![format!("sudo nvidia-smi -i {} -e 1", gpu.index)]),
        );
    }
    if let (Some(now), Some(limit)) = (gpu.temperature, gpu.slowdown_temperature.or(Some(90)))
        && now >= limit.min(90)
    {
        findings.push(
            Finding::new(CHECK, "hot", Severity::Warning, format!("{here} is at {now} °C"))
                .confidence(0.8)
                .suggests("gpu-hardware", 2.5)
                .proof(ProofKind::Number, here.clone(), format!("{now} °C, slows down at {limit} °C"))
                .remedy(
                    "Look after the cooling, or lower the power limit.",
                    vec![format!(
                        "sudo nvidia-smi -i {} -pl {:.0}",
                        gpu.index,
                        gpu.default_power_limit_w.unwrap_or(600.0) * 0.8
                    )],
                ),
        );
    }
    let harsh: Vec<&str> = gpu
        .slowed_by
        .iter()
        .map(String::as_str)
        .filter(|why| why.starts_with("hw_") || *why == "sw_thermal_slowdown")
        .collect();
    if !harsh.is_empty() {
        findings.push(
            Finding::new(
                CHECK,
                "slowed-down",
                Severity::Warning,
                format!("{here} is slowed down by its hardware: {}", harsh.join(", ")),
            )
            .detail("Heat or power; every rank waits for the slowest.")
            .confidence(0.8)
            .suggests("gpu-hardware", 2.0)
            .proof(
                ProofKind::Number,
                here,
                format!("{:?} of {:?} MHz, {:?} W", gpu.clock_mhz, gpu.max_clock_mhz, gpu.power_w),
            )
            .remedy(
                "Look after cooling and power supply.",
                vec![format!("nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {}", gpu.index)],
            ),
        );
    }
}

fn kernel(events: &[KernelEvent], findings: &mut Vec<Finding>) {
    let mut by_number: BTreeMap<u32, Vec<&KernelEvent>> = BTreeMap::new();
    for event in events {
        if let KernelEventKind::Xid(number) = event.kind {
            by_number.entry(number).or_default().push(event);
        }
    }
    for (number, events) in by_number {
        let known = KNOWLEDGE.xid.iter().find(|xid| xid.number == number);
        let count: u32 = events.iter().map(|event| event.count).sum();
        let devices: Vec<&str> = events.iter().filter_map(|event| event.device.as_deref()).collect();
        let hardware = known.is_some_and(|xid| xid.hardware);
        let meaning = known.map_or("its meaning is not known here", |xid| xid.meaning.as_str());
        let (slug, severity) = match known {
            Some(xid) if xid.hardware && xid.weight >= 4.0 => ("xid-hardware", Severity::Error),
            Some(xid) if xid.hardware => ("xid-hardware", Severity::Warning),
            Some(xid) if xid.cause.is_some() => ("xid-program", Severity::Warning),
            _ => ("xid-other", Severity::Info),
        };
        let mut finding = Finding::new(
            CHECK,
            slug,
            severity,
            format!("Xid {number}, {count} times on {}: {meaning}", devices.join(", ")),
        )
        .confidence(if hardware { 0.95 } else { 0.7 })
        .active(None)
        .proof(ProofKind::Log, "kernel log", events[0].line.clone());
        if let Some((cause, weight)) = known.and_then(|xid| Some((xid.cause.as_ref()?, xid.weight))) {
            finding = finding.suggests(cause.clone(), weight);
        }
        if severity != Severity::Info {
            finding = finding.remedy(
                if hardware {
                    "Take the GPU out of service, reset it and test it."
                } else {
                    "A program's fault: look at the engine's log at this time."
                },
                vec![
                    "sudo dmesg -T | grep -i xid".to_owned(),
                    if hardware { "dcgmi diag -r 3" } else { "journalctl -u UNIT --since '1 hour ago'" }
                        .to_owned(),
                ],
            );
        }
        findings.push(finding);
    }
    for event in events {
        let (slug, severity, title, cause, weight, remedy, command) = match event.kind {
            KernelEventKind::SXid(number) => (
                "switch-error",
                Severity::Warning,
                format!("an NVSwitch reported SXid {number}, {} times", event.count),
                "gpu-hardware",
                2.5,
                "Look at the fabric.",
                "nvidia-smi nvlink -s",
            ),
            KernelEventKind::PcieFatal => (
                "bus-error",
                Severity::Error,
                format!("PCIe error that was not corrected, {} times", event.count),
                "gpu-hardware",
                4.5,
                "Turn PCIe power management off, reseat the card, look at the riser.",
                "sudo grubby --update-kernel=ALL --args='pcie_aspm=off pcie_port_pm=off'",
            ),
            KernelEventKind::PcieCorrected if event.count >= MANY_BUS_ERRORS => (
                "bus-errors-corrected",
                Severity::Warning,
                format!("{} corrected PCIe errors", event.count),
                "gpu-hardware",
                2.0,
                "Reseat the card, look at the riser and the slot.",
                "sudo lspci -vvv | grep -A2 -i 'aer\\|lnksta'",
            ),
            KernelEventKind::IommuFault => (
                "iommu-fault",
                Severity::Warning,
                format!("the IOMMU refused a device's access, {} times", event.count),
                "collectives",
                3.5,
                "Put the IOMMU into pass-through, or turn peer access off.",
                "export NCCL_P2P_DISABLE=1",
            ),
            _ => continue,
        };
        findings.push(
            Finding::new(CHECK, slug, severity, title)
                .active(None)
                .confidence(0.85)
                .suggests(cause, weight)
                .proof(ProofKind::Log, "kernel log", event.line.clone())
                .remedy(remedy, vec![command.to_owned()]),
        );
    }
}

/// Machines with NVSwitches have no CUDA device until the fabric manager has set them up.
fn fabric(evidence: &GpuEvidence, findings: &mut Vec<Finding>) {
    let unfinished = evidence.gpus.iter().find(|gpu| {
        gpu.fabric.as_deref().is_some_and(|state| matches!(state, "In Progress" | "Not Started"))
    });
    let manager = evidence.fabric_manager.as_deref();
    let stopped =
        evidence.nv_switches > 0 && manager.is_some_and(|state| matches!(state, "inactive" | "failed"));
    // Grace systems run the fabric elsewhere: only this host's own switches count.
    if evidence.nv_switches == 0 || !(stopped || unfinished.is_some()) {
        return;
    }
    let state = unfinished.and_then(|gpu| gpu.fabric.clone()).unwrap_or_default();
    findings.push(
        Finding::new(
            CHECK,
            "fabric-down",
            Severity::Error,
            "the NVSwitch fabric is not set up: CUDA finds no device".to_owned(),
        )
        .detail("The engine's log says `Error 802: system not yet initialized`.")
        .confidence(0.9)
        .suggests("gpu-hardware", 4.5)
        .suggests("collectives", 1.5)
        .proof(
            ProofKind::File,
            "nvidia-fabricmanager",
            format!("{}, {} switches, fabric {state}", manager.unwrap_or("unknown"), evidence.nv_switches),
        )
        .remedy(
            "Install the fabric manager of the driver's exact version and start it.",
            vec![
                format!(
                    "sudo apt-get install nvidia-fabricmanager-{}",
                    evidence
                        .driver
                        .as_deref()
                        .and_then(|driver| driver.split('.').next())
                        .unwrap_or("VERSION")
                ),
                "sudo systemctl enable --now nvidia-fabricmanager".to_owned(),
            ],
        ),
    );
}
