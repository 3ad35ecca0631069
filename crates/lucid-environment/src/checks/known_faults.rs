//! Versions that were reported wrong in a particular use, as data: `knowledge/known-faults.toml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use lucid_findings::{Deployment, EngineKind, Finding, ProofKind, Severity};
use serde::Deserialize;

use super::version_rules::matches;
use crate::gather::EnvironmentEvidence;
use crate::installer::Commands;

static FAULTS: LazyLock<Vec<Fault>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct File {
        fault: Vec<Fault>,
    }
    let text = include_str!("../../knowledge/known-faults.toml");
    let file: File =
        toml::from_str(text).unwrap_or_else(|error| panic!("knowledge/known-faults.toml: {error}"));
    file.fault
});

/// A rule; its conditions are explained in the data file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    name: String,
    package: Option<String>,
    #[serde(default)]
    versions: String,
    /// Whether the range was estimated from dates.
    #[serde(default)]
    estimated: bool,
    #[serde(default)]
    with: Vec<Package>,
    #[serde(default)]
    without: Vec<String>,
    engine: Option<EngineKind>,
    build: Option<(u32, u32)>,
    #[serde(default)]
    models: Vec<String>,
    #[serde(default)]
    quantization: Vec<String>,
    #[serde(default)]
    compute_capability: Vec<u32>,
    #[serde(default)]
    gpus: bool,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    command_lacks: Vec<String>,
    #[serde(default)]
    environment_lacks: BTreeMap<String, String>,
    cuda_toolkit: Option<String>,
    #[serde(default)]
    no_toolkit: bool,
    cache: Option<String>,
    severity: Option<Severity>,
    cause: String,
    weight: f64,
    #[serde(default)]
    also: Vec<AlsoCause>,
    title: String,
    remedy: String,
    install: Option<String>,
    #[serde(default)]
    commands: Vec<String>,
    source: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Package {
    package: String,
    versions: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AlsoCause {
    cause: String,
    weight: f64,
}

/// Rules all of whose conditions hold.
pub(super) fn find(check: &str, evidence: &EnvironmentEvidence, deployment: &Deployment) -> Vec<Finding> {
    FAULTS
        .iter()
        .filter(|fault| fault.holds(evidence, deployment))
        .map(|fault| fault.finding(check, evidence))
        .collect()
}

/// How many rules there are.
pub(super) fn count() -> usize {
    FAULTS.len()
}

impl Fault {
    fn holds(&self, evidence: &EnvironmentEvidence, deployment: &Deployment) -> bool {
        let installed = |name: &str, versions: &str| {
            evidence.distribution(name).is_some_and(|d| matches(versions, &d.version))
        };
        // An unknown command line has neither flags nor lacks them.
        let command = plain(&deployment.command);
        let about_command = !self.command.is_empty() || !self.command_lacks.is_empty();
        let has = |needle: &String| {
            needle.to_ascii_lowercase().split('|').any(|alternative| command.contains(alternative))
        };
        let names = [
            deployment.model.clone().unwrap_or_default(),
            deployment.model_type.clone().unwrap_or_default(),
            deployment.architectures.join(" "),
        ]
        .join(" ")
        .to_ascii_lowercase();
        let quantization =
            format!("{} {names}", deployment.quantization.clone().unwrap_or_default()).to_ascii_lowercase();
        let part_of = |needles: &[String], text: &str| {
            needles.is_empty() || needles.iter().any(|needle| text.contains(&needle.to_ascii_lowercase()))
        };
        let capabilities: Vec<u32> =
            deployment.gpus.iter().filter_map(|gpu| gpu.compute_capability).map(|(major, _)| major).collect();
        let toolkit =
            |range: &String| evidence.cuda_toolkits.iter().any(|(_, version)| matches(range, version));
        let nvcc = !evidence.cuda_toolkits.is_empty()
            || evidence.distributions.iter().any(|d| d.name.starts_with("nvidia-cuda-nvcc"));

        self.package.as_ref().is_none_or(|package| installed(package, &self.versions))
            && self.with.iter().all(|with| installed(&with.package, &with.versions))
            && !self.without.iter().any(|name| evidence.distribution(name).is_some())
            && self.engine.is_none_or(|engine| deployment.engine == Some(engine))
            && self
                .build
                .is_none_or(|(from, to)| build_number(deployment).is_some_and(|b| (from..=to).contains(&b)))
            && part_of(&self.models, &names)
            && part_of(&self.quantization, &quantization)
            && (self.compute_capability.is_empty()
                || capabilities.iter().any(|major| self.compute_capability.contains(major)))
            && (!self.gpus || !deployment.gpus.is_empty())
            && (!about_command || !deployment.command.is_empty())
            && self.command.iter().all(has)
            && !self.command_lacks.iter().any(has)
            && !self
                .environment_lacks
                .iter()
                .any(|(name, value)| deployment.environment.get(name) == Some(value))
            && self.cuda_toolkit.as_ref().is_none_or(toolkit)
            && (!self.no_toolkit || !nvcc)
            && self
                .cache
                .as_ref()
                .is_none_or(|name| evidence.kernel_caches.iter().flatten().any(|cache| cache.name == *name))
    }

    fn finding(&self, check: &str, evidence: &EnvironmentEvidence) -> Finding {
        let distribution = self.package.as_ref().and_then(|package| evidence.distribution(package));
        let what = distribution.map_or_else(String::new, |d| format!("{}: ", d.label()));
        let mut commands = self.commands.clone();
        if let Some(requirement) = &self.install {
            commands.insert(
                0,
                Commands::new(&evidence.python).install(
                    distribution,
                    std::slice::from_ref(requirement),
                    None,
                ),
            );
        }
        let mut finding =
            Finding::new(check, "known-fault", self.severity.unwrap_or(Severity::Warning), format!("{what}{}", self.title))
                .detail(format!("Reported for this use (rule {}): {}{}", self.name, self.source,
                    if self.estimated { ". The report names no release with the fix; which versions have the fault was estimated from dates." } else { "" }))
                .confidence(if self.estimated { 0.4 } else { 0.7 })
                .active(Some(true))
                .suggests(&self.cause, self.weight)
                .remedy(&self.remedy, commands);
        for also in &self.also {
            finding = finding.suggests(&also.cause, also.weight);
        }
        if let Some(distribution) = distribution {
            finding = finding.proof(
                ProofKind::File,
                &distribution.info,
                format!("Version: {}", distribution.version),
            );
        }
        finding
    }
}

/// A command in the one spelling that rules use: `--kv_cache_dtype=FP8` is `--kv-cache-dtype fp8`.
fn plain(command: &[String]) -> String {
    let words = command.iter().map(|word| match (word.starts_with("--"), word.split_once('=')) {
        (true, Some((flag, value))) => format!("{} {value}", flag.replace('_', "-")),
        (true, None) => word.replace('_', "-"),
        (false, _) => word.clone(),
    });
    words.collect::<Vec<_>>().join(" ").to_ascii_lowercase()
}

/// The number in `b8735` or `8735 (abcdef)`.
fn build_number(deployment: &Deployment) -> Option<u32> {
    let version = deployment.engine_version.as_deref()?;
    let digits: String = version.trim_start_matches('b').chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::str::FromStr;

    #[test]
    fn every_rule_can_be_read_and_states_a_use() {
        for fault in FAULTS.iter() {
            for range in fault.with.iter().map(|with| &with.versions).chain([&fault.versions]) {
                assert!(pep440_rs::VersionSpecifiers::from_str(range).is_ok(), "{}: {range}", fault.name);
            }
            assert!(fault.package.is_some() || fault.engine.is_some(), "{}", fault.name);
            assert!(!fault.source.is_empty() && fault.weight > 0.0, "{}", fault.name);
        }
    }
}
