//! `env.version-sets`: whether the installed versions belong together.

mod cuda;
mod pairs;
mod unmet;

use std::collections::BTreeMap;

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::requirements::{self, Requirements};
use super::version_rules::RULES;
use super::{counted, grouped, known_faults, some};
use crate::distribution::Distribution;
use crate::gather::EnvironmentEvidence;
use crate::installer::Commands;
use crate::served_path::{Part, ServedPath};

const CHECK: &str = "env.version-sets";
const CAUSE: &str = "package-version-skew";

/// Judges relations between packages, and every requirement that a package states.
///
/// # Errors
///
/// Nothing is installed, and nothing else is known that a rule could speak of.
pub fn version_sets(evidence: &EnvironmentEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    let known = known_faults::find(CHECK, evidence, deployment);
    if evidence.distributions.is_empty() && known.is_empty() {
        return Err(Skip(format!("no distributions in {}", evidence.python.prefix)));
    }
    let requirements = requirements::evaluate(evidence);
    let judge = Judge { evidence, deployment, requirements: &requirements };
    let mut findings = known;
    judge.equal(&mut findings);
    judge.exclusive(&mut findings);
    judge.built_for(&mut findings);
    judge.cuda(&mut findings);
    judge.unmet(&mut findings);
    judge.installed_twice(&mut findings);
    judge.python_version(&mut findings);
    let accuses = findings.iter().any(|finding| {
        finding.severity > Severity::Info
            && finding.suggests.iter().any(|s| s.cause == CAUSE && s.weight > 0.0)
    });
    let serves = evidence.distributions.iter().any(|d| ServedPath::known().part(&d.name) == Part::Engine);
    if !accuses && serves {
        findings.push(
            Finding::new(CHECK, "consistent", Severity::Info, "the serving stack's versions belong together")
                .detail(format!(
                    "{} requirements hold or fail harmlessly, and no known relation is broken.",
                    grouped(requirements.evaluated as u64)
                ))
                .suggests(CAUSE, -3.0),
        );
    }
    findings.sort_by(|a, b| {
        let weight = |f: &Finding| f.suggests.iter().map(|s| s.weight).fold(f64::NEG_INFINITY, f64::max);
        b.severity.cmp(&a.severity).then(weight(b).total_cmp(&weight(a)))
    });
    let rules = RULES.equal.len() + RULES.exclusive.len() + RULES.built_for.len() + RULES.driver.len();
    Ok(Examined {
        findings,
        covered: format!(
            "{}, {} requirements, {} relations, {} known faults{}",
            counted(evidence.distributions.len(), "distribution", "distributions"),
            grouped(requirements.evaluated as u64),
            rules,
            known_faults::count(),
            if requirements.unreadable.is_empty() {
                String::new()
            } else {
                format!(
                    "; {} requirements are no PEP 508 ({})",
                    requirements.unreadable.len(),
                    some(&requirements.unreadable, 2)
                )
            }
        ),
    })
}

struct Judge<'a> {
    evidence: &'a EnvironmentEvidence,
    deployment: &'a Deployment,
    requirements: &'a Requirements,
}

impl Judge<'_> {
    fn commands(&self) -> Commands<'_> {
        Commands::new(&self.evidence.python)
    }

    fn proof(finding: Finding, distribution: &Distribution) -> Finding {
        finding.proof(ProofKind::File, &distribution.info, format!("Version: {}", distribution.version))
    }

    /// The version that an engine, or else anybody, pins.
    fn pinned(&self, name: &str) -> Option<(&Distribution, &str)> {
        let pins = self.requirements.pins.get(name)?;
        let known = ServedPath::known();
        let requirer = |at: usize| &self.evidence.distributions[at];
        pins.iter()
            .find(|(at, _)| known.part(&requirer(*at).name) == Part::Engine)
            .map(|(at, version)| (requirer(*at), version.as_str()))
    }

    fn installed_twice(&self, findings: &mut Vec<Finding>) {
        let known = ServedPath::known();
        let mut by_name: BTreeMap<(usize, &str), Vec<&Distribution>> = BTreeMap::new();
        for distribution in &self.evidence.distributions {
            by_name.entry((distribution.site, &distribution.name)).or_default().push(distribution);
        }
        for ((_, name), list) in by_name {
            let [first, second, ..] = list.as_slice() else { continue };
            let grave = known.part(name) != Part::Other && first.version != second.version;
            let infos: Vec<&str> = list.iter().map(|d| d.info.as_str()).collect();
            findings.push(
                Finding::new(CHECK, "leftover-metadata", if grave { Severity::Warning } else { Severity::Info },
                    format!("{name} is installed twice in one folder: {}", some(&infos, 4)))
                .detail("Python reports whichever it lists first, and an upgrade that was interrupted or unpacked over the old version leaves files of both.")
                .active(None)
                .suggests(CAUSE, if grave { 2.5 } else { 0.3 })
                .suggests("modified-package-files", if grave { 1.0 } else { 0.1 })
                .remedy("Uninstall it until none is left, then install one version.", vec![self.commands().uninstall(Some(first), &[name]), self.commands().uninstall(Some(second), &[name]), self.commands().install(Some(second), &[second.requirement()], None)]),
            );
        }
    }

    fn python_version(&self, findings: &mut Vec<Finding>) {
        let known = ServedPath::known();
        for (at, text) in &self.requirements.python {
            let distribution = &self.evidence.distributions[*at];
            if known.part(&distribution.name) == Part::Other {
                continue;
            }
            let version = self.evidence.python.version.as_deref().unwrap_or("unknown");
            findings.push(Self::proof(
                Finding::new(
                    CHECK,
                    "python-version",
                    Severity::Warning,
                    format!("{} wants Python {text}, and this is {version}", distribution.label()),
                )
                .active(Some(true))
                .suggests(CAUSE, 2.0)
                .remedy(
                    "Make the environment anew with a Python that it supports.",
                    vec![format!(
                        "uv venv --python 3.12 {}",
                        crate::installer::quoted(&self.evidence.python.prefix)
                    )],
                ),
                distribution,
            ));
        }
    }
}
