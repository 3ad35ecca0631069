//! One finding for each kind of oddity in weights and scales.

use lucid_findings::{Deployment, Finding, ProofKind, Severity};

use super::scales::CHECK;
use super::{examples, fetch_again, fuses_gate_and_up};
use crate::evidence::CheckpointEvidence;
use crate::statistics::{Notable, NotableKind as Kind, Statistics};

/// What a kind of oddity means.
struct Meaning {
    slug: &'static str,
    severity: Severity,
    /// After the number of tensors.
    says: &'static str,
    detail: &'static str,
    causes: &'static [(&'static str, f64)],
}

fn meaning(kind: Kind) -> Meaning {
    use Severity::{Error, Info, Warning};
    let (slug, severity, says, detail, causes): (_, _, _, _, &[(&str, f64)]) = match kind {
        Kind::NotFinite => (
            "not-finite",
            Error,
            "weights hold NaN or infinity",
            "One such weight makes every token's result NaN that passes it.",
            &[("checkpoint-corrupt", 5.0), ("nan-logits", 3.0)],
        ),
        Kind::ScaleNotFinite => (
            "scale-not-finite",
            Error,
            "block scales hold NaN or infinity",
            "Every weight of such a block is NaN. In E4M3 the codes 0x7F and 0xFF are NaN.",
            &[("checkpoint-scales", 5.0), ("checkpoint-corrupt", 4.0), ("nan-logits", 2.0)],
        ),
        Kind::AllZero => (
            "all-zero",
            Error,
            "matrices are all zeros",
            "No trained matrix is zero: these bytes were never written.",
            &[("checkpoint-corrupt", 6.0)],
        ),
        Kind::Constant => (
            "constant",
            Error,
            "matrices hold one value only",
            "No trained matrix is constant.",
            &[("checkpoint-corrupt", 5.0)],
        ),
        Kind::ZeroRun => (
            "zero-run",
            Error,
            "matrices have long runs of zero bytes",
            "Trained values are not zero side by side: a piece of the file was lost, while its length \
                stayed right.",
            &[("checkpoint-corrupt", 5.0)],
        ),
        Kind::ZeroRows => (
            "zero-rows",
            Info,
            "embeddings have whole rows of zeros",
            "Ids that no text uses are often left at zero.",
            &[],
        ),
        Kind::Implausible => (
            "implausible",
            Error,
            "matrices hold values beyond a million",
            "Bytes of something else read as numbers look like this.",
            &[("checkpoint-corrupt", 5.0)],
        ),
        Kind::Subnormal => (
            "subnormal",
            Warning,
            "matrices hold mostly subnormal values",
            "Values this small are zeros to the model: a wrong scale, or bytes of something else.",
            &[("checkpoint-corrupt", 3.0)],
        ),
        Kind::ScaleSubnormal => (
            "scale-subnormal",
            Warning,
            "tensors of block scales lie almost wholly in E4M3's subnormal range",
            "Below 2⁻⁶ E4M3 loses its three bits of precision one by one: a global scale was folded \
                into the block scales. The model loses quality, steadily and everywhere.",
            &[("checkpoint-scales", 5.0)],
        ),
        Kind::ScaleNegative => (
            "scale-negative",
            Error,
            "tensors of block scales hold negative values",
            "A scale is never below zero: these bytes are no scales.",
            &[("checkpoint-scales", 4.0), ("checkpoint-corrupt", 3.5)],
        ),
        Kind::ScaleZero => (
            "scale-zero",
            Warning,
            "tensors of block scales hold many zeros",
            "A block with a zero scale has no weights at all. Quantizers write 1 for a block of zeros.",
            &[("checkpoint-corrupt", 3.0), ("checkpoint-scales", 2.0)],
        ),
        Kind::GlobalInvalid => (
            "global-invalid",
            Error,
            "global scales are zero, negative or no number",
            "The whole matrix is lost.",
            &[("checkpoint-scales", 6.0), ("checkpoint-corrupt", 4.0)],
        ),
        Kind::GlobalReciprocal => (
            "global-reciprocal",
            Error,
            "global scales are the reciprocals of what their name stands for",
            "ModelOpt's weight_scale_2 multiplies, compressed-tensors' weight_global_scale divides. A \
                conversion between the two forgot to invert.",
            &[("checkpoint-scales", 6.0), ("quantization-loader", 2.0)],
        ),
        Kind::DecodedMagnitude => (
            "decoded-magnitude",
            Error,
            "quantized matrices decode to values of an impossible size",
            "Codes, block scales and global scale don't belong together.",
            &[("checkpoint-scales", 5.0), ("checkpoint-corrupt", 2.0)],
        ),
        Kind::GateUpWeight => (
            "gate-up-differ",
            Error,
            "pairs of gate and up projections have different global scales",
            "vLLM and SGLang use one scale for both: a mixture of experts takes gate's, a fused dense \
                layer the larger. The other matrix is off by the factor. (vLLM only warns: \
                w1_weight_scale_2 must match w3_weight_scale_2.)",
            &[("checkpoint-scales", 5.0)],
        ),
        Kind::GateUpInput => (
            "gate-up-input-differ",
            Warning,
            "pairs of gate and up projections have different activation scales",
            "Both see the same activations; fused kernels take the larger. Weight-only execution ignores them.",
            &[("checkpoint-scales", 1.5)],
        ),
        Kind::InputInvalid => (
            "input-invalid",
            Error,
            "activation scales are zero, negative or no number",
            "With quantized activations (W4A4, FP8) the layer's output is lost; weight-only execution \
                ignores them.",
            &[("checkpoint-scales", 5.0), ("nan-logits", 1.0)],
        ),
        Kind::InputSaturated => (
            "input-saturated",
            Warning,
            "activation scales are larger than any activation",
            "Everything rounds to zero with quantized activations. The calibration ran over, or the \
                reciprocal was stored.",
            &[("checkpoint-scales", 4.0)],
        ),
        Kind::InputMissing => (
            "input-missing",
            Warning,
            "modules lack the activation scale that others of their kind have",
            "Experts that calibration never reached have none; engines then use 1 or a left-over. \
                Weight-only execution ignores them.",
            &[("checkpoint-scales", 3.0), ("quantization-loader", 1.0)],
        ),
        Kind::ScaleMissing => (
            "scale-missing",
            Error,
            "packed matrices lack a scale",
            "The weights would be wrong by orders of magnitude.",
            &[("checkpoint-scales", 6.0), ("checkpoint-corrupt", 2.0)],
        ),
        Kind::LayerOutlier => (
            "layer-outlier",
            Warning,
            "matrices are ten times off those of near layers",
            "Neighbours drift, they don't jump and come back: a wrong scale or a mixed-up tensor, \
                unless the model is made so.",
            &[("checkpoint-scales", 3.0), ("checkpoint-corrupt", 2.0)],
        ),
        Kind::ExpertOutlier => (
            "expert-outlier",
            Warning,
            "experts are ten times off the others of their layer",
            "A wrong scale, or an expert that training never reached.",
            &[("checkpoint-scales", 2.5), ("checkpoint-corrupt", 1.5)],
        ),
    };
    Meaning { slug, severity, says, detail, causes }
}

/// The finding for tensors with the same oddity.
pub(super) fn finding(
    notable: &Notable,
    evidence: &CheckpointEvidence,
    deployment: &Deployment,
) -> Option<Finding> {
    let tensors = &notable.tensors;
    let first = tensors.kept.first()?;
    let mut meaning = meaning(notable.kind);
    // A hair's breadth is a rounding, and an engine that keeps the two apart is right.
    if notable.kind == Kind::GateUpWeight {
        let worst = tensors.kept.iter().map(|tensor| tensor.value).fold(1.0, f64::max);
        if worst < 1.02 || !fuses_gate_and_up(deployment) {
            meaning.severity = Severity::Warning;
            meaning.causes = &[("checkpoint-scales", 2.0)];
        }
    }
    // Short runs off the pages of the file may be a pruned row; a lost page or a long run is not.
    if notable.kind == Kind::ZeroRun
        && tensors.kept.iter().all(|tensor| tensor.value < 65_536.0 && !tensor.text.contains("page"))
    {
        meaning.severity = Severity::Warning;
        meaning.causes = &[("checkpoint-corrupt", 3.0)];
    }
    let title = match tensors.total {
        1 => format!("{}: {}", first.name, first.text),
        total => format!("{total} {}: {}", meaning.says, examples(tensors, |tensor| tensor.name.clone())),
    };
    let mut finding = Finding::new(CHECK, meaning.slug, meaning.severity, title).detail(meaning.detail);
    for tensor in tensors.kept.iter().take(8) {
        finding =
            finding.proof(ProofKind::Number, format!("{} in {}", tensor.name, tensor.shard), &tensor.text);
    }
    if meaning.severity > Severity::Info {
        let mut shards: Vec<String> = tensors.kept.iter().map(|tensor| tensor.shard.clone()).collect();
        shards.sort_unstable();
        shards.dedup();
        let text = "Compare the shards' digests with the publisher's (--manifest). If they differ, \
            download them again; if not, the export itself is at fault: quantize again, or use another.";
        finding = finding.remedy(text, fetch_again(evidence, deployment, &shards));
    }
    for (cause, weight) in meaning.causes {
        finding = finding.suggests(*cause, *weight);
    }
    Some(finding)
}

/// The range of decoded sizes, for the report.
pub(super) fn reading(statistics: &Statistics) -> String {
    let layers = || statistics.layers.kept.iter().filter(|layer| layer.rms > 0.0);
    let least = layers().map(|layer| layer.least).fold(f64::MAX, f64::min);
    let greatest = layers().map(|layer| layer.greatest).fold(0.0, f64::max);
    if greatest > 0.0 { format!(", root mean squares {least:.1e} to {greatest:.1e}") } else { String::new() }
}
