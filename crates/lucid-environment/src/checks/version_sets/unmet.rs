//! Requirements that do not hold, the engine's own first.

use std::collections::{BTreeMap, BTreeSet};

use lucid_findings::{Finding, ProofKind, Severity};

use super::{CAUSE, CHECK, Judge};
use crate::checks::requirements::{Failure, Unmet};
use crate::checks::version_rules::RULES;
use crate::checks::{counted, some};
use crate::distribution::Distribution;
use crate::served_path::{Part, ServedPath};

impl Judge<'_> {
    pub(super) fn unmet(&self, findings: &mut Vec<Finding>) {
        let known = ServedPath::known();
        let engines: Vec<usize> = self
            .evidence
            .distributions
            .iter()
            .enumerate()
            .filter(|(_, d)| known.part(&d.name) == Part::Engine && !d.shadowed)
            .map(|(at, _)| at)
            .collect();
        let serving = self.requirements.closure(engines);
        let mut seen: BTreeSet<(String, String)> = BTreeSet::new();
        let mut missing: BTreeMap<usize, Vec<(String, String)>> = BTreeMap::new();
        let mut other: Vec<String> = Vec::new();
        let mut expected: Vec<String> = Vec::new();
        // An engine's own word comes before what its dependencies say of the same package.
        let mut unmet: Vec<&Unmet> = self.requirements.unmet.iter().collect();
        unmet.sort_by_key(|u| known.part(&self.evidence.distributions[u.requirer].name));
        for unmet in unmet {
            let requirer = &self.evidence.distributions[unmet.requirer];
            if !seen.insert((unmet.name.clone(), unmet.specifiers.clone())) {
                continue;
            }
            let text = format!("{} requires {}{}", requirer.label(), unmet.name, unmet.specifiers);
            let harmless = RULES.expected.iter().find(|rule| {
                (rule.requirer == "*" || rule.requirer == requirer.name) && rule.requirement == unmet.name
            });
            match (&unmet.failure, harmless) {
                (Failure::Version(installed), Some(rule)) => {
                    expected.push(format!("{text}, {installed} is there: {}", rule.why))
                }
                (Failure::Missing, _) if serving.contains(&unmet.requirer) => {
                    missing
                        .entry(unmet.requirer)
                        .or_default()
                        .push((unmet.name.clone(), unmet.specifiers.replace(' ', "")));
                }
                (Failure::Missing, _) => other.push(format!("{text}, which is not installed")),
                (Failure::Build(installed), _) => {
                    findings.push(
                        Finding::new(
                            CHECK,
                            "other-build",
                            Severity::Info,
                            format!(
                                "{text}, and {installed} is installed: the same version in another build"
                            ),
                        )
                        .active(None)
                        .suggests(CAUSE, 0.3),
                    );
                }
                (Failure::Version(installed), None) => {
                    // A package that nothing of the serving stack needs cannot make it wrong.
                    if known.part(&requirer.name) != Part::Engine
                        && !serving.contains(&unmet.requirer)
                        && !serving.is_empty()
                    {
                        other.push(format!("{text}, {installed} is there"));
                    } else {
                        findings.push(self.violated(unmet, requirer, installed, &text));
                    }
                }
            }
        }
        for (requirer, absent) in missing {
            let requirer = &self.evidence.distributions[requirer];
            let names: Vec<&str> = absent.iter().map(|(name, _)| name.as_str()).collect();
            // Installed without their own dependencies, so each in the very range that is asked for.
            let grave: Vec<String> = absent
                .iter()
                .filter(|(name, _)| known.part(name) == Part::Stack)
                .map(|(name, specifiers)| format!("{name}{specifiers}"))
                .collect();
            let warn = !grave.is_empty() && known.part(&requirer.name) == Part::Engine;
            let mut finding = Finding::new(
                CHECK,
                "missing",
                if warn { Severity::Warning } else { Severity::Info },
                format!(
                    "{} requires {}, which {} not installed",
                    requirer.label(),
                    some(&names, 6),
                    if names.len() == 1 { "is" } else { "are" }
                ),
            )
            .detail("It may be wanted for other models or modalities only.")
            .active(None)
            .suggests(CAUSE, if warn { 2.0 } else { 0.3 });
            if warn {
                finding = finding
                    .remedy("Install what is missing.", vec![self.commands().install(None, &grave, None)]);
            }
            findings.push(finding);
        }
        if !other.is_empty() {
            findings.push(
                Finding::new(
                    CHECK,
                    "other-requirement",
                    Severity::Info,
                    format!(
                        "{} outside the serving stack {} not hold",
                        counted(other.len(), "requirement", "requirements"),
                        if other.len() == 1 { "does" } else { "do" }
                    ),
                )
                .detail(some(&other, 10))
                .active(Some(false)),
            );
        }
        if !expected.is_empty() {
            findings.push(
                Finding::new(
                    CHECK,
                    "expected-deviation",
                    Severity::Info,
                    format!(
                        "{} not hold, as is known to be harmless",
                        if expected.len() == 1 {
                            "a requirement does".to_owned()
                        } else {
                            format!("{} requirements do", expected.len())
                        }
                    ),
                )
                .detail(some(&expected, 6))
                .active(Some(false)),
            );
        }
    }

    fn violated(&self, unmet: &Unmet, requirer: &Distribution, installed: &str, text: &str) -> Finding {
        let known = ServedPath::known();
        let target = self.evidence.distribution(&unmet.name);
        // Extension modules are bound to the very torch that they were compiled with.
        let bound = unmet.name == "torch" && unmet.exact.is_some();
        let (slug, severity, weight) = match (known.part(&requirer.name), known.part(&unmet.name)) {
            (Part::Engine, _) if bound && !built_here(requirer) => ("engine-pin", Severity::Error, 5.0),
            (Part::Engine, _) if bound => ("engine-pin", Severity::Warning, 2.5),
            (Part::Engine, Part::Stack | Part::Engine) => {
                ("engine-pin", Severity::Warning, if unmet.exact.is_some() { 3.0 } else { 2.5 })
            }
            (Part::Engine, Part::Other) => ("engine-pin", Severity::Warning, 1.0),
            (Part::Stack, _) if bound => ("stack-requirement", Severity::Warning, 2.5),
            (Part::Stack, Part::Stack) => ("stack-requirement", Severity::Warning, 1.5),
            _ => ("stack-requirement", Severity::Info, 0.5),
        };
        let why = if bound { " Its compiled modules are bound to that torch." } else { "" };
        let requirement = match &unmet.exact {
            Some(version) if !unmet.specifiers.contains(',') => format!("{}=={version}", unmet.name),
            _ => format!("{}{}", unmet.name, unmet.specifiers.replace(' ', "")),
        };
        let finding = Finding::new(CHECK, slug, severity, format!("{text}, and {installed} is installed"))
            .detail(format!("{} states it in its metadata.{why}", requirer.name))
            .active(Some(true))
            .suggests(CAUSE, weight)
            .proof(
                ProofKind::File,
                format!("{}/METADATA", requirer.info),
                format!("Requires-Dist: {}{}", unmet.name, unmet.specifiers),
            )
            .remedy(
                format!(
                    "Install what {} asks for; see that nothing else asks for the other version.",
                    requirer.name
                ),
                vec![self.commands().install(target, &[requirement], None)],
            );
        match target {
            Some(target) => Self::proof(finding, target),
            None => finding,
        }
    }
}

/// Whether somebody built it themselves, perhaps for the very torch that is there: an editable install, a development version,
/// or a local version that is no index's build for a CUDA version or a processor.
fn built_here(distribution: &Distribution) -> bool {
    let local = distribution.version.split_once('+').map(|(_, local)| local);
    distribution.editable_source.is_some()
        || (distribution.unreleased()
            && !local.is_some_and(|local| ["cu", "cpu", "rocm"].iter().any(|begin| local.starts_with(begin))))
}
