//! Every fault of a machine is found and blamed on the right cause, in every variant that some seeds draw; honest machines are left
//! in peace.
#![allow(clippy::unwrap_used)] // integration test

use std::collections::BTreeSet;
use std::path::Path;

use lucid_checkpoint::Files;
use lucid_doctor::Depth;
use lucid_drill::{CATALOGUE, Run, run};

#[test]
fn machines_are_judged_rightly() {
    let files = Files::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary")).unwrap();
    let mut wrong = Vec::new();
    for case in CATALOGUE.iter().filter(|case| case.machine.is_some()) {
        let mut variants = BTreeSet::new();
        for seed in 1..=8 {
            let drawn = Run { seed, depth: Depth::Quick, forget: false, deep: false, guise: None };
            let (outcome, report) = run(&files, "canary", case, drawn, &mut |_| {}).unwrap();
            if !outcome.is_right() {
                let found: Vec<_> = report.findings.iter().map(|f| (f.severity, &f.id)).collect();
                wrong.push(format!("{} {seed}: {:?} {:?} {found:?}", case.name, outcome.fault, outcome.said));
            }
            variants.insert(outcome.fault);
        }
        let several = !case.name.ends_with("-log") && case.cause.is_some();
        assert!(!several || variants.len() > 1, "{}: one variant is no drill", case.name);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
