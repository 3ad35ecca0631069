//! `checkpoint.architecture`: whether the tensors are those of the model that config.json describes.

use std::collections::BTreeMap;

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::{active, fetch_again, thousands};
use crate::architecture::{Compared, Missing, compare};
use crate::evidence::{CheckpointEvidence, ModelSizes, QuantizationFacts};
use crate::exclusions::Exclusions;
use crate::groups::{count, runs, shown};
use crate::published;

const CHECK: &str = "checkpoint.architecture";

/// Far above any model, and few enough to be looked for one by one: an archive may say anything.
const MAX_LAYERS: u32 = 10_000;
const MAX_EXPERTS: u64 = 2_000_000;

/// Whether every tensor that the model needs is there in the right shape, and none that it doesn't know.
///
/// # Errors
/// When config or headers can't be understood, or the list of tensors was cut.
pub fn architecture(evidence: &CheckpointEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    let Some(sizes) = &evidence.sizes else {
        let why = evidence.sizes_problem.as_deref().unwrap_or("the model's sizes are not known");
        return Err(Skip(why.to_owned()));
    };
    let groups = &evidence.groups;
    if groups.is_empty() {
        return Err(Skip("no shard's header could be read".to_owned()));
    }
    if groups.total > groups.kept.len() as u64 {
        return Err(Skip(format!("{} kinds of tensors are too many to be this model's", groups.total)));
    }
    if sizes.layers > MAX_LAYERS || u64::from(sizes.layers) * u64::from(sizes.experts) > MAX_EXPERTS {
        return Err(Skip(format!("{} layers of {} experts are no model's", sizes.layers, sizes.experts)));
    }
    let compared = compare(sizes, &groups.kept);
    // Whole shards that are missing or unreadable are another check's finding; then missing tensors follow.
    let unread = !evidence.missing_shards.is_empty()
        || evidence.shards.kept.iter().any(|shard| shard.tensors == 0 && !shard.problems.is_empty());
    let mut findings = Vec::new();
    let pruned = experts(sizes, &compared, unread, &mut findings);
    missing(evidence, deployment, &compared, unread, pruned, &mut findings);
    wrong_shapes(evidence, deployment, &compared, &mut findings);
    unknown(sizes, &compared, &mut findings);
    mtp(sizes, &compared, deployment, &mut findings);
    prefixes(evidence, &mut findings);
    if let Some(quantization) = &evidence.quantization {
        exclusions(quantization, &compared, &mut findings);
    }
    let clean = findings.iter().all(|finding| finding.severity == Severity::Info);
    if clean {
        let title = format!(
            "All {} modules and tensors of {} are there in the right shape",
            thousands(compared.needed),
            sizes.architecture
        );
        findings.push(
            Finding::new(CHECK, "complete", Severity::Info, title)
                .suggests("wrong-checkpoint", -1.0)
                .suggests("checkpoint-corrupt", -0.5),
        );
    }
    let (active, _) = active(evidence, deployment);
    for finding in &mut findings {
        finding.active = active;
    }
    let members: u64 = groups
        .kept
        .iter()
        .flat_map(|group| &group.members)
        .map(|members| count(&members.experts).max(1))
        .sum();
    let covered = format!(
        "{} needed modules and tensors against {} that are there, {} layers",
        thousands(compared.needed),
        thousands(members),
        sizes.layers
    );
    Ok(Examined { findings, covered })
}

/// Whether the missing experts are explained.
fn experts(sizes: &ModelSizes, compared: &Compared, unread: bool, findings: &mut Vec<Finding>) -> bool {
    let like = published::like(sizes);
    let present: Vec<u32> = compared.expert_counts.keys().copied().collect();
    let remedy =
        "Use the unpruned model, or bound the length of its answers; no sampling setting cures the loops.";
    if let [one] = present.as_slice()
        && *one > 0
        && *one < sizes.experts
        && !unread
    {
        let title = format!("Every layer has {one} experts, config.json says {}", sizes.experts);
        findings.push(
            Finding::new(CHECK, "pruned-experts", Severity::Error, title)
                .detail(
                    "Experts were taken out and the config was not changed, or half the expert \
                    tensors were lost: the router chooses experts that are not there.",
                )
                .proof(ProofKind::Number, "experts a layer", format!("{one} of {}", sizes.experts))
                .remedy(remedy, vec![])
                .suggests("wrong-checkpoint", 5.0)
                .suggests("checkpoint-corrupt", 2.0),
        );
        return true;
    }
    if let Some(like) = like.filter(|like| sizes.experts > 0 && sizes.experts < like.experts) {
        let title = format!(
            "The model has the sizes of {} but {} of its {} experts a layer: a pruned copy",
            like.name, sizes.experts, like.experts
        );
        findings.push(
            Finding::new(CHECK, "pruned-experts", Severity::Warning, title)
                .detail(
                    "Pruned models (REAP and others) read well at first and then fall into loops \
                    that depend on the prompt, or fill the whole answer with thinking.",
                )
                .proof(ProofKind::File, "config.json", format!("n_routed_experts {}", sizes.experts))
                .remedy(remedy, vec![])
                .suggests("wrong-checkpoint", 5.0),
        );
        return true;
    }
    if let Some(like) =
        like.filter(|like| sizes.experts == like.experts && sizes.experts_per_token != like.experts_per_token)
    {
        let title = format!(
            "config.json chooses {} experts a token, {} chooses {}",
            sizes.experts_per_token, like.name, like.experts_per_token
        );
        findings.push(
            Finding::new(CHECK, "experts-per-token", Severity::Warning, title)
                .proof(
                    ProofKind::File,
                    "config.json",
                    format!("num_experts_per_tok {}", sizes.experts_per_token),
                )
                .remedy("Set num_experts_per_tok back to the published number.", vec![])
                .suggests("moe-routing", 3.0)
                .suggests("wrong-checkpoint", 2.0),
        );
    }
    false
}

fn missing(
    evidence: &CheckpointEvidence,
    deployment: &Deployment,
    compared: &Compared,
    unread: bool,
    pruned: bool,
    findings: &mut Vec<Finding>,
) {
    let mut by_pattern: BTreeMap<&str, (Vec<u32>, u64)> = BTreeMap::new();
    let mut total = 0;
    for Missing { pattern, layer, experts } in &compared.missing {
        if pruned && pattern.contains("experts.*") {
            continue;
        }
        let lacking = count(experts).max(1);
        total += lacking;
        let entry = by_pattern.entry(pattern).or_default();
        entry.0.extend(layer);
        entry.1 += lacking;
    }
    if total == 0 {
        return;
    }
    let lines: Vec<String> = by_pattern
        .iter()
        .map(|(pattern, (layers, lacking))| match layers.as_slice() {
            [] => (*pattern).to_owned(),
            layers => format!("{pattern} ({lacking} in layers {})", shown(&runs(layers.iter().copied()))),
        })
        .collect();
    let first = lines.first().map_or("", String::as_str);
    let title = format!("{} tensors that the model needs are missing, as {first}", thousands(total));
    let severity = Severity::Error;
    let detail = if unread {
        "They are probably in the shards that are missing or could not be read."
    } else {
        "No header has them. An engine that doesn't stop leaves them at random or zero values."
    };
    let mut finding = Finding::new(CHECK, "missing-tensor", severity, title).detail(detail).remedy(
        "Fetch the checkpoint again; if it is a conversion, convert it again.",
        fetch_again(evidence, deployment, &[]),
    );
    for line in lines.iter().take(8) {
        finding = finding.proof(ProofKind::File, &evidence.location, line);
    }
    findings.push(if unread {
        finding.suggests("checkpoint-corrupt", 4.0)
    } else {
        finding.suggests("checkpoint-corrupt", 3.0).suggests("wrong-checkpoint", 2.5)
    });
}

fn wrong_shapes(
    evidence: &CheckpointEvidence,
    deployment: &Deployment,
    compared: &Compared,
    findings: &mut Vec<Finding>,
) {
    let Some((tensor, is, should)) = compared.wrong.first() else { return };
    let title = format!(
        "{} kinds of tensors have another shape than config.json gives them, as {tensor}: {is}, \
            expected {should}",
        compared.wrong.len()
    );
    let mut finding = Finding::new(CHECK, "wrong-shape", Severity::Error, title)
        .detail("Config and weights are of different models, or a header is damaged.")
        .remedy(
            "Fetch config.json and the shards of one revision.",
            fetch_again(evidence, deployment, &["config.json".to_owned()]),
        );
    for (tensor, is, should) in compared.wrong.iter().take(8) {
        finding = finding.proof(ProofKind::File, tensor, format!("{is}, expected {should}"));
    }
    findings.push(finding.suggests("wrong-checkpoint", 4.0).suggests("checkpoint-corrupt", 3.0));
}

fn unknown(sizes: &ModelSizes, compared: &Compared, findings: &mut Vec<Finding>) {
    if let Some((tensor, _)) = compared.unknown.first() {
        let total: u64 = compared.unknown.iter().map(|(_, count)| count).sum();
        let title =
            format!("{} tensors are none that {} knows, as {tensor}", thousands(total), sizes.architecture);
        let mut finding = Finding::new(CHECK, "unknown-tensor", Severity::Warning, title).detail(
            "Engines stop at such a name or pass over it. They may belong to a layout that is not known here.",
        );
        for (tensor, count) in compared.unknown.iter().take(8) {
            finding = finding.proof(ProofKind::File, tensor, format!("{count} of this kind"));
        }
        let finding = finding
            .remedy(
                "Check that config.json and the shards are of one revision, and that the engine's \
                version knows this export.",
                vec![],
            )
            .suggests("quantization-loader", 1.0)
            .suggests("wrong-checkpoint", 0.8);
        findings.push(finding);
    }
    let beyond: Vec<u32> = compared.extra_layers.iter().copied().collect();
    if !beyond.is_empty() && !compared.mtp {
        let layers = shown(&runs(beyond.iter().copied()));
        let title = format!("The shards hold layers {layers}, config.json says {} layers", sizes.layers);
        findings.push(
            Finding::new(CHECK, "extra-layers", Severity::Warning, title)
                .detail("No engine runs layers beyond num_hidden_layers.")
                .proof(ProofKind::File, "config.json", format!("num_hidden_layers {}", sizes.layers))
                .remedy("Fetch config.json of the shards' revision.", vec![])
                .suggests("wrong-checkpoint", 4.0),
        );
    }
    if let Some(most) = compared.expert_counts.keys().max().filter(|most| **most > sizes.experts) {
        let title = format!("The shards hold {most} experts a layer, config.json says {}", sizes.experts);
        findings.push(
            Finding::new(CHECK, "extra-experts", Severity::Error, title)
                .detail("The router's rows and the experts don't fit each other.")
                .proof(ProofKind::File, "config.json", format!("n_routed_experts {}", sizes.experts))
                .remedy("Fetch config.json of the shards' revision.", vec![])
                .suggests("wrong-checkpoint", 5.0),
        );
    }
}

/// `--speculative-config '{"method": "mtp"}'`, `-sc.method=mtp`, `--speculative-algorithm EAGLE`, `NEXTN`.
fn speculates(deployment: &Deployment) -> bool {
    deployment.command.iter().any(|argument| {
        let flag = argument.split(['=', '.']).next().unwrap_or(argument).replace('_', "-");
        flag.starts_with("--speculative") || flag == "--spec-method" || flag == "-sc"
    })
}

fn mtp(sizes: &ModelSizes, compared: &Compared, deployment: &Deployment, findings: &mut Vec<Finding>) {
    if sizes.nextn == 0 || compared.mtp {
        return;
    }
    let speculates = speculates(deployment);
    let severity = if speculates { Severity::Warning } else { Severity::Info };
    let title = format!("config.json promises {} MTP layers, the shards hold none", sizes.nextn);
    let mut finding = Finding::new(CHECK, "mtp-missing", severity, title)
        .detail("Only speculative decoding with the model's own MTP layer needs them.");
    if speculates {
        finding = finding
            .proof(ProofKind::File, "command", deployment.command.join(" "))
            .remedy("Leave speculative decoding off, or use a checkpoint with the MTP layer.", vec![])
            .suggests("speculative-decoding", 4.0);
    }
    findings.push(finding);
}

fn prefixes(evidence: &CheckpointEvidence, findings: &mut Vec<Finding>) {
    let used: Vec<&str> = evidence.prefixes.iter().map(|(prefix, _)| prefix.as_str()).collect();
    let early = used.contains(&"language_model.");
    let ignore = evidence.quantization.as_ref().map_or(&[][..], |q| &q.ignore.kept[..]);
    let listed = |prefix: &str| {
        ignore.iter().any(|entry| entry.starts_with(prefix) && entry[prefix.len()..].starts_with("layers."))
    };
    // What the list writes in front of `layers.`, when it isn't what the tensors have.
    let other = ["language_model.model.", "language_model.", "model."]
        .into_iter()
        .find(|prefix| listed(prefix) && !used.contains(prefix));
    if early || other.is_some() {
        let tensors = used.join(" and ");
        let title = match other {
            Some(other) => format!(
                "Tensors are named {tensors}layers.…, the list of unquantized modules says {other}layers.…"
            ),
            None => "Tensors are named language_model.layers.…, engines expect language_model.model.layers.…"
                .to_owned(),
        };
        findings.push(
            Finding::new(CHECK, "prefix", Severity::Warning, title)
                .detail(
                    "Early NVFP4 exports of Kimi-K2.5 have these names. An engine without the \
                    mapping treats the attention as quantized or stops with shape errors (vLLM 0.15.x \
                    and SGLang of that time; repaired by vLLM pull request 33876 and SGLang pull \
                    request 18370).",
                )
                .proof(
                    ProofKind::File,
                    &evidence.location,
                    evidence
                        .prefixes
                        .iter()
                        .map(|(p, n)| format!("{n} × {p}"))
                        .collect::<Vec<_>>()
                        .join(", "),
                )
                .remedy(
                    "Use an engine release that maps the names, or fetch the current revision of \
                    the checkpoint.",
                    vec!["uv pip install -U vllm".to_owned()],
                )
                // Engines take the language model's own prefix off before they match; the early names are what fails.
                .suggests("quantization-loader", if early { 4.0 } else { 2.0 }),
        );
    } else if used.contains(&"model.") && used.len() > 1 {
        let counts =
            evidence.prefixes.iter().map(|(p, n)| format!("{n} × {p}")).collect::<Vec<_>>().join(", ");
        findings.push(
            Finding::new(
                CHECK,
                "mixed-prefixes",
                Severity::Warning,
                format!("Language tensors are named in two ways: {counts}"),
            )
            .detail("Shards of two exports were mixed, or a conversion renamed a part.")
            .proof(ProofKind::File, &evidence.location, counts)
            .remedy("Use the shards of one export.", vec![])
            .suggests("wrong-checkpoint", 2.0)
            .suggests("quantization-loader", 1.0),
        );
    }
}

/// Modules that engines never quantize, whatever a list says.
const NEVER: [&str; 1] = ["indexer"];

fn exclusions(quantization: &QuantizationFacts, compared: &Compared, findings: &mut Vec<Finding>) {
    if let Some(contradiction) = &quantization.contradiction {
        findings.push(
            Finding::new(
                CHECK,
                "two-quantizations",
                Severity::Warning,
                format!("Two declarations of the quantization differ: {contradiction}"),
            )
            .detail("Engines differ in which file they believe.")
            .proof(ProofKind::File, quantization.sources.join(", "), contradiction)
            .remedy("Fetch both files of the shards' revision.", vec![])
            .suggests("quantization-loader", 3.0),
        );
    }
    if quantization.ignore.total > quantization.ignore.kept.len() as u64 || quantization.ignore.is_empty() {
        return;
    }
    let list = Exclusions::new(&quantization.ignore.kept);
    let (mut unlisted, mut listed) = (Vec::new(), Vec::new());
    for (pattern, (codes, floats)) in &compared.stored {
        if NEVER.iter().any(|never| pattern.contains(never)) {
            continue;
        }
        let module = |layer: u32| pattern.replacen('*', &layer.to_string(), 1).replacen('*', "0", 1);
        unlisted.extend(floats.iter().map(|layer| module(*layer)).filter(|module| !list.perhaps(module)));
        listed.extend(codes.iter().map(|layer| module(*layer)).filter(|module| list.surely(module)));
    }
    for (modules, slug, says) in [
        (
            unlisted,
            "unquantized-unlisted",
            "are stored in floats, and the list of unquantized modules doesn't name them",
        ),
        (listed, "quantized-listed", "are stored as codes, and the list of unquantized modules names them"),
    ] {
        let Some(first) = modules.first() else { continue };
        let title = format!("{} modules {says}, as {first}", modules.len());
        findings.push(
            Finding::new(CHECK, slug, Severity::Warning, title)
                .detail("Engines decide by the list which layout to expect; tensors and list must agree.")
                .proof(
                    ProofKind::File,
                    quantization.sources.join(", "),
                    modules.iter().take(4).cloned().collect::<Vec<_>>().join(", "),
                )
                .remedy("Fetch config.json and hf_quant_config.json of the shards' revision.", vec![])
                .suggests("quantization-loader", 3.0),
        );
    }
}
