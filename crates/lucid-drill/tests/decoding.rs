//! A mistake that answers alone have, and weakly: it changes no likeliest token, so nothing is called different, but a server that
//! declares f32 is held to it, and the strength is searched for.
#![allow(clippy::unwrap_used)] // integration test

use std::path::Path;

use lucid_checkpoint::Files;
use lucid_doctor::{Depth, Verdict};
use lucid_drill::{Run, find, run};

#[test]
fn another_softmax_scale_in_answers_alone_is_named() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary");
    let files = Files::open(&folder).unwrap();
    let case = find("decode-softmax-scale").unwrap();
    // This seed draws a scale that no hypothesis has as its usual one.
    let how = Run { seed: 6000, depth: Depth::Quick, forget: false, deep: false, guise: None };
    let (outcome, report) = run(&files, "canary", case, how, &mut |_| {}).unwrap();
    assert_eq!(outcome.verdict, Verdict::Faulty);
    let found = report.findings.iter().any(|finding| {
        finding.id.starts_with("reference.hypotheses/decode-softmax-scale-by-0.7")
            && finding.id.ends_with("-fits")
    });
    let ids: Vec<&str> = report.findings.iter().map(|finding| finding.id.as_str()).collect();
    assert!(found, "{ids:#?}");
    assert_eq!(report.causes[0].id, "attention-kernel");
}
