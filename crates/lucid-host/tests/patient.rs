//! Patients from recordings and from processes that really run.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lucid_findings::{EngineKind, LoadFormat};
use lucid_host::{
    Patient, PatientError, ProbeKind, Root, ServingEvidence, Source, from_command, from_compose,
    from_container_inspect, from_kubernetes, from_process, from_unit, host_memory, host_service,
    serving_processes,
};

fn recorded(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded").join(name)).unwrap()
}

fn ids(patient: &Patient, startup: Option<f64>) -> Vec<String> {
    let examined = host_service(patient, &patient.deployment, startup).unwrap();
    examined.findings.into_iter().map(|finding| finding.id).collect()
}

#[test]
fn a_docker_container() {
    let patient = from_container_inspect(&recorded("docker.json")).unwrap();
    assert_eq!(patient.source, Source::Container("kimi".to_owned()));
    let deployment = &patient.deployment;
    assert_eq!(deployment.engine, Some(EngineKind::Vllm));
    assert_eq!(deployment.engine_version.as_deref(), Some("0.20.0"));
    assert_eq!(deployment.model.as_deref(), Some("/models/Kimi-K2.5-NVFP4"));
    assert_eq!(deployment.tensor_parallel, Some(8));
    assert_eq!(deployment.environment.get("VLLM_USE_DEEP_GEMM").map(String::as_str), Some("0"));
    assert_eq!(patient.root.as_deref(), Some(Path::new("/var/lib/docker/overlay2/abc/merged")));
    assert_eq!(patient.mounts.len(), 2);
    let text = serde_json::to_string(&patient).unwrap();
    assert!(!text.contains("topsecretvalue") && !text.contains("hf_abc"), "{text}");
    let back: Patient = serde_json::from_str(&text).unwrap();
    assert_eq!(back, patient);
    assert_eq!(ids(&patient, Some(800.0)), ["host.service/restart-loop", "host.service/healthcheck"]);
    let memory = host_memory(&Default::default(), Some(&patient), deployment).unwrap();
    assert_eq!(memory.findings[0].id, "host.memory/small-shared-memory");
    // The host's shared memory is no finding.
    let mut host = patient.clone();
    host.service.container.as_mut().unwrap().ipc = Some("host".to_owned());
    assert!(host_memory(&Default::default(), Some(&host), deployment).unwrap().findings.is_empty());
}

#[test]
fn a_docker_run_line() {
    let patient = from_command(
        "sudo docker run -d --rm --gpus all --ipc=host -e HF_TOKEN=hf_abcdefghijklmnopqrst1 -e VLLM_USE_DEEP_GEMM=0 \
         -v /models:/models --shm-size 16g vllm/vllm-openai:v0.20.0 --model /models/K -tp 8 --quantization modelopt_fp4",
    )
    .unwrap();
    assert_eq!(patient.deployment.engine, Some(EngineKind::Vllm));
    assert_eq!(patient.deployment.model.as_deref(), Some("/models/K"));
    assert_eq!(patient.deployment.quantization.as_deref(), Some("modelopt_fp4"));
    assert_eq!(patient.deployment.environment.len(), 1);
    let container = patient.service.container.unwrap();
    assert_eq!((container.shared_memory_bytes, container.ipc.as_deref()), (Some(16 << 30), Some("host")));
}

#[test]
fn a_compose_file() {
    let patient = from_compose(&recorded("compose.yaml"), None).unwrap();
    let deployment = &patient.deployment;
    assert_eq!(patient.source, Source::Manifest("engine".to_owned()));
    assert_eq!((deployment.engine, deployment.tensor_parallel), (Some(EngineKind::Sglang), Some(8)));
    assert_eq!(deployment.engine_version.as_deref(), Some("0.5.12"));
    assert_eq!(deployment.environment.get("SGLANG_SANITIZE_NAN_LOGITS").map(String::as_str), Some("1"));
    let container = patient.service.container.as_ref().unwrap();
    assert_eq!(container.restart_policy.as_deref(), Some("always"));
    assert_eq!(
        (container.shared_memory_bytes, container.memory_limit_bytes),
        (Some(32 << 30), Some(512 << 30))
    );
    let probe = &patient.service.probes[0];
    assert_eq!((probe.kind, probe.budget_s()), (ProbeKind::Healthcheck, 720.0));
    assert_eq!(patient.mounts[1].size_bytes, Some(1 << 30));
    assert!(matches!(
        from_compose(&recorded("compose.yaml"), Some("nobody")),
        Err(PatientError::NotThere { .. })
    ));
    assert!(from_compose("services: [", None).is_err());
    assert!(from_compose("a: 1", None).unwrap_err().to_string().contains("from_kubernetes"));
}

#[test]
fn a_pod() {
    let patient = from_kubernetes(&recorded("pod.json"), None).unwrap();
    let deployment = &patient.deployment;
    assert_eq!(patient.source, Source::Pod("kimi-0".to_owned()));
    assert_eq!(deployment.engine_version.as_deref(), Some("0.20.0"));
    assert_eq!(deployment.model.as_deref(), Some("moonshotai/Kimi-K2.5"));
    assert_eq!(deployment.environment.len(), 2);
    assert!(patient.notes.iter().any(|note| note.contains("HF_TOKEN comes from")));
    assert!(patient.files_elsewhere.as_ref().unwrap().contains("kubectl cp"));
    let container = patient.service.container.as_ref().unwrap();
    assert_eq!(container.state.as_deref(), Some("CrashLoopBackOff"));
    assert_eq!((container.last_run_s, container.shared_memory_bytes), (Some(330.0), Some(16 << 30)));
    assert_eq!(ids(&patient, None), ["host.service/restart-loop", "host.service/liveness-probe"]);
    assert!(from_kubernetes(&recorded("pod.json"), Some("metrics")).unwrap().deployment.engine.is_none());
    assert!(from_kubernetes("kind: ConfigMap\ndata: {a: b}", None).is_err());
    assert!(from_kubernetes(&"[".repeat(100_000), None).is_err());
}

#[test]
fn a_unit() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("etc/default")).unwrap();
    fs::write(
        folder.path().join("etc/default/vllm"),
        "# comment\nMODEL=/models/Kimi-K2.5\nVLLM_API_KEY=verysecret1\nNCCL_DEBUG=INFO\n",
    )
    .unwrap();
    let patient = from_unit(&recorded("unit.txt"), &Root::new(folder.path())).unwrap();
    let deployment = &patient.deployment;
    // The file wins over Environment=, as systemd does it.
    assert_eq!(deployment.model.as_deref(), Some("/models/Kimi-K2.5"));
    assert_eq!(
        deployment.environment.get("NCCL_DEBUG_FILE").map(String::as_str),
        Some("/var/log/with blank")
    );
    assert!(!serde_json::to_string(&patient).unwrap().contains("verysecret1"));
    assert!(patient.notes.iter().any(|note| note.contains("/etc/default/missing")));
    let unit = patient.service.unit.as_ref().unwrap();
    assert_eq!((unit.start_timeout_s, unit.restarts), (Some(90.0), Some(41)));
    assert_eq!(
        ids(&patient, Some(820.0)),
        [
            "host.service/start-timeout",
            "host.service/never-notifies",
            "host.service/ended-by-system",
            "host.service/restart-loop"
        ]
    );
    // A simple unit is started at once: the same time-out never comes into play.
    let simple = recorded("unit.txt")
        .replace("Type=notify", "Type=simple")
        .replace("Result=timeout", "Result=success")
        .replace("NRestarts=41", "NRestarts=0");
    let simple = from_unit(&simple, &Root::new(folder.path())).unwrap();
    assert_eq!(ids(&simple, Some(820.0)), ["host.service/start-fits"]);
    assert!(from_unit("", &Root::new("/")).is_err());
    assert!(from_unit("Id=x.service\nLoadState=not-found\n", &Root::new("/")).is_err());
}

#[test]
fn commands_of_other_engines() {
    let llama = from_command("llama-server -m /m/K-Q4.gguf -ngl 99 -c 32768").unwrap().deployment;
    assert_eq!((llama.engine, llama.load_format), (Some(EngineKind::LlamaCpp), Some(LoadFormat::Gguf)));
    assert_eq!(from_command("").unwrap().deployment.command, Vec::<String>::new());
    assert!(from_command(&"x ".repeat(100_000)).is_err());
    let other = from_command("ls -l").unwrap();
    assert_eq!(
        (other.deployment.engine, other.deployment.command),
        (None, vec!["ls".to_owned(), "-l".to_owned()])
    );
}

/// Ends its process when the test ends, however it ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A script called `vllm` that serves nothing: it starts a rank with vLLM's title, says that it is ready, and waits.
const SERVER: &str = r#"
import os, subprocess, sys
rank = subprocess.Popen(["VLLM::Worker_TP1"], executable="/bin/cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
# An answer proves that the kernel has finished starting it: before that its command line is empty.
rank.stdin.write(b"here\n")
rank.stdin.flush()
rank.stdout.readline()
print(rank.pid, flush=True)
sys.stdin.read()
rank.kill()
"#;

#[test]
fn a_process_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("Kimi-K2.5");
    fs::create_dir_all(&model).unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs/kimi-k2.5.json");
    fs::copy(config, model.join("config.json")).unwrap();
    fs::write(model.join("model-00001-of-00001.safetensors"), [0_u8; 1000]).unwrap();
    let script = folder.path().join("vllm");
    fs::write(&script, SERVER).unwrap();
    let started = Command::new("python3")
        .arg(&script)
        .args(["serve", "./Kimi-K2.5", "-tp", "2", "--api-key", "topsecret99", "--trust-remote-code"])
        .current_dir(folder.path())
        .env("VLLM_USE_DEEP_GEMM", "0")
        .env("HF_TOKEN", "hf_abcdefghijklmnopqrst1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(child) = started else {
        println!("skipped: python3 is not there");
        return;
    };
    let mut running = Running(child);
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let rank: u32 = line.trim().parse().unwrap();

    // The rank is pointed at; the server above it is found.
    let mut steps = 0;
    let patient = from_process(Path::new("/proc"), rank, &mut |_| steps += 1).unwrap();
    assert_eq!(patient.deployment.engine, Some(EngineKind::Vllm));
    assert_eq!(patient.deployment.model.as_deref(), Some("./Kimi-K2.5"));
    assert_eq!(patient.deployment.tensor_parallel, Some(2));
    assert_eq!(patient.deployment.environment.get("VLLM_USE_DEEP_GEMM").map(String::as_str), Some("0"));
    assert!(patient.python.as_deref().is_some_and(|python| python.contains("python")));
    let found = patient.processes.iter().find(|process| process.pid == rank).unwrap();
    assert_eq!((found.title.as_str(), found.tensor_rank), ("VLLM::Worker_TP1", Some(1)));
    assert!(found.resident_bytes > 0 && found.uptime_s.is_some() && steps >= 2);
    let text = serde_json::to_string(&patient).unwrap();
    assert!(!text.contains("topsecret99") && !text.contains("hf_abc"), "{text}");

    // Its checkpoint is read through its own working directory and root.
    let serving = ServingEvidence::gather(&patient, &mut |_| {});
    assert_eq!(serving.config.as_ref().unwrap().heads, Some(64));
    assert_eq!(serving.checkpoint_bytes, Some(1000));
    assert!(serving.running);
    drop(running);
    assert!(matches!(
        from_process(Path::new("/proc"), u32::MAX, &mut |_| {}),
        Err(PatientError::Unreadable { .. })
    ));
}

/// A recorded `/proc` of a server whose packages were upgraded under it.
#[test]
fn a_recorded_process_table() {
    let folder = tempfile::tempdir().unwrap();
    let process = |pid: u32, parent: u32, command: &str, maps: &str| {
        let base = folder.path().join(pid.to_string());
        fs::create_dir_all(&base).unwrap();
        fs::write(base.join("cmdline"), command.replace(' ', "\0") + "\0").unwrap();
        fs::write(base.join("environ"), "LD_PRELOAD=/opt/libnccl.so.2\0PATH=/bin\0\u{fffd}=x\0").unwrap();
        fs::write(base.join("stat"), format!("{pid} (a) b ((c) S {parent} {}100 0", "0 ".repeat(17)))
            .unwrap();
        fs::write(
            base.join("status"),
            "Name:\tpython3\nState:\tS (sleeping)\nVmRSS:\t  2048 kB\nThreads:\t7\n",
        )
        .unwrap();
        fs::write(base.join("maps"), maps).unwrap();
        fs::write(
            base.join("mountinfo"),
            "22 1 0:20 / / rw - overlay overlay rw,lowerdir=/x\n30 22 8:1 /home/me/patched\\040file.py /venv/lib/python3.12/site-packages/vllm/x.py rw - ext4 /dev/sda1 rw\n31 22 0:5 / /proc rw - proc proc rw\nbroken\n",
        )
        .unwrap();
        symlink("/venv/bin/python3.12", base.join("exe")).unwrap();
        symlink("/srv", base.join("cwd")).unwrap();
        symlink("/nowhere", base.join("root")).unwrap();
    };
    let maps = "7f00-7f01 r-xp 00000000 08:01 1 /venv/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so (deleted)\n\
                7f01-7f02 r-xp 00000000 08:01 2 /venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2\n\
                7f02-7f03 r-xp 00000000 08:01 3 /usr/local/cuda/compat/libcuda.so.590.1\n\
                7f03-7f04 rw-s 00000000 00:01 4 /dev/shm/psm_1 (deleted)\n\
                7f04-7f05 rw-p 00000000 00:00 0 [heap]\n";
    process(1, 0, "/sbin/init", "");
    process(50, 1, "/venv/bin/python3.12 /venv/bin/vllm serve /m -tp 2", maps);
    process(60, 50, "VLLM::EngineCore", maps);
    process(61, 60, "VLLM::Worker_TP0", maps);
    process(62, 60, "VLLM::Worker_TP1", "");
    process(70, 1, "VLLM::EngineCore", "");
    // Loops in the table must not hold us.
    process(80, 80, "x", "");
    process(90, 1, "/bin/sh", "");
    fs::write(folder.path().join("90/cmdline"), "/bin/sh\0-c\0vllm serve /other\0").unwrap();
    process(91, 90, "/venv/bin/python3.12 /venv/bin/vllm serve /other", "");
    process(92, 91, "VLLM::EngineCore", "");
    let patient = from_process(folder.path(), 61, &mut |_| {}).unwrap();
    assert_eq!(patient.source, Source::Process(50));
    let pids: Vec<u32> = patient.processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [50, 60, 61, 62]);
    assert_eq!(patient.processes[2].parent, 60);
    assert_eq!(patient.site_packages, ["/venv/lib/python3.12/site-packages"]);
    assert_eq!(patient.replaced_libraries.len(), 1);
    assert_eq!(patient.libraries.len(), 4);
    assert_eq!(patient.mounts.len(), 2);
    assert_eq!(patient.mounts[1].source, "/home/me/patched file.py");
    // Beside it lives another server, behind a shell; its ranks are its own business.
    let beside: Vec<u32> = patient.neighbours.iter().map(|process| process.pid).collect();
    assert_eq!(beside, [70, 90]);
    assert_eq!(
        ids(&patient, None),
        [
            "host.service/orphan-engine",
            "host.service/other-servers",
            "host.service/replaced-files",
            "host.service/two-nccl"
        ]
    );
    let all: Vec<u32> = serving_processes(folder.path()).iter().map(|process| process.pid).collect();
    assert_eq!(all, [50, 70, 90]);
    // The engine core that was left behind belongs to nobody: pointed at, it is its own patient.
    let orphan = from_process(folder.path(), 70, &mut |_| {}).unwrap();
    assert_eq!(ids(&orphan, None), ["host.service/orphan-engine", "host.service/other-servers"]);
    // The shell above the other server is not another one beside it.
    let wrapped = from_process(folder.path(), 92, &mut |_| {}).unwrap();
    assert_eq!(wrapped.source, Source::Process(91));
    assert_eq!(wrapped.neighbours.iter().map(|process| process.pid).collect::<Vec<_>>(), [50, 70]);
    // In a container the server is process 1 and its engine core's parent: no orphan.
    let mut first = patient.clone();
    first.neighbours.clear();
    (first.processes[0].pid, first.processes[1].parent) = (1, 1);
    assert!(!ids(&first, None).contains(&"host.service/orphan-engine".to_owned()));
    let clean = from_process(folder.path(), 1, &mut |_| {}).unwrap();
    assert_eq!(clean.deployment.engine, None);
    assert!(from_process(folder.path(), 80, &mut |_| {}).is_ok());
}

/// A hub name is found in the patient's cache, whose snapshots are links into `blobs`; options come from a file, too.
#[test]
fn a_model_in_the_hub_cache() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let repository = root.join("data/hub/models--moonshotai--Kimi-K2.5");
    let snapshot = repository.join("snapshots/abc123");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repository.join("blobs")).unwrap();
    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::create_dir_all(root.join("srv")).unwrap();
    fs::write(repository.join("refs/main"), "abc123").unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs/kimi-k2.5.json");
    fs::copy(config, repository.join("blobs/c0")).unwrap();
    fs::write(repository.join("blobs/w0"), vec![0_u8; 4096]).unwrap();
    symlink("../../blobs/c0", snapshot.join("config.json")).unwrap();
    symlink("../../blobs/w0", snapshot.join("model-00001-of-00002.safetensors")).unwrap();
    // Of a shard that was never fetched, the link dangles; one that leads out of the root is not followed.
    symlink("../../blobs/missing", snapshot.join("model-00002-of-00002.safetensors")).unwrap();
    symlink("../../../../../../../../etc/passwd", snapshot.join("hf_quant_config.json")).unwrap();
    fs::write(
        root.join("srv/opts.yaml"),
        "max-model-len: 4096\napi-key: verysecret1\nenforce-eager: true\nseed: 7\n",
    )
    .unwrap();
    let line = "HF_HOME=/data vllm serve moonshotai/Kimi-K2.5 --config /srv/opts.yaml --seed 9";
    let patient = from_command(line).unwrap().seen_at(root, &[]);
    let serving = ServingEvidence::gather(&patient, &mut |_| {});
    let config = serving.config.as_ref().unwrap();
    assert_eq!((config.heads, config.notes.len()), (Some(64), 0));
    assert_eq!(serving.checkpoint_bytes, Some(4096));
    assert_eq!(serving.flags.number("max-model-len"), Some(4096));
    assert!(serving.flags.is_on("enforce-eager"));
    // The command line wins over the file.
    assert_eq!(serving.flags.value("seed"), Some("9"));
    assert!(!serde_json::to_string(&serving).unwrap().contains("verysecret1"));

    fs::write(root.join("srv/opts.yaml"), "[: broken").unwrap();
    fs::remove_file(snapshot.join("config.json")).unwrap();
    symlink("config.json", snapshot.join("config.json")).unwrap();
    let broken = ServingEvidence::gather(&patient, &mut |_| {});
    assert_eq!((broken.config, broken.notes.len()), (None, 2));
}
