//! PCIe bridges above the GPUs: Access Control Services that send peer traffic up to the root make GPU-to-GPU copies hang.

use std::fs;
use std::path::Path;

/// Extended capabilities begin here; each begins with its id and where the next one is (PCI Express base specification, 7.7).
const EXTENDED: usize = 0x100;
/// Access Control Services.
const ACS: u16 = 0x000d;
/// Bits of its control register: request redirect and completion redirect.
const REDIRECT: u16 = 0x4 | 0x8;

/// Bridges above `gpus` that redirect, NVSwitches, and what could not be read.
pub(super) fn read(devices: &Path, gpus: &[String]) -> (Vec<String>, u32, Vec<String>) {
    let mut bridges = Vec::new();
    let mut notes = Vec::new();
    for bus in gpus {
        // NVML writes `00000000:1B:00.0`, sysfs `0000:1b:00.0`.
        let short = bus.to_ascii_lowercase();
        let short = short.get(short.len().saturating_sub(12)..).unwrap_or(&short).to_owned();
        let Ok(place) = fs::canonicalize(devices.join(&short)) else { continue };
        // The path of a device leads through its bridges.
        for above in place.ancestors().skip(1) {
            let name = above.file_name().and_then(|name| name.to_str()).unwrap_or("");
            if !name.contains(':') || bridges.iter().any(|known| known == name) {
                continue;
            }
            match fs::read(above.join("config")) {
                Ok(space) if space.len() <= EXTENDED => {
                    // Without root the kernel shows 64 bytes only.
                    let note = "PCIe bridges' access control needs root to be read".to_owned();
                    if !notes.contains(&note) {
                        notes.push(note);
                    }
                }
                Ok(space) if redirects(&space) => bridges.push(name.to_owned()),
                _ => {}
            }
        }
    }
    let switches = fs::read_dir(devices)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_nv_switch(&entry.path()))
        .count();
    (bridges, switches as u32, notes)
}

/// Whether a configuration space has Access Control Services that redirect.
fn redirects(space: &[u8]) -> bool {
    let word = |at: usize| space.get(at..at + 2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let mut at = EXTENDED;
    // 4 KiB of space hold fewer capabilities than this; a loop in it must not hold us.
    for _ in 0..64 {
        let (Some(id), Some(next)) = (word(at), word(at + 2)) else { return false };
        if id == ACS {
            return word(at + 6).is_some_and(|control| control & REDIRECT != 0);
        }
        at = usize::from(next >> 4);
        if at < EXTENDED {
            return false;
        }
    }
    false
}

/// A bridge (class 0x0680) of NVIDIA is an NVSwitch.
fn is_nv_switch(device: &Path) -> bool {
    let read = |name: &str| fs::read_to_string(device.join(name)).unwrap_or_default();
    read("vendor").trim() == "0x10de" && read("class").trim().starts_with("0x0680")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(control: u16) -> Vec<u8> {
        let mut space = vec![0_u8; 4096];
        // Advanced error reporting at 0x100, then ACS at 0x148.
        space[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x01, 0x14]);
        space[0x102..0x104].copy_from_slice(&(0x148_u16 << 4 | 1).to_le_bytes());
        space[0x148..0x14a].copy_from_slice(&ACS.to_le_bytes());
        space[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
        space
    }

    #[test]
    fn redirecting_bridges_are_told() {
        // SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+, as Linux sets them with an IOMMU.
        assert!(redirects(&space(0x1d)));
        assert!(redirects(&space(0x4)));
        // SrcValid alone is harmless.
        assert!(!redirects(&space(0x1)));
        assert!(!redirects(&[0; 64]));
        // A capability that points at itself.
        let mut looping = vec![0_u8; 4096];
        looping[0x102..0x104].copy_from_slice(&(0x100_u16 << 4).to_le_bytes());
        assert!(!redirects(&looping));
    }

    #[test]
    fn the_path_of_a_gpu_leads_through_its_bridges() {
        let root = tempfile::tempdir().unwrap();
        let bridge = root.path().join("sys/devices/pci0000:00/0000:00:01.0");
        let gpu = bridge.join("0000:1b:00.0");
        fs::create_dir_all(&gpu).unwrap();
        fs::write(bridge.join("config"), space(0x1d)).unwrap();
        let devices = root.path().join("devices");
        fs::create_dir_all(&devices).unwrap();
        std::os::unix::fs::symlink(&gpu, devices.join("0000:1b:00.0")).unwrap();
        let (bridges, switches, notes) = read(&devices, &["00000000:1B:00.0".to_owned()]);
        assert_eq!((bridges, switches, notes), (vec!["0000:00:01.0".to_owned()], 0, vec![]));
    }
}
