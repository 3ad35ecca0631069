//! `checkpoint.index`: whether the index agrees with the shards' headers, and whether any tensor is there twice.

use lucid_findings::{Deployment, EngineKind, Examined, Finding, ProofKind, Severity, Skip};

use super::{active, examples, fetch_again, size, thousands};
use crate::evidence::{CheckpointEvidence, Container, IndexFacts};
use crate::index::MAIN;

const CHECK: &str = "checkpoint.index";

/// Whether `model.safetensors.index.json` says what the headers say.
///
/// # Errors
/// For GGUF, and when there is no shard.
pub fn index(evidence: &CheckpointEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    if evidence.container == Container::Gguf {
        return Err(Skip("a GGUF model has no index file".to_owned()));
    }
    if evidence.shards.is_empty() {
        return Err(Skip(format!("{} holds no *.safetensors", evidence.location)));
    }
    let mut findings = Vec::new();
    for facts in &evidence.indexes {
        one(facts, evidence, deployment, &mut findings);
    }
    if evidence.indexes.iter().all(|index| index.name != MAIN) && evidence.shards.total > 1 {
        let title = format!("There is no {MAIN} for {} shards", evidence.shards.total);
        findings.push(
            Finding::new(CHECK, "none", Severity::Info, title)
                .detail("vLLM and SGLang read every shard then; transformers refuses the folder."),
        );
    }
    duplicates(evidence, deployment, &mut findings);
    let clean = findings.iter().all(|finding| finding.severity == Severity::Info);
    if clean && !evidence.indexes.is_empty() {
        let title = "The index agrees with the shards' headers";
        findings
            .push(Finding::new(CHECK, "agrees", Severity::Info, title).suggests("checkpoint-corrupt", -0.5));
    }
    let (active, _) = active(evidence, deployment);
    for finding in &mut findings {
        finding.active = active;
    }
    let entries: u64 = evidence.indexes.iter().map(|index| index.entries).sum();
    let tensors: u64 = evidence.shards.kept.iter().map(|shard| shard.tensors).sum();
    let covered = format!(
        "{} index entries against {} tensors of {} shards",
        thousands(entries),
        thousands(tensors),
        thousands(evidence.shards.total)
    );
    Ok(Examined { findings, covered })
}

fn one(
    facts: &IndexFacts,
    evidence: &CheckpointEvidence,
    deployment: &Deployment,
    findings: &mut Vec<Finding>,
) {
    let main = facts.name == MAIN;
    let regenerate = fetch_again(evidence, deployment, std::slice::from_ref(&facts.name));
    let new = |slug: &str, severity: Severity, title: String| {
        // Engines read the main index alone.
        let severity = if main { severity } else { severity.min(Severity::Warning) };
        Finding::new(CHECK, slug, severity, title)
    };
    if let Some(problem) = &facts.problem {
        findings.push(
            new("malformed", Severity::Error, format!("{}: {problem}", facts.name))
                .detail("Engines read this file before the shards.")
                .proof(ProofKind::File, &facts.name, problem)
                .remedy("Download it again.", regenerate)
                .suggests("checkpoint-corrupt", 4.0),
        );
        return;
    }
    // What belongs to a shard that is missing is that shard's fault.
    if facts.absent_from_present_shards > 0 {
        let title = format!(
            "{} lists {} tensors that are in no shard: {}",
            facts.name,
            facts.absent.total,
            examples(&facts.absent, Clone::clone)
        );
        findings.push(
            new("stale", Severity::Warning, title)
                .detail(
                    "The index belongs to another state of the files: a quantization tool left it, \
                    or shards were replaced. checkpoint.architecture says whether the model needs these \
                    tensors.",
                )
                .proof(ProofKind::File, &facts.name, examples(&facts.absent, Clone::clone))
                .remedy("Fetch index and shards of one revision.", regenerate.clone())
                .suggests("checkpoint-corrupt", 1.5)
                .suggests("wrong-checkpoint", 1.0),
        );
    }
    if !facts.unlisted.is_empty() {
        let title = format!(
            "{} tensors are not in {}: {}",
            thousands(facts.unlisted.total),
            facts.name,
            examples(&facts.unlisted, Clone::clone)
        );
        findings.push(new("unlisted-tensor", Severity::Info, title).detail(
            "NVIDIA's quantization script for DeepSeek leaves its new scales out of the index. vLLM \
                    and SGLang read whole shards and find them.",
        ));
    }
    unlisted_shards(facts, evidence, deployment, findings);
    if !facts.moved.is_empty() {
        let title = format!(
            "{} tensors are in another shard than {} says: {}",
            facts.moved.total,
            facts.name,
            examples(&facts.moved, Clone::clone)
        );
        findings.push(
            new("moved", Severity::Warning, title)
                .detail(
                    "vLLM and SGLang read whole shards and find them; loaders that open the shard \
                    that the index names do not.",
                )
                .proof(ProofKind::File, &facts.name, examples(&facts.moved, Clone::clone))
                .remedy("Fetch index and shards of one revision.", regenerate.clone())
                .suggests("checkpoint-corrupt", 1.0),
        );
    }
    if let Some(total) = facts.total_size.filter(|total| *total != facts.tensor_bytes && main) {
        let title = format!(
            "{} says {} of tensors, the shards hold {}",
            facts.name,
            size(total),
            size(facts.tensor_bytes)
        );
        findings.push(
            Finding::new(CHECK, "total-size", Severity::Info, title)
                .detail("No engine uses this number, and quantization tools often leave the old one."),
        );
    }
    if !main {
        let title = format!("A second index lies in the folder: {}", facts.name);
        findings.push(
            Finding::new(CHECK, "second", Severity::Info, title).detail(format!("Engines read {MAIN}.")),
        );
    }
}

fn unlisted_shards(
    facts: &IndexFacts,
    evidence: &CheckpointEvidence,
    deployment: &Deployment,
    findings: &mut Vec<Finding>,
) {
    if facts.unlisted_shards.is_empty() || facts.name != MAIN {
        return;
    }
    let names = examples(&facts.unlisted_shards, Clone::clone);
    let title = format!("{} shards are not in {}: {names}", facts.unlisted_shards.total, facts.name);
    // A second copy in one file (`consolidated.safetensors`) is usual; then every tensor of it is there twice.
    let copy = evidence.duplicates.kept.iter().any(|duplicate| {
        !duplicate.both_listed
            && facts.unlisted_shards.kept.iter().any(|s| *s == duplicate.first || *s == duplicate.second)
    });
    if copy {
        findings.push(
            Finding::new(CHECK, "unlisted-copy", Severity::Info, title)
                .detail("Their tensors are in listed shards too: another copy, which engines pass over."),
        );
        return;
    }
    let skipped = matches!(deployment.engine, None | Some(EngineKind::Vllm | EngineKind::Sglang));
    let detail = if skipped {
        "vLLM and SGLang read only the shards that the index names: what is in these files stays at its \
            initial value or stops the start."
    } else {
        "Engines that go by the index don't read them."
    };
    findings.push(
        Finding::new(CHECK, "unlisted-shard", Severity::Warning, title)
            .detail(detail)
            .proof(ProofKind::File, &facts.name, names)
            .remedy(
                "Fetch index and shards of one revision; move away shards of another.",
                fetch_again(evidence, deployment, std::slice::from_ref(&facts.name)),
            )
            .suggests("checkpoint-corrupt", 2.0)
            .suggests("wrong-checkpoint", 1.0),
    );
}

fn duplicates(evidence: &CheckpointEvidence, deployment: &Deployment, findings: &mut Vec<Finding>) {
    let duplicates = &evidence.duplicates;
    if !duplicates.kept.iter().any(|duplicate| duplicate.both_listed) {
        return;
    }
    let text = examples(duplicates, |d| format!("{} in {} and {}", d.tensor, d.first, d.second));
    let files: Vec<String> =
        duplicates.kept.iter().take(2).flat_map(|d| [d.first.clone(), d.second.clone()]).collect();
    findings.push(
        Finding::new(
            CHECK,
            "duplicate-tensor",
            Severity::Error,
            format!("{} tensors are in two shards: {text}", duplicates.total),
        )
        .detail("Which of the two is used depends on the order in which an engine reads its files.")
        .proof(ProofKind::File, &evidence.location, text)
        .remedy("Keep the shards of one revision.", fetch_again(evidence, deployment, &files))
        .suggests("checkpoint-corrupt", 4.0)
        .suggests("wrong-checkpoint", 2.0),
    );
}
