//! Combinations of flags, model, GPU and version of which faults were reported: data, in `knowledge/known_faults.toml`.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::LazyLock;

use lucid_findings::{EngineKind, Finding, ProofKind, Severity};
use pep440_rs::VersionSpecifiers;
use serde::Deserialize;

use super::{CHECK, Serving};
use crate::serving::WeightLayout;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Knowledge {
    rule: Vec<Rule>,
}

/// A reported fault. Every condition that is given must hold; one that can't be decided makes the rule not apply, except the
/// version, which then weakens it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) name: String,
    /// The finding's slug.
    pub(crate) finding: String,
    #[serde(default)]
    engine: Vec<EngineKind>,
    /// PEP 440: `>=0.24,<0.25`.
    version: Option<String>,
    /// Families: `kimi`, `glm-5`.
    #[serde(default)]
    models: Vec<String>,
    /// Flags with one of the values; `*`: given at all; `on`: a switch that is on.
    #[serde(default)]
    flags: BTreeMap<String, Vec<String>>,
    /// Flags with a number that is at least this.
    #[serde(default)]
    flags_from: BTreeMap<String, u64>,
    /// Flags that are not given, and switches that are not on.
    #[serde(default)]
    without: Vec<String>,
    /// Variables with one of the values; `*`: set to anything but nothing.
    #[serde(default)]
    variables: BTreeMap<String, Vec<String>>,
    /// Variables with a number below this.
    #[serde(default)]
    variables_below: BTreeMap<String, f64>,
    #[serde(default)]
    without_variables: Vec<String>,
    #[serde(default)]
    layouts: Vec<WeightLayout>,
    /// Compute capabilities: `12` of any minor, `12.1`.
    #[serde(default)]
    compute: Vec<String>,
    /// A part of the GPU's name.
    gpu: Option<String>,
    tensor_parallel_from: Option<u64>,
    expert_parallel: Option<bool>,
    /// A speculative method, or `*`.
    speculation: Option<String>,
    latent_attention: Option<bool>,
    hybrid: Option<bool>,
    #[serde(default = "warning")]
    severity: Severity,
    confidence: f64,
    title: String,
    detail: String,
    remedy: String,
    /// `--flag …` is put behind the start command, `NAME=value` before it; all else stands as it is.
    #[serde(default)]
    commands: Vec<String>,
    pub(crate) suggests: BTreeMap<String, f64>,
    pub(crate) source: Vec<String>,
}

fn warning() -> Severity {
    Severity::Warning
}

static KNOWLEDGE: LazyLock<Knowledge> = LazyLock::new(|| {
    toml::from_str(include_str!("../../../knowledge/known_faults.toml"))
        .unwrap_or_else(|error| panic!("knowledge/known_faults.toml: {error}"))
});

/// Applies every rule; gives how many there are.
pub(super) fn check(serving: &Serving<'_>, findings: &mut Vec<Finding>) -> usize {
    for rule in &KNOWLEDGE.rule {
        if let Some(sure) = rule.applies(serving) {
            findings.push(rule.finding(serving, sure));
        }
    }
    KNOWLEDGE.rule.len()
}

impl Rule {
    /// `Some(true)`: all conditions hold; `Some(false)`: all but the version, which is unknown.
    fn applies(&self, serving: &Serving<'_>) -> Option<bool> {
        let flags = &serving.evidence.flags;
        let holds = (self.engine.is_empty() || self.engine.contains(&serving.engine))
            && (self.models.is_empty()
                || serving
                    .family
                    .as_ref()
                    .is_some_and(|family| self.models.iter().any(|model| family.is(model))))
            && self.flags.iter().all(|(name, values)| {
                let value = flags.value(name).map(ToOwned::to_owned).or_else(|| {
                    let (flag, key) = name.split_once('.')?;
                    flags.member(flag, key)
                });
                values.iter().any(|wanted| match wanted.as_str() {
                    "*" => flags.get(name).is_some() || value.is_some(),
                    "on" => flags.is_on(name),
                    wanted => value.as_deref().is_some_and(|value| value.eq_ignore_ascii_case(wanted)),
                })
            })
            && self
                .flags_from
                .iter()
                .all(|(name, least)| flags.number(name).is_some_and(|number| number >= *least))
            && self.without.iter().all(|name| {
                let member = name.split_once('.').and_then(|(flag, key)| flags.member(flag, key));
                flags.get(name).is_none() && !flags.is_on(name) && member.is_none()
            })
            && self.variables.iter().all(|(name, values)| {
                serving.variable(name).is_some_and(|value| {
                    values.iter().any(|wanted| match wanted.as_str() {
                        "*" => !value.is_empty(),
                        wanted => wanted.eq_ignore_ascii_case(value),
                    })
                })
            })
            && self.variables_below.iter().all(|(name, most)| {
                serving
                    .variable(name)
                    .and_then(|value| value.trim().parse::<f64>().ok())
                    .is_some_and(|n| n < *most)
            })
            && self.without_variables.iter().all(|name| serving.variable(name).is_none())
            && (self.layouts.is_empty()
                || serving.config.is_some_and(|config| self.layouts.contains(&config.layout())))
            && (self.compute.is_empty()
                || serving
                    .compute_capability()
                    .is_some_and(|gpu| self.compute.iter().any(|text| computes(text, gpu))))
            && self.gpu.as_ref().is_none_or(|part| {
                serving.deployment.gpus.iter().any(|gpu| gpu.name.contains(part.as_str()))
            })
            && self.tensor_parallel_from.is_none_or(|least| serving.tensor_parallel() >= least)
            && self.expert_parallel.is_none_or(|wanted| wanted == serving.expert_parallel())
            && self.speculation.as_ref().is_none_or(|wanted| {
                serving.speculation().is_some_and(|method| {
                    wanted == "*" || method.to_ascii_lowercase().contains(&wanted.to_ascii_lowercase())
                })
            })
            && self
                .latent_attention
                .is_none_or(|wanted| serving.config.is_some_and(|config| config.latent.is_some() == wanted))
            && self.hybrid.is_none_or(|wanted| serving.config.is_some_and(|config| config.hybrid == wanted));
        if !holds {
            return None;
        }
        match (&self.version, &serving.version) {
            (None, _) => Some(true),
            (Some(_), None) => Some(false),
            (Some(wanted), Some(version)) => {
                // A release candidate or local build of a version counts as that version.
                let release = pep440_rs::Version::new(version.release().iter().copied());
                VersionSpecifiers::from_str(wanted).ok()?.contains(&release).then_some(true)
            }
        }
    }

    fn finding(&self, serving: &Serving<'_>, sure: bool) -> Finding {
        let severity = if sure { self.severity } else { Severity::Info };
        let mut detail = self.detail.clone();
        if !sure {
            detail.push_str(&format!(
                " Reported of versions {}; this one's is unknown.",
                self.version.as_deref().unwrap_or("")
            ));
        }
        let mut finding = Finding::new(CHECK, &self.finding, severity, self.title.clone())
            .detail(detail)
            .confidence(if sure { self.confidence } else { self.confidence / 2.0 });
        for (cause, weight) in &self.suggests {
            finding = finding.suggests(cause.clone(), if sure { *weight } else { weight / 2.0 });
        }
        for name in self.flags.keys().chain(self.flags_from.keys()) {
            finding = serving.command_proof(finding, serving.typed(name));
        }
        for name in self.variables.keys().chain(self.variables_below.keys()) {
            let value = serving.variable(name).unwrap_or_default();
            finding = finding.proof(ProofKind::File, "environment", format!("{name}={value}"));
        }
        for source in &self.source {
            finding = finding.proof(ProofKind::File, format!("reported ({})", self.name), source.clone());
        }
        let commands = self.commands.iter().map(|command| match command.split_once(' ') {
            _ if command.starts_with('-') => serving.start(command),
            None if command.contains('=') => format!("{command} {}", serving.start("").trim()),
            _ => command.clone(),
        });
        let commands = commands.collect();
        finding.remedy(self.remedy.clone(), commands)
    }
}

fn computes(text: &str, (major, minor): (u32, u32)) -> bool {
    match text.split_once('.') {
        Some((wanted_major, wanted_minor)) => {
            wanted_major.parse() == Ok(major) && wanted_minor.parse() == Ok(minor)
        }
        None => text.parse() == Ok(major),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_well_formed() {
        let mut names = std::collections::BTreeSet::new();
        for rule in &KNOWLEDGE.rule {
            assert!(names.insert(&rule.name), "{} is there twice", rule.name);
            assert!(!rule.source.is_empty() && !rule.suggests.is_empty(), "{}", rule.name);
            if let Some(version) = &rule.version {
                VersionSpecifiers::from_str(version).unwrap_or_else(|error| panic!("{}: {error}", rule.name));
            }
            let id = format!("{CHECK}/{}", rule.finding);
            assert!(
                crate::FINDINGS.iter().any(|(known, _)| *known == id),
                "{id} of {} is not in FINDINGS",
                rule.name
            );
            for name in rule.flags.keys().chain(rule.flags_from.keys()).chain(&rule.without) {
                assert_eq!(
                    &crate::serving::canonical(&format!("--{name}")),
                    name,
                    "{}: not the canonical name",
                    rule.name
                );
            }
            for command in &rule.commands {
                let known = command.starts_with('-')
                    || command.split_once('=').is_some_and(|(name, _)| {
                        name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
                    })
                    || ["unset ", "rm ", "pip ", "uv ", "export ", "sudo "]
                        .iter()
                        .any(|start| command.starts_with(start));
                assert!(known, "{}: {command}", rule.name);
            }
        }
    }
}
