//! Start-up hooks, mounts, foreign modules and caches, beside clean twins; and where environments are found.
#![allow(clippy::unwrap_used)]

mod patient;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use lucid_environment::{EnvironmentKind, Installer, PythonEnvironment, Root};
use lucid_findings::{Deployment, Severity};
use patient::{Patient, SITE, find, ids};

fn vllm() -> Patient {
    let patient = Patient::new();
    patient.install("vllm", "0.32.0", &[], &[("vllm/__init__.py", ""), ("vllm/a.py", "x = 1\n")]);
    patient
}

fn started(command: &str) -> Deployment {
    Deployment { command: command.split(' ').map(str::to_owned).collect(), ..Deployment::default() }
}

#[test]
fn nothing_runs_before_a_clean_engine() {
    let patient = vllm();
    patient.write(
        &format!("{SITE}/distutils-precedence.pth"),
        "import os; var = 'X'; __import__('_distutils_hack').add_shim();\n",
    );
    let findings = patient.findings(&Deployment::default());
    assert!(find(&findings, "env.monkeypatch/none").is_some(), "{:?}", ids(&findings));
    assert!(findings.iter().all(|f| f.severity == Severity::Info));
}

#[test]
fn code_in_path_files_is_seen_in_every_spelling() {
    for line in [
        "import patch_vllm",
        "import sys; exec(open('/tmp/p.py').read())",
        "import\tos, patcher; patcher.apply()",
    ] {
        let patient = vllm();
        patient.write(&format!("{SITE}/zz_patch.pth"), format!("# a comment\n{line}\n"));
        let findings = patient.findings(&Deployment::default());
        let finding = find(&findings, "env.monkeypatch/pth-code").unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.evidence.iter().any(|proof| proof.text == line));
    }
}

#[test]
fn a_recorded_path_file_is_described_only() {
    let patient = vllm();
    patient.install("tracer", "1", &[], &[("tracer.pth", "import tracer_start\n")]);
    let findings = patient.findings(&Deployment::default());
    assert_eq!(find(&findings, "env.monkeypatch/known-pth").unwrap().severity, Severity::Info);
    assert!(find(&findings, "env.monkeypatch/pth-code").is_none());
}

#[test]
fn customize_modules_are_found_where_site_finds_them() {
    for path in [
        format!("{SITE}/sitecustomize.py"),
        format!("{SITE}/usercustomize/__init__.py"),
        "usr/lib/python3.11/sitecustomize.py".to_owned(),
        "work/sitecustomize.py".to_owned(),
    ] {
        let mut patient = vllm();
        patient.write(&path, "import vllm_patch\n");
        patient.options.environment.insert("PYTHONPATH".into(), "/work".into());
        let findings = patient.findings(&Deployment::default());
        assert_eq!(
            find(&findings, "env.monkeypatch/customize").unwrap().severity,
            Severity::Warning,
            "{path}"
        );
    }
    let patient = vllm();
    patient.write("usr/lib/python3.11/sitecustomize.py", "import apport_python_hook\n");
    let findings = patient.findings(&Deployment::default());
    assert_eq!(find(&findings, "env.monkeypatch/customize").unwrap().severity, Severity::Info);
}

#[test]
fn earlier_folders_hide_installed_modules() {
    for (python_path, directory, command, severity) in [
        (Some("/src"), None, "vllm serve m", Some(Severity::Warning)),
        (None, Some("/src"), "python -m vllm.entrypoints.openai.api_server", Some(Severity::Warning)),
        (Some("."), Some("/src"), "vllm serve m", Some(Severity::Warning)),
        // A console script does not look into the working directory.
        (None, Some("/src"), "/opt/venv/bin/vllm serve m", Some(Severity::Info)),
        (None, Some("/elsewhere"), "python -m vllm.x", None),
    ] {
        let mut patient = vllm();
        patient.write("src/vllm/__init__.py", "");
        patient.write("elsewhere/vllm/notes.txt", "a folder without __init__.py hides nothing");
        if let Some(path) = python_path {
            patient.options.environment.insert("PYTHONPATH".into(), path.into());
        }
        patient.options.working_directory = directory.map(PathBuf::from);
        let findings = patient.findings(&started(command));
        assert_eq!(find(&findings, "env.monkeypatch/shadowing").map(|f| f.severity), severity, "{command}");
    }
}

#[test]
fn preloads_are_named() {
    let mut patient = vllm();
    patient.options.environment.insert("LD_PRELOAD".into(), "/usr/lib/libtcmalloc.so.4:/opt/hook.so".into());
    patient.write("etc/ld.so.preload", "/opt/other.so # all\n");
    let findings = patient.findings(&Deployment::default());
    let preloads: Vec<_> = findings.iter().filter(|f| f.id == "env.monkeypatch/preload").collect();
    assert_eq!(preloads.len(), 3);
    assert!(preloads[0].detail.contains("allocator") && preloads[1].detail.contains("none that is known"));
}

#[test]
fn mounts_over_packages_are_told_from_volumes() {
    let site = format!("/{SITE}");
    for (point, id, severity) in [
        (format!("{site}/vllm/a.py"), "env.overlay/mounted-code", Severity::Warning),
        (format!("{site}/vllm/model_executor/models"), "env.overlay/mounted-code", Severity::Warning),
        (format!("{site}/vllm"), "env.overlay/mounted-code", Severity::Warning),
        (site.clone(), "env.overlay/mounted-other", Severity::Info),
        (format!("{site}/vllm/notes.json"), "env.overlay/mounted-other", Severity::Info),
        ("/opt/venv".to_owned(), "env.overlay/none", Severity::Info),
        ("/models".to_owned(), "env.overlay/none", Severity::Info),
    ] {
        let mut patient = vllm();
        patient.options.mountinfo = Some(format!(
            "1 0 0:1 / / rw - overlay overlay rw\n36 35 98:0 /x {point} rw - ext4 /dev/sda rw\n"
        ));
        let findings = patient.findings(&Deployment::default());
        assert_eq!(
            find(&findings, id).unwrap_or_else(|| panic!("{point}: {:?}", ids(&findings))).severity,
            severity
        );
    }
}

#[test]
fn modules_of_another_python_are_seen() {
    let names = [
        "vllm/_C.cpython-310-x86_64-linux-gnu.so",
        "torch/_C.cpython-312-x86_64-linux-gnu.so",
        "tokenizers/x/y.cpython-39-x86_64-linux-gnu.so",
    ];
    for name in names {
        let patient = vllm();
        patient.write(&format!("{SITE}/{name}"), "");
        assert!(
            find(&patient.findings(&Deployment::default()), "env.overlay/foreign-abi").is_some(),
            "{name}"
        );
        // A module for this Python, or for every one, lies beside it.
        for own in ["cpython-311-x86_64-linux-gnu", "abi3"] {
            let module = name.split('.').next().unwrap();
            patient.write(&format!("{SITE}/{module}.{own}.so"), "");
            assert!(
                find(&patient.findings(&Deployment::default()), "env.overlay/foreign-abi").is_none(),
                "{name}"
            );
        }
    }
}

#[test]
fn package_folders_of_another_python_on_the_path() {
    for version in ["3.10", "3.12", "3.9"] {
        let mut patient = vllm();
        let folder = format!("/opt/other/lib/python{version}/site-packages");
        patient.write(&format!("{folder}/six.py"), "");
        patient.options.environment.insert("PYTHONPATH".into(), folder);
        let findings = patient.findings(&Deployment::default());
        assert_eq!(find(&findings, "env.overlay/mixed-interpreters").unwrap().severity, Severity::Warning);
    }
}

fn aged(patient: &Patient, path: &str, hours: i64) {
    let file = patient.write(path, "x");
    let now = SystemTime::now();
    let span = Duration::from_secs(hours.unsigned_abs() * 3600);
    let then = if hours < 0 { now + span } else { now - span };
    fs::File::options().write(true).open(file).unwrap().set_modified(then).unwrap();
}

#[test]
fn no_cache_cannot_be_stale() {
    let findings = vllm().findings(&Deployment::default());
    assert!(find(&findings, "env.caches/none").unwrap().suggests[0].weight < 0.0);
}

#[test]
fn edited_headers_convict_old_objects_wherever_the_cache_is() {
    for (variable, value, folder) in [
        ("HOME", "/home/serve", "/home/serve/.cache/flashinfer"),
        ("FLASHINFER_WORKSPACE_BASE", "/scratch", "/scratch/.cache/flashinfer"),
        ("HOME", "/root", "/root/.cache/flashinfer"),
    ] {
        let mut patient = vllm();
        patient.install("flashinfer-python", "0.6.4", &[], &[("flashinfer/data/include/a.cuh", "1")]);
        patient.options.environment.insert(variable.into(), value.into());
        aged(&patient, &format!("{folder}/0.6.4/90a/cached_ops/batch/batch.so"), 5);
        let findings = patient.findings(&Deployment::default());
        assert_eq!(find(&findings, "env.caches/objects-before-install").unwrap().severity, Severity::Info);
        // The header is edited an hour after the install.
        aged(&patient, &format!("{SITE}/flashinfer/data/include/a.cuh"), -1);
        let findings = patient.findings(&Deployment::default());
        let finding = find(&findings, "env.caches/objects-before-edit").unwrap();
        assert_eq!((finding.severity, finding.suggested_cause()), (Severity::Warning, Some("stale-cache")));
    }
}

#[test]
fn locks_are_told_from_builds() {
    let base = "/home/serve/.cache/flashinfer/0.6.4/90a/cached_ops";
    let exclusive = "/home/serve/.cache/torch_extensions/py311_cu130/ext/lock";
    for (files, expected) in [
        (vec![(format!("{base}/tmp/k.lock"), 30), (format!("{base}/k/build.ninja"), 30)], true),
        (vec![(exclusive.to_owned(), 30)], true),
        (vec![(format!("{base}/tmp/k.lock"), 3), (format!("{base}/k/k.o"), 3)], true),
        // Built, at work, or nothing known of a build.
        (vec![(format!("{base}/tmp/k.lock"), 30), (format!("{base}/k/k.so"), 30)], false),
        (vec![(format!("{base}/tmp/k.lock"), 0), (format!("{base}/k/build.ninja"), 0)], false),
        (vec![(format!("{base}/tmp/other.lock"), 30)], false),
    ] {
        let patient = vllm();
        patient.install("flashinfer-python", "0.6.4", &[], &[]);
        for (path, hours) in &files {
            aged(&patient, path, *hours);
        }
        let findings = patient.findings(&Deployment::default());
        assert_eq!(find(&findings, "env.caches/left-lock").is_some(), expected, "{files:?}");
    }
}

#[test]
fn caches_of_other_versions_are_harmless() {
    let patient = vllm();
    patient.install("flashinfer-python", "0.6.4", &[], &[]);
    aged(&patient, "/home/serve/.cache/flashinfer/0.6.3/90a/cached_ops/k/k.so", 50);
    aged(&patient, "/home/serve/.cache/flashinfer/0.6.4/90a/cached_ops/k/k.so", 0);
    let findings = patient.findings(&Deployment::default());
    let finding = find(&findings, "env.caches/other-versions").unwrap();
    assert_eq!((finding.severity, finding.active), (Severity::Info, Some(false)));
}

#[test]
fn environments_are_found_in_every_shape() {
    let patient = vllm();
    let root = Root::new(patient.root());
    std::os::unix::fs::symlink("/usr/bin/python3.11", patient.root().join("opt/venv/bin/python3")).unwrap();
    for path in ["/opt/venv", "/opt/venv/bin/python", "/opt/venv/bin/python3", &format!("/{SITE}"), "/"] {
        if path.ends_with("python3") {
            patient.write("usr/bin/python3.11", "");
        }
        let found = PythonEnvironment::find(&root, PathBuf::from(path).as_path()).unwrap();
        assert_eq!((found.kind, found.prefix.as_str()), (EnvironmentKind::Venv, "/opt/venv"), "{path}");
        assert_eq!(found.version.as_deref(), Some("3.11.7"));
        assert_eq!(found.interpreter.as_deref(), Some("/opt/venv/bin/python"));
    }
    for path in ["/nowhere", "/usr", "/opt/venv/pyvenv.cfg"] {
        assert!(
            PythonEnvironment::find(&root, PathBuf::from(path).as_path()).is_err() || path.ends_with("cfg"),
            "{path}"
        );
    }
}

#[test]
fn system_packages_conda_and_uv() {
    let patient = vllm();
    let root = Root::new(patient.root());
    patient.write(
        "opt/venv/pyvenv.cfg",
        "home = /usr/bin\nuv = 0.9.1\nversion_info = 3.11.7\ninclude-system-site-packages = true\n",
    );
    patient.write("usr/lib/python3/dist-packages/apt.py", "");
    patient.write("usr/local/lib/python3.11/dist-packages/six.py", "");
    let found = PythonEnvironment::find(&root, PathBuf::from("/opt/venv").as_path()).unwrap();
    assert_eq!(found.installer, Installer::Uv);
    let paths: Vec<_> = found.site_directories.iter().map(|d| d.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            format!("/{SITE}").as_str(),
            "/usr/local/lib/python3.11/dist-packages",
            "/usr/lib/python3/dist-packages"
        ]
    );

    patient.write("opt/conda/conda-meta/python-3.12.4-h5148396_1.json", "{}");
    patient.write("opt/conda/lib/python3.12/site-packages/six.py", "");
    let found = PythonEnvironment::find(&root, PathBuf::from("/opt/conda").as_path()).unwrap();
    assert_eq!((found.kind, found.installer), (EnvironmentKind::Conda, Installer::Conda));
    assert_eq!(found.version.as_deref(), Some("3.12.4"));
}

#[test]
fn without_hashes_newer_files_are_a_hint() {
    for (path, hours, expected) in [
        ("vllm/a.py", -30, true),
        ("vllm/model_executor/b.py", -3, true),
        ("vllm/c.abi3.so", -30, true),
        ("vllm/a.py", 30, false),
        ("vllm/notes.txt", -30, false),
    ] {
        let mut patient = vllm();
        aged(&patient, &format!("{SITE}/{path}"), hours);
        patient.options.integrity = None;
        let findings = patient.findings(&Deployment::default());
        assert_eq!(find(&findings, "env.overlay/newer-files").is_some(), expected, "{path}");
        assert!(patient.outcome("env.record-integrity", &Deployment::default()).is_err());
    }
}
