//! A patient and its machine as a table tells them, and what the checks find of it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use lucid_findings::{EngineKind, Finding, GpuModel};
use lucid_host::{
    ArgumentList, GpuEvidence, MemoryEvidence, ModelConfig, Patient, Root, ServingEvidence, config_flags,
    from_command, from_compose, from_container_inspect, from_kubernetes, from_process, from_unit, host_gpu,
    host_memory, host_service, read_kernel_log, read_smi_xml,
};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scene {
    /// A command line, a manifest or compose file in YAML, the JSON of a pod or of `docker inspect`, or the text of
    /// `systemctl show`: told apart by how it begins.
    #[serde(default)]
    patient: String,
    /// A recorded `/proc` instead, by process id; `pid` is pointed at.
    #[serde(default)]
    proc: BTreeMap<String, Process>,
    #[serde(default = "fifty")]
    pid: u32,
    engine_version: Option<String>,
    /// A file of `tests/configs`, with `changes` on top.
    config: Option<String>,
    #[serde(default)]
    changes: Map<String, Value>,
    /// `8 NVIDIA H200, 9.0, 141`: count and name, compute capability, GiB of each.
    gpus: Option<String>,
    checkpoint_gib: Option<u64>,
    /// Whether the engine's own list of flags, variables and parsers was found.
    #[serde(default)]
    sources: bool,
    observed_startup_s: Option<f64>,
    kernel_log: Option<String>,
    /// Replacements in the recorded `h200.xml`: what `nvidia-smi -q -x` would say.
    #[serde(default)]
    smi: Vec<(String, String)>,
    /// How many GPUs of that recording there are.
    #[serde(default)]
    smi_gpus: usize,
    /// What NVML and `/sys` say beside it.
    #[serde(default)]
    gpu: Map<String, Value>,
    /// Names and versions of packages, and mapped libraries.
    #[serde(default)]
    packages: Vec<(String, String)>,
    #[serde(default)]
    libraries: Vec<String>,
    /// Files of a recorded machine; `None`: memory is what `memory` says alone.
    system: Option<BTreeMap<String, String>>,
    /// What file systems and clock say.
    #[serde(default)]
    memory: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Process {
    parent: u32,
    command: String,
    #[serde(default)]
    environ: String,
    #[serde(default)]
    maps: String,
    #[serde(default = "sleeping")]
    state: String,
}

fn fifty() -> u32 {
    50
}

fn sleeping() -> String {
    "S (sleeping)".to_owned()
}

/// Members of `on_top` replace those of `base`; objects are merged.
pub fn merge(base: &mut Value, on_top: &Value) {
    match (base, on_top) {
        (Value::Object(base), Value::Object(on_top)) => {
            for (name, value) in on_top {
                merge(base.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (base, on_top) => *base = on_top.clone(),
    }
}

impl Scene {
    /// Everything that the four checks find.
    pub fn findings(&self) -> Vec<Finding> {
        let mut patient = self.patient();
        let mut serving = ServingEvidence::gather(&patient, &mut |_| {});
        serving.config = self.config.as_deref().map(|name| self.model(name));
        serving.checkpoint_bytes = self.checkpoint_gib.map(|gib| gib << 30);
        if self.sources {
            serving.arguments = patient.deployment.engine.and_then(arguments);
        }
        if self.engine_version.is_some() {
            patient.deployment.engine_version.clone_from(&self.engine_version);
        }
        patient.deployment.gpus = self.models();
        serving.inform(&mut patient.deployment);
        let deployment = patient.deployment.clone();
        let gpu = self.gpu();
        let memory = self.memory(&patient);
        let found: Vec<Finding> = [
            config_flags(&stored(&serving), &deployment),
            host_service(&stored(&patient), &deployment, self.observed_startup_s),
            host_gpu(&stored(&gpu), Some(&patient), &deployment),
            host_memory(&stored(&memory), Some(&patient), &deployment),
        ]
        .into_iter()
        .flatten()
        .flat_map(|examined| examined.findings)
        .collect();
        for finding in &found {
            assert!(
                lucid_host::FINDINGS.iter().any(|(id, _)| *id == finding.id),
                "{} is in no table",
                finding.id
            );
        }
        found
    }

    fn patient(&self) -> Patient {
        if !self.proc.is_empty() {
            return self.running();
        }
        let text = self.patient.trim_start();
        let yaml = |key: &str| text.lines().any(|line| line.starts_with(key));
        let inspected = text.starts_with('[') || (text.starts_with('{') && text.contains("\"Config\""));
        let patient = if inspected {
            from_container_inspect(text)
        } else if text.starts_with('{') || yaml("kind:") {
            from_kubernetes(text, None)
        } else if yaml("services:") {
            from_compose(text, None)
        } else if yaml("Id=") {
            from_unit(text, &Root::new("/nowhere"))
        } else {
            from_command(text)
        };
        patient.unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Writes the recorded `/proc` and reads it.
    fn running(&self) -> Patient {
        let folder = tempfile::tempdir().unwrap();
        for (pid, process) in &self.proc {
            let base = folder.path().join(pid);
            fs::create_dir_all(&base).unwrap();
            fs::write(base.join("cmdline"), process.command.replace(' ', "\0") + "\0").unwrap();
            fs::write(base.join("environ"), process.environ.replace(' ', "\0")).unwrap();
            let state = process.state.chars().next().unwrap();
            fs::write(
                base.join("stat"),
                format!("{pid} (x) {state} {} {}100 0", process.parent, "0 ".repeat(17)),
            )
            .unwrap();
            fs::write(base.join("status"), format!("Name:\tx\nState:\t{}\nVmRSS:\t2048 kB\n", process.state))
                .unwrap();
            fs::write(base.join("maps"), &process.maps).unwrap();
            fs::write(base.join("mountinfo"), "").unwrap();
            symlink("/venv/bin/python3.12", base.join("exe")).unwrap();
            symlink("/nowhere", base.join("root")).unwrap();
        }
        from_process(folder.path(), self.pid, &mut |_| {}).unwrap()
    }

    fn model(&self, name: &str) -> ModelConfig {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs");
        let mut document: Value =
            serde_json::from_str(&fs::read_to_string(folder.join(format!("{name}.json"))).unwrap()).unwrap();
        for (key, value) in &self.changes {
            document[key] = value.clone();
        }
        let quantization = fs::read_to_string(folder.join(format!("{name}.hf_quant.json"))).ok();
        ModelConfig::read(&document.to_string(), quantization.as_deref()).unwrap()
    }

    fn models(&self) -> Vec<GpuModel> {
        let Some(text) = &self.gpus else { return Vec::new() };
        let parts: Vec<&str> = text.split(", ").collect();
        let (count, name) = parts[0].split_once(' ').unwrap();
        let (major, minor) = parts[1].split_once('.').unwrap();
        let one = GpuModel {
            name: name.to_owned(),
            compute_capability: Some((major.parse().unwrap(), minor.parse().unwrap())),
            memory_bytes: Some(parts[2].parse::<u64>().unwrap() << 30),
        };
        vec![one; count.parse().unwrap()]
    }

    fn gpu(&self) -> GpuEvidence {
        let mut evidence = GpuEvidence::default();
        if self.smi_gpus > 0 || !self.smi.is_empty() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
            let mut text = fs::read_to_string(folder.join("h200.xml")).unwrap();
            let (head, rest) = text.split_once("\t<gpu ").unwrap();
            let (gpu, tail) = rest.split_once("</gpu>\n").unwrap();
            text = format!("{head}{}{tail}", format!("\t<gpu {gpu}</gpu>\n").repeat(self.smi_gpus.max(1)));
            for (from, to) in &self.smi {
                assert!(text.contains(from.as_str()), "h200.xml has no {from}");
                text = text.replace(from, to);
            }
            evidence = read_smi_xml(&text).unwrap();
        }
        let mut json = serde_json::to_value(&evidence).unwrap();
        merge(&mut json, &Value::Object(self.gpu.clone()));
        let mut evidence: GpuEvidence = serde_json::from_value(json).unwrap();
        evidence.kernel_events.extend(read_kernel_log(self.kernel_log.as_deref().unwrap_or("")));
        evidence.add_runtimes(
            self.packages.iter().map(|(name, version)| (name.as_str(), version.as_str())),
            self.libraries.iter().map(String::as_str),
        );
        evidence
    }

    fn memory(&self, patient: &Patient) -> MemoryEvidence {
        let mut evidence = MemoryEvidence::default();
        if let Some(files) = &self.system {
            let machine = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = machine.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            // The recorded machine is what counts; its process is `self`.
            let nobody = Patient { processes: Vec::new(), root: None, ..patient.clone() };
            evidence = MemoryEvidence::gather(machine.path(), Some(&nobody), &mut |_| {});
            // Of the file systems only the scene speaks: those of the test's own machine are anybody's.
            (evidence.shared_memory, evidence.disks) = (None, Vec::new());
        }
        let mut json = serde_json::to_value(&evidence).unwrap();
        merge(&mut json, &Value::Object(self.memory.clone()));
        serde_json::from_value(json).unwrap()
    }
}

/// As an archive gives it back: checks read evidence alone.
fn stored<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(
    evidence: &T,
) -> T {
    let back: T = serde_json::from_str(&serde_json::to_string(evidence).unwrap()).unwrap();
    assert_eq!(&back, evidence);
    back
}

/// The engine's own list, from sources as short as they can be and still be taken for whole.
fn arguments(engine: EngineKind) -> Option<ArgumentList> {
    let parsers = "_PARSERS = {\n    \"kimi_k2\": (1),\n    \"glm45\": (1),\n    \"deepseek_r1\": (1),\n    \"qwen3\": (1),\n    \"mine\": (1),\n}\n";
    let files: &[(&str, &str)] = match engine {
        EngineKind::Vllm => &[
            (
                "vllm/engine/arg_utils.py",
                "'--tensor-parallel-size' '--enforce-eager' '--trust-remote-code' '--kv-cache-dtype' '--host' '--api-key' '--model' '--enable-auto-tool-choice' '--max-model-len'",
            ),
            ("vllm/envs.py", "VLLM_USE_DEEP_GEMM VLLM_ENGINE_READY_TIMEOUT_S VLLM_CACHE_ROOT VLLM_PORT"),
            ("vllm/reasoning/__init__.py", parsers),
            ("vllm/tool_parsers/__init__.py", parsers),
        ],
        EngineKind::Sglang => &[
            (
                "sglang/srt/server_args.py",
                "\"--tensor-parallel-size\" \"--trust-remote-code\" \"--model\" \"--host\" \"--api-key\" \"--speculative-algorithm\" \"--mem-fraction-static\"",
            ),
            ("sglang/srt/environ.py", "SGLANG_ENABLE_JIT_DEEPGEMM SGLANG_ENABLE_SPEC_V2"),
            ("sglang/srt/parser/reasoning_parser_names.py", parsers),
            ("sglang/srt/function_call/parser_names.py", parsers),
        ],
        _ => &[],
    };
    let read = |path: &Path, _: u64| {
        files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned())
    };
    ArgumentList::read(engine, "/site-packages", None, &read, &|_: &Path| Vec::new())
}
