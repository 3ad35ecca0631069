//! Digests against everything that says what they should be.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use lucid_checkpoint_audit::{CheckpointEvidence, Options, gather};
use lucid_findings::Deployment;

use crate::patient::{Audit, Patient, Random, SHARDS};

/// By coreutils: another implementation than the one under test.
pub(crate) fn sha256sum(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path.canonicalize().unwrap()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

pub(crate) fn flip_a_bit(patient: &Patient, name: &str) {
    let mut bytes = patient.read(name);
    let mut random = Random::new();
    let at = 100_000 + random.below(bytes.len() - 100_000);
    bytes[at] ^= 1 << random.below(8);
    patient.write(name, bytes);
}

/// A manifest of the canary, in one of the forms.
pub(crate) fn manifest(form: &str, place: &Path) -> PathBuf {
    let patient = Patient::canary();
    let path = place.join(format!("manifest-{form}"));
    let lines: Vec<(String, String, u64)> = SHARDS
        .iter()
        .map(|name| ((*name).to_owned(), sha256sum(&patient.path(name)), patient.read(name).len() as u64))
        .collect();
    match form {
        "lfs" => {
            fs::create_dir(&path).unwrap();
            for (name, digest, size) in lines {
                let text =
                    format!("version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n");
                fs::write(path.join(name), text).unwrap();
            }
        }
        "api" => {
            let entries: Vec<String> = lines
                .iter()
                .map(|(n, d, s)| {
                    format!(r#"{{"rfilename":"{n}","size":{s},"lfs":{{"sha256":"{d}","size":{s}}}}}"#)
                })
                .collect();
            fs::write(
                &path,
                format!(
                    r#"{{"id":"x/y","siblings":[{{"rfilename":".gitattributes","size":5}},{}]}}"#,
                    entries.join(",")
                ),
            )
            .unwrap();
        }
        _ => {
            let text: String =
                lines.iter().map(|(name, digest, _)| format!("{digest}  ./{name}\n")).collect();
            fs::write(&path, text).unwrap();
        }
    }
    path
}

fn audit(patient: &Patient, manifest: PathBuf) -> Audit {
    patient.audit_with(&Options { digests: true, manifest: Some(manifest), ..Options::default() })
}

#[test]
fn one_bit_is_found_and_clean_files_clear_the_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    for form in ["sha256sum", "api", "lfs"] {
        let manifest = manifest(form, place.path());
        let clean = audit(&Patient::canary(), manifest.clone());
        clean.is_clean();
        let matches = clean.find("checkpoint.digest/matches");
        assert_eq!(
            (matches.suggests[0].cause.as_str(), matches.suggests[0].weight),
            ("checkpoint-corrupt", -6.0)
        );
        for name in SHARDS {
            let patient = Patient::canary();
            flip_a_bit(&patient, name);
            let audit = audit(&patient, manifest.clone());
            audit.convicts("checkpoint.digest/mismatch", "checkpoint-corrupt");
            assert!(audit.find("checkpoint.digest/mismatch").title.contains(name));
        }
    }
}

#[test]
fn a_file_that_the_manifest_names_must_be_there() {
    let place = tempfile::tempdir().unwrap();
    for name in SHARDS {
        let patient = Patient::canary();
        patient.remove(name);
        let manifest = manifest("sha256sum", place.path());
        let audit = audit(&patient, manifest);
        audit.convicts("checkpoint.digest/absent", "checkpoint-corrupt");
    }
}

/// A folder as the Hugging Face cache has it.
fn cache() -> (tempfile::TempDir, PathBuf) {
    let patient = Patient::canary();
    let place = tempfile::tempdir().unwrap();
    let repository = place.path().join("models--lucid--canary");
    let snapshot = repository.join("snapshots/0123456789abcdef");
    fs::create_dir_all(repository.join("blobs")).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for entry in fs::read_dir(patient.folder.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let digest = sha256sum(&patient.path(&name));
        // Small files go by their Git id there, which has 40 digits.
        let blob = if name.ends_with(".safetensors") { digest } else { digest[..40].to_owned() };
        fs::copy(patient.path(&name), repository.join("blobs").join(&blob)).unwrap();
        symlink(Path::new("../../blobs").join(&blob), snapshot.join(&name)).unwrap();
    }
    (place, snapshot)
}

fn evidence(folder: &Path) -> CheckpointEvidence {
    gather(Path::new("/"), folder, &Options { digests: true, ..Options::default() }, &mut |_| {}).unwrap()
}

#[test]
fn a_blob_of_the_cache_is_named_by_its_digest() {
    let (_place, snapshot) = cache();
    let audit = Audit::of(&evidence(&snapshot), &Deployment::default());
    audit.is_clean();
    audit.find("checkpoint.digest/matches");
    // The repository's folder stands for the revision that refs/main names, or for its only one.
    let repository = snapshot.parent().unwrap().parent().unwrap();
    for named in [false, true] {
        if named {
            fs::create_dir_all(repository.join("refs")).unwrap();
            fs::create_dir(repository.join("snapshots/another")).unwrap();
            fs::write(repository.join("refs/main"), "0123456789abcdef").unwrap();
        }
        Audit::of(&evidence(repository), &Deployment::default()).find("checkpoint.digest/matches");
    }
    for name in SHARDS {
        let blob = snapshot.join(name).canonicalize().unwrap();
        let whole = fs::read(&blob).unwrap();
        let mut damaged = whole.clone();
        let last = damaged.len() - 1;
        damaged[last] ^= 1;
        fs::write(&blob, damaged).unwrap();
        let audit = Audit::of(&evidence(&snapshot), &Deployment::default());
        audit.convicts("checkpoint.digest/mismatch", "checkpoint-corrupt");
        let commands = &audit.find("checkpoint.digest/mismatch").remedy.as_ref().unwrap().commands;
        assert!(commands[0].starts_with("hf download lucid/canary"), "{commands:?}");
        fs::write(&blob, whole).unwrap();
    }
}

#[test]
fn a_download_record_says_what_was_downloaded() {
    for damaged in [false, true] {
        let patient = Patient::canary();
        // The record lies beside the files themselves.
        for entry in fs::read_dir(patient.folder.path()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let bytes = patient.read(&name);
            patient.write(&name, bytes);
        }
        let records = patient.path(".cache/huggingface/download");
        fs::create_dir_all(&records).unwrap();
        for name in SHARDS {
            let record = format!("0123abc\n{}\n1764000000.5\n", sha256sum(&patient.path(name)));
            fs::write(records.join(format!("{name}.metadata")), record).unwrap();
        }
        if damaged {
            flip_a_bit(&patient, SHARDS[1]);
        }
        let audit = Audit::of(&evidence(patient.folder.path()), &Deployment::default());
        if damaged {
            audit.convicts("checkpoint.digest/mismatch", "checkpoint-corrupt");
        } else {
            audit.find("checkpoint.digest/matches");
        }
    }
}

#[test]
fn proof_for_some_files_is_no_proof_for_all() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("m");
    fs::write(&path, format!("{}  {}\n", sha256sum(&Patient::canary().path(SHARDS[0])), SHARDS[0])).unwrap();
    let audit = audit(&Patient::canary(), path);
    audit.is_clean();
    let partly = audit.find("checkpoint.digest/matches-partly");
    assert_eq!(partly.suggests[0].weight, -1.0);
}

#[test]
fn without_anything_to_compare_with_the_check_says_how_to_get_it() {
    let audit = Patient::canary().audit_with(&Options { all_digests: true, ..Options::default() });
    let (_, why) = audit.skips.iter().find(|(check, _)| *check == "checkpoint.digest").unwrap();
    assert!(why.contains("https://huggingface.co/api/models/"), "{why}");
    assert!(audit.findings.iter().all(|finding| finding.check != "checkpoint.digest"));
}

#[test]
fn a_manifest_that_can_t_be_used_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("m");
    fs::write(&path, "nothing of the kind\n").unwrap();
    let options = Options { digests: true, manifest: Some(path), ..Options::default() };
    let error = gather(Path::new("/"), Patient::canary().folder.path(), &options, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("no digests in it"), "{error}");
}
