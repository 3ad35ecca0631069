//! Patients: a small vLLM of our own, or files of a real wheel where one lies in `LUCID_TEST_WHEELS`.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use std::io::Read;
use std::path::{Path, PathBuf};

use lucid_code_audit::{CodeEvidence, IsModified, ReadOptions, debug_code, gather, gather_with, monkeypatch};
use lucid_findings::{Deployment, EngineKind, Examined, Finding, GpuModel, LoadFormat, Severity};
use tempfile::TempDir;

/// Site-packages of every patient, inside of its root.
pub const SITE: &str = "/opt/venv/lib/python3.12/site-packages";
pub const DEEPSEEK: &str = "vllm/model_executor/models/deepseek_v2.py";

/// A file tree that stands for a machine.
pub struct Patient {
    pub root: TempDir,
}

impl Patient {
    /// A machine with a small vLLM.
    pub fn small() -> Patient {
        let patient = Patient::empty();
        for (file, text) in SMALL_VLLM {
            patient.write(file, text);
        }
        patient
    }

    pub fn empty() -> Patient {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join(&SITE[1..])).unwrap();
        Patient { root }
    }

    /// A machine with the named files of a wheel; `None` (said aloud) if the wheel isn't there.
    pub fn wheel(prefix: &str, wanted: &dyn Fn(&str) -> bool) -> Option<Patient> {
        let wheel = wheel(prefix)?;
        let patient = Patient::empty();
        let mut archive = zip::ZipArchive::new(std::fs::File::open(wheel).unwrap()).unwrap();
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index).unwrap();
            let name = entry.name().to_owned();
            if entry.is_file() && wanted(&name) {
                let mut text = Vec::new();
                entry.read_to_end(&mut text).unwrap();
                patient.write_bytes(&name, &text);
            }
        }
        Some(patient)
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.root.path().join(&SITE[1..]).join(file)
    }

    pub fn write(&self, file: &str, text: &str) {
        self.write_bytes(file, text.as_bytes());
    }

    pub fn write_bytes(&self, file: &str, bytes: &[u8]) {
        let path = self.path(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// A file outside of site-packages: `/tmp/x.pt`.
    pub fn write_outside(&self, path: &str, bytes: &[u8]) {
        let path = self.root.path().join(&path[1..]);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// Inserts lines at the beginning of a function of a file: the `nth` one of that name. Lines are indented to fit.
    pub fn plant(&self, file: &str, function: &str, nth: usize, snippet: &str) {
        let text = std::fs::read_to_string(self.path(file)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let heads: Vec<usize> = (0..lines.len())
            .filter(|&at| lines[at].trim_start().starts_with(&format!("def {function}(")))
            .collect();
        let head = heads[nth % heads.len()];
        let indent = lines[head].len() - lines[head].trim_start().len() + 4;
        // The signature ends where its brackets are closed and a colon follows.
        let mut depth = 0i32;
        let mut body = head;
        loop {
            let code = lines[body].split('#').next().unwrap_or("");
            depth += code.matches(['(', '[']).count() as i32 - code.matches([')', ']']).count() as i32;
            body += 1;
            if depth == 0 && code.trim_end().ends_with(':') {
                break;
            }
        }
        let planted: Vec<String> = snippet
            .lines()
            .map(|line| if line.is_empty() { String::new() } else { format!("{}{line}", " ".repeat(indent)) })
            .collect();
        let mut out: Vec<&str> = lines[..body].to_vec();
        out.extend(planted.iter().map(String::as_str));
        out.extend(&lines[body..]);
        self.write(file, &(out.join("\n") + "\n"));
    }

    /// What is gathered; every patient also holds the prefilter to the same findings as without it.
    pub fn gather(&self) -> CodeEvidence {
        let site = [PathBuf::from(SITE)];
        let evidence = gather(self.root.path(), &site, &mut |_| {}).unwrap();
        let all = ReadOptions { prefilter: false, threads: 1 };
        let everything = gather_with(self.root.path(), &site, all, &mut |_| {}).unwrap();
        assert_eq!(everything.ruled_out, 0);
        assert_eq!(evidence.facts, everything.facts);
        assert_eq!(evidence.ordinary, everything.ordinary);
        assert_eq!(evidence.models, everything.models);
        for modified in [None, Some(true), Some(false)] {
            let modified = |_: &Path, _: &str| modified;
            // Without any engine there is nothing to say: that must be the same, too.
            let findings = |evidence: &CodeEvidence| {
                [
                    debug_code(evidence, &kimi(), &modified).map(|examined| examined.findings),
                    monkeypatch(evidence, &kimi(), &modified).map(|examined| examined.findings),
                ]
                .map(|findings| {
                    let mut findings = findings.ok()?;
                    // How much was parsed is told where nothing was found.
                    findings.iter_mut().filter(|f| f.id.ends_with("/none")).for_each(|f| f.detail.clear());
                    Some(findings)
                })
            };
            assert_eq!(findings(&evidence), findings(&everything));
        }
        evidence
    }

    pub fn debug_code(&self) -> Examined {
        lucid_code_audit::debug_code(&self.gather(), &kimi(), &|_, _| None).unwrap()
    }

    pub fn monkeypatch(&self, modified: IsModified<'_>) -> Examined {
        lucid_code_audit::monkeypatch(&self.gather(), &kimi(), modified).unwrap()
    }
}

/// Kimi-K2.5 NVFP4 on vLLM, from safetensors.
pub fn kimi() -> Deployment {
    Deployment {
        engine: Some(EngineKind::Vllm),
        command: ["vllm", "serve", "/models/kimi", "--tensor-parallel-size", "8"].map(str::to_owned).to_vec(),
        architectures: vec!["KimiK25ForConditionalGeneration".to_owned()],
        model_type: Some("kimi_k25".to_owned()),
        quantization: Some("modelopt_fp4".to_owned()),
        load_format: Some(LoadFormat::Safetensors),
        tensor_parallel: Some(8),
        gpus: vec![GpuModel {
            name: "NVIDIA B200".to_owned(),
            compute_capability: Some((10, 0)),
            memory_bytes: None,
        }],
        ..Deployment::default()
    }
}

/// A wheel by the beginning of its name.
pub fn wheel(prefix: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("LUCID_TEST_WHEELS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-wheels"),
        PathBuf::from,
    );
    let found = std::fs::read_dir(&folder).ok().into_iter().flatten().flatten().map(|entry| entry.path());
    let wheel = found
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
        .max();
    if wheel.is_none() {
        println!(
            "skipped: no wheel {prefix}* in {} (LUCID_TEST_WHEELS names another folder)",
            folder.display()
        );
    }
    wheel
}

/// Findings that accuse.
pub fn accusations(examined: &Examined) -> Vec<&Finding> {
    examined.findings.iter().filter(|finding| finding.severity > Severity::Info).collect()
}

pub fn told(finding: &Finding) -> String {
    format!(
        "{:?} {} active={:?}: {} | {}",
        finding.severity, finding.id, finding.active, finding.title, finding.detail
    )
}

/// As small as a vLLM can be that has a registry, a DeepSeek model, loaders and a sampler.
const SMALL_VLLM: &[(&str, &str)] = &[
    (
        "vllm/model_executor/models/registry.py",
        "_TEXT = {\n    \"DeepseekV2ForCausalLM\": (\"deepseek_v2\", \"DeepseekV2ForCausalLM\"),\n    \"DeepseekV3ForCausalLM\": (\"deepseek_v2\", \"DeepseekV3ForCausalLM\"),\n    \"LlamaForCausalLM\": (\"llama\", \"LlamaForCausalLM\"),\n    \"KimiK25ForConditionalGeneration\": (\"kimi_k25\", \"KimiK25ForConditionalGeneration\"),\n}\n",
    ),
    (
        "vllm/model_executor/models/kimi_k25.py",
        "from .utils import init_vllm_registered_model\n\nclass KimiK25ForConditionalGeneration:\n    def __init__(self, vllm_config):\n        self.language_model = init_vllm_registered_model(vllm_config=vllm_config, architectures=[\"DeepseekV2ForCausalLM\"])\n\n    def forward(self, input_ids, positions):\n        return self.language_model(input_ids, positions)\n",
    ),
    (
        "vllm/model_executor/models/utils.py",
        "def init_vllm_registered_model(vllm_config, architectures):\n    return architectures\n",
    ),
    (
        "vllm/model_executor/models/llama.py",
        "class LlamaForCausalLM:\n    def forward(self, input_ids, positions):\n        return input_ids\n",
    ),
    (
        DEEPSEEK,
        "import torch\nfrom torch import nn\n\nfrom vllm.distributed import get_tensor_model_parallel_rank\n\n\nclass DeepseekV2MLAAttention(nn.Module):\n    def __init__(self, config):\n        super().__init__()\n        self.layer_idx = config.layer_idx\n\n    def forward(\n        self,\n        positions: torch.Tensor,\n        hidden_states: torch.Tensor,\n    ) -> torch.Tensor:\n        q = self.q_proj(hidden_states)\n        return self.mla_attn(positions, q)\n\n\nclass DeepseekV2Model(nn.Module):\n    def forward(self, input_ids, positions):\n        hidden_states = self.embed_tokens(input_ids)\n        return hidden_states\n\n\nclass DeepseekV2ForCausalLM(nn.Module):\n    def forward(self, input_ids, positions):\n        return self.model(input_ids, positions)\n\n\nclass DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):\n    pass\n",
    ),
    (
        "vllm/model_executor/model_loader/gguf_loader.py",
        "class GGUFModelLoader:\n    def load_weights(self, model, config):\n        return model\n",
    ),
    (
        "vllm/model_executor/model_loader/weight_utils.py",
        "def gguf_quant_weights_iterator(gguf_file):\n    yield gguf_file\n\n\ndef safetensors_weights_iterator(files):\n    yield files\n",
    ),
    (
        "vllm/v1/sample/sampler.py",
        "class Sampler:\n    def forward(self, logits, sampling_metadata):\n        return logits\n",
    ),
    (
        "vllm/v1/worker/gpu_model_runner.py",
        "class GPUModelRunner:\n    def execute_model(self, scheduler_output):\n        return scheduler_output\n",
    ),
    ("vllm-0.32.0.dist-info/INSTALLER", "uv\n"),
    ("vllm-0.32.0.dist-info/RECORD", "vllm/model_executor/models/deepseek_v2.py,sha256=x,1\n"),
];
