//! `env.debug-code`: leftovers of debugging in the engines' code.

use std::collections::BTreeMap;
use std::path::Path;

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::debug_words::{age, size, summary, title};
use crate::active::Activity;
use crate::evidence::{CodeEvidence, CodeFact, Effect};
use crate::knowledge::{MARKS, PATHS};

/// The check's id.
const CHECK: &str = "env.debug-code";
/// Findings of severity Info that are listed one by one.
const INFOS: usize = 12;

/// Facts of one block of code.
pub(super) struct Block<'e> {
    pub facts: Vec<&'e CodeFact>,
    pub score: f64,
    pub activity: Activity,
    pub modified: Option<bool>,
    /// The variable of the environment that switches it on, if the deployment sets it.
    pub switched_on: Option<String>,
}

impl<'e> Block<'e> {
    /// The fact that the finding is named for: what it writes says more than what it prints.
    pub(super) fn lead(&self) -> &'e CodeFact {
        self.facts[0]
    }
}

/// Says of a function in a file (relative to site-packages) whether it is another than its wheel ships or stands in no wheel
/// (`Some(true)`), or is exactly as shipped (`Some(false)`). Where nobody knows the original, the file decides for its functions.
pub type IsModified<'a> = &'a dyn Fn(&Path, &str) -> Option<bool>;

/// Looks for leftovers of debugging.
///
/// # Errors
/// Skipped if the evidence holds no engine's code.
pub fn debug_code(
    evidence: &CodeEvidence,
    deployment: &Deployment,
    modified: IsModified<'_>,
) -> Result<Examined, Skip> {
    if evidence.engine_files.is_empty() {
        return Err(Skip(format!(
            "no package of an engine (vllm, sglang, transformers, flashinfer) lies in {}: name the environment that serves",
            if evidence.site_packages.is_empty() {
                "the evidence".to_owned()
            } else {
                evidence.site_packages.join(", ")
            }
        )));
    }
    let mut findings = Vec::new();
    let mut accused = false;
    let mut infos = 0;
    let mut more = 0;
    for block in blocks(evidence, deployment, modified) {
        let (lead, activity) = (block.lead(), &block.activity);
        let severity = match (block.score, activity.active) {
            // Exactly what the wheel ships is not a leftover of anybody's on this machine.
            _ if block.modified == Some(false) => Severity::Info,
            (score, _) if score < MARKS.warning => Severity::Info,
            (_, Some(false)) => Severity::Info,
            (score, Some(true)) if score >= MARKS.error => Severity::Error,
            _ => Severity::Warning,
        };
        let conspicuous = block.score >= MARKS.warning && block.modified != Some(false);
        // A shipped `.item()` that looks odd is nobody's finding.
        if !conspicuous
            && (block.modified == Some(false)
                || lead.effect == Effect::HostSync
                || activity.active == Some(false))
        {
            continue;
        }
        if !conspicuous {
            infos += 1;
            if infos > INFOS {
                more += 1;
                continue;
            }
        }
        accused |= severity > Severity::Info;
        findings.push(finding(&block, severity, evidence));
    }
    if more > 0
        && let Some(last) = findings.last_mut()
    {
        last.detail.push_str(&format!(" {more} more places of this kind are not listed."));
    }
    findings.extend(syntax_errors(evidence, deployment));
    findings.extend(dump_files(evidence, accused));
    if !accused {
        findings.push(clean(evidence, deployment));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(Examined { findings, covered: covered(evidence) })
}

fn covered(evidence: &CodeEvidence) -> String {
    let engines = evidence
        .engine_files
        .iter()
        .map(|(engine, files)| format!("{engine} {files}"))
        .collect::<Vec<_>>()
        .join(", ");
    let mut text = format!(
        "syntax trees of {} of {} Python files ({}, {:.1} s){}; engines' files: {engines}",
        evidence.parsed,
        evidence.files,
        size(evidence.bytes),
        evidence.seconds,
        match evidence.ruled_out {
            0 => String::new(),
            number => format!(", {number} of other packages ruled out by path or text"),
        }
    );
    let odd = evidence.notes.kept.len() as u64 + evidence.notes.left_out;
    if odd > 0 {
        text.push_str(&format!("; {odd} notes on files that were odd"));
    }
    if evidence.facts_left_out > 0 {
        text.push_str(&format!(
            "; {} inconspicuous facts left out for their number",
            evidence.facts_left_out
        ));
    }
    text
}

fn blocks<'e>(
    evidence: &'e CodeEvidence,
    deployment: &Deployment,
    modified: IsModified<'_>,
) -> Vec<Block<'e>> {
    let mut groups: BTreeMap<(usize, &str, &str, u32), Vec<&CodeFact>> = BTreeMap::new();
    for fact in &evidence.facts {
        groups.entry((fact.site, &fact.file, &fact.function, fact.block)).or_default().push(fact);
    }
    let mut blocks: Vec<Block<'e>> = groups
        .into_values()
        .map(|mut facts| {
            facts.sort_by_key(|fact| (fact.effect, fact.line));
            let best = facts.iter().map(|fact| fact.score).fold(f64::MIN, f64::max);
            // The most conspicuous fact names the block, unless a write is nearly as conspicuous.
            if let Some(lead) = facts.iter().position(|fact| fact.score >= best - 1.5) {
                facts[..=lead].rotate_right(1);
            }
            let mut kinds: Vec<Effect> = facts
                .iter()
                .map(|fact| fact.effect)
                .filter(|effect| *effect != Effect::EnvironmentBranch)
                .collect();
            kinds.dedup();
            let lead = facts[0];
            let modified = modified(Path::new(&lead.file), &lead.function);
            let mut score = best + 0.5 * kinds.len().saturating_sub(1).min(2) as f64;
            score += match modified {
                Some(true) => MARKS.score(["modified"]),
                Some(false) => MARKS.score(["as-shipped"]),
                None => 0.0,
            };
            let switched_on = switched_on(&facts, deployment);
            if switched_on.is_some() {
                score -= MARKS.score(["environment-switch"]);
            }
            let activity = evidence.models.activity(&lead.file, &lead.function, deployment);
            Block { facts, score, activity, modified, switched_on }
        })
        .collect();
    blocks.sort_by(|a, b| b.score.total_cmp(&a.score));
    blocks
}

/// The variable that switches a block on, if the deployment sets it.
fn switched_on(facts: &[&CodeFact], deployment: &Deployment) -> Option<String> {
    let asked = facts
        .iter()
        .flat_map(|fact| fact.when.iter())
        .filter_map(|when| when.strip_prefix("the environment variable "));
    asked
        .filter_map(|words| words.split(' ').next())
        .find(|name| deployment.environment.contains_key(*name))
        .map(str::to_owned)
}

fn finding(block: &Block<'_>, severity: Severity, evidence: &CodeEvidence) -> Finding {
    let lead = block.lead();
    let place = |fact: &CodeFact| {
        format!(
            "{}/{}:{}",
            evidence.site_packages.get(fact.site).map_or("", String::as_str),
            fact.file,
            fact.line
        )
    };
    let confidence = 1.0 / (1.0 + (-(block.score - 4.0)).exp());
    let mut finding = Finding::new(CHECK, lead.effect.name(), severity, title(block))
        .detail(summary(block, evidence))
        .confidence((confidence * 100.0).round() / 100.0)
        .active(block.activity.active)
        .proof(ProofKind::File, place(lead), lead.excerpt.1.clone());
    for fact in block.facts.iter().skip(1).filter(|fact| fact.line != lead.line).take(4) {
        let text = if lead.excerpt.1.contains(&fact.spelled) {
            fact.spelled.clone()
        } else {
            fact.excerpt.1.clone()
        };
        finding = finding.proof(ProofKind::File, place(fact), text);
    }
    let globs: Vec<&str> = block.facts.iter().filter_map(|fact| fact.glob.as_deref()).collect();
    for leftover in evidence.leftovers.iter().filter(|leftover| globs.contains(&leftover.glob.as_str())) {
        let files = &leftover.files;
        let text = format!(
            "{} {} {}, {} in all, {}: {}",
            files.count,
            if files.count == 1 { "file matches" } else { "files match" },
            leftover.glob,
            size(files.bytes),
            age(files),
            files.examples.join(", ")
        );
        finding = finding.proof(ProofKind::Number, leftover.glob.clone(), text);
    }
    let weight = match (severity, block.activity.active) {
        (Severity::Info, _) if block.score < MARKS.warning || block.modified == Some(false) => 0.0,
        (_, Some(false)) => 0.3,
        (_, Some(true)) => (block.score - 1.5).clamp(2.0, 7.0),
        (_, None) => (block.score - 2.5).clamp(1.5, 5.0),
    };
    if weight > 0.0 {
        finding = finding.suggests("leftover-debug-code", weight);
        if block.modified == Some(true) {
            finding = finding.suggests("modified-package-files", 1.0);
        }
    }
    if block.score >= MARKS.warning && block.modified != Some(false) {
        finding = finding.remedy(
            "Put the wheel's own file back (after a look at the lines), remove what the code left behind, and restart the service.",
            commands(block, evidence, &globs),
        );
    }
    finding
}

fn commands(block: &Block<'_>, evidence: &CodeEvidence, globs: &[&str]) -> Vec<String> {
    let lead = block.lead();
    let site = evidence.site_packages.get(lead.site).map_or("", String::as_str);
    let path = shell(&format!("{site}/{}", lead.file));
    let mut commands =
        vec![format!("sed -n '{},{}p' {path}", lead.block.saturating_sub(3).max(1), lead.line + 8)];
    let top = lead.file.split('/').next().unwrap_or("");
    if let Some(distribution) = evidence.distributions.get(top) {
        let pinned = format!("'{}=={}'", distribution.name, distribution.version);
        // `…/lib/python3.12/site-packages` belongs to `…/bin/python`.
        let python = site
            .split("/lib/python")
            .next()
            .filter(|prefix| prefix.len() < site.len())
            .map(|prefix| format!("{prefix}/bin/python"));
        let python = python.unwrap_or_else(|| "python".to_owned());
        commands.push(match distribution.installer.as_deref() {
            Some("uv") => {
                format!("uv pip install --python {} --no-deps --reinstall {pinned}", shell(&python))
            }
            _ => format!("{} -m pip install --no-deps --force-reinstall {pinned}", shell(&python)),
        });
    }
    for leftover in
        evidence.leftovers.iter().filter(|leftover| globs.contains(&leftover.glob.as_str())).take(3)
    {
        commands.push(format!("ls -l {0} && rm -i {0}", shell_glob(&leftover.glob)));
    }
    commands
}

fn shell(text: &str) -> String {
    if text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+=@".contains(c)) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// A pattern for the shell: all but the stars quoted.
fn shell_glob(glob: &str) -> String {
    glob.split('*')
        .map(|part| if part.is_empty() { String::new() } else { shell(part) })
        .collect::<Vec<_>>()
        .join("*")
}

/// Engines' files that Python can't read.
fn syntax_errors(evidence: &CodeEvidence, deployment: &Deployment) -> Vec<Finding> {
    let broken = evidence.notes.kept.iter().filter(|(file, note)| {
        let engines = PATHS.area(file).is_some_and(|area| area != "tool" && area != "other");
        engines && (note.starts_with("syntax error") || note.contains("CPython refuses"))
    });
    broken
        .take(5)
        .map(|(file, note)| {
            let activity = evidence.models.activity(file, "<module>", deployment);
            let severity = if activity.active == Some(false) { Severity::Info } else { Severity::Warning };
            Finding::new(CHECK, "syntax-error", severity, format!("{file} can't be imported: {note}"))
                .detail(format!("Wheels are compiled before they are published; a file that Python can't read was changed or cut on this machine. {}.", capital(&activity.why)))
                .active(activity.active)
                .proof(ProofKind::File, file.clone(), note.clone())
                .suggests("modified-package-files", if activity.active == Some(false) { 0.5 } else { 3.0 })
                .remedy("Reinstall the package that owns the file.", vec![format!("python -m pip install --no-deps --force-reinstall {}", file.split('/').next().unwrap_or(""))])
        })
        .collect()
}

pub(super) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().collect::<String>() + chars.as_str()).unwrap_or_default()
}

/// Dump files that no code of this environment is known to write.
fn dump_files(evidence: &CodeEvidence, accused: bool) -> Vec<Finding> {
    let folders = evidence
        .dumps
        .iter()
        .filter(|dump| ["pt", "pth", "npy", "npz", "pkl"].contains(&dump.extension.as_str()));
    folders
        .map(|dump| {
            let files = &dump.files;
            let title = format!("{} .{} files lie in {}, {} in all, {}", files.count, dump.extension, dump.folder, size(files.bytes), age(files));
            let detail = if accused {
                "Debugging code was found in this environment (see there), and these may be what it wrote."
            } else {
                "No code that writes them was found in the engines' files: they may be of another program, or of code that is gone."
            };
            let finding = Finding::new(CHECK, "dump-files", Severity::Info, title).detail(detail).active(None).proof(ProofKind::File, dump.folder.clone(), files.examples.join(", "));
            if accused { finding.suggests("leftover-debug-code", 0.5) } else { finding }
        })
        .collect()
}

fn clean(evidence: &CodeEvidence, deployment: &Deployment) -> Finding {
    let package = match deployment.engine {
        Some(lucid_findings::EngineKind::Vllm) => Some("vllm"),
        Some(lucid_findings::EngineKind::Sglang) => Some("sglang"),
        _ => None,
    };
    // That the serving engine itself was read says more than that some engine was.
    let weight = match package {
        Some(package) if evidence.engine_files.contains_key(package) => -3.0,
        Some(_) => 0.0,
        None => -1.5,
    };
    let finding = Finding::new(
        CHECK,
        "none",
        Severity::Info,
        "No leftover debugging code was found in the engines' files",
    )
    .detail(covered(evidence));
    if weight < 0.0 { finding.suggests("leftover-debug-code", weight) } else { finding }
}
