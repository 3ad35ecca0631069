//! Files that would stop a careless reader.
#![allow(clippy::unwrap_used)]

mod patient;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use lucid_code_audit::gather;
use patient::{DEEPSEEK, Patient, SITE, accusations};

fn note<'e>(evidence: &'e lucid_code_audit::CodeEvidence, file: &str) -> &'e str {
    let found = evidence.notes.kept.iter().find(|(noted, _)| noted.contains(file));
    &found.unwrap_or_else(|| panic!("no note on {file}: {:#?}", evidence.notes)).1
}

#[test]
fn everything_odd_is_noted_and_the_rest_is_read() {
    let patient = Patient::small();
    let leaf = "import torch\nclass A:\n    def forward(self, q):\n        torch.save(q, '/tmp/q.pt')\n";
    patient.write(
        "vllm/model_executor/models/python2.py",
        "print 'hello'\nexec \"x\" in d\nraise ValueError, 'x'\n",
    );
    patient.write("vllm/model_executor/models/cut.py", &format!("{leaf}\n\ndef broken(:\n"));
    patient.write_bytes(
        "vllm/model_executor/models/latin.py",
        &[b"# -*- coding: latin-1 -*-\nname = '\xe9'\n", leaf.as_bytes()].concat(),
    );
    patient.write_bytes("vllm/model_executor/models/raw.py", b"name = '\xe9'\n");
    patient.write_bytes("vllm/model_executor/models/nul.py", b"x = 1\0\n");
    patient.write_bytes("vllm/model_executor/models/utf16.py", b"\xff\xfex\0 \0");
    patient.write("vllm/model_executor/models/huge.py", &"x = 1\n".repeat(9_000_000));
    patient.write(
        "vllm/model_executor/models/brackets.py",
        &format!("x = {}{}", "(".repeat(100_000), ")".repeat(100_000)),
    );
    patient.write("vllm/model_executor/models/sums.py", &format!("x = {}1", "1+".repeat(200_000)));
    patient.write("vllm/model_executor/models/nots.py", &format!("x = {}1", "not ".repeat(200_000)));
    patient.write("vllm/model_executor/models/chain.py", &format!("x = y{}", ".f()".repeat(100_000)));
    // Deep, and still what CPython takes.
    patient.write(
        "vllm/model_executor/models/deep.py",
        &format!("x = {}1{}\ny = {}1\n", "(".repeat(150), ")".repeat(150), "1+".repeat(4_000)),
    );
    patient.write(
        "vllm/model_executor/models/self.py",
        "y = [0]\ny = [y[0]]\nz = y[0][0]\nif z: z = z and z\nif z: pass\n",
    );
    symlink("loop_b", patient.path("vllm/loop_a")).unwrap();
    symlink("loop_a", patient.path("vllm/loop_b")).unwrap();
    symlink("..", patient.path("vllm/parent")).unwrap();
    symlink("/etc/passwd", patient.path("vllm/escape.py")).unwrap();
    symlink("/opt/real", patient.path("linked")).unwrap();
    patient.write_outside("/opt/real/inside.py", leaf.as_bytes());
    std::fs::write(patient.path("vllm").join(std::ffi::OsStr::from_bytes(b"na\xffme.py")), leaf).unwrap();
    assert!(
        std::process::Command::new("mkfifo").arg(patient.path("vllm/fifo.py")).status().unwrap().success()
    );

    let evidence = patient.gather();
    for (file, words) in [
        ("python2.py", "syntax error in line 1"),
        ("cut.py", "syntax error in line 7"),
        ("models/raw.py", "UTF-8"),
        ("nul.py", "NUL bytes"),
        ("utf16.py", "UTF-16"),
        ("huge.py", "54000000 bytes long"),
        ("brackets.py", "nested deeper"),
        ("sums.py", "operators"),
        ("nots.py", "operators"),
        ("chain.py", "operators"),
        ("loop_a", "leads nowhere"),
        ("escape.py", "absent"),
        ("fifo.py", "no plain file"),
    ] {
        assert!(note(&evidence, file).contains(words), "{file}: {}", note(&evidence, file));
    }
    // A partial tree still tells.
    for file in ["cut.py", "latin.py"] {
        assert!(evidence.facts.iter().any(|fact| fact.file.ends_with(file)), "{file}");
    }
    assert!(
        !evidence.notes.kept.iter().any(|(file, note)| file.ends_with("deep.py")
            || file.ends_with("self.py")
            || note.contains("fault of this program")),
        "{:#?}",
        evidence.notes
    );
    // Through `parent`, every file would come again and again.
    let copies = evidence.facts.iter().filter(|fact| fact.file.ends_with("latin.py")).count();
    assert_eq!(copies, 1);
}

#[test]
fn a_cut_file_on_the_path_is_worth_a_warning() {
    let patient = Patient::small();
    let text = std::fs::read_to_string(patient.path(DEEPSEEK)).unwrap();
    patient.write(DEEPSEEK, &format!("{}\n\ndef broken(:\n", text));
    let examined = patient.debug_code();
    let accused = accusations(&examined);
    assert_eq!(accused.len(), 1);
    assert_eq!(
        (accused[0].id.as_str(), accused[0].active, accused[0].suggested_cause()),
        ("env.debug-code/syntax-error", Some(true), Some("modified-package-files"))
    );
}

#[test]
fn a_folder_that_is_absent_is_an_error_that_names_it() {
    let patient = Patient::empty();
    let error = gather(patient.root.path(), &[PathBuf::from("/nowhere")], &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("/nowhere"), "{error}");
    // One of two is a note.
    let evidence =
        gather(patient.root.path(), &[PathBuf::from("/nowhere"), PathBuf::from(SITE)], &mut |_| {}).unwrap();
    assert_eq!(evidence.notes.kept.len(), 1);
    // A path that begins with the root is the same folder.
    let evidence = gather(patient.root.path(), &[patient.root.path().join(&SITE[1..])], &mut |_| {}).unwrap();
    assert_eq!(evidence.site_packages, [SITE]);
}

#[test]
fn progress_reaches_its_end() {
    let patient = Patient::small();
    let mut steps = Vec::new();
    gather(patient.root.path(), &[PathBuf::from(SITE)], &mut |step| steps.push((step.done, step.of)))
        .unwrap();
    let last = steps.last().unwrap();
    assert!(last.0 == last.1 && last.1 > 5);
    assert!(Path::new(SITE).is_absolute());
}
