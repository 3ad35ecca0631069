//! The whole doctor on a healthy server of our own: nothing is accused, and no check costs more than it says.
#![allow(clippy::unwrap_used)] // integration test

use std::collections::HashMap;
use std::path::Path;

use lucid_checkpoint::Files;
use lucid_doctor::checks::{TypicalCost, list};
use lucid_doctor::{CheckOutcome, Depth, Severity, Verdict};
use lucid_drill::{CheckCost, Run, find, run};

#[test]
fn a_healthy_server_is_called_healthy_at_the_cost_that_the_checks_state() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary");
    let files = Files::open(&folder).unwrap();
    let (outcome, report) = run(
        &files,
        "canary",
        find("healthy").unwrap(),
        Run { seed: 5, depth: Depth::Standard, forget: false, deep: false, guise: None },
        &mut |_| {},
    )
    .unwrap();
    let accused: Vec<_> =
        report.findings.iter().filter(|finding| finding.severity > Severity::Info).collect();
    assert!(accused.is_empty() && outcome.verdict == Verdict::Healthy, "{accused:#?}");
    // It declares f32, and the reference computes the same numbers.
    let exact = report.findings.iter().any(|finding| finding.id == "reference.hypotheses/exact");
    assert!(exact, "{:#?}", report.divergence);
    let costs: HashMap<&str, TypicalCost> = list().iter().map(|info| (info.id, info.cost)).collect();
    for CheckCost { check, requests, tokens, .. } in &outcome.by_check {
        let stated = costs[check.as_str()];
        assert!(*requests <= u64::from(stated.requests), "{check}: {requests} requests, {stated:?}");
        assert!(*tokens <= u64::from(stated.tokens), "{check}: {tokens} tokens, {stated:?}");
    }
    // Every probe came to a conclusion.
    for check in report.checks.iter().filter(|check| check.id.starts_with("endpoint.")) {
        assert_eq!(check.outcome, CheckOutcome::Passed, "{check:?}");
    }
    assert!(outcome.tokens < 60_000, "{} tokens", outcome.tokens);
}
