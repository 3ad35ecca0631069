//! Input that no tool wrote: reported, never fatal.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use lucid_checkpoint_audit::{Options, gather};

use crate::patient::{Audit, Patient, Random, SHARDS};

fn with_header(json: &[u8], length: u64, data: usize) -> Vec<u8> {
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(json);
    bytes.extend(std::iter::repeat_n(1u8, data));
    bytes
}

#[test]
fn lengths_that_no_file_has() {
    let json = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    for length in [1u64 << 60, u64::MAX, u64::MAX - 7, 100_000_001, 5000] {
        let patient = Patient::canary();
        patient.write(SHARDS[0], with_header(json, length, 4));
        patient.audit().convicts("checkpoint.extents/header", "checkpoint-corrupt");
    }
    for offsets in [
        "[0,1152921504606846976]",
        "[18446744073709551615,18446744073709551615]",
        "[4,0]",
        "[0]",
        "[]",
        "{}",
        "[0.5,4]",
        "[-1,4]",
    ] {
        let json = format!(r#"{{"a":{{"dtype":"F32","shape":[1],"data_offsets":{offsets}}}}}"#);
        let patient = Patient::canary();
        patient.write(SHARDS[0], with_header(json.as_bytes(), json.len() as u64, 4));
        let audit = patient.audit();
        assert_eq!(audit.cause(), Some("checkpoint-corrupt"), "{offsets}: {}", audit.titles());
    }
}

#[test]
fn headers_that_are_no_json_or_no_text() {
    for json in [
        &b"{"[..],
        b"[]",
        b"null",
        b"{\"a\":5}",
        b"{\"a\":{\"dtype\":7}}",
        b"{\"\xff\xfe\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
        b"{}trailing",
        &[0; 64],
    ] {
        let patient = Patient::canary();
        patient.write(SHARDS[0], with_header(json, json.len() as u64, 4));
        let audit = patient.audit();
        assert_eq!(audit.cause(), Some("checkpoint-corrupt"), "{}", audit.titles());
    }
}

#[test]
fn a_header_that_breaks_off_keeps_the_tensors_before_it() {
    let patient = Patient::canary();
    let bytes = patient.read(SHARDS[0]);
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut damaged = bytes.clone();
    damaged[8 + length / 2] = 0;
    patient.write(SHARDS[0], damaged);
    let evidence = patient.gather(&Options { statistics: true, ..Options::default() });
    let shard = &evidence.shards.kept[0];
    assert!(shard.tensors > 100 && shard.tensors < 430, "{}", shard.tensors);
    Audit::of(&evidence, &Default::default()).convicts("checkpoint.extents/header", "checkpoint-corrupt");
    // The others were read nevertheless.
    assert!(evidence.statistics.unwrap().tensors > 900);
}

#[test]
fn folders_links_and_names_that_are_no_files() {
    let patient = Patient::canary();
    fs::create_dir(patient.path("model-00003-of-00002.safetensors")).unwrap();
    symlink("loop.safetensors", patient.path("loop.safetensors")).unwrap();
    symlink("b.safetensors", patient.path("a.safetensors")).unwrap();
    symlink("a.safetensors", patient.path("b.safetensors")).unwrap();
    symlink("/nowhere/at/all", patient.path("gone.safetensors")).unwrap();
    fs::write(patient.folder.path().join(OsStr::from_bytes(b"odd-\xff.safetensors")), b"").unwrap();
    let audit = patient.audit();
    let finding = audit.find("checkpoint.extents/not-a-file");
    assert!(finding.title.contains('5'), "{}", finding.title);
    audit.find("checkpoint.extents/empty");
}

#[test]
fn places_that_are_no_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let evidence = gather(
        Path::new("/"),
        place.path(),
        &Options { statistics: true, ..Options::default() },
        &mut |_| {},
    )
    .unwrap();
    let audit = Audit::of(&evidence, &Default::default());
    assert!(audit.findings.is_empty(), "{}", audit.titles());
    assert_eq!(audit.skips.len(), 6);
    for path in [place.path().join("nothing"), Path::new("/dev/null/x").to_owned()] {
        let error = gather(Path::new("/"), &path, &Options::default(), &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("give the folder"), "{error}");
    }
}

#[test]
fn random_bytes_anywhere_in_any_file_never_end_it() {
    let mut random = Random::new();
    let files = [
        "config.json",
        "generation_config.json",
        "hf_quant_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tiktoken.model",
        "chat_template.jinja",
        "model.safetensors.index.json",
        SHARDS[0],
    ];
    for name in files {
        let patient = Patient::canary();
        let mut bytes = patient.read(name);
        for _ in 0..3 {
            let at = random.below(bytes.len().min(50_000));
            bytes[at] = random.below(256) as u8;
        }
        patient.write(name, &bytes);
        patient.audit();
        patient.write(name, &bytes[..random.below(bytes.len().min(50_000))]);
        patient.audit();
    }
}

#[test]
fn sizes_that_no_model_has_are_not_looked_for() {
    for (layers, experts) in [(u32::MAX, 4), (4, u32::MAX), (9_999, 65_536)] {
        let mut evidence = Patient::canary().gather(&Options::default());
        let sizes = evidence.sizes.as_mut().unwrap();
        (sizes.layers, sizes.experts) = (layers, experts);
        let audit = Audit::of(&evidence, &Default::default());
        assert!(audit.skips.iter().any(|(check, _)| *check == "checkpoint.architecture"));
    }
}

#[test]
fn evidence_stays_small_whatever_a_header_says() {
    // 40,000 names without any pattern.
    let mut json = String::from("{");
    for i in 0..40_000u64 {
        json += &format!(
            r#""x{i}.weight{i}":{{"dtype":"BF16","shape":[1],"data_offsets":[{},{}]}},"#,
            2 * i,
            2 * i + 2
        );
    }
    json.pop();
    json.push('}');
    let patient = Patient::canary();
    patient
        .write("model-00003-of-00003.safetensors", with_header(json.as_bytes(), json.len() as u64, 80_000));
    let evidence = patient.gather(&Options { statistics: true, ..Options::default() });
    assert_eq!(evidence.groups.kept.len(), 20_000);
    assert!(evidence.groups.total > 40_000);
    assert!(serde_json::to_string(&evidence).unwrap().len() < 8_000_000);
    let audit = Audit::of(&evidence, &Default::default());
    assert!(
        audit
            .skips
            .iter()
            .any(|(check, why)| *check == "checkpoint.architecture" && why.contains("too many"))
    );
}
