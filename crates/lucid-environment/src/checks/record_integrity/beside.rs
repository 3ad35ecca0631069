//! Files that are gone, that nobody recorded, or that two distributions recorded.

use std::collections::BTreeMap;

use lucid_findings::{Finding, ProofKind, Severity};

use super::{CHECK, Judge};
use crate::checks::{capitalized, counted, grouped, some};
use crate::integrity::FileKind;
use crate::served_path::{Part, ServedPath};

impl Judge<'_> {
    pub(super) fn missing(&self, findings: &mut Vec<Finding>) {
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

    pub(super) fn unrecorded(&self, findings: &mut Vec<Finding>) {
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
                            crate::installer::quoted(&self.full(&file.path, &file.distribution))
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
            let each: Vec<Option<bool>> =
                files.iter().map(|path| self.active(path, distribution).active).collect();
            // One file that may run is enough to look at all of them.
            let active = match (each.contains(&Some(true)), each.contains(&None)) {
                (true, _) => Some(true),
                (false, true) => None,
                (false, false) => Some(false),
            };
            let quiet = part == Part::Other || active == Some(false);
            let mut finding = Finding::new(CHECK, "unrecorded-code", if quiet { Severity::Info } else { Severity::Warning },
                format!("{} in the folders of {distribution} that it did not publish", counted(files.len(), "code file lies", "code files lie")))
            .detail(format!("{}. {}", some(&files, 10), if active == Some(false) {
                format!("{}.", capitalized(&reasons(&files, |path| self.active(path, distribution).reason)))
            } else {
                format!(
                    "Something must import {} for it to matter: a modified file, a plugin, or an engine that lists its folder.",
                    if files.len() == 1 { "it" } else { "them" }
                )
            }))
            .active(active)
            .suggests("modified-package-files", if quiet { 0.3 } else { 2.0 });
            for path in files.iter().take(10) {
                finding = finding.proof(ProofKind::File, *path, "listed in no RECORD");
            }
            if !quiet {
                let moved = files
                    .iter()
                    .take(10)
                    .map(|path| {
                        format!(
                            "mv {0} {0}.disabled",
                            crate::installer::quoted(&self.full(path, distribution))
                        )
                    })
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

    pub(super) fn shared(&self, findings: &mut Vec<Finding>) {
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
}

/// Why files don't run, each reason once.
fn reasons(files: &[&str], reason: impl Fn(&str) -> String) -> String {
    let mut found: Vec<String> = Vec::new();
    for file in files {
        let why = reason(file);
        if !found.contains(&why) && found.len() < 3 {
            found.push(why);
        }
    }
    found.join("; ")
}
