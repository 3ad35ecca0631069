//! `env.monkeypatch`: who changes whose code at run time; described and classified, not condemned.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::debug_code::IsModified;
use crate::evidence::{CodeEvidence, PatchFact, PatchKind};
use crate::knowledge::PATHS;
use crate::prefilter::is_tool;

/// The check's id.
const CHECK: &str = "env.monkeypatch";
/// Places named in one finding.
const PLACES: usize = 8;

/// Describes changes to other modules.
///
/// # Errors
/// Skipped if no Python file could be read.
pub fn monkeypatch(
    evidence: &CodeEvidence,
    deployment: &Deployment,
    modified: IsModified<'_>,
) -> Result<Examined, Skip> {
    if evidence.parsed + evidence.ruled_out == 0 {
        return Err(Skip(format!("no Python file could be parsed in {}", evidence.site_packages.join(", "))));
    }
    let mut findings = Vec::new();
    // Tests and tools patch for themselves.
    let patches: Vec<&PatchFact> = evidence.patches.iter().filter(|patch| !is_tool(&patch.file)).collect();
    findings.extend(rewrites(&patches, modified));
    findings.extend(twice(&patches, modified, evidence, deployment));
    findings.extend(by_owner(&patches, modified, evidence, deployment));
    findings.extend(listed(&patches, PatchKind::ImportHook, "import-hook", "hooks into imports"));
    findings.extend(listed(
        &patches,
        PatchKind::Registration,
        "registration",
        "registers a model with an engine",
    ));
    let touched = patches.iter().any(|patch| {
        replaces(patch) && engine_of(&patch.target) && top(&patch.file) != dotted_top(&patch.target)
    });
    if !touched {
        findings.push(
            Finding::new(
                CHECK,
                "none",
                Severity::Info,
                "No package was found to replace an engine's code at run time",
            )
            .detail("Start-up hooks (.pth files, sitecustomize) are looked at by another check.")
            .suggests("modified-package-files", -0.5),
        );
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let mut covered = format!(
        "{} Python files; {} changes to other modules outside of tests and tools",
        evidence.parsed + evidence.ruled_out,
        patches.len()
    );
    if evidence.patches_left_out > 0 {
        covered.push_str(&format!("; {} more left out for their number", evidence.patches_left_out));
    }
    Ok(Examined { findings, covered })
}

fn top(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".py").unwrap_or(first)
}

fn dotted_top(target: &str) -> &str {
    target.split('.').next().unwrap_or(target)
}

/// Whether a dotted name is an engine's.
fn engine_of(target: &str) -> bool {
    PATHS.engine(dotted_top(target)).is_some()
}

/// Whether something that exists becomes something else.
fn replaces(patch: &PatchFact) -> bool {
    !patch.adds_absent
        && matches!(patch.kind, PatchKind::Attribute | PatchKind::Module | PatchKind::SourceRewrite)
}

fn place(patch: &PatchFact) -> String {
    format!("{}:{}", patch.file, patch.line)
}

fn described(patch: &PatchFact) -> String {
    let how = match (patch.kind, patch.keeps_original) {
        (PatchKind::Module, _) => "replaces the module",
        (PatchKind::Attribute, true) => "wraps",
        _ => "replaces",
    };
    let when =
        if patch.function == "<module>" { "at import".to_owned() } else { format!("in {}", patch.function) };
    let condition =
        if patch.when.is_empty() { String::new() } else { format!(", when {}", patch.when.join(" and ")) };
    let with = if patch.with.is_empty() { String::new() } else { format!(" by `{}`", patch.with) };
    format!("{how} {}{with} {when}{condition}", patch.target)
}

/// Sources of other packages that are written over: C122 of the knowledge, where the anchor no longer matched and nobody knew.
fn rewrites(patches: &[&PatchFact], modified: IsModified<'_>) -> Vec<Finding> {
    let rewrites =
        patches.iter().filter(|patch| patch.kind == PatchKind::SourceRewrite && engine_of(&patch.target));
    rewrites
        .map(|patch| {
            let shipped = modified(Path::new(&patch.file), &patch.function) == Some(false) && engine_of(top(&patch.file));
            let severity = if shipped { Severity::Info } else { Severity::Warning };
            Finding::new(CHECK, "source-rewrite", severity, format!("{} writes over the source of {}", place(patch), patch.target))
                .detail(format!(
                    "In {}. What is in force depends on whether its search text still matches, and on who wrote last: compare the file with its wheel.",
                    patch.function
                ))
                .active(None)
                .proof(ProofKind::File, place(patch), patch.excerpt.1.clone())
                .suggests("modified-package-files", if shipped { 1.0 } else { 3.0 })
                .remedy(
                    "See whether the rewritten file is what you expect, or put the wheel's own back.",
                    vec![format!("python -m pip install --no-deps --force-reinstall {}", dotted_top(&patch.target))],
                )
        })
        .collect()
}

/// Two files that replace the same thing: the last import wins.
fn twice(
    patches: &[&PatchFact],
    modified: IsModified<'_>,
    evidence: &CodeEvidence,
    deployment: &Deployment,
) -> Vec<Finding> {
    let mut by_target: BTreeMap<&str, Vec<&PatchFact>> = BTreeMap::new();
    for patch in patches
        .iter()
        .filter(|patch| replaces(patch) && engine_of(&patch.target) && !patch.target.contains(['{', '*']))
    {
        by_target.entry(&patch.target).or_default().push(patch);
    }
    let doubled = by_target.into_iter().filter(|(target, patches)| {
        // Within one package, two files are one author's alternatives (two backends, two versions).
        let owners: BTreeSet<&str> = patches.iter().map(|patch| top(&patch.file)).collect();
        let foreign = owners.iter().any(|owner| *owner != dotted_top(target));
        let local =
            patches.iter().any(|patch| modified(Path::new(&patch.file), &patch.function) == Some(true));
        let files: BTreeSet<&str> = patches.iter().map(|patch| patch.file.as_str()).collect();
        files.len() > 1 && foreign && (owners.len() > 1 || local)
    });
    doubled
        .map(|(target, patches)| {
            let active = activity(evidence, deployment, target);
            let mut finding = Finding::new(
                CHECK,
                "twice",
                Severity::Warning,
                format!(
                    "{target} is replaced by {} files: the one that is imported last wins",
                    patches.len()
                ),
            )
            .detail(
                patches
                    .iter()
                    .map(|patch| format!("{} {}", place(patch), described(patch)))
                    .collect::<Vec<_>>()
                    .join("; "),
            )
            .active(active)
            .suggests("modified-package-files", 3.0)
            .remedy(
                "Keep one of the patches, and see which one is in force.",
                patches
                    .iter()
                    .map(|patch| {
                        format!(
                            "sed -n '{},{}p' {}",
                            patch.line.saturating_sub(5).max(1),
                            patch.line + 10,
                            patch.file
                        )
                    })
                    .collect(),
            );
            for patch in patches {
                finding = finding.proof(ProofKind::File, place(patch), patch.excerpt.1.clone());
            }
            finding
        })
        .collect()
}

/// Whether the served model runs what is replaced.
fn activity(evidence: &CodeEvidence, deployment: &Deployment, target: &str) -> Option<bool> {
    // `vllm.model_executor.models.deepseek_v2.DeepseekV2MoE.forward`: the file is some prefix of it.
    let parts: Vec<&str> = target.split('.').collect();
    (1..parts.len()).rev().find_map(|end| {
        let file = format!("{}.py", parts[..end].join("/"));
        PATHS.area(&file).filter(|area| *area != "other")?;
        evidence.models.activity(&file, &parts[end..].join("."), deployment).active
    })
}

/// What one package replaces of another, one finding a pair.
fn by_owner(
    patches: &[&PatchFact],
    modified: IsModified<'_>,
    evidence: &CodeEvidence,
    deployment: &Deployment,
) -> Vec<Finding> {
    let mut pairs: BTreeMap<(&str, &str, bool), Vec<&PatchFact>> = BTreeMap::new();
    for patch in patches
        .iter()
        .filter(|patch| matches!(patch.kind, PatchKind::Attribute | PatchKind::Module | PatchKind::Method))
    {
        let target = if patch.kind == PatchKind::Method { "objects" } else { dotted_top(&patch.target) };
        let local = modified(Path::new(&patch.file), &patch.function) == Some(true);
        // Only the serving stack is of interest; hundreds of packages patch Python's own modules.
        let serving = engine_of(target)
            || matches!(
                target,
                "torch" | "triton" | "safetensors" | "tokenizers" | "huggingface_hub" | "xgrammar"
            );
        if local || (serving && target != top(&patch.file)) {
            pairs.entry((top(&patch.file), target, local)).or_default().push(patch);
        }
    }
    pairs
        .into_iter()
        .map(|((owner, target, local), patches)| {
            let replaced: Vec<&&PatchFact> = patches.iter().filter(|patch| replaces(patch)).collect();
            let runs: Vec<Option<bool>> =
                patches.iter().map(|patch| activity(evidence, deployment, &patch.target)).collect();
            let active = if runs.contains(&Some(true)) {
                Some(true)
            } else if runs.contains(&None) {
                None
            } else {
                Some(false)
            };
            let engines_own = engine_of(owner) || owner == target;
            let class = match (engines_own, replaced.is_empty()) {
                _ if local => "a file that differs from its wheel or belongs to none",
                (true, _) => "shipped by an engine",
                (false, true) => "adds what is absent",
                (false, false) => "another package patches the serving stack",
            };
            let severity = if local && !replaced.is_empty() && engine_of(target) {
                Severity::Warning
            } else {
                Severity::Info
            };
            let weight = match (local, engines_own, engine_of(target) && !replaced.is_empty()) {
                (true, _, true) => 4.0,
                (true, ..) => 2.0,
                (false, false, true) => 1.5,
                _ => 0.0,
            };
            let slug = if local { "modified-patch" } else { "patch" };
            let title = format!(
                "{owner} changes {} place{} of {target} at run time ({class})",
                patches.len(),
                if patches.len() == 1 { "" } else { "s" }
            );
            let detail = patches
                .iter()
                .take(PLACES)
                .map(|patch| format!("{} {}", place(patch), described(patch)))
                .collect::<Vec<_>>()
                .join("; ");
            let more = patches.len().saturating_sub(PLACES);
            let mut finding = Finding::new(CHECK, slug, severity, title)
                .detail(if more > 0 { format!("{detail}; and {more} more") } else { detail })
                .active(active);
            for patch in patches.iter().take(PLACES) {
                finding = finding.proof(ProofKind::File, place(patch), patch.excerpt.1.clone());
            }
            if weight > 0.0 {
                finding = finding.suggests("modified-package-files", weight);
            }
            if severity > Severity::Info {
                finding = finding.remedy(
                    "See whether the patch is still needed for this version, or start without it.",
                    patches
                        .iter()
                        .take(3)
                        .map(|patch| {
                            format!(
                                "sed -n '{},{}p' {}",
                                patch.line.saturating_sub(5).max(1),
                                patch.line + 15,
                                patch.file
                            )
                        })
                        .collect(),
                );
            }
            finding
        })
        .collect()
}

/// Kinds that are only listed.
fn listed(patches: &[&PatchFact], kind: PatchKind, slug: &str, words: &str) -> Option<Finding> {
    let found: Vec<&&PatchFact> = patches.iter().filter(|patch| patch.kind == kind).collect();
    let owners: BTreeSet<&str> = found.iter().map(|patch| top(&patch.file)).collect();
    (!found.is_empty()).then(|| {
        let owners: Vec<&str> = owners.into_iter().collect();
        let mut finding = Finding::new(
            CHECK,
            slug,
            Severity::Info,
            format!(
                "{} place{} {words}: {}",
                found.len(),
                if found.len() == 1 { "" } else { "s" },
                owners.join(", ")
            ),
        )
        .detail(
            found
                .iter()
                .take(PLACES)
                .map(|patch| format!("{} {}", place(patch), patch.target))
                .collect::<Vec<_>>()
                .join("; "),
        )
        .active(None);
        for patch in found.iter().take(PLACES) {
            finding = finding.proof(ProofKind::File, place(patch), patch.excerpt.1.clone());
        }
        finding
    })
}
