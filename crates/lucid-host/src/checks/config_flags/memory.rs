//! Context length and weights against the GPUs' memory.

use lucid_findings::{EngineKind, Finding, ProofKind, Severity};

use super::{CHECK, Serving};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
/// What one rank needs beside weights and KV cache: CUDA context, graphs, workspaces, activations. Between 3 and 8 GiB in
/// the start-up logs of large MoE models; the small end, so that nothing is accused that could fit.
const BESIDE_BYTES: f64 = 3.0 * GIB;

pub(super) fn check(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    if serving.engine == EngineKind::LlamaCpp {
        return;
    }
    context(serving, findings);
    room(serving, findings);
}

fn asked_context(serving: &Serving<'_>) -> Option<(u64, &'static str)> {
    let name = match serving.engine {
        EngineKind::Sglang => "context-length",
        _ => "max-model-len",
    };
    Some((serving.evidence.flags.number(name)?, name))
}

/// A context beyond what the positions were trained for.
fn context(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let (Some((asked, name)), Some(config)) = (asked_context(serving), serving.config) else { return };
    let Some(longest) = config.context.filter(|&longest| asked > longest) else { return };
    let permit = match serving.engine {
        EngineKind::Sglang => "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
        _ => "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    };
    let permitted = serving.variable(permit).is_some_and(|value| matches!(value, "1" | "true" | "True"));
    let stretched = super::overrides::rope_flag(serving).is_some();
    let title =
        format!("--{name} {asked} is beyond the {longest} tokens that the checkpoint's positions reach");
    let finding = if permitted || serving.evidence.running || stretched {
        Finding::new(CHECK, "context-beyond-model", Severity::Warning, title)
            .detail(format!("{permit} or a position override lets it through: text beyond {longest} tokens may turn to noise."))
            .confidence(0.9)
            .suggests("rope-scaling", 2.5)
    } else {
        serving
            .refused("context-beyond-model", "wrong-flags", 5.0, title)
            .detail(format!("The engine refuses to start unless {permit}=1 is set, and then the text beyond {longest} tokens may turn to noise."))
    };
    findings.push(
        serving
            .command_proof(finding, serving.typed(name))
            .proof(ProofKind::File, "config.json", format!("max_position_embeddings {longest}"))
            .remedy(
                "Stay within the checkpoint's context.",
                vec![serving.start(&format!("--{name} {longest}"))],
            ),
    );
}

/// Weights and one full sequence of KV cache against the GPUs.
fn room(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let flags = &serving.evidence.flags;
    let offloads = ["cpu-offload-gb", "offload-group-size", "dram-expert-fraction"]
        .iter()
        .any(|flag| flags.get(flag).is_some());
    if offloads || flags.value("load-format") == Some("dummy") {
        return;
    }
    let (Some(weights), Some(smallest)) = (
        serving.evidence.checkpoint_bytes,
        serving.deployment.gpus.iter().filter_map(|gpu| gpu.memory_bytes).min(),
    ) else {
        return;
    };
    let share = match serving.engine {
        EngineKind::Sglang => flags.value("mem-fraction-static"),
        _ => flags.value("gpu-memory-utilization"),
    };
    // vLLM's default; SGLang's depends on the GPU and is about the same.
    let share = share
        .and_then(|share| share.parse::<f64>().ok())
        .filter(|share| (0.0..=1.0).contains(share))
        .unwrap_or(0.9);
    // With expert parallelism the experts, nearly all of the weights, are shared among data-parallel ranks too.
    let data =
        if serving.expert_parallel() { flags.number("data-parallel-size").unwrap_or(1).max(1) } else { 1 };
    let data = if serving.engine == EngineKind::Sglang { 1 } else { data };
    let ranks = serving.tensor_parallel().saturating_mul(serving.pipeline_parallel()).saturating_mul(data);
    let weights_per_rank = weights as f64 / ranks as f64;
    let usable = smallest as f64 * share;
    if weights_per_rank > usable {
        let finding = serving.refused(
            "weights-beyond-memory",
            "out-of-memory",
            6.0,
            format!(
                "{:.1} GiB of weights a rank don't fit into {:.1} GiB ({:.0} % of a GPU)",
                weights_per_rank / GIB,
                usable / GIB,
                share * 100.0
            ),
        );
        let fit = (weights as f64 / (usable - BESIDE_BYTES).max(GIB)).ceil().min(1e6) as u64;
        findings.push(
            finding
                .proof(
                    ProofKind::Number,
                    "checkpoint",
                    format!("{:.1} GiB over {ranks} ranks", weights as f64 / GIB),
                )
                .remedy(
                    "Take more ranks, or a smaller quantization.",
                    vec![serving.start(&format!("--tensor-parallel-size {}", fit.next_power_of_two()))],
                ),
        );
        return;
    }
    // Windows and state-space layers need less than every token of every layer: of them nothing is reckoned.
    let Some(config) = serving.config.filter(|config| config.latent.is_some() && !config.hybrid) else {
        return;
    };
    let eight_bits = match flags.value("kv-cache-dtype") {
        Some("auto") | None => {
            config.quantization.as_ref().and_then(|q| q.kv_cache.as_ref()?.bits) == Some(8)
        }
        Some(given) => given.contains("fp8") || given.contains("int8"),
    };
    let bytes = if eight_bits { 1.0 } else { 2.0 };
    let Some(per_token) = config.kv_bytes_per_token(bytes, serving.tensor_parallel()) else { return };
    let context_ranks = flags.number("decode-context-parallel-size").unwrap_or(1).max(1);
    let per_token = per_token / serving.pipeline_parallel().saturating_mul(context_ranks) as f64;
    let left = usable - weights_per_rank - BESIDE_BYTES;
    let tokens = (left / per_token).max(0.0) as u64;
    let asked = asked_context(serving).map(|(asked, _)| asked).or(config.context);
    let numbers = format!(
        "{:.1} GiB usable − {:.1} weights − {:.1} beside them, {:.1} kB a token",
        usable / GIB,
        weights_per_rank / GIB,
        BESIDE_BYTES / GIB,
        per_token / 1000.0
    );
    if let Some(asked) = asked.filter(|&asked| asked > tokens) {
        let finding = Finding::new(
            CHECK,
            "context-beyond-memory",
            if serving.evidence.running { Severity::Info } else { Severity::Warning },
            format!("one sequence of {asked} tokens doesn't fit into the KV cache, which has room for about {tokens}"),
        )
        .detail("The engine refuses to start, or shortens the context. An estimate: what lies beside weights varies by some GiB.")
        .confidence(0.6)
        .suggests("out-of-memory", if serving.evidence.running { 0.5 } else { 3.0 });
        let name = if serving.engine == EngineKind::Sglang { "context-length" } else { "max-model-len" };
        findings.push(finding.proof(ProofKind::Number, "arithmetic", numbers).remedy(
            "Shorten the context, or make room.",
            vec![serving.start(&format!("--{name} {}", (tokens / 1024 * 1024).max(1024)))],
        ));
    } else {
        findings.push(
            Finding::new(
                CHECK,
                "memory-room",
                Severity::Info,
                format!("the KV cache has room for about {tokens} tokens a rank"),
            )
            .confidence(0.6)
            .proof(ProofKind::Number, "arithmetic", numbers)
            .suggests("out-of-memory", -1.0),
        );
    }
}
