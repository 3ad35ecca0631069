//! `env.record-integrity`: whether the installed files are those that were published.

mod beside;
mod modified;

use lucid_findings::{Deployment, Examined, Finding, Severity, Skip};

use super::{counted, grouped, some};
use crate::gather::EnvironmentEvidence;
use crate::installer::Commands;
use crate::integrity::{ModifiedFile, RecordIntegrity};
use crate::served_path::{Active, Part, ServedPath};

const CHECK: &str = "env.record-integrity";

/// Says whether a function of a file below its site folder runs, and why, if it knows: the audit of the code does. An empty name
/// means the file as a whole.
pub type IsActive<'a> = &'a dyn Fn(&str, &str) -> Option<(bool, String)>;

/// Judges the comparison with the RECORDs. `active` has the word before the names of the files.
///
/// # Errors
///
/// The files were not hashed, or no distribution has a RECORD.
pub fn record_integrity(
    evidence: &EnvironmentEvidence,
    deployment: &Deployment,
    active: Option<IsActive<'_>>,
) -> Result<Examined, Skip> {
    let Some(integrity) = &evidence.integrity else {
        return Err(Skip("the files were not hashed".to_owned()));
    };
    if integrity.hashed == 0 {
        return Err(Skip(format!("no distribution in {} has a RECORD with hashes", evidence.python.prefix)));
    }
    let judge = Judge { evidence, integrity, deployment, active };
    let mut findings = Vec::new();
    judge.modified(&mut findings);
    judge.missing(&mut findings);
    judge.unrecorded(&mut findings);
    judge.shared(&mut findings);
    judge.odd(&mut findings);
    judge.clean(&mut findings);
    // What runs stands above what may run, and that above what does not.
    findings.sort_by_key(|finding| {
        (std::cmp::Reverse(finding.severity), finding.active != Some(true), finding.active == Some(false))
    });
    let cached = if integrity.from_cache > 0 {
        format!(", {} known from an earlier run", grouped(integrity.from_cache))
    } else {
        String::new()
    };
    Ok(Examined {
        findings,
        covered: format!(
            "{} entries of {}: {} files hashed{cached}, {:.2} GB, {:.1} s on {}",
            grouped(integrity.entries),
            counted(integrity.distributions, "package", "packages"),
            grouped(integrity.hashed),
            integrity.bytes as f64 / 1e9,
            integrity.seconds,
            counted(integrity.threads, "thread", "threads"),
        ),
    })
}

/// A changed function as a sentence names it.
fn in_words(function: &str) -> &str {
    if function == "(module)" { "its top level" } else { function }
}

struct Judge<'a> {
    evidence: &'a EnvironmentEvidence,
    integrity: &'a RecordIntegrity,
    deployment: &'a Deployment,
    active: Option<IsActive<'a>>,
}

impl Judge<'_> {
    fn active(&self, path: &str, distribution: &str) -> Active {
        if let Some((known, why)) = self.active.and_then(|active| active(path, "")) {
            let verdict = if known { "the served model runs it" } else { "the served model does not run it" };
            return Active { active: Some(known), reason: format!("{verdict}: {why}") };
        }
        ServedPath::known().active(path, distribution, self.deployment)
    }

    /// Whether what was changed in a file runs: where the original was found, the changed functions decide, since a file that runs
    /// holds many that don't.
    fn changes_active(&self, file: &ModifiedFile) -> Active {
        let whole = self.active(&file.path, &file.distribution);
        let (Some(active), Some(changes)) = (self.active, &file.changes) else { return whole };
        if whole.active == Some(false) || changes.functions.is_empty() || file.syntax_error.is_some() {
            return whole;
        }
        let answers: Vec<(&str, Option<(bool, String)>)> = changes
            .functions
            .iter()
            .map(|change| (change.name.as_str(), active(&file.path, &change.name)))
            .collect();
        let known = |wanted: Option<bool>| {
            let runs = |answer: &Option<(bool, String)>| answer.as_ref().map(|(runs, _)| *runs);
            let named = answers.iter().filter(|(_, answer)| runs(answer) == wanted);
            named.map(|(name, _)| in_words(name)).collect::<Vec<_>>()
        };
        let (run, idle) = (known(Some(true)), known(Some(false)));
        if !run.is_empty() {
            Active { active: Some(true), reason: format!("the served model runs {}", some(&run, 4)) }
        } else if idle.len() == changes.functions.len() {
            let mut reasons: Vec<&str> =
                answers.iter().flat_map(|(_, answer)| answer).map(|(_, why)| why.as_str()).collect();
            reasons.dedup();
            let reason = format!(
                "the served model does not run {}: {}",
                some(&idle, 4),
                reasons[..reasons.len().min(2)].join("; ")
            );
            Active { active: Some(false), reason }
        } else if whole.active == Some(true) {
            Active {
                active: None,
                reason: format!("the file runs; whether {} does is not known", some(&known(None), 4)),
            }
        } else {
            let reason = format!("whether {} runs for this model is not known", some(&known(None), 4));
            Active { active: None, reason }
        }
    }

    fn commands(&self) -> Commands<'_> {
        Commands::new(&self.evidence.python)
    }

    fn reinstall(&self, distribution: &str) -> Vec<String> {
        self.evidence.distribution(distribution).map(|d| self.commands().reinstall(d)).unwrap_or_default()
    }

    /// What could not be checked.
    fn odd(&self, findings: &mut Vec<Finding>) {
        let integrity = self.integrity;
        if !integrity.refused.is_empty() {
            // `pip install --target` puts scripts beside the packages and records them as if there were a prefix.
            let target = |path: &str| {
                path.starts_with("../../bin/")
                    || path.starts_with("../../share/")
                    || path.starts_with("../../etc/")
            };
            let odd = integrity.refused.iter().any(|entry| !target(&entry.path));
            let names: Vec<String> = integrity
                .refused
                .iter()
                .map(|e| format!("{} ({}, {})", e.path, e.distribution, e.reason))
                .collect();
            findings.push(
                Finding::new(
                    CHECK,
                    "refused-paths",
                    if odd { Severity::Warning } else { Severity::Info },
                    format!(
                        "{} of RECORDs lead out of the environment and were not followed",
                        counted(names.len() + integrity.refused_left_out, "path", "paths")
                    ),
                )
                .detail(some(&names, 8))
                .active(None)
                .remedy(
                    "A wheel cannot install such files: look at where the distribution came from.",
                    integrity
                        .refused
                        .first()
                        .map(|entry| {
                            format!(
                                "grep -n -F {} {}",
                                crate::installer::quoted(&entry.path),
                                crate::installer::quoted(&self.record_of(&entry.distribution))
                            )
                        })
                        .into_iter()
                        .collect(),
                ),
            );
        }
        if !integrity.unreadable.is_empty() {
            findings.push(
                Finding::new(
                    CHECK,
                    "unreadable",
                    Severity::Warning,
                    format!(
                        "{} could not be read",
                        counted(integrity.unreadable.len(), "recorded file", "recorded files")
                    ),
                )
                .detail(some(&integrity.unreadable, 8))
                .active(None)
                .remedy(
                    "Run the check as the user who serves, or as root.",
                    vec![format!("ls -l {}", crate::installer::quoted(&self.evidence.python.prefix))],
                ),
            );
        }
        if !integrity.unchecked.is_empty() {
            let editable: Vec<String> = self
                .evidence
                .distributions
                .iter()
                .filter_map(|d| {
                    d.editable_source
                        .as_ref()
                        .filter(|_| d.git_checkout)
                        .map(|s| format!("git -C {} status --short", crate::installer::quoted(s)))
                })
                .collect();
            let mut finding = Finding::new(
                CHECK,
                "unchecked",
                Severity::Info,
                format!(
                    "{} without recorded hashes: nothing vouches for the files",
                    counted(integrity.unchecked.len(), "distribution", "distributions")
                ),
            )
            .detail(some(&integrity.unchecked, 10))
            .active(None);
            if !editable.is_empty() {
                finding = finding.remedy("Ask git what was changed in the source folders.", editable);
            }
            findings.push(finding);
        }
        let unreleased: Vec<String> = self
            .evidence
            .distributions
            .iter()
            .filter(|d| ServedPath::known().part(&d.name) != Part::Other)
            .filter_map(|d| {
                if let Some(source) = &d.editable_source {
                    Some(format!(
                        "{} is imported from {source}{}",
                        d.label(),
                        if d.git_checkout { ", a git checkout" } else { "" }
                    ))
                } else if let Some(url) = d.direct_url.as_ref().filter(|url| !url.url.is_empty()) {
                    Some(format!(
                        "{} came from {}{}",
                        d.label(),
                        url.url,
                        url.commit.as_ref().map_or_else(String::new, |c| format!(" at commit {c}"))
                    ))
                } else {
                    d.unreleased().then(|| d.label())
                }
            })
            .collect();
        if !unreleased.is_empty() {
            findings.push(
                Finding::new(
                    CHECK,
                    "unreleased",
                    Severity::Info,
                    format!(
                        "{} of the serving stack {} no plain release from an index",
                        counted(unreleased.len(), "part", "parts"),
                        if unreleased.len() == 1 { "is" } else { "are" }
                    ),
                )
                .detail(some(&unreleased, 12))
                .active(Some(true)),
            );
        }
    }

    /// A clean result speaks against patched files, but only if the engine itself was among what was checked.
    fn clean(&self, findings: &mut Vec<Finding>) {
        if findings.iter().any(|finding| {
            finding.severity > Severity::Info || finding.suggested_cause() == Some("modified-package-files")
        }) {
            return;
        }
        let known = ServedPath::known();
        let engines: Vec<String> = self
            .evidence
            .distributions
            .iter()
            .filter(|d| {
                known.part(&d.name) == Part::Engine
                    && d.has_record
                    && d.editable_source.is_none()
                    && !d.shadowed
            })
            .map(|d| d.label())
            .filter(|label| {
                !self.integrity.unchecked.iter().any(|unchecked| unchecked.starts_with(label.as_str()))
            })
            .collect();
        let editable = self
            .evidence
            .distributions
            .iter()
            .any(|d| known.part(&d.name) == Part::Engine && d.editable_source.is_some());
        if engines.is_empty() || editable {
            return;
        }
        findings.push(
            Finding::new(CHECK, "clean", Severity::Info,
                format!("every recorded file is as published, that of {} too, and no code lies beside them", some(&engines, 3)))
            .detail("Python would not notice an edit that is only in memory: start-up hooks and plugins are another check.")
            .suggests("modified-package-files", -4.0)
            .suggests("leftover-debug-code", -3.0),
        );
    }

    /// Where a file of a distribution lies, for commands.
    fn full(&self, path: &str, distribution: &str) -> String {
        if path.starts_with('/') {
            return path.to_owned();
        }
        let site = self.evidence.distribution(distribution).map_or(0, |d| d.site);
        let site = self.evidence.python.site_directories.get(site).map_or("", |d| d.path.as_str());
        format!("{site}/{path}")
    }

    fn record_of(&self, distribution: &str) -> String {
        self.evidence.distribution(distribution).map_or_else(
            || "RECORD".to_owned(),
            |d| format!("{}/{}/RECORD", self.evidence.python.site_directories[d.site].path, d.info),
        )
    }
}
