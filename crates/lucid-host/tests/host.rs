//! `host.service`, `host.gpu` and `host.memory`: each kind of finding in three forms, and its clean twin.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use lucid_findings::{Deployment, EngineKind, Examined, Severity};
use lucid_host::{
    CudaRuntime, Gpu, GpuEvidence, MemoryEvidence, Patient, RemappedRows, UnitFacts, from_command,
    from_kubernetes, host_gpu, host_memory, host_service, read_kernel_log, read_smi_xml,
};

fn has(examined: &Examined, slug: &str) -> bool {
    examined.findings.iter().any(|finding| finding.id.ends_with(&format!("/{slug}")))
}

fn loud(examined: &Examined) -> Vec<&str> {
    examined
        .findings
        .iter()
        .filter(|finding| finding.severity > Severity::Info)
        .map(|finding| finding.id.as_str())
        .collect()
}

fn served(ranks: u32) -> (Patient, Deployment) {
    let patient = from_command(&format!("vllm serve /m -tp {ranks}")).unwrap();
    let deployment = patient.deployment.clone();
    (patient, deployment)
}

fn with_unit(unit: UnitFacts) -> (Patient, Deployment) {
    let (mut patient, deployment) = served(8);
    patient.service.unit = Some(UnitFacts { name: "vllm.service".to_owned(), ..unit });
    (patient, deployment)
}

#[test]
fn units() {
    let run = |unit: UnitFacts, startup: Option<f64>| {
        let (patient, deployment) = with_unit(unit);
        host_service(&patient, &deployment, startup).unwrap()
    };
    let unit = |kind: &str| UnitFacts {
        kind: Some(kind.to_owned()),
        start_timeout_s: Some(90.0),
        ..UnitFacts::default()
    };
    for kind in ["notify", "forking", "oneshot"] {
        assert!(has(&run(unit(kind), Some(800.0)), "start-timeout"), "{kind}");
        assert!(!has(
            &run(UnitFacts { start_timeout_s: Some(3600.0), ..unit(kind) }, Some(800.0)),
            "start-timeout"
        ));
        // Infinite.
        assert!(!has(&run(UnitFacts { start_timeout_s: None, ..unit(kind) }, Some(800.0)), "start-timeout"));
    }
    for kind in ["simple", "exec", "idle"] {
        let examined = run(unit(kind), Some(800.0));
        assert!(
            loud(&examined).is_empty() && has(&examined, "start-fits"),
            "{kind}: {:?}",
            examined.findings
        );
    }
    for (result, slug) in [
        ("timeout", "ended-by-system"),
        ("watchdog", "ended-by-system"),
        ("oom-kill", "ended-by-system"),
        ("start-limit-hit", "restart-loop"),
    ] {
        assert!(
            has(&run(UnitFacts { result: Some(result.to_owned()), ..unit("simple") }, None), slug),
            "{result}"
        );
    }
    let memory = run(UnitFacts { result: Some("oom-kill".to_owned()), ..unit("simple") }, None);
    assert_eq!(memory.findings[0].suggested_cause(), Some("out-of-memory"));
    assert!(!has(
        &run(UnitFacts { result: Some("success".to_owned()), restarts: Some(1), ..unit("simple") }, None),
        "restart-loop"
    ));
    for mode in ["process", "none"] {
        assert!(has(
            &run(UnitFacts { kill_mode: Some(mode.to_owned()), ..unit("simple") }, None),
            "ranks-survive"
        ));
    }
    assert!(has(&run(UnitFacts { watchdog_s: Some(30.0), ..unit("simple") }, None), "watchdog"));
    assert!(has(&run(UnitFacts { most_runtime_s: Some(600.0), ..unit("simple") }, None), "runtime-limit"));
    let (nothing, deployment) = served(1);
    assert!(host_service(&nothing, &deployment, None).is_err());
}

fn pod(probes: &str) -> (Patient, Deployment) {
    let text = format!(
        "kind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n    - name: c\n      image: vllm/vllm-openai:v0.20.0\n      args: [--model, /m, -tp, \"8\"]\n{probes}"
    );
    let patient = from_kubernetes(&text, None).unwrap();
    let deployment = patient.deployment.clone();
    (patient, deployment)
}

#[test]
fn probes() {
    let run = |probes: &str, startup: Option<f64>| {
        let (patient, deployment) = pod(probes);
        host_service(&patient, &deployment, startup).unwrap()
    };
    let short = "      livenessProbe: {httpGet: {path: /health, port: 8000}, initialDelaySeconds: 120}\n";
    let plain = "      livenessProbe: {tcpSocket: {port: 8000}}\n";
    let slow = "      livenessProbe: {exec: {command: [cat, /tmp/ready]}, periodSeconds: 60, failureThreshold: 10}\n";
    for probe in [short, plain, slow] {
        assert!(has(&run(probe, Some(820.0)), "liveness-probe"), "{probe}");
        // A startup probe with a long budget holds the liveness probe back.
        let held = format!(
            "{probe}      startupProbe: {{httpGet: {{path: /health, port: 8000}}, failureThreshold: 180}}\n"
        );
        assert!(loud(&run(&held, Some(820.0))).is_empty(), "{held}");
        let too_short = format!(
            "{probe}      startupProbe: {{httpGet: {{path: /health, port: 8000}}, failureThreshold: 20}}\n"
        );
        assert!(has(&run(&too_short, Some(820.0)), "startup-probe"));
    }
    // A short model starts in time; readiness kills nobody.
    assert!(loud(&run(short, Some(100.0))).is_empty());
    assert!(
        loud(&run("      readinessProbe: {httpGet: {path: /health, port: 8000}}\n", Some(820.0))).is_empty()
    );
    // A small model with a budget of two minutes, never seen starting, is not accused.
    let text = "kind: Pod\nspec:\n  containers:\n    - {name: c, image: 'vllm/vllm-openai:v0.20.0', args: [--model, /m], livenessProbe: {httpGet: {port: 8000}, initialDelaySeconds: 100}}\n";
    let small = from_kubernetes(text, None).unwrap();
    assert!(loud(&host_service(&small, &small.deployment, None).unwrap()).is_empty());
    // Without an observed start, a generous budget is not accused.
    assert!(
        loud(&run("      livenessProbe: {httpGet: {port: 8000}, initialDelaySeconds: 900}\n", None))
            .is_empty()
    );
}

fn h200() -> GpuEvidence {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    read_smi_xml(&fs::read_to_string(folder.join("h200.xml")).unwrap()).unwrap()
}

/// Recorded on an H200 that computed at that moment; NVML said the same there, to the byte.
#[test]
fn a_recorded_gpu() {
    let evidence = h200();
    assert_eq!((evidence.driver.as_deref(), evidence.driver_cuda), (Some("580.159.04"), Some((13, 0))));
    let gpu = &evidence.gpus[0];
    assert_eq!((gpu.name.as_str(), gpu.bus.as_str()), ("NVIDIA H200", "00000000:00:06.0"));
    assert_eq!(gpu.memory_bytes, 150_754_820_096);
    assert_eq!((gpu.power_limit_w, gpu.default_power_limit_w), (Some(700.0), Some(700.0)));
    assert_eq!((gpu.clock_mhz, gpu.max_clock_mhz), (Some(1815), Some(1980)));
    assert_eq!(
        (gpu.pcie_generation, gpu.pcie_lanes, gpu.pcie_replays),
        (Some((5, 5)), Some((16, 16)), Some(0))
    );
    assert_eq!(
        (gpu.corrected_now, gpu.uncorrected_now, gpu.corrected_ever, gpu.uncorrected_ever),
        (Some(0), Some(0), Some(0), Some(0))
    );
    assert_eq!(gpu.remapped, Some(RemappedRows::default()));
    assert_eq!(
        (gpu.ecc, gpu.persistence, gpu.mig, gpu.fabric.as_deref()),
        (Some(true), Some(true), Some(false), None)
    );
    // Working at full power is no fault.
    assert_eq!(gpu.slowed_by, ["sw_power_cap"]);
    assert_eq!(gpu.processes.len(), 1);
    let examined = host_gpu(&evidence, None, &Deployment::default()).unwrap();
    assert!(loud(&examined).is_empty() && has(&examined, "healthy"), "{:?}", examined.findings);
    let healthy = examined.findings.iter().find(|finding| finding.id.ends_with("healthy")).unwrap();
    assert!(healthy.suggests[0].weight < 0.0);
    for broken in ["", "<a/>", "<nvidia_smi_log>", "<nvidia_smi_log><gpu><fb_memory_usage><total>x"] {
        assert!(read_smi_xml(broken).is_err(), "{broken}");
    }
    assert_eq!(read_smi_xml("<nvidia_smi_log><gpu id='1'/></nvidia_smi_log>").unwrap().gpus.len(), 1);
    // Entities that multiply are refused, not expanded.
    let bomb = format!(
        "<!DOCTYPE nvidia_smi_log [<!ENTITY a \"{}\">{}]><nvidia_smi_log>&a9;</nvidia_smi_log>",
        "x".repeat(1000),
        (1..10)
            .map(|n| format!("<!ENTITY a{n} \"{}\">", format!("&a{};", n - 1).repeat(10)))
            .collect::<String>()
    );
    assert!(read_smi_xml(&bomb).is_err());
}

fn broken(change: impl Fn(&mut Gpu)) -> Examined {
    let mut evidence = h200();
    change(&mut evidence.gpus[0]);
    host_gpu(&evidence, None, &Deployment::default()).unwrap()
}

#[test]
fn gpus_with_errors() {
    for slug_and_change in [
        ("uncorrected-errors", &(|gpu: &mut Gpu| gpu.uncorrected_now = Some(1)) as &dyn Fn(&mut Gpu)),
        ("many-corrected-errors", &|gpu| gpu.corrected_now = Some(236_795)),
        ("remapping-failed", &|gpu| {
            gpu.remapped = Some(RemappedRows { failed: true, ..RemappedRows::default() })
        }),
        ("remapping-pending", &|gpu| {
            gpu.remapped = Some(RemappedRows { uncorrected: 1, pending: true, ..RemappedRows::default() })
        }),
        ("retirement-pending", &|gpu| gpu.retirement_pending = Some(true)),
        ("ecc-off", &|gpu| gpu.ecc = Some(false)),
        ("hot", &|gpu| gpu.temperature = Some(93)),
        ("hot", &|gpu| (gpu.temperature, gpu.slowdown_temperature) = (Some(88), Some(87))),
        ("slowed-down", &|gpu| gpu.slowed_by = vec!["hw_thermal_slowdown".to_owned()]),
        ("slowed-down", &|gpu| gpu.slowed_by = vec!["hw_power_brake_slowdown".to_owned()]),
        ("narrow-bus", &|gpu| gpu.pcie_lanes = Some((8, 16))),
        ("narrow-bus", &|gpu| gpu.pcie_generation = Some((1, 5))),
    ] {
        let (slug, change) = slug_and_change;
        let examined = broken(change);
        assert!(has(&examined, slug) && !has(&examined, "healthy"), "{slug}: {:?}", examined.findings);
    }
    for harmless in [
        &(|gpu: &mut Gpu| gpu.corrected_now = Some(12)) as &dyn Fn(&mut Gpu),
        &|gpu| gpu.uncorrected_ever = Some(1),
        &|gpu| gpu.remapped = Some(RemappedRows { corrected: 2, ..RemappedRows::default() }),
        // An idle link sleeps.
        &|gpu| (gpu.pcie_generation, gpu.utilization) = (Some((1, 5)), Some(0)),
        &|gpu| gpu.temperature = Some(84),
        // A GPU that tells nothing accuses nobody.
        &|gpu| *gpu = Gpu { name: "NVIDIA GB10".to_owned(), ..Gpu::default() },
    ] {
        assert!(loud(&broken(harmless)).is_empty());
    }
}

#[test]
fn kernel_errors() {
    let run = |log: &str| {
        let evidence = GpuEvidence { kernel_events: read_kernel_log(log), ..h200() };
        host_gpu(&evidence, None, &Deployment::default()).unwrap()
    };
    for number in [48, 79, 95] {
        let examined = run(&format!("[1.0] NVRM: Xid (PCI:0000:1b:00): {number}, pid=1, name=x"));
        let finding = examined.findings.iter().find(|finding| finding.id == "host.gpu/xid-hardware").unwrap();
        assert_eq!((finding.severity, finding.suggested_cause()), (Severity::Error, Some("gpu-hardware")));
    }
    for number in [13, 31, 43] {
        let examined = run(&format!("kernel: NVRM: Xid (PCI:0000:1b:00): {number}, pid=1, name=x"));
        let finding = examined.findings.iter().find(|finding| finding.id == "host.gpu/xid-program").unwrap();
        assert_eq!(finding.suggested_cause(), Some("attention-kernel"));
    }
    assert!(loud(&run("NVRM: Xid (PCI:0000:1b:00): 45, cleanup\nNVRM: Xid (PCI:0000:1b:00): 9999, new\nNVRM: loading NVIDIA UNIX Open Kernel Module")).is_empty());
    assert!(has(
        &run(&"pcieport 0000:00:01.1: AER: Corrected error received: 0000:01:00.0\n".repeat(120)),
        "bus-errors-corrected"
    ));
    assert!(loud(&run("pcieport 0000:00:01.1: AER: Corrected error received: 0000:01:00.0")).is_empty());
    assert!(has(&run("AMD-Vi: Event logged [IO_PAGE_FAULT device=01:00.0"), "iommu-fault"));
    assert!(host_gpu(&GpuEvidence::default(), None, &Deployment::default()).is_err());
    // A gigabyte of one line is bounded.
    let long = format!("NVRM: Xid (PCI:0000:1b:00): 79, {}", "x".repeat(1 << 20));
    assert!(read_kernel_log(&long)[0].line.len() < 2_000);
    let many: String = (0..10_000).map(|n| format!("NVRM: Xid (PCI:{n:04x}:1b:00): 79, x\n")).collect();
    assert_eq!(read_kernel_log(&many).len(), 50);
}

#[test]
fn drivers() {
    let run = |driver: (u32, u32), runtime: (u32, u32)| {
        let mut evidence = h200();
        evidence.driver_cuda = Some(driver);
        evidence.runtimes = vec![CudaRuntime { source: "libcudart".to_owned(), version: runtime }];
        host_gpu(&evidence, None, &Deployment::default()).unwrap()
    };
    for (driver, runtime) in [((12, 4), (13, 0)), ((12, 8), (13, 2)), ((11, 8), (12, 1))] {
        assert!(has(&run(driver, runtime), "driver-too-old"), "{driver:?} {runtime:?}");
    }
    // Minor versions of one major run on each other.
    for (driver, runtime) in [((13, 0), (13, 2)), ((13, 0), (12, 8)), ((12, 2), (12, 9))] {
        assert!(loud(&run(driver, runtime)).is_empty(), "{driver:?} {runtime:?}");
    }
    let mut evidence = h200();
    evidence.add_runtimes(
        [
            ("nvidia-cuda-runtime-cu12", "12.8.90"),
            ("torch", "2.11.0+cu130"),
            ("nvidia_cuda_runtime", "13.0.96"),
            ("numpy", "2.0"),
        ],
        ["/x/libcudart.so.13", "/x/libcudart.so", "/x/libother.so.12"],
    );
    let versions: Vec<_> = evidence.runtimes.iter().map(|runtime| runtime.version).collect();
    assert_eq!(versions, [(12, 8), (13, 0), (13, 0), (13, 0)]);
    let (mut patient, deployment) = served(1);
    for library in ["/usr/local/cuda/compat/libcuda.so.590.1", "/usr/local/cuda-13.0/compat/libcuda.so.1"] {
        patient.libraries = vec![library.to_owned()];
        assert!(has(&host_gpu(&h200(), Some(&patient), &deployment).unwrap(), "compat-libcuda"));
    }
    // What forward compatibility is for: a data-center GPU, an older driver, a newer CUDA.
    let mut older = h200();
    older.driver_cuda = Some((12, 4));
    older.runtimes = vec![CudaRuntime { source: "torch 2.11.0+cu130".to_owned(), version: (13, 0) }];
    assert!(loud(&host_gpu(&older, Some(&patient), &deployment).unwrap()).is_empty());
    older.gpus[0].name = "NVIDIA GeForce RTX 4090".to_owned();
    assert!(has(&host_gpu(&older, Some(&patient), &deployment).unwrap(), "compat-libcuda"));
    patient.libraries = vec!["/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04".to_owned()];
    assert!(loud(&host_gpu(&h200(), Some(&patient), &deployment).unwrap()).is_empty());
}

#[test]
fn others_on_a_gpu() {
    let (mut patient, deployment) = served(1);
    let own = h200().gpus[0].processes[0].pid;
    patient.processes = vec![lucid_host::ProcessFacts { pid: own, ..Default::default() }];
    let run = |used: Option<u64>, name: &str| {
        let mut evidence = h200();
        evidence.gpus[0].processes.push(lucid_host::GpuProcess {
            pid: 1,
            name: name.to_owned(),
            used_bytes: used,
        });
        host_gpu(&evidence, Some(&patient), &deployment).unwrap()
    };
    for name in ["python3", "VLLM::EngineCore", "llama-server"] {
        assert!(has(&run(Some(40 << 30), name), "shared-gpu"), "{name}");
    }
    assert!(loud(&run(Some(200 << 20), "Xorg")).is_empty() && loud(&run(None, "x")).is_empty());
}

fn machine() -> MemoryEvidence {
    toml::from_str(
        r#"
        total_bytes = 2164381024256
        available_bytes = 2000000000000
        shared_memory = { path = "/dev/shm", bytes = 1082190512128, free_bytes = 1082190000000 }
        limits = [{ name = "Max open files", soft = 1048576, hard = 1048576 }, { name = "Max locked memory" }]
        cgroup = { path = "/", limit_bytes = 2164381024256, used_bytes = 500000000000, file_bytes = 490000000000 }
        disks = [{ path = "/tmp", purpose = "temporary files", bytes = 1000000000000, free_bytes = 500000000000 }]
        memory_nodes = 2
        node_balancing = false
        clock = { synchronized = true, source = "timedatectl" }
        "#,
    )
    .unwrap()
}

#[test]
fn memory() {
    let (patient, deployment) = served(8);
    let run = |change: &dyn Fn(&mut MemoryEvidence)| {
        let mut evidence = machine();
        change(&mut evidence);
        host_memory(&evidence, Some(&patient), &deployment).unwrap()
    };
    let healthy = run(&|_| {});
    assert!(loud(&healthy).is_empty(), "{:?}", healthy.findings);
    let shm = |bytes: u64, used: u64| {
        move |evidence: &mut MemoryEvidence| {
            let shm = evidence.shared_memory.as_mut().unwrap();
            (shm.bytes, shm.free_bytes) = (bytes, bytes - used);
        }
    };
    for bytes in [64 << 20, 1 << 20, 512 << 20] {
        let examined = run(&shm(bytes, 0));
        assert!(has(&examined, "small-shared-memory"));
        assert_eq!(examined.findings[0].suggested_cause(), Some("collectives"));
    }
    // One rank talks to nobody.
    let (single, one) = served(1);
    let mut evidence = machine();
    shm(64 << 20, 0)(&mut evidence);
    assert!(loud(&host_memory(&evidence, Some(&single), &one).unwrap()).is_empty());
    assert!(
        has(&run(&shm(16 << 30, 15 << 30)), "full-shared-memory")
            && !has(&run(&shm(16 << 30, 8 << 30)), "full-shared-memory")
    );
    for (slug, change) in [
        (
            "killed-in-group",
            &(|e: &mut MemoryEvidence| e.cgroup.as_mut().unwrap().kills = 1) as &dyn Fn(&mut MemoryEvidence),
        ),
        ("near-limit", &|e| {
            (e.cgroup.as_mut().unwrap().used_bytes, e.cgroup.as_mut().unwrap().file_bytes) =
                (Some(2_160_000_000_000), Some(1_000))
        }),
        ("swapping", &|e| (e.swap_bytes, e.swap_used_bytes) = (Some(8 << 30), Some(7 << 30))),
        ("few-open-files", &|e| e.limits[0].soft = Some(1024)),
        ("full-disk", &|e| e.disks[0].free_bytes = 100 << 20),
        ("idle-huge-pages", &|e| e.huge_free_bytes = Some(1_000_000_000_000)),
        ("clock-not-kept", &|e| e.clock.synchronized = Some(false)),
    ] {
        assert!(loud(&run(change)).iter().any(|id| id.ends_with(slug)), "{slug}");
    }
    for harmless in [
        &(|e: &mut MemoryEvidence| e.kernel_kills = 3) as &dyn Fn(&mut MemoryEvidence),
        // Files that were read can be given back.
        &|e| {
            (e.cgroup.as_mut().unwrap().used_bytes, e.cgroup.as_mut().unwrap().file_bytes) =
                (Some(2_160_000_000_000), Some(2_000_000_000_000))
        },
        &|e| (e.swap_bytes, e.swap_used_bytes) = (Some(8 << 30), Some(1 << 28)),
        &|e| e.checkpoint_bytes = Some(3_000_000_000_000),
        &|e| e.clock.synchronized = None,
        &|e| e.limits.clear(),
        // Without RDMA nobody needs to lock memory.
        &|e| e.limits[1].soft = Some(65_536),
    ] {
        let examined = run(harmless);
        assert!(loud(&examined).is_empty(), "{:?}", examined.findings);
    }
    assert!(
        host_memory(
            &MemoryEvidence::default(),
            None,
            &Deployment { engine: Some(EngineKind::Vllm), ..Deployment::default() }
        )
        .is_err()
    );
}
