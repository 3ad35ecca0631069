//! What the kernel's log says about GPUs, buses and killed processes.

use std::sync::LazyLock;

use lucid_findings::redact;
use regex::Regex;
use serde::{Deserialize, Serialize};

/// More events of one kind are only counted.
const MOST_OF_A_KIND: usize = 50;
/// Longer lines are cut.
const LONGEST_LINE: usize = 400;

/// What a line of the kernel's log is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "number")]
pub enum KernelEventKind {
    /// An error number of NVIDIA's driver.
    Xid(u32),
    /// An error number of an NVSwitch.
    SXid(u32),
    /// A PCIe error that was not corrected.
    PcieFatal,
    /// A PCIe error that was corrected.
    PcieCorrected,
    /// The kernel killed a process for memory.
    OutOfMemory,
    /// A device's access was refused by the IOMMU.
    IommuFault,
}

/// A line of the kernel's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelEvent {
    /// What it is about.
    pub kind: KernelEventKind,
    /// The PCI device, where one is named.
    pub device: Option<String>,
    /// The line.
    pub line: String,
    /// How many lines of this kind there were, if this stands for several.
    pub count: u32,
}

static XID: LazyLock<Regex> = LazyLock::new(|| pattern(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)"));
static SXID: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"nvidia-nvswitch\S*: SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)"));
static FATAL: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"aer_uncor_status: 0x0*[1-9a-fA-F]|AER: .*(?:Uncorrect|Fatal)|severity=(?:Uncorrect|Fatal)|Surprise (?:Link )?Down|pcieport .*: device recovery failed",
    )
});
static CORRECTED: LazyLock<Regex> = LazyLock::new(|| pattern(r"AER: .*[Cc]orrected|severity=Corrected"));
static OUT_OF_MEMORY: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"Out of memory: Killed process|Memory cgroup out of memory: Killed process|oom-kill:")
});
static IOMMU: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"AMD-Vi: Event logged \[IO_PAGE_FAULT|DMAR: \[DMA .*fault|arm-smmu.*fault"));
static DEVICE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"\b(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Reads the text of `dmesg`, `journalctl -k` or a syslog; lines about nothing here are passed over.
#[must_use]
pub fn read_kernel_log(text: &str) -> Vec<KernelEvent> {
    let mut events: Vec<KernelEvent> = Vec::new();
    for line in text.lines() {
        let Some((kind, device)) = classify(line) else { continue };
        let device = device.or_else(|| DEVICE.find(line).map(|found| found.as_str().to_owned()));
        let same = |event: &&mut KernelEvent| event.kind == kind && event.device == device;
        let seen = events.iter().filter(|event| event.kind == kind).count();
        if let Some(known) = events.iter_mut().rev().find(same) {
            known.count += 1;
        } else if seen < MOST_OF_A_KIND {
            let line: String = redact(line.trim()).chars().take(LONGEST_LINE).collect();
            events.push(KernelEvent { kind, device, line, count: 1 });
        }
    }
    events
}

fn classify(line: &str) -> Option<(KernelEventKind, Option<String>)> {
    // Lines are long and many: look for a word before running patterns.
    if line.contains("Xid") {
        if let Some(found) = SXID.captures(line) {
            return Some((KernelEventKind::SXid(found[2].parse().ok()?), Some(found[1].to_owned())));
        }
        let found = XID.captures(line)?;
        return Some((KernelEventKind::Xid(found[2].parse().ok()?), Some(found[1].to_owned())));
    }
    let kind = if OUT_OF_MEMORY.is_match(line) {
        KernelEventKind::OutOfMemory
    } else if FATAL.is_match(line) {
        KernelEventKind::PcieFatal
    } else if CORRECTED.is_match(line) {
        KernelEventKind::PcieCorrected
    } else if IOMMU.is_match(line) {
        KernelEventKind::IommuFault
    } else {
        return None;
    };
    Some((kind, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_several_kernels() {
        let text = "\
[12345.678901] NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
2026-09-30T10:00:00,000000+00:00 NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.
Sep 30 10:00:00 box kernel: NVRM: Xid (PCI:0000:4c:00): 63, pid=1, name=VLLM::Worker, Row Remapper: New row
[1.0] nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error
[2.0] pcieport 0000:00:01.1: AER: aer_uncor_status: 0x00000020, aer_uncor_mask: 0x00100000
[2.1] pcieport 0000:00:01.1: AER: Corrected error received: 0000:01:00.0
[3.0] Memory cgroup out of memory: Killed process 4242 (VLLM::EngineCor) total-vm:1kB
[4.0] nvidia 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021 address=0xfee00000 flags=0x0010]
[5.0] usb 1-1: new high-speed USB device, Xid in its name";
        let events = read_kernel_log(text);
        let kinds: Vec<_> = events.iter().map(|event| (event.kind, event.count)).collect();
        assert_eq!(
            kinds,
            [
                (KernelEventKind::Xid(79), 2),
                (KernelEventKind::Xid(63), 1),
                (KernelEventKind::SXid(12028), 1),
                (KernelEventKind::PcieFatal, 1),
                (KernelEventKind::PcieCorrected, 1),
                (KernelEventKind::OutOfMemory, 1),
                (KernelEventKind::IommuFault, 1),
            ]
        );
        assert_eq!(events[0].device.as_deref(), Some("0000:1b:00"));
    }
}
