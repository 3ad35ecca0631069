//! What the GPUs say of themselves, and how they are joined.

mod nvml;
mod pcie;
mod smi_xml;

use std::path::Path;

use lucid_findings::{GpuModel, Step};
use serde::{Deserialize, Serialize};

use crate::kernel_log::{KernelEvent, read_kernel_log};

pub use smi_xml::read_smi_xml;

/// Words of the kernel's command line that decide about GPUs.
const KERNEL_WORDS: [&str; 9] = [
    "iommu",
    "amd_iommu",
    "intel_iommu",
    "pci=",
    "pcie_",
    "pci-",
    "hugepages",
    "default_hugepagesz",
    "numa_balancing",
];

/// The GPUs of one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuEvidence {
    /// `NVML`, `nvidia-smi -q -x`; empty if neither answered.
    pub source: String,
    /// Why there is nothing, if there is nothing.
    pub absent: Option<String>,
    /// `580.95.05`.
    pub driver: Option<String>,
    /// Newest CUDA that the driver runs: `(13, 0)`.
    pub driver_cuda: Option<(u32, u32)>,
    /// CUDA runtimes that the patient brings.
    pub runtimes: Vec<CudaRuntime>,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// How pairs of them are joined.
    pub links: Vec<GpuLink>,
    /// What the kernel said about GPUs and their buses.
    pub kernel_events: Vec<KernelEvent>,
    /// What the kernel's command line says of buses and memory (`iommu=pt`, `pci=noacs`); the rest is nobody's business.
    pub kernel_command_line: String,
    /// `GenuineIntel`, `AuthenticAMD`.
    pub processor: Option<String>,
    /// Groups of the IOMMU; 0: it is off.
    pub iommu_groups: Option<u32>,
    /// PCIe bridges above GPUs that send peer traffic up to the root (ACS redirect).
    pub redirecting_bridges: Vec<String>,
    /// Fabric manager of NVSwitch machines: `active`, `inactive`, `failed`; `None`: not asked or not installed.
    pub fabric_manager: Option<String>,
    /// NVSwitch devices of this machine.
    pub nv_switches: u32,
    /// What could not be read.
    pub notes: Vec<String>,
}

/// A CUDA runtime among the patient's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaRuntime {
    /// Package or library that says it: `nvidia-cuda-runtime-cu12 12.8.90`, `libcudart.so.13`.
    pub source: String,
    /// `(13, 0)`; the minor is 0 where only the major is known.
    pub version: (u32, u32),
}

/// One GPU. Numbers that it doesn't tell are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// Its number for the driver.
    pub index: u32,
    /// `NVIDIA H200`.
    pub name: String,
    /// `00000000:1B:00.0`.
    pub bus: String,
    /// `(9, 0)`.
    pub compute_capability: Option<(u32, u32)>,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Of it, in use.
    pub used_bytes: u64,
    /// Who uses it.
    pub processes: Vec<GpuProcess>,
    /// Percent of the last sample in which a kernel ran.
    pub utilization: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Degrees at which it slows down.
    pub slowdown_temperature: Option<u32>,
    /// Watts.
    pub power_w: Option<f64>,
    /// Limit in force, watts.
    pub power_limit_w: Option<f64>,
    /// The maker's limit, watts.
    pub default_power_limit_w: Option<f64>,
    /// MHz now.
    pub clock_mhz: Option<u32>,
    /// MHz at most.
    pub max_clock_mhz: Option<u32>,
    /// Why it runs slower than it could: `sw_power_cap`, `hw_thermal_slowdown`, …
    pub slowed_by: Vec<String>,
    /// Error correction in force.
    pub ecc: Option<bool>,
    /// Corrected errors since the driver was loaded.
    pub corrected_now: Option<u64>,
    /// Uncorrected errors since the driver was loaded.
    pub uncorrected_now: Option<u64>,
    /// Corrected errors ever.
    pub corrected_ever: Option<u64>,
    /// Uncorrected errors ever.
    pub uncorrected_ever: Option<u64>,
    /// Replaced rows of memory (since Ampere).
    pub remapped: Option<RemappedRows>,
    /// Retired pages (before Ampere) that wait for a reboot.
    pub retirement_pending: Option<bool>,
    /// PCIe generation now, and at most.
    pub pcie_generation: Option<(u32, u32)>,
    /// PCIe lanes now, and at most.
    pub pcie_lanes: Option<(u32, u32)>,
    /// PCIe packets sent again.
    pub pcie_replays: Option<u64>,
    /// The driver stays loaded without clients.
    pub persistence: Option<bool>,
    /// Cut into instances.
    pub mig: Option<bool>,
    /// NVSwitch fabric: `Completed`, `In Progress`, `Not Started`.
    pub fabric: Option<String>,
    /// NVLinks that are up.
    pub nv_links: Option<u32>,
}

/// Replaced rows of a GPU's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// For corrected errors.
    pub corrected: u64,
    /// For uncorrected errors.
    pub uncorrected: u64,
    /// Waiting for a reset of the GPU.
    pub pending: bool,
    /// No spare row was left: the GPU has to be replaced.
    pub failed: bool,
}

/// A process on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Its id on the host.
    pub pid: u32,
    /// Its name, without arguments.
    pub name: String,
    /// GPU memory in bytes; `None` inside a container that may not see it.
    pub used_bytes: Option<u64>,
}

/// How two GPUs are joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLink {
    /// The first, by index.
    pub from: u32,
    /// The second, by index.
    pub to: u32,
    /// As `nvidia-smi topo -m` writes it: `NV18`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`.
    pub kind: String,
    /// Whether they may read each other's memory.
    pub peer: Option<bool>,
}

impl GpuEvidence {
    /// Asks NVML and, where that isn't there, `nvidia-smi`; then reads the kernel's side under `/sys` and `/proc` (no root
    /// needed for most of it). `kernel_log` is the text of `dmesg` or `journalctl -k`, or nothing.
    #[must_use]
    pub fn gather(kernel_log: Option<&str>, progress: &mut dyn FnMut(Step)) -> GpuEvidence {
        let mut step =
            |done, text: &str| progress(Step { done, of: 3, unit: "parts", text: text.to_owned() });
        step(0, "asking NVML for GPUs");
        let mut evidence = match nvml::read() {
            Ok(evidence) => evidence,
            Err(reason) => match crate::patient::tool_output(&["nvidia-smi", "-q", "-x"]) {
                Ok(xml) => read_smi_xml(&xml).unwrap_or_else(|error| {
                    GpuEvidence::nothing(&format!("NVML: {reason}; nvidia-smi: {error}"))
                }),
                Err(_) => GpuEvidence::nothing(&format!("NVML: {reason}; nvidia-smi is not there either")),
            },
        };
        step(1, "reading the kernel's log");
        evidence.read_kernel_log(kernel_log);
        step(2, "reading PCIe bridges");
        evidence.read_buses(Path::new("/"));
        evidence
    }

    /// Bytes in use on all GPUs together, asked of NVML alone; `None` where it isn't there.
    #[must_use]
    pub fn bytes_in_use() -> Option<u64> {
        nvml::read().ok().map(|evidence| evidence.gpus.iter().map(|gpu| gpu.used_bytes).sum())
    }

    fn nothing(reason: &str) -> GpuEvidence {
        GpuEvidence { absent: Some(reason.to_owned()), ..GpuEvidence::default() }
    }

    fn read_kernel_log(&mut self, given: Option<&str>) {
        let text = match given {
            Some(text) => text.to_owned(),
            None => match crate::patient::tool_output(&["dmesg", "--time-format", "iso"]) {
                Ok(text) => text,
                Err(error) => {
                    self.notes.push(format!(
                        "the kernel's log was not read ({error}); pass it: sudo dmesg > kernel.log"
                    ));
                    return;
                }
            },
        };
        self.kernel_events = read_kernel_log(&text);
    }

    /// IOMMU, bridges and the kernel's command line under a root that holds `/sys` and `/proc`.
    fn read_buses(&mut self, root: &Path) {
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let words = read("proc/cmdline");
        let told =
            words.split_whitespace().filter(|word| KERNEL_WORDS.iter().any(|start| word.starts_with(start)));
        self.kernel_command_line = told.take(40).collect::<Vec<_>>().join(" ");
        let vendor = read("proc/cpuinfo");
        self.processor = vendor.lines().find_map(|line| {
            line.strip_prefix("vendor_id")?.split(':').nth(1).map(|vendor| vendor.trim().to_owned())
        });
        self.iommu_groups = std::fs::read_dir(root.join("sys/kernel/iommu_groups"))
            .ok()
            .map(|groups| groups.count().min(100_000) as u32);
        let buses: Vec<String> = self.gpus.iter().map(|gpu| gpu.bus.clone()).collect();
        let (bridges, switches, notes) = pcie::read(&root.join("sys/bus/pci/devices"), &buses);
        self.redirecting_bridges = bridges;
        self.nv_switches = switches;
        self.notes.extend(notes);
        if self.nv_switches > 0 && root == Path::new("/") {
            let state = crate::patient::tool_output(&[
                "systemctl",
                "show",
                "-p",
                "ActiveState",
                "--value",
                "nvidia-fabricmanager",
            ]);
            self.fabric_manager =
                state.ok().map(|state| state.trim().to_owned()).filter(|state| !state.is_empty());
        }
    }

    /// Adds the CUDA runtimes that packages (`nvidia-cuda-runtime-cu12` and its version) or mapped libraries
    /// (`…/libcudart.so.13`) name.
    pub fn add_runtimes<'a>(
        &mut self,
        packages: impl IntoIterator<Item = (&'a str, &'a str)>,
        libraries: impl IntoIterator<Item = &'a str>,
    ) {
        let numbers = |text: &str| {
            let mut parts = text.split('.').map(|part| part.parse::<u32>().ok());
            Some((parts.next()??, parts.next().flatten().unwrap_or(0)))
        };
        for (name, version) in packages {
            let plain = name.to_ascii_lowercase().replace(['_', '.'], "-");
            if plain == "nvidia-cuda-runtime" || plain.starts_with("nvidia-cuda-runtime-cu") {
                self.runtimes.extend(numbers(version).map(|version| CudaRuntime {
                    source: format!("{name} {}.{}", version.0, version.1),
                    version,
                }));
            }
            // `torch 2.11.0+cu130`
            if let Some(cuda) = version
                .split("+cu")
                .nth(1)
                .filter(|cuda| cuda.len() == 3 && cuda.bytes().all(|b| b.is_ascii_digit()))
            {
                let version_of = cuda[..2].parse().ok().zip(cuda[2..].parse().ok());
                self.runtimes.extend(
                    version_of.map(|pair| CudaRuntime { source: format!("{name} {version}"), version: pair }),
                );
            }
        }
        for library in libraries {
            let name = library.rsplit('/').next().unwrap_or(library);
            if let Some(version) = name.strip_prefix("libcudart.so.").and_then(numbers) {
                self.runtimes.push(CudaRuntime { source: library.to_owned(), version });
            }
        }
        self.runtimes.sort_by(|a, b| (a.version, &a.source).cmp(&(b.version, &b.source)));
        self.runtimes.dedup();
        self.runtimes.truncate(40);
    }

    /// The GPUs as checks of other evidence need them.
    #[must_use]
    pub fn models(&self) -> Vec<GpuModel> {
        self.gpus
            .iter()
            .map(|gpu| GpuModel {
                name: gpu.name.clone(),
                compute_capability: gpu.compute_capability,
                memory_bytes: (gpu.memory_bytes > 0).then_some(gpu.memory_bytes),
            })
            .collect()
    }
}
