//! Matrix products that are zero for some numbers of rows: no question is wrong for sure, and no length is a threshold.
#![allow(clippy::unwrap_used)] // integration test

use std::path::Path;

use lucid_checkpoint::Files;
use lucid_doctor::{Depth, Verdict};
use lucid_drill::{Run, find, run};

#[test]
fn wrong_numbers_of_rows_are_named() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary");
    let files = Files::open(&folder).unwrap();
    let case = find("gemm-zeros-at-sizes").unwrap();
    let how = Run { seed: 8800, depth: Depth::Quick, forget: false, deep: false, guise: None };
    let (outcome, report) = run(&files, "canary", case, how, &mut |_| {}).unwrap();
    assert!(outcome.fault.unwrap().contains("strength 16"), "the seed draws it");
    assert_eq!(report.verdict, Verdict::Faulty);
    assert_eq!(report.causes[0].id, "attention-kernel");
    let found = report.findings.iter().find(|finding| finding.id == "reference.sizes/some-sizes").unwrap();
    assert!(found.title.ends_with("the multiples of 16"), "{}", found.title);
}
