//! Attention backend and KV cache dtype against model and GPU.

use std::sync::LazyLock;

use lucid_findings::{EngineKind, Finding, ProofKind, Severity};
use serde::Deserialize;

use super::{CHECK, Serving};

/// `knowledge/attention_backends.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Knowledge {
    backend: Vec<Backend>,
}

/// What a backend can do, by its own declarations.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Backend {
    engine: EngineKind,
    name: String,
    /// Whether it serves latent attention (`true`), ordinary attention (`false`) or both (left out).
    mla: Option<bool>,
    /// Whether it serves sparse attention only (`true`) or dense only (`false`); left out: both.
    sparse: Option<bool>,
    /// Major compute capabilities; left out: any.
    sm: Option<Vec<u32>>,
    /// KV cache dtypes; left out: not said.
    kv: Option<Vec<String>>,
}

static KNOWLEDGE: LazyLock<Knowledge> = LazyLock::new(|| {
    toml::from_str(include_str!("../../../knowledge/attention_backends.toml"))
        .unwrap_or_else(|error| panic!("knowledge/attention_backends.toml: {error}"))
});

const FLAGS: [&str; 4] = [
    "attention-backend",
    "attention-config.backend",
    "decode-attention-backend",
    "prefill-attention-backend",
];

pub(super) fn check(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    for flag in FLAGS {
        if let Some(name) = serving.flag(flag) {
            chosen(serving, name, &serving.typed(flag), findings);
        }
    }
    let ignored = serving
        .evidence
        .arguments
        .as_ref()
        .is_some_and(|list| !list.variables.contains("VLLM_ATTENTION_BACKEND"));
    if let Some(name) = serving.variable("VLLM_ATTENTION_BACKEND").filter(|_| !ignored) {
        chosen(serving, name, &format!("VLLM_ATTENTION_BACKEND={name}"), findings);
    }
    if let Some(name) = serving
        .evidence
        .flags
        .member("attention-config", "backend")
        .filter(|_| serving.flag("attention-config.backend").is_none())
    {
        chosen(serving, &name, &serving.typed("attention-config"), findings);
    }
    no_backend_left(serving, findings);
    fp8_without_scales(serving, findings);
}

fn same_name(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b)
}

/// Why a backend doesn't fit, in words; none if it does.
fn misfits(serving: &Serving<'_>, backend: &Backend) -> Vec<String> {
    let mut why = Vec::new();
    if let Some(config) = serving.config {
        let latent = config.latent.is_some() && serving.variable("VLLM_MLA_DISABLE") != Some("1");
        match backend.mla {
            Some(true) if !latent => {
                why.push("it is for latent attention (MLA), which this model hasn't".to_owned())
            }
            Some(false) if latent => {
                why.push("the model has latent attention (MLA), which it doesn't do".to_owned())
            }
            _ => {}
        }
        match backend.sparse {
            Some(true) if config.sparse_top_k.is_none() => {
                why.push("it is for sparse attention, which this model hasn't".to_owned())
            }
            Some(false) if config.sparse_top_k.is_some() => {
                why.push("the model has sparse attention, which it doesn't do".to_owned())
            }
            _ => {}
        }
    }
    if let (Some(majors), Some((major, minor))) = (&backend.sm, serving.compute_capability())
        && !majors.contains(&major)
    {
        let list: Vec<String> = majors.iter().map(|major| format!("{major}.x")).collect();
        why.push(format!(
            "it runs on compute capability {} and the GPU has {major}.{minor}",
            list.join(", ")
        ));
    }
    if let (Some(kinds), Some(asked)) = (&backend.kv, kv_dtype(serving))
        && !kinds.iter().any(|kind| kind == &asked.0)
    {
        why.push(format!("it has no {} KV cache ({})", asked.0, asked.1));
    }
    why
}

fn chosen(serving: &Serving<'_>, name: &str, typed: &str, findings: &mut Vec<Finding>) {
    let known = KNOWLEDGE
        .backend
        .iter()
        .find(|backend| backend.engine == serving.engine && same_name(&backend.name, name));
    let Some(backend) = known else { return };
    let why = misfits(serving, backend);
    if why.is_empty() {
        return;
    }
    let fitting = fitting(serving);
    let finding = serving
        .refused(
            "attention-backend-misfit",
            "wrong-flags",
            5.0,
            format!("attention backend {name} doesn't fit: {}", why.join("; ")),
        )
        .suggests("attention-kernel", 1.0)
        .detail(if fitting.is_empty() {
            "No backend is known that fits model, GPU and KV cache together.".to_owned()
        } else {
            format!("These fit: {}.", fitting.join(", "))
        });
    findings.push(
        serving
            .command_proof(serving.dated(finding), typed)
            .remedy("Leave the backend unset, so that the engine chooses.", vec![serving.start("")]),
    );
}

/// Names of backends that fit model, GPU and KV dtype.
fn fitting(serving: &Serving<'_>) -> Vec<&'static str> {
    KNOWLEDGE
        .backend
        .iter()
        .filter(|backend| backend.engine == serving.engine && misfits(serving, backend).is_empty())
        .map(|backend| backend.name.as_str())
        .collect()
}

/// The KV dtype in force, and who asks for it.
fn kv_dtype(serving: &Serving<'_>) -> Option<(String, &'static str)> {
    match serving.flag("kv-cache-dtype") {
        Some("auto") | None => {
            let scheme = serving.config?.quantization.as_ref()?.kv_cache.as_ref()?;
            (scheme.bits == Some(8)).then(|| ("fp8".to_owned(), "the checkpoint asks for it"))
        }
        Some(given) => Some((given.to_owned(), "--kv-cache-dtype asks for it")),
    }
}

/// With latent attention there are few backends; if none of them fits GPU, sparsity and KV dtype, the start fails with
/// "No valid attention backend found".
fn no_backend_left(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let (EngineKind::Vllm, Some(config), Some((major, minor))) =
        (serving.engine, serving.config, serving.compute_capability())
    else {
        return;
    };
    if config.latent.is_none() || major < 8 || !fitting(serving).is_empty() {
        return;
    }
    let kv = kv_dtype(serving);
    let kv_text =
        kv.as_ref().map_or("16-bit KV cache".to_owned(), |(kind, who)| format!("{kind} KV cache ({who})"));
    let sparse = if config.sparse_top_k.is_some() { "sparse latent" } else { "latent" };
    let finding = serving
        .refused(
            "no-attention-backend",
            "attention-kernel",
            5.0,
            format!("no attention backend of vLLM serves {sparse} attention on compute capability {major}.{minor} with a {kv_text}"),
        )
        .confidence(0.8)
        .suggests("wrong-flags", 1.0)
        .detail("Known from vLLM 0.33's own declarations. The start fails with `No valid attention backend found for cuda`.");
    let finding = serving.dated(finding);
    let other = if kv.is_some() { "--kv-cache-dtype bfloat16" } else { "" };
    findings.push(
        finding
            .proof(
                ProofKind::File,
                "config.json",
                format!("kv_lora_rank {:?}, index_topk {:?}", config.latent, config.sparse_top_k),
            )
            .remedy("Take another KV dtype, or a GPU that has the kernel.", vec![serving.start(other)]),
    );
}

/// FP8 KV cache of a checkpoint that brings no scales: everything is stored at scale 1.0.
fn fp8_without_scales(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let Some(given) = serving.flag("kv-cache-dtype").filter(|given| given.starts_with("fp8")) else {
        if let Some((_, who)) = kv_dtype(serving).filter(|(kind, _)| kind == "fp8") {
            findings.push(
                Finding::new(CHECK, "fp8-kv-cache", Severity::Info, format!("the KV cache is FP8: {who}"))
                    .detail("No flag says so; a wrong or missing scale would show from the second use of a cached prefix on.")
                    .suggests("kv-cache-scales", 0.5),
            );
        }
        return;
    };
    if given.contains("per_token_head") || given.contains("ds_mla") {
        return; // These compute their scales themselves.
    }
    let (major, minor) = serving.compute_capability().unwrap_or((9, 0));
    if (major, minor) < (8, 9) {
        let finding = Finding::new(
            CHECK,
            "fp8-kv-without-units",
            Severity::Info,
            format!(
                "compute capability {major}.{minor} has no FP8 units: {given} saves memory, and costs conversions"
            ),
        );
        findings.push(serving.command_proof(finding, serving.typed("kv-cache-dtype")));
    }
    let Some(config) = serving.config else { return };
    if config.quantization.as_ref().is_some_and(|quantization| quantization.kv_cache.is_some()) {
        return;
    }
    let finding = Finding::new(
        CHECK,
        "fp8-kv-without-scales",
        Severity::Info,
        format!("{given} KV cache, but the checkpoint names no scheme for it: keys and values are stored at scale 1.0"),
    )
    .detail("Often harmless: neither proof nor clearance. Compare with a 16-bit cache if answers go wrong from the second turn on.")
    .confidence(0.7)
    .suggests("kv-cache-scales", 1.5);
    findings.push(
        serving
            .command_proof(finding, serving.typed("kv-cache-dtype"))
            .remedy("Compare with a 16-bit cache.", vec![serving.start("--kv-cache-dtype auto")]),
    );
}
