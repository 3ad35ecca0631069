//! `checkpoint.extents`: whether the files are as long as their headers say, and hold data where tensors are.

use std::collections::BTreeMap;

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::{active, examples, fetch_again, size, thousands};
use crate::evidence::{Capped, CheckpointEvidence, Container, ExtentKind as Kind, ExtentProblem, FileKind};

const CHECK: &str = "checkpoint.extents";

/// Whether every shard is there, is what its name says, and is as long as its header describes.
///
/// # Errors
/// When there is no shard to look at.
pub fn extents(evidence: &CheckpointEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    if evidence.shards.is_empty() && evidence.missing_shards.is_empty() {
        return Err(Skip(format!("{} holds no *.safetensors and no *.gguf", evidence.location)));
    }
    let (active, why) = active(evidence, deployment);
    let mut findings = Vec::new();
    let mut kinds: BTreeMap<Kind, Capped<(String, ExtentProblem)>> = BTreeMap::new();
    for shard in &evidence.shards.kept {
        for problem in &shard.problems.kept {
            kinds.entry(problem.kind).or_default().push(64, (shard.name.clone(), problem.clone()));
        }
        let unkept = shard.problems.total.saturating_sub(shard.problems.kept.len() as u64);
        if let (Some(last), true) = (shard.problems.kept.last(), unkept > 0) {
            kinds.entry(last.kind).or_default().total += unkept;
        }
    }
    for (kind, problems) in &kinds {
        findings.push(problem(*kind, problems, evidence, deployment));
    }
    if !evidence.missing_shards.is_empty() {
        findings.push(missing(evidence, deployment));
    }
    incomplete(evidence, deployment, &mut findings);
    if evidence.shard_sets.len() > 1 && evidence.container == Container::Safetensors {
        let sets = evidence.shard_sets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        let title =
            format!("Shards of {} sets lie side by side (of {sets} files)", evidence.shard_sets.len());
        findings.push(
            Finding::new(CHECK, "two-sets", Severity::Warning, title)
                .detail("Left-overs of another download are read too where an engine has no index to go by.")
                .proof(ProofKind::File, &evidence.location, format!("file names end with -of-{sets}"))
                .remedy("Move away the files of the set that config.json does not belong to.", vec![])
                .suggests("checkpoint-corrupt", 1.0)
                .suggests("wrong-checkpoint", 1.0),
        );
    }
    if let Some(part) = &evidence.pointed_at_part {
        let title = format!("{part} is not the first part of its model");
        findings.push(
            Finding::new(CHECK, "split-not-first", Severity::Warning, title)
                .detail(
                    "llama.cpp starts only from part 1 (\"illegal split file idx … model must be loaded with the first split\"); \
                     builds before its pull request 21019 could also take a later part of a Hugging Face cache for the first.",
                )
                .proof(ProofKind::File, part, "the part that was given")
                .remedy("Give the first part.", vec![format!("llama-server -m {}", first_part(&evidence.location))])
                .suggests("wrong-flags", 4.0),
        );
    }
    let clean = findings.iter().all(|finding| finding.severity == Severity::Info);
    if clean {
        findings.push(whole(evidence));
    }
    for finding in &mut findings {
        finding.active = active;
        if let (Some(why), true) = (&why, finding.severity > Severity::Info) {
            finding.detail = format!("{} {why}", finding.detail);
        }
    }
    Ok(Examined { findings, covered: covered(evidence) })
}

fn covered(evidence: &CheckpointEvidence) -> String {
    let kept = &evidence.shards.kept;
    let tensors: u64 = kept.iter().map(|shard| shard.tensors).sum();
    let bytes: u64 = kept.iter().map(|shard| shard.bytes).sum();
    let mut text = format!(
        "headers and lengths of {} shards: {} tensors, {}",
        thousands(evidence.shards.total),
        thousands(tensors),
        size(bytes)
    );
    if evidence.statistics.is_none() {
        text.push_str("; zeros that were written (not holes) are only seen by reading the weights");
    }
    text
}

fn whole(evidence: &CheckpointEvidence) -> Finding {
    let title = format!("All {} shards are as long as their headers say", thousands(evidence.shards.total));
    Finding::new(CHECK, "whole", Severity::Info, title)
        .detail("No gap, no overlap, no hole, no missing shard.")
        .suggests("checkpoint-corrupt", -1.5)
}

/// Slug, severity, sentence, and how much it speaks for a damaged checkpoint.
fn words(kind: Kind) -> (&'static str, Severity, &'static str, f64) {
    match kind {
        Kind::Empty => ("empty", Severity::Error, "shards are empty files", 8.0),
        Kind::NotAFile => ("not-a-file", Severity::Error, "shards are no regular files", 5.0),
        Kind::Unreadable => ("unreadable", Severity::Error, "shards can't be read", 4.0),
        Kind::LfsPointer => ("lfs-pointer", Severity::Error, "shards are Git LFS pointers, not weights", 8.0),
        Kind::WebPage => {
            ("web-page", Severity::Error, "shards are web pages or error messages, not weights", 8.0)
        }
        Kind::Header => ("header", Severity::Error, "shards have no valid header", 8.0),
        Kind::Short => ("short", Severity::Error, "shards are shorter than their headers say", 8.0),
        Kind::Long => ("long", Severity::Error, "shards have bytes after their last tensor", 3.0),
        Kind::Gap => ("gap", Severity::Error, "gaps lie between tensors", 3.0),
        Kind::Overlap => ("overlap", Severity::Error, "tensors share bytes", 6.0),
        Kind::WrongSize => ("wrong-size", Severity::Error, "tensors contradict themselves", 6.0),
        Kind::DuplicateName => {
            ("duplicate-name", Severity::Error, "names are described twice in one file", 5.0)
        }
        Kind::Misaligned => ("misaligned", Severity::Error, "tensors begin off the file's alignment", 5.0),
        Kind::Split => ("split", Severity::Error, "parts of the split model don't fit their names", 4.0),
        Kind::Hole => {
            ("hole", Severity::Error, "tensors lie in holes of the file system and read as zeros", 6.0)
        }
    }
}

fn problem(
    kind: Kind,
    problems: &Capped<(String, ExtentProblem)>,
    evidence: &CheckpointEvidence,
    deployment: &Deployment,
) -> Finding {
    let (slug, severity, sentence, weight) = words(kind);
    let mut files: Vec<String> = problems.kept.iter().map(|(shard, _)| shard.clone()).collect();
    files.dedup();
    let title = match files.as_slice() {
        [one] if problems.total == 1 => {
            format!("{one}: {}", problems.kept.first().map_or("", |(_, p)| p.text.as_str()))
        }
        _ => format!("{} {sentence}: {}", problems.total, examples(problems, |(shard, _)| shard.clone())),
    };
    let mut finding = Finding::new(CHECK, slug, severity, title).detail(detail(kind));
    for (shard, problem) in problems.kept.iter().take(8) {
        let place = match problem.at {
            Some(at) => format!("{shard} at byte {at}"),
            None => shard.clone(),
        };
        finding = finding.proof(ProofKind::File, place, &problem.text);
    }
    let mut commands = fetch_again(evidence, deployment, &files);
    let text = match kind {
        Kind::LfsPointer => {
            commands.insert(0, format!("git -C {} lfs pull", evidence.location));
            "Fetch the real files: git lfs pull in a clone, else download them again."
        }
        Kind::Unreadable => "Make the files readable for the engine's user, then look again.",
        Kind::Split => "Give the parts the names that they had when they were made, or download them again.",
        _ => "Download these files again and compare their digests (--manifest).",
    };
    let access = kind == Kind::Unreadable;
    finding =
        finding.remedy(text, if access { vec![format!("ls -lL {}", evidence.location)] } else { commands });
    finding.suggests("checkpoint-corrupt", weight)
}

fn detail(kind: Kind) -> &'static str {
    match kind {
        Kind::Short => {
            "A reader that maps the file reads zeros or left-overs beyond its end, without an error; \
                others refuse to start."
        }
        Kind::Long | Kind::Gap => {
            "The safetensors library refuses such a file; a mapped reader may take wrong bytes."
        }
        Kind::LfsPointer => {
            "A loader takes the first eight letters for a header's length and asks for that much \
                memory: it looks like running out of memory."
        }
        Kind::Hole => {
            "These ranges were allocated and never written: a download that was interrupted, or a copy that ended early. \
             The length is right, so no length check sees it."
        }
        Kind::Unreadable => "The checkpoint may be whole; it could not be looked at.",
        _ => "No engine can load this file as it was meant.",
    }
}

fn missing(evidence: &CheckpointEvidence, deployment: &Deployment) -> Finding {
    let missing = &evidence.missing_shards;
    let title = format!("{} shards are missing: {}", missing.total, examples(missing, Clone::clone));
    Finding::new(CHECK, "missing-shard", Severity::Error, title)
        .detail("The names of the other shards or the index promise them.")
        .proof(ProofKind::File, &evidence.location, format!("{} shards are there", evidence.shards.total))
        .remedy("Download what is missing.", fetch_again(evidence, deployment, &missing.kept))
        .suggests("checkpoint-corrupt", 6.0)
}

fn incomplete(evidence: &CheckpointEvidence, deployment: &Deployment, findings: &mut Vec<Finding>) {
    let mut unfinished = Capped::default();
    let files = &evidence.files.kept;
    for file in files.iter().filter(|file| file.kind == FileKind::Incomplete && !file.name.ends_with(".lock"))
    {
        let base = file.name.rsplit_once('.').map_or(file.name.as_str(), |(base, _)| base);
        let weights = [".safetensors", ".gguf", ".json", ".model"].iter().any(|ending| base.contains(ending));
        // The file itself is there and is checked: a left-over of an earlier attempt.
        if weights && !files.iter().any(|other| other.name == base && other.kind == FileKind::File) {
            unfinished.push(64, file.name.clone());
        }
    }
    if unfinished.is_empty() {
        return;
    }
    let bases: Vec<String> = unfinished
        .kept
        .iter()
        .map(|name| name.rsplit_once('.').map_or(name.as_str(), |(base, _)| base).to_owned())
        .collect();
    let title =
        format!("{} downloads have not ended: {}", unfinished.total, examples(&unfinished, Clone::clone));
    findings.push(
        Finding::new(CHECK, "incomplete-download", Severity::Warning, title)
            .detail("The files that they would become are not there.")
            .proof(ProofKind::File, &evidence.location, unfinished.kept.join(", "))
            .remedy("Let the download end, or start it again.", fetch_again(evidence, deployment, &bases))
            .suggests("checkpoint-corrupt", 3.0),
    );
}

/// `DIR/NAME-00001-of-00003.gguf`
fn first_part(location: &str) -> String {
    let first = || {
        let (rest, count) = location.rsplit_once("-of-")?;
        let (base, number) = rest.rsplit_once('-')?;
        Some(format!("{base}-{:0width$}-of-{count}", 1, width = number.len()))
    };
    first().unwrap_or_else(|| location.to_owned())
}
