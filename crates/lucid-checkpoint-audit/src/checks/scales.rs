//! `checkpoint.scales`: what the values of weights and scales say.

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::scale_findings::{finding, reading};
use super::{active, size, thousands};
use crate::evidence::CheckpointEvidence;
use crate::statistics::{NotableKind as Kind, Statistics};

pub(super) const CHECK: &str = "checkpoint.scales";

/// Whether weights and scales are numbers of a usual size, and scales that belong together agree.
///
/// # Errors
/// When the weights were not read.
pub fn scales(evidence: &CheckpointEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    let Some(statistics) = &evidence.statistics else {
        return Err(Skip("the weights were not read".to_owned()));
    };
    let mut findings: Vec<Finding> = Vec::new();
    for notable in &statistics.notable {
        findings.extend(finding(notable, evidence, deployment));
    }
    if !statistics.unread.is_empty() {
        let title = format!("{} tensors could not be read", statistics.unread.total);
        let mut finding =
            Finding::new(CHECK, "unread", Severity::Info, title).detail("checkpoint.extents says why.");
        for text in statistics.unread.kept.iter().take(4) {
            finding = finding.proof(ProofKind::File, &evidence.location, text);
        }
        findings.push(finding);
    }
    kv_cache(evidence, statistics, deployment, &mut findings);
    convention(statistics, &mut findings);
    let clean = findings.iter().all(|finding| finding.severity == Severity::Info);
    if clean && statistics.unread.is_empty() && statistics.tensors > 0 {
        findings.push(usual(statistics));
    }
    let (active, why) = active(evidence, deployment);
    for finding in &mut findings {
        // Findings that know better have set it.
        if finding.active == Some(true) {
            finding.active = active;
        }
        if let (Some(why), true) = (&why, finding.severity > Severity::Info) {
            finding.detail = format!("{} {why}", finding.detail);
        }
    }
    let covered = format!(
        "{} tensors, {} in {:.1} s; {} pairs of gate and up scales, {} kinds of modules and layers{}",
        thousands(statistics.tensors),
        size(statistics.bytes),
        statistics.seconds,
        thousands(statistics.gate_up_pairs),
        thousands(statistics.layers.total),
        reading(statistics)
    );
    Ok(Examined { findings, covered })
}

fn usual(statistics: &Statistics) -> Finding {
    let title =
        format!("Weights and scales of {} tensors look as they should", thousands(statistics.tensors));
    Finding::new(CHECK, "usual", Severity::Info, title)
        .detail(
            "No NaN, no zero runs, no layer off its neighbours. Wrong bits that leave the \
            statistics alone are only seen by digests.",
        )
        .suggests("checkpoint-corrupt", -1.5)
        .suggests("checkpoint-scales", -3.0)
}

/// Global scales that divide are a trap for loaders that multiply.
fn convention(statistics: &Statistics, findings: &mut Vec<Finding>) {
    let Some(global) = statistics.scalars.iter().find(|scalar| scalar.name == "weight_global_scale") else {
        return;
    };
    if statistics.notable.iter().any(|notable| notable.kind == Kind::GlobalReciprocal) {
        return;
    }
    let title = format!(
        "Global scales are divisors, as compressed-tensors writes them ({:.0} to {:.0}, median {:.0})",
        global.least, global.greatest, global.median
    );
    findings.push(
        Finding::new(CHECK, "global-divides", Severity::Info, title)
            .detail(
                "The files are right. ModelOpt stores the reciprocal; a loader that multiplies \
                gives text without sense on every kernel alike.",
            )
            .proof(
                ProofKind::Number,
                "weight_global_scale",
                format!("{} values, median {}", global.count, global.median),
            )
            .suggests("quantization-loader", 1.0),
    );
}

/// Argument of `--kv-cache-dtype` (also with `=`, also with underscores).
fn kv_flag(deployment: &Deployment) -> Option<&str> {
    let command = &deployment.command;
    command.iter().enumerate().find_map(|(i, argument)| {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (argument.as_str(), None),
        };
        let meant = flag.replace('_', "-") == "--kv-cache-dtype";
        meant.then(|| value.or_else(|| command.get(i + 1).map(String::as_str)))?
    })
}

fn kv_cache(
    evidence: &CheckpointEvidence,
    statistics: &Statistics,
    deployment: &Deployment,
    findings: &mut Vec<Finding>,
) {
    let flag = kv_flag(deployment);
    let declared = evidence.quantization.as_ref().and_then(|q| q.kv_cache.as_deref());
    let declares_fp8 = declared.is_some_and(|kv| kv.to_ascii_uppercase().contains("FP8"));
    let by_flag = flag.filter(|flag| *flag != "auto").map(|flag| flag.contains("fp8"));
    let known = !deployment.command.is_empty();
    // Without a flag, vLLM does what the checkpoint asks for.
    let fp8 = by_flag.unwrap_or(declares_fp8);
    let scales = &statistics.kv_scales;
    if declares_fp8 && by_flag.is_none() {
        requested(evidence, deployment, findings);
    }
    if !fp8 {
        return;
    }
    let in_use = by_flag == Some(true) || known;
    let severity = if in_use { Severity::Warning } else { Severity::Info };
    let (slug, title, weight) = if scales.count == 0 {
        (
            "kv-scales-absent",
            "The KV cache is to be FP8 and the checkpoint has no k_scale and v_scale".to_owned(),
            1.5,
        )
    } else if scales.ones == scales.count {
        (
            "kv-scales-one",
            format!("The KV cache is to be FP8 and all {} of its scales are exactly 1", scales.count),
            1.0,
        )
    } else {
        return;
    };
    findings.push(
        Finding::new(CHECK, slug, severity, title)
            .detail(
                "Engines then use 1.0. For the latent of MLA that is often good enough: neither \
                proof of a fault nor clearance. Compare with a BF16 cache.",
            )
            .active(if in_use { Some(true) } else { None })
            .proof(
                ProofKind::Number,
                "KV cache",
                format!("declared {}, flag {}", declared.unwrap_or("nothing"), flag.unwrap_or("none")),
            )
            .remedy(
                "Ask the same with a BF16 KV cache and compare.",
                vec!["vllm serve … --kv-cache-dtype bfloat16".to_owned()],
            )
            .suggests("kv-cache-scales", weight),
    );
}

/// The checkpoint itself asks for an FP8 cache, and nobody said otherwise.
fn requested(evidence: &CheckpointEvidence, deployment: &Deployment, findings: &mut Vec<Finding>) {
    let below_89 = |capability: Option<(u32, u32)>| capability.is_some_and(|capability| capability < (8, 9));
    let old =
        !deployment.gpus.is_empty() && deployment.gpus.iter().all(|gpu| below_89(gpu.compute_capability));
    let sparse = evidence.sizes.as_ref().is_some_and(|sizes| sizes.indexer.is_some());
    if old && sparse {
        let gpu = deployment.gpus.first().map_or("this GPU", |gpu| gpu.name.as_str());
        findings.push(
            Finding::new(
                CHECK,
                "kv-fp8-unsupported",
                Severity::Error,
                format!(
                    "The checkpoint asks for \
                an FP8 KV cache, which no sparse-attention backend has on {gpu}"
                ),
            )
            .detail(
                "No flag was given, so the engine takes the cache's type from the checkpoint: \
                    the start ends with \"No valid attention backend found\".",
            )
            .proof(ProofKind::File, "config.json", "kv_cache_scheme or kv_cache_quant_algo is FP8")
            .remedy("Say the cache's type.", vec!["vllm serve … --kv-cache-dtype bfloat16".to_owned()])
            .suggests("wrong-flags", 4.0),
        );
    } else {
        findings.push(
            Finding::new(
                CHECK,
                "kv-fp8-requested",
                Severity::Info,
                "The checkpoint asks for an FP8 KV cache",
            )
            .detail("Engines follow it unless --kv-cache-dtype says otherwise.")
            .suggests("kv-cache-scales", 0.3),
        );
    }
}
