//! GPUs through NVML, the driver's own library, loaded when it is there.

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::device::Device;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, P2pCapabilitiesIndex, P2pStatus, TemperatureSensor, TemperatureThreshold,
    TopologyLevel,
};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::structs::device::FieldId;

use super::{Gpu, GpuEvidence, GpuLink, GpuProcess, RemappedRows};

/// Field numbers of `nvml.h` that the wrapper has no method for.
const REMAPPED_CORRECTED: u32 = 142;
const REMAPPED_UNCORRECTED: u32 = 143;
const REMAPPED_PENDING: u32 = 144;
const REMAPPED_FAILED: u32 = 145;
/// More processes than this on one GPU are cut.
const MOST_PROCESSES: usize = 64;
/// NVLinks of one GPU, at most (Blackwell has 18).
const MOST_LINKS: u32 = 18;

/// Everything that NVML tells.
pub(super) fn read() -> Result<GpuEvidence, String> {
    let nvml = Nvml::init().map_err(|error| error.to_string())?;
    let mut evidence = GpuEvidence { source: "NVML".to_owned(), ..GpuEvidence::default() };
    evidence.driver = nvml.sys_driver_version().ok();
    // 13000 is CUDA 13.0.
    evidence.driver_cuda = nvml
        .sys_cuda_driver_version()
        .ok()
        .and_then(|n| u32::try_from(n).ok())
        .map(|n| (n / 1000, n % 1000 / 10));
    let count = nvml.device_count().map_err(|error| error.to_string())?;
    let mut devices = Vec::new();
    for index in 0..count {
        match nvml.device_by_index(index) {
            Ok(device) => {
                evidence.gpus.push(read_gpu(&nvml, &device, index));
                devices.push(device);
            }
            // A card that fell off the bus is a finding of its own: keep the others.
            Err(error) => evidence.notes.push(format!("GPU {index}: {error}")),
        }
    }
    for (at, from) in devices.iter().enumerate() {
        for (further, to) in devices.iter().enumerate().skip(at + 1) {
            let (Some(first), Some(second)) = (evidence.gpus.get(at), evidence.gpus.get(further)) else {
                continue;
            };
            let link = read_link(&nvml, from, to, first, second);
            evidence.links.extend(link);
        }
    }
    Ok(evidence)
}

fn read_gpu(nvml: &Nvml, device: &Device<'_>, index: u32) -> Gpu {
    let memory = device.memory_info().ok();
    let errors = |kind: MemoryError, since: EccCounter| device.total_ecc_errors(kind, since).ok();
    let field = |id: u32| {
        let mut values = device.field_values_for(&[FieldId(id)]).ok()?;
        match values.pop()?.ok()?.value.ok()? {
            SampleValue::U32(n) => Some(u64::from(n)),
            SampleValue::U64(n) => Some(n),
            SampleValue::I64(n) => u64::try_from(n).ok(),
            _ => None,
        }
    };
    let remapped = field(REMAPPED_CORRECTED).map(|corrected| RemappedRows {
        corrected,
        uncorrected: field(REMAPPED_UNCORRECTED).unwrap_or(0),
        pending: field(REMAPPED_PENDING).unwrap_or(0) > 0,
        failed: field(REMAPPED_FAILED).unwrap_or(0) > 0,
    });
    let processes = device.running_compute_processes().unwrap_or_default();
    let watts = |milliwatts: Option<u32>| milliwatts.map(|n| f64::from(n) / 1000.0);
    let pair = |now: Option<u32>, most: Option<u32>| now.zip(most);
    Gpu {
        index,
        name: device.name().unwrap_or_default(),
        bus: device.pci_info().map(|pci| pci.bus_id).unwrap_or_default(),
        compute_capability: device
            .cuda_compute_capability()
            .ok()
            .and_then(|found| Some((u32::try_from(found.major).ok()?, u32::try_from(found.minor).ok()?))),
        memory_bytes: memory.as_ref().map_or(0, |memory| memory.total),
        used_bytes: memory.as_ref().map_or(0, |memory| memory.used),
        processes: processes
            .into_iter()
            .take(MOST_PROCESSES)
            .map(|process| GpuProcess {
                pid: process.pid,
                name: nvml.sys_process_name(process.pid, 128).map(|name| program(&name)).unwrap_or_default(),
                used_bytes: match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                },
            })
            .collect(),
        utilization: device.utilization_rates().ok().map(|rates| rates.gpu),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        slowdown_temperature: device.temperature_threshold(TemperatureThreshold::Slowdown).ok(),
        power_w: watts(device.power_usage().ok()),
        power_limit_w: watts(device.enforced_power_limit().ok()),
        default_power_limit_w: watts(device.power_management_limit_default().ok()),
        clock_mhz: device.clock_info(Clock::SM).ok(),
        max_clock_mhz: device.max_clock_info(Clock::SM).ok(),
        slowed_by: device.current_throttle_reasons().map(slowed_by).unwrap_or_default(),
        ecc: device.is_ecc_enabled().ok().map(|state| state.currently_enabled),
        corrected_now: errors(MemoryError::Corrected, EccCounter::Volatile),
        uncorrected_now: errors(MemoryError::Uncorrected, EccCounter::Volatile),
        corrected_ever: errors(MemoryError::Corrected, EccCounter::Aggregate),
        uncorrected_ever: errors(MemoryError::Uncorrected, EccCounter::Aggregate),
        remapped,
        retirement_pending: device.are_pages_pending_retired().ok(),
        pcie_generation: pair(device.current_pcie_link_gen().ok(), device.max_pcie_link_gen().ok()),
        pcie_lanes: pair(device.current_pcie_link_width().ok(), device.max_pcie_link_width().ok()),
        pcie_replays: device.pcie_replay_counter().ok().map(u64::from),
        persistence: device.is_in_persistent_mode().ok(),
        mig: device.mig_mode().ok().map(|mode| mode.current != 0),
        fabric: None,
        nv_links: Some(
            (0..MOST_LINKS).filter(|&link| device.link_wrapper_for(link).is_active().unwrap_or(false)).count()
                as u32,
        ),
    }
}

/// A process may carry its arguments, and they a secret: only the program's name is kept.
pub(super) fn program(name: &str) -> String {
    let word = name.split_whitespace().next().unwrap_or(name);
    crate::patient::base_name(word).chars().take(80).collect()
}

fn slowed_by(reasons: ThrottleReasons) -> Vec<String> {
    [
        (ThrottleReasons::SW_POWER_CAP, "sw_power_cap"),
        (ThrottleReasons::HW_SLOWDOWN, "hw_slowdown"),
        (ThrottleReasons::SYNC_BOOST, "sync_boost"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "sw_thermal_slowdown"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hw_thermal_slowdown"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "hw_power_brake_slowdown"),
    ]
    .into_iter()
    .filter(|(reason, _)| reasons.contains(*reason))
    .map(|(_, name)| name.to_owned())
    .collect()
}

fn read_link(nvml: &Nvml, from: &Device<'_>, to: &Device<'_>, first: &Gpu, second: &Gpu) -> Option<GpuLink> {
    let peer =
        from.p2p_status(to, P2pCapabilitiesIndex::Read).ok().map(|status| matches!(status, P2pStatus::Ok));
    let over_nvlink =
        from.p2p_status(to, P2pCapabilitiesIndex::NvLink).is_ok_and(|status| matches!(status, P2pStatus::Ok));
    let kind = if over_nvlink {
        format!("NV{}", first.nv_links.unwrap_or(0))
    } else {
        match from.topology_common_ancestor(nvml.device_by_index(second.index).ok()?).ok()? {
            TopologyLevel::Internal | TopologyLevel::Single => "PIX",
            TopologyLevel::Multiple => "PXB",
            TopologyLevel::HostBridge => "PHB",
            TopologyLevel::Node => "NODE",
            TopologyLevel::System => "SYS",
        }
        .to_owned()
    };
    Some(GpuLink { from: first.index, to: second.index, kind, peer })
}
