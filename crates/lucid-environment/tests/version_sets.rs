//! Versions that don't belong together, in several spellings, beside clean twins.
#![allow(clippy::unwrap_used)]

mod patient;

use std::collections::BTreeMap;

use lucid_findings::{Deployment, Severity};
use patient::{Patient, SITE, find, ids};

fn flashinfer(python: &str, cubin: &str) -> Patient {
    let patient = Patient::new();
    patient.install("flashinfer_python", python, &[], &[]);
    patient.install("flashinfer-cubin", cubin, &[], &[]);
    patient
}

#[test]
fn the_incident_is_one_targeted_install() {
    let patient = flashinfer("0.6.4", "0.6.3");
    let findings = patient.findings(&Deployment::default());
    let finding = find(&findings, "env.version-sets/unequal").unwrap();
    assert_eq!(finding.severity, Severity::Error);
    assert_eq!(finding.suggested_cause(), Some("package-version-skew"));
    assert_eq!(
        finding.remedy.as_ref().unwrap().commands,
        ["/opt/venv/bin/python -m pip install --no-deps flashinfer-cubin==0.6.4"]
    );
}

#[test]
fn unequal_in_every_spelling_and_equal() {
    for (python, cubin, expected) in [
        ("0.6.13", "0.6.1", true),
        ("0.6.8.post1", "0.6.8", true),
        ("0.6.14", "0.6.13", true),
        ("0.6.4", "0.6.4", false),
        ("0.0.0+unknown", "0.6.4", false),
    ] {
        let findings = flashinfer(python, cubin).findings(&Deployment::default());
        assert_eq!(find(&findings, "env.version-sets/unequal").is_some(), expected, "{python} {cubin}");
    }
}

#[test]
fn the_installer_in_use_gets_its_own_command() {
    for (installer, command) in [
        ("uv", "uv pip install --python /opt/venv/bin/python --no-deps flashinfer-cubin==0.6.4"),
        ("pip", "/opt/venv/bin/python -m pip install --no-deps flashinfer-cubin==0.6.4"),
        ("conda", "conda install -p /opt/venv --no-deps flashinfer-cubin=0.6.4"),
    ] {
        let patient = Patient::new();
        patient.install_with(installer, "flashinfer-python", "0.6.4", &[], &[]);
        patient.install_with(installer, "flashinfer-cubin", "0.6.3", &[], &[]);
        let findings = patient.findings(&Deployment::default());
        let finding = find(&findings, "env.version-sets/unequal").unwrap();
        assert_eq!(finding.remedy.as_ref().unwrap().commands[0], command);
    }
}

#[test]
fn the_engine_s_pin_says_which_one_moves() {
    let patient = flashinfer("0.6.10", "0.6.8.post1");
    patient.install(
        "vllm",
        "0.20.2",
        &["flashinfer-python==0.6.8.post1", "flashinfer-cubin==0.6.8.post1"],
        &[],
    );
    let findings = patient.findings(&Deployment::default());
    let finding = find(&findings, "env.version-sets/unequal").unwrap();
    assert!(
        finding.remedy.as_ref().unwrap().commands[0].ends_with("--no-deps flashinfer-python==0.6.8.post1")
    );
}

#[test]
fn a_version_that_the_index_lacks_names_its_channel() {
    let patient = flashinfer("0.6.14", "0.6.13");
    patient.install("vllm", "0.26.0", &["flashinfer-python==0.6.14"], &[]);
    let findings = patient.findings(&Deployment::default());
    let finding = find(&findings, "env.version-sets/unequal").unwrap();
    let commands = &finding.remedy.as_ref().unwrap().commands;
    assert!(
        commands[0].contains("--extra-index-url https://flashinfer.ai/whl/ flashinfer-cubin==0.6.14"),
        "{commands:?}"
    );
    assert!(commands[1].contains("uninstall -y flashinfer-cubin"), "{commands:?}");
}

#[test]
fn a_check_that_is_switched_off_is_said() {
    let deployment = Deployment {
        environment: BTreeMap::from([("FLASHINFER_DISABLE_VERSION_CHECK".into(), "1".into())]),
        ..Deployment::default()
    };
    let findings = flashinfer("0.6.4", "0.6.3").findings(&deployment);
    let finding = find(&findings, "env.version-sets/unequal-bypassed").unwrap();
    assert_eq!(finding.severity, Severity::Warning);
    assert!(find(&findings, "env.version-sets/unequal").is_none());
}

#[test]
fn requirements_are_evaluated_for_that_interpreter() {
    for (requirement, id) in [
        ("torch==2.13.0", Some("env.version-sets/engine-pin")),
        ("torch (==2.13.0) ; python_version >= '3.11'", Some("env.version-sets/engine-pin")),
        (
            "Torch == 2.13.* ; platform_machine == 'x86_64' or platform_machine == 'aarch64'",
            Some("env.version-sets/engine-pin"),
        ),
        ("torch==2.13.0 ; python_version < '3.11'", None),
        ("torch==2.13.0 ; sys_platform == 'win32'", None),
        ("torch==2.13.0 ; extra == 'flash'", None),
        ("torch>=2.12", None),
        ("torch==2.12.0+cpu", Some("env.version-sets/other-build")),
        ("torchvision", Some("env.version-sets/missing")),
    ] {
        let patient = Patient::new();
        patient.install("vllm", "0.32.0", &[requirement], &[]);
        patient.install("torch", "2.12.0", &[], &[]);
        let findings = patient.findings(&Deployment::default());
        match id {
            Some(id) => assert!(find(&findings, id).is_some(), "{requirement}: {:?}", ids(&findings)),
            None => assert!(
                find(&findings, "env.version-sets/consistent").is_some(),
                "{requirement}: {:?}",
                ids(&findings)
            ),
        }
    }
}

#[test]
fn what_is_missing_is_installed_as_it_is_asked_for() {
    let patient = Patient::new();
    patient.install("vllm", "0.32.0", &["xgrammar == 0.2.8", "left-pad"], &[]);
    let findings = patient.findings(&Deployment::default());
    let finding = find(&findings, "env.version-sets/missing").unwrap();
    assert_eq!(
        finding.remedy.as_ref().unwrap().commands,
        ["/opt/venv/bin/python -m pip install --no-deps xgrammar==0.2.8"]
    );
}

#[test]
fn extras_switch_requirements_on() {
    let patient = Patient::new();
    patient.install("sglang", "0.5.20", &["flashinfer-python[cu13]==0.6.18"], &[]);
    patient.install("flashinfer-python", "0.6.18", &["nvidia-cutlass-dsl>=4.5; extra == 'cu13'"], &[]);
    patient.install("nvidia-cutlass-dsl", "4.4.2", &[], &[]);
    let findings = patient.findings(&Deployment::default());
    let finding = find(&findings, "env.version-sets/stack-requirement").unwrap();
    assert!(finding.title.contains("nvidia-cutlass-dsl>=4.5, and 4.4.2 is installed"), "{}", finding.title);
}

#[test]
fn the_engine_s_pins_stand_above_a_tool_s() {
    let patient = Patient::new();
    patient.install("vllm", "0.32.0", &["xgrammar==0.2.8"], &[]);
    patient.install("xgrammar", "0.2.7", &[], &[]);
    patient.install("pytest-tool", "1", &["xgrammar>=3", "absent-thing"], &[]);
    let findings = patient.findings(&Deployment::default());
    let pin = find(&findings, "env.version-sets/engine-pin").unwrap();
    let other = find(&findings, "env.version-sets/other-requirement").unwrap();
    assert!(pin.severity > other.severity && other.severity == Severity::Info);
    assert!(other.suggests.is_empty() && other.detail.contains("absent-thing"));
}

#[test]
fn odd_metadata_is_not_fatal() {
    let patient = Patient::new();
    patient.install(
        "vllm",
        "not a version",
        &["???", "torch @ https://example.org/t.whl", "a==1.*.*", ""],
        &[],
    );
    patient.install("torch", "weird-1", &["torch", "vllm==1"], &[]);
    let outcome = patient.outcome("env.version-sets", &Deployment::default()).unwrap();
    assert!(outcome.covered.contains("no PEP 508"), "{}", outcome.covered);
}

#[test]
fn harmless_deviations_are_not_accused() {
    let patient = Patient::new();
    patient.install("sglang", "0.5.9", &["torch==2.9.1"], &[]);
    patient.install("torch", "2.9.1", &["nvidia-cudnn-cu12==9.10.2.21"], &[]);
    patient.install("nvidia-cudnn-cu12", "9.16.0.29", &[], &[]);
    let findings = patient.findings(&Deployment::default());
    assert!(find(&findings, "env.version-sets/expected-deviation").is_some());
    assert!(findings.iter().all(|f| f.severity == Severity::Info), "{:?}", ids(&findings));
}

#[test]
fn the_same_package_twice_in_one_folder() {
    let patient = Patient::new();
    patient.install("vllm", "0.31.0", &[], &[]);
    patient.install("vllm", "0.32.0", &[], &[]);
    let findings = patient.findings(&Deployment::default());
    assert_eq!(find(&findings, "env.version-sets/leftover-metadata").unwrap().severity, Severity::Warning);
}

#[test]
fn cuda_majors_are_read_from_names_and_suffixes() {
    for (package, version, torch, requires, expected) in [
        ("vllm", "0.32.0+cu129", "2.13.0", "nvidia-nccl-cu13==2.29.7; platform_system == 'Linux'", true),
        ("flashinfer-jit-cache", "0.6.16+cu126", "2.13.0+cu130", "", true),
        ("sglang-kernel", "0.4.3+cu124", "2.11.0+cu130", "", true),
        ("vllm", "0.32.0+cu130", "2.13.0", "nvidia-nccl-cu13==2.29.7", false),
        ("vllm", "0.32.0+cpu", "2.13.0+cpu", "", false),
    ] {
        let patient = Patient::new();
        patient.install(package, version, &[], &[]);
        let requires: Vec<&str> = if requires.is_empty() { vec![] } else { vec![requires] };
        patient.install("torch", torch, &requires, &[]);
        let findings = patient.findings(&Deployment::default());
        assert_eq!(find(&findings, "env.version-sets/cuda-major").is_some(), expected, "{package} {version}");
    }
}

#[test]
fn a_python_that_an_engine_does_not_support() {
    let patient = Patient::new();
    patient.install("vllm", "0.32.0", &[], &[]);
    let metadata = format!("{SITE}/vllm-0.32.0.dist-info/METADATA");
    patient.write(&metadata, "Name: vllm\nVersion: 0.32.0\nRequires-Python: <3.15,>=3.12\n");
    let findings = patient.findings(&Deployment::default());
    assert!(find(&findings, "env.version-sets/python-version").is_some(), "{:?}", ids(&findings));
}

#[test]
fn an_engine_that_was_built_here_is_not_held_to_its_torch() {
    for (version, severity) in [
        ("0.32.0", Severity::Error),
        ("0.32.0+cu130", Severity::Error),
        ("0.33.0.dev12", Severity::Warning),
        ("0.32.1+g12ab34c", Severity::Warning),
    ] {
        let patient = Patient::new();
        patient.install("vllm", version, &["torch==2.13.0"], &[]);
        patient.install("torch", "2.14.0", &[], &[]);
        let findings = patient.findings(&Deployment::default());
        assert_eq!(find(&findings, "env.version-sets/engine-pin").unwrap().severity, severity, "{version}");
    }
}
