//! GGUF files, whole, split and damaged.

use std::fs;
use std::path::Path;

use lucid_checkpoint_audit::{Options, gather};
use lucid_findings::Deployment;

use crate::patient::{Audit, Patient, Random, models};

const FILE: &str = "canary-q4_k_m.gguf";

fn patient() -> Patient {
    Patient::of(&models().join("canary-gguf"))
}

/// Where the data begins and a tensor's bytes lie, by searching its name: `n_dims`, dimensions, type, offset follow it.
pub(crate) fn tensor(bytes: &[u8], name: &str) -> (usize, usize) {
    let mut key = (name.len() as u64).to_le_bytes().to_vec();
    key.extend_from_slice(name.as_bytes());
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    let dims = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    (at, at + 4 + 8 * dims)
}

#[test]
fn a_cut_file_is_short_at_any_place() {
    let mut random = Random::new();
    for _ in 0..3 {
        let patient = patient();
        let bytes = patient.read(FILE);
        patient.write(FILE, &bytes[..1_000_000 + random.below(bytes.len() - 1_000_100)]);
        patient.audit().convicts("checkpoint.extents/short", "checkpoint-corrupt");
    }
    for keep in [0, 3, 20, 100_000] {
        let patient = patient();
        let bytes = patient.read(FILE);
        patient.write(FILE, &bytes[..keep]);
        let audit = patient.audit();
        assert_eq!(audit.cause(), Some("checkpoint-corrupt"), "{keep}: {}", audit.titles());
    }
}

#[test]
fn offsets_off_the_alignment_and_overlaps_are_named() {
    for shift in [1u64, 8, 31] {
        let patient = patient();
        let mut bytes = patient.read(FILE);
        let (_, kind) = tensor(&bytes, "blk.1.attn_output.weight");
        let at = kind + 4;
        let offset = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        bytes[at..at + 8].copy_from_slice(&(offset - shift).to_le_bytes());
        patient.write(FILE, bytes);
        patient.audit().convicts("checkpoint.extents/misaligned", "checkpoint-corrupt");
    }
    for shift in [32u64, 320, 3200] {
        let patient = patient();
        let mut bytes = patient.read(FILE);
        let (_, kind) = tensor(&bytes, "blk.2.attn_output.weight");
        let at = kind + 4;
        let offset = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        bytes[at..at + 8].copy_from_slice(&(offset - shift).to_le_bytes());
        patient.write(FILE, bytes);
        patient.audit().convicts("checkpoint.extents/overlap", "checkpoint-corrupt");
    }
}

#[test]
fn what_is_no_gguf_is_told() {
    for text in [
        &b"GGML\x01\x00\x00\x00\x00\x00\x00\x00"[..],
        b"GGUF\x00\x00\x00\x03",
        b"GGUF\x63\x00\x00\x00aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ] {
        let patient = patient();
        patient.write(FILE, text);
        patient.audit().convicts("checkpoint.extents/header", "checkpoint-corrupt");
    }
    let patient = patient();
    patient.write(FILE, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
    patient.audit().convicts("checkpoint.extents/lfs-pointer", "checkpoint-corrupt");
}

#[test]
fn a_scale_that_is_no_number_and_lost_pages_are_found_in_blocks() {
    let mut random = Random::new();
    for name in ["blk.1.ffn_down_exps.weight", "blk.2.ffn_gate_exps.weight", "blk.3.attn_output.weight"] {
        let evidence = patient().gather(&Options { statistics: true, ..Options::default() });
        assert!(evidence.statistics.unwrap().unread.is_empty());
        let patient = patient();
        let mut bytes = patient.read(FILE);
        let (_, kind) = tensor(&bytes, name);
        let offset = u64::from_le_bytes(bytes[kind + 4..kind + 12].try_into().unwrap()) as usize;
        // The data ends with the file; its beginning follows from the last tensor's end, which is the largest.
        let start = data_start(&bytes);
        let at = start + offset + 4096 * random.below(3);
        bytes[at..at + 10_000].fill(0);
        patient.write(FILE, bytes);
        patient.audit().convicts("checkpoint.scales/zero-run", "checkpoint-corrupt");
    }
    let patient = patient();
    let mut bytes = patient.read(FILE);
    let (_, kind) = tensor(&bytes, "blk.3.attn_output.weight");
    let offset = u64::from_le_bytes(bytes[kind + 4..kind + 12].try_into().unwrap()) as usize;
    let at = data_start(&bytes) + offset;
    bytes[at..at + 12_000].fill(0xff);
    patient.write(FILE, bytes);
    patient.audit().convicts("checkpoint.scales/not-finite", "checkpoint-corrupt");
}

/// The last description ends the header.
fn data_start(bytes: &[u8]) -> usize {
    let evidence =
        gather(Path::new("/"), &models().join("canary-gguf"), &Options::default(), &mut |_| {}).unwrap();
    let start = evidence.shards.kept[0].header_bytes as usize;
    assert!(start < bytes.len() && start.is_multiple_of(32));
    start
}

#[test]
fn parts_are_counted_and_the_first_must_be_given() {
    let bytes = patient().read(FILE);
    for (present, missing) in
        [(&[1u32, 3][..], "00002-of-00003"), (&[1, 2], "00003-of-00003"), (&[2], "00001-of-00003")]
    {
        let place = tempfile::tempdir().unwrap();
        for part in present {
            fs::write(place.path().join(format!("m-{part:05}-of-00003.gguf")), &bytes).unwrap();
        }
        let evidence = gather(Path::new("/"), place.path(), &Options::default(), &mut |_| {}).unwrap();
        let audit = Audit::of(&evidence, &Deployment::default());
        audit.convicts("checkpoint.extents/missing-shard", "checkpoint-corrupt");
        assert!(audit.find("checkpoint.extents/missing-shard").title.contains(missing), "{}", audit.titles());
    }
    for part in ["m-00002-of-00002.gguf", "m-00003-of-00003.gguf", "m-00009-of-00010.gguf"] {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(part), &bytes).unwrap();
        let evidence =
            gather(Path::new("/"), &place.path().join(part), &Options::default(), &mut |_| {}).unwrap();
        let audit = Audit::of(&evidence, &Deployment::default());
        assert_eq!(audit.find("checkpoint.extents/split-not-first").suggested_cause(), Some("wrong-flags"));
    }
}
