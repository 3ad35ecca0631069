//! Ranks against heads, blocks, experts and GPUs.

use lucid_findings::{EngineKind, Finding, ProofKind};

use super::Serving;
use crate::serving::WeightLayout;

pub(super) fn check(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    if serving.engine == EngineKind::LlamaCpp {
        return;
    }
    heads(serving, findings);
    blocks(serving, findings);
    gpus(serving, findings);
}

fn heads(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let Some(heads) = serving.config.and_then(|config| config.heads) else { return };
    let ranks = serving.tensor_parallel();
    // SGLang's attention may run data-parallel inside the ranks.
    let split = serving.evidence.flags.number("data-parallel-size").unwrap_or(1).max(1);
    let ranks = if serving.engine == EngineKind::Sglang && ranks.is_multiple_of(split) {
        ranks / split
    } else {
        ranks
    };
    if heads % ranks == 0 {
        return;
    }
    let finding = serving.refused(
        "heads-not-divisible",
        "wrong-flags",
        6.0,
        format!("{heads} attention heads cannot be shared among {ranks} ranks"),
    );
    let fitting: Vec<String> =
        [1, 2, 4, 8, 16, 32].iter().filter(|&&n| heads % n == 0).map(ToString::to_string).collect();
    findings.push(
        serving
            .command_proof(finding, serving.typed("tensor-parallel-size"))
            .proof(ProofKind::File, "config.json", format!("num_attention_heads {heads}"))
            .remedy(
                format!("Take {} ranks.", fitting.join(", ")),
                vec![serving.start("--tensor-parallel-size 8")],
            ),
    );
}

/// Weights that share scales in blocks or groups are cut at block borders only: 3072 / 16 = 192 is no multiple of 128.
fn blocks(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let Some((config, quantization)) =
        serving.config.and_then(|config| Some((config, config.quantization.as_ref()?)))
    else {
        return;
    };
    let block = match (config.layout(), quantization.block, quantization.group) {
        (WeightLayout::Fp8Block, Some((rows, columns)), _) => rows.max(columns),
        (WeightLayout::Nvfp4 | WeightLayout::Mxfp4 | WeightLayout::Int4, _, Some(group)) => group,
        _ => return,
    };
    let ranks = serving.tensor_parallel();
    // Expert parallelism gives whole experts to ranks.
    let experts =
        config.expert_feed_forward.filter(|_| !serving.expert_parallel() && config.experts.is_some());
    let dense = config.feed_forward.filter(|_| serving.evidence.flags.get("moe-dense-tp-size").is_none());
    let widths = [
        ("an expert's width", "moe_intermediate_size", experts),
        ("the dense layers' width", "intermediate_size", dense),
    ];
    for (what, key, width) in widths {
        let Some(width) = width else { continue };
        // A width that isn't even shared evenly is another fault; engines pad or refuse it by other rules.
        if ranks == 1 || !width.is_multiple_of(ranks) || (width / ranks).is_multiple_of(block) {
            continue;
        }
        let title = format!(
            "{what} {width} over {ranks} ranks is {}, no multiple of the quantization's block of {block}",
            width / ranks
        );
        let finding = serving.refused("block-not-divisible", "tp-sharding", 6.0, title);
        let ranks_that_fit: Vec<String> = [1, 2, 4, 8, 16]
            .iter()
            .filter(|&&n| width.is_multiple_of(n) && (width / n).is_multiple_of(block))
            .map(ToString::to_string)
            .collect();
        let parallel = match serving.engine {
            EngineKind::Sglang => format!("--ep-size {ranks}"),
            _ => "--enable-expert-parallel".to_owned(),
        };
        findings.push(
            serving
                .command_proof(finding, serving.typed("tensor-parallel-size"))
                .proof(ProofKind::File, "config.json", format!("{key} {width}"))
                .remedy(
                    format!("Share whole experts among ranks, or take {} ranks.", ranks_that_fit.join(", ")),
                    vec![serving.start(&parallel)],
                ),
        );
    }
}

fn gpus(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let flags = &serving.evidence.flags;
    let nodes = flags.number("nnodes").unwrap_or(1).max(1);
    let ray = flags.value("distributed-executor-backend") == Some("ray");
    if nodes > 1 || ray {
        return;
    }
    let data = match serving.engine {
        // SGLang's data parallelism lies inside the ranks when it is attention's; vLLM's local size may differ.
        EngineKind::Vllm => flags
            .number("data-parallel-size-local")
            .or_else(|| flags.number("data-parallel-size"))
            .unwrap_or(1),
        _ => 1,
    };
    let needed =
        serving.tensor_parallel().saturating_mul(serving.pipeline_parallel()).saturating_mul(data.max(1));
    let visible = serving.variable("CUDA_VISIBLE_DEVICES").map(|list| {
        list.split(',').filter(|device| !device.trim().is_empty() && device.trim() != "-1").count() as u64
    });
    let there = (!serving.deployment.gpus.is_empty()).then_some(serving.deployment.gpus.len() as u64);
    let (count, source) = match (visible, there) {
        (Some(visible), _) => (visible, "CUDA_VISIBLE_DEVICES"),
        (None, Some(there)) => (there, "the machine's GPUs"),
        (None, None) => return,
    };
    if needed <= count {
        return;
    }
    let finding = serving.refused(
        "too-few-gpus",
        "wrong-flags",
        5.0,
        format!("the command needs {needed} GPUs, and there are {count} ({source})"),
    );
    findings.push(serving.command_proof(finding, serving.typed("tensor-parallel-size")).remedy(
        "Take as many ranks as there are GPUs.",
        vec![serving.start(&format!("--tensor-parallel-size {count}"))],
    ));
}
