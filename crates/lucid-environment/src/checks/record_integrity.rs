//! `env.record-integrity`: whether the installed files are those that were published.

use std::collections::BTreeMap;

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::{counted, duration, grouped, some};
use crate::gather::EnvironmentEvidence;
use crate::installer::Commands;
use crate::integrity::{FileKind, ModifiedFile, RecordIntegrity};
use crate::served_path::{Active, Part, ServedPath};

const CHECK: &str = "env.record-integrity";
/// Findings made of single modified files; the rest share one.
const SINGLE: usize = 40;
/// From this share of a distribution's code on, another build lies there, and its files are not told one by one.
const WHOLE_PACKAGE: usize = 60;

/// Says whether a file below its site folder runs, if it knows: the audit of the code does.
pub type IsActive<'a> = &'a dyn Fn(&str) -> Option<bool>;

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

struct Judge<'a> {
    evidence: &'a EnvironmentEvidence,
    integrity: &'a RecordIntegrity,
    deployment: &'a Deployment,
    active: Option<IsActive<'a>>,
}

impl Judge<'_> {
    fn active(&self, path: &str, distribution: &str) -> Active {
        if let Some(known) = self.active.and_then(|active| active(path)) {
            let reason = if known { "the served model runs it" } else { "the served model does not run it" };
            return Active { active: Some(known), reason: reason.to_owned() };
        }
        ServedPath::known().active(path, distribution, self.deployment)
    }

    fn commands(&self) -> Commands<'_> {
        Commands::new(&self.evidence.python)
    }

    fn reinstall(&self, distribution: &str) -> Vec<String> {
        self.evidence.distribution(distribution).map(|d| self.commands().reinstall(d)).unwrap_or_default()
    }

    fn modified(&self, findings: &mut Vec<Finding>) {
        let code = |file: &&ModifiedFile| {
            matches!(file.kind, FileKind::Python | FileKind::Native | FileKind::KernelSource)
        };
        let shrunk = |file: &&ModifiedFile| {
            file.kind == FileKind::Native && file.recorded_size.is_some_and(|recorded| file.size < recorded)
        };
        let stripped: Vec<&ModifiedFile> = self.integrity.modified.iter().filter(shrunk).collect();
        // One shrunk library may be anything; several mean that an image build ran `strip`.
        let stripped = if stripped.len() >= 3 { stripped } else { Vec::new() };
        if !stripped.is_empty() {
            let names: Vec<&str> = stripped.iter().map(|file| file.path.as_str()).collect();
            findings.push(
                Finding::new(
                    CHECK,
                    "stripped-libraries",
                    Severity::Info,
                    format!(
                        "{} smaller than published, as `strip` leaves them",
                        counted(names.len(), "compiled module is", "compiled modules are")
                    ),
                )
                .detail(format!(
                    "{}. Whether only symbols were removed cannot be told without the originals.",
                    some(&names, 8)
                ))
                .active(None)
                .suggests("modified-package-files", 0.5),
            );
        }
        let mut by_distribution: BTreeMap<&str, Vec<&ModifiedFile>> = BTreeMap::new();
        for file in self.integrity.modified.iter().filter(code) {
            if !stripped.iter().any(|other| other.path == file.path) {
                by_distribution.entry(&file.distribution).or_default().push(file);
            }
        }
        let mut single = 0;
        for (distribution, files) in by_distribution {
            if files.len() > WHOLE_PACKAGE {
                findings.push(self.modified_package(distribution, &files));
                continue;
            }
            for file in files {
                single += 1;
                if single <= SINGLE {
                    findings.push(self.modified_file(file));
                }
            }
        }
        if single > SINGLE {
            let left_out = single - SINGLE + self.integrity.modified_left_out;
            findings.push(
                Finding::new(
                    CHECK,
                    "modified-code",
                    Severity::Warning,
                    format!(
                        "{} modified beside those told one by one",
                        counted(left_out, "more file is", "more files are")
                    ),
                )
                .active(None),
            );
        }
        let other: Vec<&str> = self
            .integrity
            .modified
            .iter()
            .filter(|file| !code(file))
            .map(|file| file.path.as_str())
            .collect();
        if !other.is_empty() {
            findings.push(
                Finding::new(
                    CHECK,
                    "modified-other",
                    Severity::Info,
                    format!(
                        "{} without code differ from what was published",
                        counted(other.len(), "file", "files")
                    ),
                )
                .detail(format!(
                    "{}. Launchers change when an environment is moved, metadata when it is edited by hand.",
                    some(&other, 10)
                ))
                .active(None),
            );
        }
    }

    fn modified_file(&self, file: &ModifiedFile) -> Finding {
        let part = ServedPath::known().part(&file.distribution);
        let Active { active, reason } = self.active(&file.path, &file.distribution);
        let distribution = self.evidence.distribution(&file.distribution);
        let label = distribution.map_or_else(|| file.distribution.clone(), |d| d.label());
        let broken = file.syntax_error.is_some();
        let (slug, severity) = match (active, broken, part) {
            (Some(false), _, _) => ("modified-inactive-code", Severity::Info),
            (_, true, Part::Engine | Part::Stack) => ("broken-code", Severity::Error),
            (_, true, Part::Other) => ("broken-code", Severity::Warning),
            _ => ("modified-code", Severity::Warning),
        };
        let functions: Vec<&str> =
            file.changes.iter().flat_map(|changes| &changes.functions).map(|f| f.name.as_str()).collect();
        let place = if functions.is_empty() { String::new() } else { format!(" in {}", some(&functions, 4)) };
        let title = match &file.syntax_error {
            Some(error) => format!("{} of {label} was modified and no longer parses: {error}", file.path),
            None => format!("{} of {label} was modified{place}", file.path),
        };
        let mut detail = format!("{}.", capitalized(&reason));
        if let Some(installed) = distribution.and_then(|d| d.installed_at) {
            let after = file.modified_at - installed;
            if after > 60 {
                detail.push_str(&format!(" Written {} after the install.", duration(after)));
            }
        }
        match &file.changes {
            Some(changes) => detail.push_str(&format!(
                " Against {}: {} added, {} removed.",
                changes.original,
                counted(changes.added, "line", "lines"),
                counted(changes.removed, "line", "lines")
            )),
            None if file.kind == FileKind::Native => {}
            None => detail.push_str(" Give the published wheel with --wheel to see what was changed."),
        }
        if file.links > 1 {
            detail.push_str(" The file is linked elsewhere, as uv does from its cache: the cached copy has changed with it.");
        }
        let (inactive, known) = (active == Some(false), active == Some(true));
        let weight = match part {
            _ if inactive => 0.3,
            Part::Engine if known => 4.0,
            Part::Engine => 3.0,
            Part::Stack if known => 3.5,
            Part::Stack => 2.0,
            Part::Other => 0.5,
        };
        let mut finding = Finding::new(CHECK, slug, severity, title)
            .detail(detail)
            .active(active)
            .suggests("modified-package-files", weight);
        if known && part != Part::Other {
            finding = finding.suggests("leftover-debug-code", 1.0);
        }
        let size = file
            .recorded_size
            .map_or_else(String::new, |recorded| format!("{} bytes recorded, ", grouped(recorded)));
        finding = finding.proof(
            ProofKind::File,
            &file.path,
            format!("{size}{} bytes now; its hash is not the recorded one", grouped(file.size)),
        );
        for change in file.changes.iter().flat_map(|changes| &changes.functions).take(10) {
            finding = finding.proof(
                ProofKind::File,
                format!("{}:{}", file.path, change.line),
                format!("{}: +{} -{}", change.name, change.added, change.removed),
            );
        }
        if let Some(changes) = &file.changes {
            let more = if changes.lines_left_out > 0 {
                format!("… {} more lines", changes.lines_left_out)
            } else {
                String::new()
            };
            finding = finding.proof(ProofKind::File, &file.path, format!("{}{more}", changes.excerpt));
        }
        let mut commands = Vec::new();
        if file.changes.is_none()
            && file.kind != FileKind::Native
            && let Some(distribution) = distribution
        {
            commands.push(self.commands().download(distribution, "./originals"));
        }
        commands.extend(self.reinstall(&file.distribution));
        if severity > Severity::Info {
            finding = finding.remedy(
                "If the change is not meant, bring the published files back; keep a copy of the modified one.",
                commands,
            );
        }
        finding
    }

    fn modified_package(&self, distribution: &str, files: &[&ModifiedFile]) -> Finding {
        let part = ServedPath::known().part(distribution);
        let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let label =
            self.evidence.distribution(distribution).map_or_else(|| distribution.to_owned(), |d| d.label());
        let severity = if part == Part::Other { Severity::Info } else { Severity::Warning };
        let weight = if part == Part::Other { 0.5 } else { 3.0 };
        Finding::new(CHECK, "modified-package", severity,
            format!("{} of {label} differ from its RECORD: another build lies in its place", counted(files.len(), "file", "files")))
        .detail(format!("{}. So many changes are no patch: another version was copied or unpacked over it, or a formatter ran.", some(&names, 8)))
        .active(if part == Part::Other { None } else { Some(true) })
        .suggests("modified-package-files", weight)
        .suggests("package-version-skew", weight - 1.0)
        .remedy("Install the version that its metadata names anew.", self.reinstall(distribution))
    }

    fn missing(&self, findings: &mut Vec<Finding>) {
        let mut by_distribution: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut other: Vec<&str> = Vec::new();
        for file in &self.integrity.missing {
            let code = matches!(file.kind, FileKind::Python | FileKind::Native | FileKind::KernelSource);
            if code && self.active(&file.path, &file.distribution).active != Some(false) {
                by_distribution.entry(&file.distribution).or_default().push(&file.path);
            } else {
                other.push(&file.path);
            }
        }
        for (distribution, files) in by_distribution {
            let part = ServedPath::known().part(distribution);
            let runs = files.iter().any(|path| self.active(path, distribution).active == Some(true));
            let severity = match part {
                _ if runs => Severity::Error,
                Part::Other => Severity::Info,
                _ => Severity::Warning,
            };
            let label = self
                .evidence
                .distribution(distribution)
                .map_or_else(|| distribution.to_owned(), |d| d.label());
            let mut finding = Finding::new(
                CHECK,
                "missing-code",
                severity,
                format!(
                    "{} of {label} {} gone",
                    counted(files.len(), "file", "files"),
                    if files.len() == 1 { "is" } else { "are" }
                ),
            )
            .detail(some(&files, 10))
            .active(if runs { Some(true) } else { None })
            .suggests("modified-package-files", if part == Part::Other { 0.3 } else { 2.0 });
            for path in files.iter().take(10) {
                finding = finding.proof(ProofKind::File, *path, "recorded, not there");
            }
            findings.push(finding.remedy("Install it anew.", self.reinstall(distribution)));
        }
        let left_out = self.integrity.missing_left_out;
        if !other.is_empty() || left_out > 0 {
            findings.push(
                Finding::new(
                    CHECK,
                    "missing-other",
                    Severity::Info,
                    format!(
                        "{} that a server does not run are gone",
                        counted(other.len() + left_out, "recorded file", "recorded files")
                    ),
                )
                .detail(format!(
                    "{}. Slim images leave out tests, documentation and bytecode.",
                    some(&other, 10)
                ))
                .active(Some(false)),
            );
        }
    }

    fn unrecorded(&self, findings: &mut Vec<Finding>) {
        let mut by_distribution: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut backups: Vec<&str> = Vec::new();
        for file in &self.integrity.unrecorded {
            if let Some(hidden) = &file.hides {
                let part = ServedPath::known().part(&file.distribution);
                let active = self.active(&file.path, &file.distribution);
                findings.push(
                    Finding::new(
                        CHECK,
                        "hiding-module",
                        if part == Part::Other { Severity::Info } else { Severity::Warning },
                        format!(
                            "{} is imported instead of {hidden}, and no distribution published it",
                            file.path
                        ),
                    )
                    .detail(format!(
                        "Python takes a package before a compiled module, and that before a source. {}.",
                        capitalized(&active.reason)
                    ))
                    .active(active.active)
                    .suggests("modified-package-files", if part == Part::Other { 0.5 } else { 3.0 })
                    .proof(ProofKind::File, &file.path, format!("{} bytes, unrecorded", grouped(file.size)))
                    .remedy(
                        "Move it away.",
                        vec![format!(
                            "mv {0} {0}.disabled",
                            crate::installer::quoted(&self.full(&file.path))
                        )],
                    ),
                );
            } else if file.kind == FileKind::Backup {
                backups.push(&file.path);
            } else if matches!(file.kind, FileKind::Python | FileKind::Native | FileKind::Bytecode) {
                by_distribution.entry(&file.distribution).or_default().push(&file.path);
            }
        }
        if !backups.is_empty() {
            findings.push(
                Finding::new(
                    CHECK,
                    "backup-files",
                    Severity::Info,
                    format!(
                        "{} left beside the installed files",
                        counted(backups.len(), "backup copy was", "backup copies were")
                    ),
                )
                .detail(format!("{}. Somebody edited here.", some(&backups, 10)))
                .active(Some(false))
                .suggests("modified-package-files", 1.0),
            );
        }
        for (distribution, files) in by_distribution {
            let part = ServedPath::known().part(distribution);
            let active = files.iter().filter_map(|path| self.active(path, distribution).active).max();
            let quiet = part == Part::Other || active == Some(false);
            let mut finding = Finding::new(CHECK, "unrecorded-code", if quiet { Severity::Info } else { Severity::Warning },
                format!("{} in the folders of {distribution} that it did not publish", counted(files.len(), "code file lies", "code files lie")))
            .detail(format!("{}. Something must import {} for it to matter: a modified file, a plugin, or an engine that lists its folder.",
                some(&files, 10), if files.len() == 1 { "it" } else { "them" }))
            .active(active)
            .suggests("modified-package-files", if quiet { 0.3 } else { 2.0 });
            for path in files.iter().take(10) {
                finding = finding.proof(ProofKind::File, *path, "listed in no RECORD");
            }
            if !quiet {
                let moved = files
                    .iter()
                    .take(10)
                    .map(|path| format!("mv {0} {0}.disabled", crate::installer::quoted(&self.full(path))))
                    .collect();
                finding =
                    finding.remedy("Find out who put it there; if nobody needs it, move it away.", moved);
            }
            findings.push(finding);
        }
        let unowned: Vec<&str> =
            self.integrity.unowned.iter().filter(|m| m.code_files > 0).map(|m| m.path.as_str()).collect();
        if !unowned.is_empty() {
            findings.push(
                Finding::new(
                    CHECK,
                    "unowned-modules",
                    Severity::Info,
                    format!(
                        "{} that no distribution owns",
                        counted(
                            unowned.len(),
                            "module lies in site-packages",
                            "modules lie in site-packages"
                        )
                    ),
                )
                .detail(some(&unowned, 15))
                .active(None),
            );
        }
    }

    fn shared(&self, findings: &mut Vec<Finding>) {
        for pair in &self.integrity.shared {
            let name = |label: &str| label.split(' ').next().unwrap_or(label).to_owned();
            let (first, second) = (name(&pair.first), name(&pair.second));
            if pair.differing == 0 {
                findings.push(
                    Finding::new(
                        CHECK,
                        "shared-files",
                        Severity::Info,
                        format!(
                            "{} and {} record the same {} files, with the same contents",
                            pair.first,
                            pair.second,
                            grouped(pair.files)
                        ),
                    )
                    .detail("Either may be uninstalled only together with the other.")
                    .active(None),
                );
                continue;
            }
            let known = ServedPath::known();
            let part = known.part(&first).min(known.part(&second));
            let winner = if pair.as_second >= pair.as_first { &pair.second } else { &pair.first };
            let loser = if pair.as_second >= pair.as_first { &first } else { &second };
            let code = pair
                .examples
                .iter()
                .any(|path| FileKind::of(path) != FileKind::Data && FileKind::of(path) != FileKind::Metadata);
            let severity = if part == Part::Other || !code { Severity::Info } else { Severity::Warning };
            findings.push(
                Finding::new(CHECK, "overwritten-files", severity,
                    format!("{} and {} both install {}, and {winner}'s contents are there", pair.first, pair.second, counted(usize::try_from(pair.differing).unwrap_or(usize::MAX), "file with different contents", "files with different contents")))
                .detail(format!("{}. {} as {} recorded, {} as {}.", some(&pair.examples, 8), grouped(pair.as_first), pair.first, grouped(pair.as_second), pair.second))
                .active(None)
                .suggests("package-version-skew", if severity == Severity::Info { 0.3 } else { 2.5 })
                .remedy(
                    format!("Keep one of the two: if {loser} is the one that is needed, uninstall the other and install {loser} anew."),
                    std::iter::once(self.commands().uninstall(self.evidence.distribution(&name(winner)), &[&name(winner)]))
                        .chain(self.reinstall(loser))
                        .collect(),
                ),
            );
        }
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

    fn full(&self, path: &str) -> String {
        if path.starts_with('/') {
            return path.to_owned();
        }
        let site = self.evidence.python.site_directories.first().map_or("", |d| d.path.as_str());
        format!("{site}/{path}")
    }

    fn record_of(&self, distribution: &str) -> String {
        self.evidence.distribution(distribution).map_or_else(
            || "RECORD".to_owned(),
            |d| format!("{}/{}/RECORD", self.evidence.python.site_directories[d.site].path, d.info),
        )
    }
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}
