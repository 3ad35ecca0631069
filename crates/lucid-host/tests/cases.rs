//! Real reports, one file each: the strongest suggestion of all findings must name the report's cause.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use lucid_findings::{Finding, GpuModel};
use lucid_host::{
    GpuEvidence, MemoryEvidence, ModelConfig, Patient, ServingEvidence, config_flags, from_command,
    from_kubernetes, host_gpu, host_memory, host_service, read_kernel_log,
};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    case: String,
    /// Expected of the strongest suggestion.
    cause: String,
    /// Why this evidence stands for the report.
    #[allow(dead_code)]
    why: String,
    /// The serving command with its variables in front.
    command: Option<String>,
    /// A Kubernetes manifest or a pod's JSON instead.
    manifest: Option<String>,
    engine_version: Option<String>,
    /// A file of `tests/configs`, with `changes` on top.
    config: Option<String>,
    changes: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(default)]
    gpu_names: Vec<(String, u32, u32)>,
    gpu_memory_gib: Option<u64>,
    checkpoint_gib: Option<u64>,
    observed_startup_s: Option<f64>,
    kernel_log: Option<String>,
    gpu: Option<GpuEvidence>,
    memory: Option<MemoryEvidence>,
    /// What to add to the patient: its processes, libraries.
    patient: Option<toml::Table>,
    /// Says that nothing may be accused.
    #[serde(default)]
    benign: bool,
}

fn config(name: &str, changes: Option<&serde_json::Map<String, serde_json::Value>>) -> ModelConfig {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs");
    let text = fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
    let mut document: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    document.extend(changes.cloned().unwrap_or_default());
    let quantization = fs::read_to_string(folder.join(format!("{name}.hf_quant.json"))).ok();
    ModelConfig::read(&serde_json::to_string(&document).unwrap(), quantization.as_deref()).unwrap()
}

fn patient(case: &Case) -> Patient {
    let patient = match (&case.command, &case.manifest) {
        (Some(command), _) => from_command(command).unwrap(),
        (None, Some(manifest)) => from_kubernetes(manifest, None).unwrap(),
        (None, None) => from_command("").unwrap(),
    };
    let Some(extra) = &case.patient else { return patient };
    let mut json = serde_json::to_value(&patient).unwrap();
    let extra = serde_json::to_value(extra).unwrap();
    for (name, value) in extra.as_object().unwrap() {
        assert!(json.get(name).is_some(), "{}: Patient has no {name}", case.case);
        json[name] = value.clone();
    }
    serde_json::from_value(json).unwrap()
}

fn findings(case: &Case) -> Vec<Finding> {
    let mut patient = patient(case);
    let mut serving = ServingEvidence::gather(&patient, &mut |_| {});
    serving.config = case.config.as_deref().map(|name| config(name, case.changes.as_ref()));
    serving.checkpoint_bytes = case.checkpoint_gib.map(|gib| gib << 30);
    let deployment = &mut patient.deployment;
    if case.engine_version.is_some() {
        deployment.engine_version.clone_from(&case.engine_version);
    }
    for (name, major, minor) in &case.gpu_names {
        deployment.gpus.push(GpuModel {
            name: name.clone(),
            compute_capability: Some((*major, *minor)),
            memory_bytes: case.gpu_memory_gib.map(|gib| gib << 30),
        });
    }
    serving.inform(deployment);
    let deployment = patient.deployment.clone();
    let mut gpu = case.gpu.clone().unwrap_or_default();
    gpu.kernel_events.extend(read_kernel_log(case.kernel_log.as_deref().unwrap_or("")));
    let memory = case.memory.clone().unwrap_or_default();
    [
        config_flags(&serving, &deployment),
        host_service(&patient, &deployment, case.observed_startup_s),
        host_gpu(&gpu, Some(&patient), &deployment),
        host_memory(&memory, Some(&patient), &deployment),
    ]
    .into_iter()
    .flatten()
    .flat_map(|examined| examined.findings)
    .collect()
}

/// All suggestions of all findings, added up by cause, are what a ranking sees; the single strongest one is what is asserted.
fn strongest(findings: &[Finding]) -> Option<(&str, f64, &str)> {
    findings
        .iter()
        .flat_map(|finding| {
            finding.suggests.iter().map(move |s| (s.cause.as_str(), s.weight, finding.id.as_str()))
        })
        .filter(|(_, weight, _)| *weight > 0.0)
        .max_by(|a, b| a.1.total_cmp(&b.1))
}

#[test]
fn every_case_names_its_cause() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut wrong = Vec::new();
    for file in &files {
        let case: Case = toml::from_str(&fs::read_to_string(file).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert_eq!(file.file_stem().unwrap().to_str().unwrap(), case.case);
        let findings = findings(&case);
        let found = strongest(&findings);
        let right = if case.benign {
            found.is_none_or(|(_, weight, _)| weight < 2.0)
        } else {
            found.is_some_and(|(cause, weight, _)| cause == case.cause && weight >= 1.0)
        };
        if !right {
            let all: Vec<_> =
                findings.iter().map(|finding| format!("{} {:?}", finding.id, finding.suggests)).collect();
            wrong.push(format!(
                "{}: expected {}, found {found:?}\n    {}",
                case.case,
                case.cause,
                all.join("\n    ")
            ));
        }
        for finding in &findings {
            assert!(
                lucid_host::FINDINGS.iter().any(|(id, _)| *id == finding.id),
                "{} is not in FINDINGS",
                finding.id
            );
            let needs_remedy = finding.severity > lucid_findings::Severity::Info;
            let commands = finding.remedy.as_ref().map_or(0, |remedy| remedy.commands.len());
            assert!(!needs_remedy || commands > 0, "{} has no command", finding.id);
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), files.len(), wrong.join("\n"));
    assert!(files.len() >= 40, "only {} cases", files.len());
}

/// Every id of the table is made somewhere, and every id that is made is in the table.
#[test]
fn the_table_of_findings_is_complete() {
    fn texts(folder: &Path, into: &mut String) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                texts(&entry, into);
            } else {
                into.push_str(&fs::read_to_string(entry).unwrap());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = String::new();
    texts(&root.join("src/checks"), &mut sources);
    texts(&root.join("knowledge"), &mut sources);
    let mut seen = std::collections::BTreeSet::new();
    for (id, meaning) in lucid_host::FINDINGS {
        assert!(seen.insert(id) && meaning.ends_with('.'), "{id}");
        let slug = id.split_once('/').unwrap().1;
        let tail = slug
            .strip_prefix("reasoning-parser-")
            .or_else(|| slug.strip_prefix("tool-parser-"))
            .unwrap_or(slug);
        assert!(
            sources.contains(&format!("\"{slug}\"")) || sources.contains(&format!("\"{tail}\"")),
            "nothing makes {id}"
        );
    }
}
