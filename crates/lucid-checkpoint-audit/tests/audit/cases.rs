//! Real reports, each as the facts of its files: `tests/cases/C0xx.toml`.

use std::fs;
use std::path::Path;

use lucid_checkpoint_audit::{CheckpointEvidence, Options, gather};
use lucid_findings::{Deployment, GpuModel, Severity};
use serde::Deserialize;
use serde_json::Value;

use crate::patient::{Audit, Patient, models};
use crate::published::Imagined;
use crate::scales::compressed_tensors;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// The cause that must have the strongest suggestion; absent: nobody may be accused.
    cause: Option<String>,
    /// The finding that shows it.
    finding: String,
    why: String,
    patient: Source,
    #[serde(default)]
    file: Vec<FileFact>,
    #[serde(default)]
    deployment: Served,
}

/// What the facts are applied to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
enum Source {
    /// The canary.
    Canary,
    /// The canary as compressed-tensors stores it.
    CompressedTensors,
    /// The GGUF canary as the part of this name.
    Gguf(String),
    /// A published config with fitting headers, this much of it changed.
    Published { config: String, experts: Option<u64>, prefix: Option<String> },
}

/// What is known of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFact {
    name: String,
    text: Option<String>,
    /// Bytes that are missing at its end.
    cut: Option<usize>,
    /// Tensor and the byte that fills it.
    fill: Option<(String, u8)>,
    /// Field of a JSON file and its value.
    set: Option<(String, Value)>,
    #[serde(default)]
    remove: bool,
    /// Its digest is compared with its own.
    #[serde(default)]
    verified: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Served {
    command: Vec<String>,
    gpu: Option<String>,
    compute_capability: Option<(u32, u32)>,
}

fn evidence(case: &Case) -> CheckpointEvidence {
    let options = Options { statistics: true, ..Options::default() };
    let patient = match &case.patient {
        Source::Canary => Patient::canary(),
        Source::CompressedTensors => compressed_tensors(true),
        Source::Gguf(part) => {
            let place = tempfile::tempdir().unwrap();
            // Both parts are there.
            for part in [part.clone(), part.replace("00002-of", "00001-of")] {
                fs::copy(models().join("canary-gguf/canary-q4_k_m.gguf"), place.path().join(part)).unwrap();
            }
            return gather(Path::new("/"), &place.path().join(part), &options, &mut |_| {}).unwrap();
        }
        Source::Published { config, experts, prefix } => {
            let mut imagined = Imagined::new(config, experts.is_none().then_some(5));
            if let Some(experts) = experts {
                imagined.config["text_config"]["n_routed_experts"] = (*experts).into();
            }
            imagined.fill();
            let mut evidence = imagined.evidence();
            if let Some(prefix) = prefix {
                evidence.prefixes = vec![(prefix.clone(), 1000)];
            }
            // As if the weights had been read and were sound.
            evidence.statistics =
                Some(lucid_checkpoint_audit::Statistics { tensors: 1000, ..Default::default() });
            return evidence;
        }
    };
    let mut manifest = String::new();
    for fact in &case.file {
        if let Some(text) = &fact.text {
            patient.write(&fact.name, text);
        }
        if let Some(cut) = fact.cut {
            let bytes = patient.read(&fact.name);
            patient.write(&fact.name, &bytes[..bytes.len() - cut]);
        }
        if let Some((tensor, byte)) = &fact.fill {
            patient.edit_tensor(tensor, |bytes| bytes.fill(*byte));
        }
        if let Some((field, value)) = &fact.set {
            patient.edit_json(&fact.name, |json| json[field] = value.clone());
        }
        if fact.remove {
            patient.remove(&fact.name);
        }
        if fact.verified {
            let path = patient.path(&fact.name).canonicalize().unwrap();
            let output = std::process::Command::new("sha256sum").arg(path).output().unwrap();
            let digest = String::from_utf8(output.stdout).unwrap();
            manifest += &format!("{}  {}\n", &digest[..64], fact.name);
        }
    }
    if manifest.is_empty() {
        return patient.gather(&options);
    }
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("manifest");
    fs::write(&path, manifest).unwrap();
    patient.gather(&Options { statistics: true, digests: true, manifest: Some(path), ..Options::default() })
}

#[test]
fn every_case_is_told_as_its_report_ended() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        println!("{name}");
        let case: Case =
            toml::from_str(&fs::read_to_string(&path).unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(case.why.len() > 20, "{name}");
        let gpus = case.deployment.gpu.iter().map(|gpu| GpuModel {
            name: gpu.clone(),
            compute_capability: case.deployment.compute_capability,
            memory_bytes: None,
        });
        let deployment = Deployment {
            command: case.deployment.command.clone(),
            gpus: gpus.collect(),
            ..Deployment::default()
        };
        let audit = Audit::of(&evidence(&case), &deployment);
        let finding = audit.find(&case.finding);
        match &case.cause {
            Some(cause) => {
                assert_eq!(finding.suggested_cause(), Some(cause.as_str()), "{name}: {}", audit.titles());
                assert_eq!(audit.cause(), Some(cause.as_str()), "{name}: {}", audit.titles());
            }
            None => assert!(
                audit.findings.iter().all(|f| f.severity < Severity::Warning)
                    && finding.suggested_cause().is_none(),
                "{name}: {}",
                audit.titles()
            ),
        }
        count += 1;
    }
    assert!(count >= 10, "{count}");
}
