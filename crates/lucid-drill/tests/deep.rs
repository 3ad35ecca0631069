//! `--deep` decides what an examination of the usual depth leaves open: the first cause's own test empties the prefix cache, and what was
//! answered wrongly while it was warm is answered rightly again.
#![allow(clippy::unwrap_used)] // integration test

use std::path::Path;

use lucid_checkpoint::Files;
use lucid_doctor::{Depth, Report};
use lucid_drill::{Run, find, run};

fn examined(deep: bool) -> Report {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary");
    let files = Files::open(&folder).unwrap();
    let how = Run { seed: 101, depth: Depth::Quick, forget: false, deep, guise: None };
    run(&files, "canary", find("prefix-partial-hash").unwrap(), how, &mut |_| {}).unwrap().1
}

#[test]
fn a_flush_decides_what_warm_answers_leave_open() {
    let flushes = |report: &Report| {
        let posts = report.exchanges.iter().map(|kept| &kept.exchange);
        posts.filter(|exchange| exchange.url.ends_with("/reset_prefix_cache")).cloned().collect::<Vec<_>>()
    };
    let usual = examined(false);
    assert_eq!(usual.causes[0].id, "prefix-cache");
    assert!(usual.causes[0].probability < 0.95, "left open: {}", usual.causes[0].probability);
    assert!(flushes(&usual).is_empty(), "nobody asked for it");
    let deep = examined(true);
    assert_eq!(deep.causes[0].id, "prefix-cache");
    assert!(deep.causes[0].probability > 0.95, "decided: {}", deep.causes[0].probability);
    assert!(flushes(&deep).iter().any(|exchange| exchange.status == Some(200)), "{:?}", flushes(&deep));
    let right =
        deep.findings.iter().any(|finding| finding.detail.contains("the answers are the fresh ones again"));
    assert!(right, "{:#?}", deep.findings);
}
