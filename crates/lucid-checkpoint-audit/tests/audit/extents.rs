//! Shards of a wrong length, and what stands in their place.

use std::io::{Seek, SeekFrom, Write};

use serde_json::json;

use crate::patient::{Patient, Random, SHARDS};

const CORRUPT: &str = "checkpoint-corrupt";

#[test]
fn a_shard_that_was_cut_is_short_wherever_it_was_cut() {
    let mut random = Random::new();
    for _ in 0..4 {
        let patient = Patient::canary();
        let name = *random.pick(&SHARDS);
        let bytes = patient.read(name);
        // Behind the header, of at most 100 kB.
        let keep = 100_000 + random.below(bytes.len() - 100_001);
        patient.write(name, &bytes[..keep]);
        let audit = patient.audit();
        audit.convicts("checkpoint.extents/short", CORRUPT);
        let missing = (bytes.len() - keep).to_string();
        assert!(audit.find("checkpoint.extents/short").title.contains(&missing), "{}", audit.titles());
    }
}

#[test]
fn a_file_that_ends_in_its_header_has_no_header() {
    for keep in [3, 8, 20_000] {
        let patient = Patient::canary();
        let bytes = patient.read(SHARDS[0]);
        patient.write(SHARDS[0], &bytes[..keep]);
        patient.audit().convicts("checkpoint.extents/header", CORRUPT);
    }
}

#[test]
fn bytes_after_the_last_tensor_are_long() {
    for extra in [1usize, 100, 5_000_000] {
        let patient = Patient::canary();
        let mut bytes = patient.read(SHARDS[1]);
        bytes.extend(std::iter::repeat_n(7u8, extra));
        patient.write(SHARDS[1], bytes);
        patient.audit().convicts("checkpoint.extents/long", CORRUPT);
    }
}

#[test]
fn what_is_no_shard_is_told_by_its_first_words() {
    let lfs = |v: &str| format!("version {v}\noid sha256:{}\nsize 12930144\n", "ab".repeat(32));
    for text in [
        lfs("https://git-lfs.github.com/spec/v1"),
        lfs("https://hawser.github.com/spec/v1"),
        format!("\u{feff}{}", lfs("https://git-lfs.github.com/spec/v1")),
    ] {
        let patient = Patient::canary();
        patient.write(SHARDS[0], text);
        patient.audit().convicts("checkpoint.extents/lfs-pointer", CORRUPT);
    }
    for text in [
        "<!DOCTYPE html><html><body>429 Too Many Requests</body></html>",
        "\n  <html lang=\"en\">",
        "Access to model nvidia/Kimi-K2.5-NVFP4 is restricted",
        "{\"error\":\"Invalid credentials in Authorization header\"}",
        "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>",
    ] {
        let patient = Patient::canary();
        patient.write(SHARDS[1], text);
        patient.audit().convicts("checkpoint.extents/web-page", CORRUPT);
    }
}

#[test]
fn an_empty_shard_is_empty() {
    for names in [&SHARDS[..1], &SHARDS[1..], &SHARDS[..]] {
        let patient = Patient::canary();
        names.iter().for_each(|name| patient.write(name, b""));
        patient.audit().convicts("checkpoint.extents/empty", CORRUPT);
    }
}

#[test]
fn a_missing_shard_is_missed_with_and_without_an_index() {
    for (name, index) in [(SHARDS[0], true), (SHARDS[1], true), (SHARDS[1], false)] {
        let patient = Patient::canary();
        patient.remove(name);
        if !index {
            patient.remove("model.safetensors.index.json");
        }
        let audit = patient.audit();
        audit.convicts("checkpoint.extents/missing-shard", CORRUPT);
        assert!(audit.find("checkpoint.extents/missing-shard").title.contains(name), "{}", audit.titles());
    }
}

#[test]
fn a_download_that_has_not_ended_is_told_from_a_left_over() {
    for ending in ["incomplete", "part", "aria2"] {
        let patient = Patient::canary();
        patient.write(&format!("{}.{ending}", SHARDS[0]), b"x");
        patient.audit().is_clean();
        patient.remove(SHARDS[0]);
        let audit = patient.audit();
        audit.convicts("checkpoint.extents/incomplete-download", CORRUPT);
    }
}

#[test]
fn offsets_that_contradict_each_other_are_named() {
    let tensor = "model.layers.0.self_attn.o_proj.weight";
    for shift in [-512i64, -2, -100_000] {
        let patient = Patient::canary();
        patient.edit_shard(SHARDS[0], |shard| {
            let range = shard.range(tensor);
            let moved = |place: usize| (place as i64 + shift) as u64;
            shard.header[tensor]["data_offsets"] = json!([moved(range.start), moved(range.end)]);
        });
        let audit = patient.audit();
        audit.convicts("checkpoint.extents/overlap", CORRUPT);
        audit.find("checkpoint.extents/gap");
    }
    for (field, value) in [
        ("shape", json!([256, 1025])),
        ("dtype", json!("F32")),
        ("data_offsets", json!([100, 90])),
        ("shape", json!([1u64 << 40, 1u64 << 40])),
        ("shape", json!("none")),
        ("data_offsets", json!([-5, 90])),
    ] {
        let patient = Patient::canary();
        patient.edit_shard(SHARDS[0], |shard| shard.header[tensor][field] = value.clone());
        let audit = patient.audit();
        audit.convicts("checkpoint.extents/wrong-size", CORRUPT);
    }
}

#[test]
fn a_hole_is_seen_without_reading() {
    let mut random = Random::new();
    let tensors = [
        "model.layers.1.mlp.experts.5.down_proj.weight",
        "lm_head.weight",
        "model.layers.0.self_attn.kv_b_proj.weight",
    ];
    for tensor in tensors {
        let patient = Patient::canary();
        let name = patient.shard_of(tensor);
        let bytes = patient.read(name);
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let range = crate::patient::Shard::parse(&bytes).range(tensor);
        let size = range.len();
        // Somewhere in the tensor, at least one page long.
        let start = (header + range.start + random.below(size / 4)).next_multiple_of(4096);
        let end = (start + 4096 + random.below(size)).min(bytes.len()) / 4096 * 4096;
        let end = end.max(start + 4096);
        patient.write(name, b"");
        let mut file = std::fs::File::create(patient.path(name)).unwrap();
        file.write_all(&bytes[..start]).unwrap();
        file.seek(SeekFrom::Start(end as u64)).unwrap();
        file.write_all(&bytes[end..]).unwrap();
        file.sync_all().unwrap();
        drop(file);
        let evidence = patient.gather(&Default::default());
        let facts = evidence.shards.kept.iter().find(|shard| shard.name == name).unwrap();
        if facts.hole_bytes == 0 {
            println!("skipped: this file system keeps no holes, or doesn't tell");
            return;
        }
        let audit = crate::patient::Audit::of(&evidence, &Default::default());
        audit.convicts("checkpoint.extents/hole", CORRUPT);
        let shown = audit.find("checkpoint.extents/hole");
        assert!(
            shown.evidence.iter().any(|proof| proof.text.contains(tensor)),
            "{tensor}: {:?}",
            shown.evidence
        );
    }
}

#[test]
fn two_sets_of_shards_are_two_sets() {
    for name in [
        "model-00001-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "old-00001-of-00004.safetensors",
    ] {
        let patient = Patient::canary();
        let shard = patient.read(SHARDS[0]);
        patient.write(name, shard);
        let audit = patient.audit();
        audit.find("checkpoint.extents/two-sets");
        assert!(
            audit.findings.iter().all(|f| f.id != "checkpoint.extents/missing-shard"),
            "{}",
            audit.titles()
        );
    }
}

#[test]
fn a_name_that_is_there_twice_is_told() {
    for copies in [1, 2, 5] {
        let patient = Patient::canary();
        patient.edit_shard(SHARDS[0], |shard| {
            shard.header.insert("REPLACE".to_owned(), shard.header["lm_head.weight"].clone());
        });
        let mut bytes = patient.read(SHARDS[0]);
        // A map can't hold a name twice; the text can.
        let entry = b"\"REPLACE\":";
        let at = bytes.windows(entry.len()).position(|window| window == entry).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let body = String::from_utf8(bytes[at + entry.len()..8 + length - 1].to_vec()).unwrap();
        let twice = format!("\"lm_head.weight\":{body},").repeat(copies);
        let twice = twice.trim_end_matches(',').as_bytes().to_vec();
        bytes.splice(at..8 + length - 1, twice);
        let data = Patient::canary().read(SHARDS[0]);
        let old = 8 + u64::from_le_bytes(data[..8].try_into().unwrap()) as usize;
        let header = bytes.len() - 8 - (data.len() - old);
        bytes[..8].copy_from_slice(&(header as u64).to_le_bytes());
        patient.write(SHARDS[0], bytes);
        patient.audit().convicts("checkpoint.extents/duplicate-name", CORRUPT);
    }
}
