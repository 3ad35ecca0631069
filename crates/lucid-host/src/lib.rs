//! What runs on the host: processes, services, serving flags, GPUs, memory.
//!
//! A [`Patient`] is found from a process, a container, a systemd unit, a manifest or a command line; nothing of it is imported
//! or run. From it come four kinds of evidence, each a plain serializable struct that a check reads anywhere, later:
//!
//! | evidence | gathered by | check |
//! |---|---|---|
//! | [`ServingEvidence`] | [`ServingEvidence::gather`] | [`config_flags`] (`config.flags`) |
//! | [`ServiceEvidence`] | the patient's finder | [`host_service`] (`host.service`) |
//! | [`GpuEvidence`] | [`GpuEvidence::gather`], or a recorded `nvidia-smi -q -x` | [`host_gpu`] (`host.gpu`) |
//! | [`MemoryEvidence`] | [`MemoryEvidence::gather`] | [`host_memory`] (`host.memory`) |
//!
//! ```
//! use lucid_host::{ServingEvidence, config_flags, from_command};
//!
//! let mut patient = from_command("vllm serve moonshotai/Kimi-K2.5 -tp 8 --trust-remote-code")?;
//! let serving = ServingEvidence::gather(&patient, &mut |_| {});
//! serving.inform(&mut patient.deployment);
//! let examined = config_flags(&serving, &patient.deployment).unwrap();
//! assert!(examined.findings.iter().any(|finding| finding.id == "config.flags/reasoning-parser-missing"));
//! # Ok::<(), lucid_host::PatientError>(())
//! ```
//!
//! Secrets never enter evidence: variables and arguments that name one are dropped or masked before anything is stored.

mod checks;
mod findings;
mod gpu;
mod kernel_log;
mod memory;
mod patient;
mod service;
mod serving;

pub use checks::{config_flags, host_gpu, host_memory, host_service};
pub use findings::FINDINGS;
pub use gpu::{CudaRuntime, Gpu, GpuEvidence, GpuLink, GpuProcess, RemappedRows, read_smi_xml};
pub use kernel_log::{KernelEvent, KernelEventKind, read_kernel_log};
pub use lucid_root::Root;
pub use memory::{CgroupMemory, Clock, FileSystem, Limit, MemoryEvidence, resident_memory};
pub use patient::{
    Image, Mount, Patient, PatientError, ProcessFacts, Source, from_command, from_compose,
    from_container_inspect, from_kubernetes, from_process, from_unit, inspect_container, inspect_pod,
    inspect_unit, serving_processes,
};
pub use service::{ContainerFacts, Probe, ProbeKind, ServiceEvidence, UnitFacts};
pub use serving::{
    ArgumentList, Flag, Flags, KvCacheScheme, ModelConfig, Quantization, Rope, ServingEvidence, WeightLayout,
};
