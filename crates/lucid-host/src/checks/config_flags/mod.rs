//! `config.flags`: the serving command against checkpoint, GPUs and engine.

mod attention;
mod known_faults;
mod memory;
mod names;
mod overrides;
mod parallelism;
mod parsers;
mod quantization;

use std::str::FromStr;

use lucid_findings::{Deployment, EngineKind, Examined, Finding, ProofKind, Severity, Skip};
use pep440_rs::Version;

use crate::serving::{Family, ModelConfig, ServingEvidence};

/// Name of the check.
const CHECK: &str = "config.flags";
/// The versions that `knowledge/attention_backends.toml` was read from.
const VLLM_KNOWN: &[u64] = &[0, 33, 0];
const SGLANG_KNOWN: &[u64] = &[0, 5, 23];

/// What the rules ask.
struct Serving<'a> {
    evidence: &'a ServingEvidence,
    deployment: &'a Deployment,
    engine: EngineKind,
    version: Option<Version>,
    family: Option<Family>,
    config: Option<&'a ModelConfig>,
}

/// Checks the serving command against the checkpoint's config, the GPUs, and what the engine accepts.
///
/// # Errors
/// If no command is known, or none of an engine that rules are known for.
pub fn config_flags(evidence: &ServingEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    if deployment.command.is_empty() && evidence.flags == crate::Flags::default() {
        return Err(Skip(
            "no serving command is known: point at a process, container, unit, manifest or command line"
                .to_owned(),
        ));
    }
    let engine = deployment.engine.ok_or_else(|| {
        Skip("the command starts no engine that is known here (vLLM, SGLang, llama.cpp)".to_owned())
    })?;
    if engine == EngineKind::Lucid {
        return Err(Skip("Lucid checks its own flags when it starts".to_owned()));
    }
    let version = deployment
        .engine_version
        .as_deref()
        .or_else(|| evidence.arguments.as_ref()?.version.as_deref())
        .and_then(|version| Version::from_str(version).ok());
    let serving = Serving {
        evidence,
        deployment,
        engine,
        version,
        family: Family::of(deployment, evidence.config.as_ref()),
        config: evidence.config.as_ref(),
    };
    let mut findings = Vec::new();
    names::check(&serving, &mut findings);
    parsers::check(&serving, &mut findings);
    attention::check(&serving, &mut findings);
    quantization::check(&serving, &mut findings);
    parallelism::check(&serving, &mut findings);
    memory::check(&serving, &mut findings);
    overrides::check(&serving, &mut findings);
    let rules = known_faults::check(&serving, &mut findings);
    if evidence.running {
        accepted(&mut findings);
    }
    Ok(Examined { findings, covered: serving.covered(rules) })
}

/// Of a patient that was seen running, its engine has accepted what we would call refused: then our knowledge is what's wrong,
/// and nothing is accused.
fn accepted(findings: &mut [Finding]) {
    for finding in findings.iter_mut().filter(|finding| finding.severity == Severity::Error) {
        finding.severity = Severity::Info;
        finding.confidence = 0.2;
        finding.suggests.clear();
        finding.detail =
            "The patient runs with it, so its engine accepts it; known rules say otherwise.".to_owned();
    }
}

impl Serving<'_> {
    fn flag(&self, name: &str) -> Option<&str> {
        self.evidence.flags.value(name)
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.deployment.environment.get(name).map(String::as_str)
    }

    /// Compute capability; of mixed GPUs the oldest, which decides what is supported everywhere.
    fn compute_capability(&self) -> Option<(u32, u32)> {
        self.deployment.gpus.iter().map(|gpu| gpu.compute_capability).min().flatten()
    }

    fn tensor_parallel(&self) -> u64 {
        let flag = self.evidence.flags.number("tensor-parallel-size");
        flag.or(self.deployment.tensor_parallel.map(u64::from)).unwrap_or(1).max(1)
    }

    fn pipeline_parallel(&self) -> u64 {
        let flag = self.evidence.flags.number("pipeline-parallel-size");
        flag.or(self.deployment.pipeline_parallel.map(u64::from)).unwrap_or(1).max(1)
    }

    fn expert_parallel(&self) -> bool {
        let flags = &self.evidence.flags;
        flags.is_on("enable-expert-parallel")
            || flags.number("expert-parallel-size").is_some_and(|ranks| ranks > 1)
    }

    /// A speculative method, by vLLM's JSON or SGLang's flag.
    fn speculation(&self) -> Option<String> {
        let flags = &self.evidence.flags;
        let name = flags
            .member("speculative-config", "method")
            .or_else(|| flags.value("spec-method").map(ToOwned::to_owned))
            .or_else(|| flags.value("speculative-algorithm").map(ToOwned::to_owned));
        name.or_else(|| flags.get("speculative-config").map(|_| "speculative-config".to_owned()))
    }

    /// How the flag was typed, for evidence.
    fn typed(&self, name: &str) -> String {
        match self.evidence.flags.get(name) {
            Some(flag) if flag.values.is_empty() => flag.spelled.clone(),
            Some(flag) => format!("{} {}", flag.spelled, flag.values.join(" ")),
            None => format!("--{name}"),
        }
    }

    /// A finding about something that an engine refuses when it starts; see [`accepted`].
    fn refused(&self, slug: &str, cause: &str, weight: f64, title: String) -> Finding {
        Finding::new(CHECK, slug, Severity::Error, title).confidence(0.9).suggests(cause, weight)
    }

    /// Tables of what engines can do are of [`VLLM_KNOWN`] and [`SGLANG_KNOWN`]: of a later version they may be out of date.
    fn dated(&self, mut finding: Finding) -> Finding {
        let known = match self.engine {
            EngineKind::Sglang => SGLANG_KNOWN,
            _ => VLLM_KNOWN,
        };
        if self.version.as_ref().is_some_and(|version| version.release() > known) {
            finding.severity = finding.severity.min(Severity::Warning);
            finding.confidence /= 2.0;
            finding.suggests.iter_mut().for_each(|suggestion| suggestion.weight /= 2.0);
            finding.detail.push_str(" This version is later than the tables that say so.");
        }
        finding
    }

    fn command_proof(&self, finding: Finding, text: impl Into<String>) -> Finding {
        finding.proof(ProofKind::File, "serving command", text)
    }

    fn engine_name(&self) -> &'static str {
        match self.engine {
            EngineKind::Vllm => "vLLM",
            EngineKind::Sglang => "SGLang",
            EngineKind::LlamaCpp => "llama.cpp",
            EngineKind::Lucid => "Lucid",
        }
    }

    /// The command to start it, as short as it can be told.
    fn start(&self, flags: &str) -> String {
        let model = self.deployment.model.as_deref().unwrap_or("MODEL");
        match self.engine {
            EngineKind::Sglang => format!("python3 -m sglang.launch_server --model-path {model} {flags}"),
            EngineKind::LlamaCpp => format!("llama-server -m {model} {flags}"),
            _ => format!("vllm serve {model} {flags}"),
        }
    }

    fn covered(&self, rules: usize) -> String {
        let version = self.version.as_ref().map_or("of unknown version".to_owned(), ToString::to_string);
        let arguments = self.evidence.arguments.as_ref().map_or("no argument list".to_owned(), |list| {
            format!("{} arguments and {} variables of the engine", list.flags.len(), list.variables.len())
        });
        let config = if self.config.is_some() { "config.json" } else { "no config.json" };
        format!(
            "{} flags and {} variables of {} {version} against {config}, {} GPUs, {arguments}, {rules} known faults",
            self.evidence.flags.flags.len(),
            self.deployment.environment.len(),
            self.engine_name(),
            self.deployment.gpus.len(),
        )
    }
}
