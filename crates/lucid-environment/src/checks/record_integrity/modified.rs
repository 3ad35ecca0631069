//! Files whose content is not the recorded one.

use std::collections::BTreeMap;

use lucid_findings::{Finding, ProofKind, Severity};

use super::{CHECK, Judge, in_words};
use crate::checks::{capitalized, counted, duration, grouped, some};
use crate::integrity::{FileKind, ModifiedFile};
use crate::served_path::{Active, Part, ServedPath};

/// Findings made of single modified files; the rest share one.
const SINGLE: usize = 40;
/// From this share of a distribution's code on, another build lies there, and its files are not told one by one.
const WHOLE_PACKAGE: usize = 60;

impl Judge<'_> {
    pub(super) fn modified(&self, findings: &mut Vec<Finding>) {
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
        let Active { active, reason } = self.changes_active(file);
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
            file.changes.iter().flat_map(|changes| &changes.functions).map(|f| in_words(&f.name)).collect();
        let place = if functions.is_empty() { String::new() } else { format!(" in {}", some(&functions, 4)) };
        let title = match &file.syntax_error {
            Some(error) => format!("{} of {label} was modified and no longer parses: {error}", file.path),
            None => format!("{} of {label} was modified{place}", file.path),
        };
        let mut detail = format!("{}.", capitalized(&reason));
        if distribution.is_some_and(|d| d.unreleased() && d.direct_url.is_none()) {
            detail.push_str(" It is a nightly or local build, which the usual index does not have: name the index that it came from.");
        }
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
            None => match &file.no_original {
                Some(reason) => detail.push_str(&format!(
                    " The original could not be fetched: {reason}. Give the published wheel with --wheel to see what was changed."
                )),
                None => detail.push_str(
                    " To see what was changed, give the published wheel with --wheel, or let --fetch-originals ask the package index.",
                ),
            },
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
}
