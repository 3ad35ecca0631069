//! Whole checkpoints: not one word of blame.

use std::path::Path;

use lucid_checkpoint_audit::{FINDINGS, Options, gather};
use lucid_findings::Deployment;

use crate::patient::{Audit, Patient, models};

#[test]
fn the_canary_is_whole() {
    let audit =
        Patient::canary().audit_with(&Options { statistics: true, all_digests: true, ..Options::default() });
    audit.is_clean();
    for id in [
        "checkpoint.extents/whole",
        "checkpoint.index/agrees",
        "checkpoint.architecture/complete",
        "checkpoint.scales/usual",
        "checkpoint.tokenizer/agrees",
    ] {
        let finding = audit.find(id);
        assert!(finding.suggests.iter().all(|suggestion| suggestion.weight < 0.0), "{id}");
    }
    let against = |cause: &str| -> f64 {
        audit.findings.iter().flat_map(|f| &f.suggests).filter(|s| s.cause == cause).map(|s| s.weight).sum()
    };
    assert!(against("checkpoint-corrupt") <= -3.0);
    assert!(against("checkpoint-scales") <= -3.0);
}

#[test]
fn the_gguf_canary_is_whole_as_a_folder_and_as_a_file() {
    let folder = models().join("canary-gguf");
    for place in [folder.clone(), folder.join("canary-q4_k_m.gguf")] {
        let options = Options { statistics: true, ..Options::default() };
        let evidence = gather(Path::new("/"), &place, &options, &mut |_| {}).unwrap();
        let audit = Audit::of(&evidence, &Deployment::default());
        audit.is_clean();
        audit.find("checkpoint.architecture/complete");
        audit.find("checkpoint.tokenizer/agrees");
    }
}

#[test]
fn a_single_shard_stands_for_its_folder() {
    let place = models().join("canary/model-00002-of-00002.safetensors");
    let evidence = gather(Path::new("/"), &place, &Options::default(), &mut |_| {}).unwrap();
    assert_eq!(evidence.shards.total, 2);
    let audit = Audit::of(&evidence, &Deployment::default());
    audit.is_clean();
    assert!(audit.skips.iter().any(|(check, _)| *check == "checkpoint.scales"));
}

#[test]
fn a_container_s_root_is_not_left() {
    let patient = Patient::canary();
    // As the container sees it: /model, with absolute links that mean its own root.
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("store")).unwrap();
    std::fs::create_dir_all(root.path().join("model")).unwrap();
    for entry in std::fs::read_dir(patient.folder.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), root.path().join("store").join(entry.file_name())).unwrap();
        let target = Path::new("/store").join(entry.file_name());
        std::os::unix::fs::symlink(target, root.path().join("model").join(entry.file_name())).unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", root.path().join("model/model-00003-of-00003.safetensors"))
        .unwrap();
    let evidence = gather(root.path(), Path::new("/model"), &Options::default(), &mut |_| {}).unwrap();
    let leading_out = evidence.shards.kept.iter().find(|shard| shard.name.contains("00003")).unwrap();
    assert!(leading_out.bytes == 0 && !leading_out.problems.is_empty(), "{leading_out:?}");
    assert!(evidence.shards.kept.iter().filter(|shard| shard.tensors > 0).count() == 2, "{evidence:?}");
}

#[test]
fn the_table_of_findings_is_sorted_and_without_doubles() {
    assert!(FINDINGS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert!(FINDINGS.iter().all(|(id, text)| id.starts_with("checkpoint.") && text.ends_with('.')));
}

/// Every id in the sources' finding constructors is in the table.
#[test]
fn the_sources_name_no_finding_that_is_not_in_the_table() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/checks");
    let slugs: Vec<&str> = FINDINGS.iter().map(|(id, _)| id.split_once('/').unwrap().1).collect();
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for rest in text.split("Finding::new(CHECK, \"").skip(1) {
            let slug = rest.split('"').next().unwrap();
            assert!(slugs.contains(&slug), "{slug}");
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}
