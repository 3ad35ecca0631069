//! What is known of a deployment: which engine serves which model, how. Gathered from command lines, processes, configs and
//! logs; every field may be unknown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Which engine serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp.
    LlamaCpp,
    /// Lucid itself.
    Lucid,
}

/// In which form the weights are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadFormat {
    /// `*.safetensors`.
    Safetensors,
    /// A `.gguf` file.
    Gguf,
    /// Pickled `.bin` or `.pt` files.
    Pickle,
    /// No weights: random values, for benchmarks.
    Dummy,
    /// Any other loader (`runai_streamer`, `tensorizer`, `bitsandbytes`, sharded state).
    Other,
}

/// A GPU, as far as checks need it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuModel {
    /// Product name: `NVIDIA H200`.
    pub name: String,
    /// Compute capability, major and minor: `(9, 0)`.
    pub compute_capability: Option<(u32, u32)>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
}

/// What is known of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Deployment {
    /// The engine.
    pub engine: Option<EngineKind>,
    /// Its version as the packages or the log say it: `0.32.0+cpu`.
    pub engine_version: Option<String>,
    /// The serving command, one argument an entry, without an environment prefix.
    pub command: Vec<String>,
    /// Environment variables of the serving process that matter (`VLLM_*`, `SGLANG_*`, `CUDA_*`, `NCCL_*`, …); secrets left out.
    pub environment: BTreeMap<String, String>,
    /// The model that is served: a path or a hub name.
    pub model: Option<String>,
    /// `architectures` of config.json: `KimiK25ForConditionalGeneration`.
    pub architectures: Vec<String>,
    /// `model_type` of config.json: `kimi_k25`.
    pub model_type: Option<String>,
    /// Quantization, as the config or the flag names it: `modelopt_fp4`, `compressed-tensors`, `fp8`.
    pub quantization: Option<String>,
    /// In which form the weights are loaded.
    pub load_format: Option<LoadFormat>,
    /// Ranks of tensor parallelism.
    pub tensor_parallel: Option<u32>,
    /// Ranks of pipeline parallelism.
    pub pipeline_parallel: Option<u32>,
    /// The GPUs that it runs on.
    pub gpus: Vec<GpuModel>,
}
