//! Snapshots of what people and programs read, from a fixed report.

use lucid_client::{Dialect, Exchange, ServerInfo};

use super::*;
use crate::evidence::{HypothesisFit, PositionBin, RungState};
use crate::statistics::{Estimate, wilson};

fn rung(id: &str, title: &str, passed: u64, trials: u64, state: RungState, note: Option<&str>) -> RungScore {
    RungScore {
        id: id.into(),
        title: title.into(),
        covers: "a test".into(),
        rate: wilson(passed, trials),
        floor: 0.7,
        state,
        cut: u64::from(id == "fact"),
        unjudged: 0,
        note: note.map(str::to_owned),
    }
}

/// A faulty server, with hostile texts in every place where outside text can stand.
fn report() -> Report {
    let differs = Finding::new(
        "reference.logprobs",
        "differs",
        Severity::Error,
        "The server does not compute what the checkpoint says",
    )
    .detail("Divergence at least 0.2483 nats a token.")
    .confidence(0.99)
    .proof(ProofKind::Number, "divergence", "0.2483 nats a token (0.2057 to 0.3298)");
    let fits = Finding::new(
        "reference.hypotheses",
        "rope-half-split-fits",
        Severity::Error,
        "The known mistake `rope-half-split` reproduces what the server says",
    )
    .confidence(0.99);
    let excluded = Finding::new(
        "reference.hypotheses",
        "router-bias-missing-excluded",
        Severity::Info,
        "The known mistake `router-bias-missing` does not explain it",
    );
    let findings = vec![differs, fits, excluded];
    let ranking = crate::causes::rank(&findings, None);
    let check = |id: &str, outcome, covered: &str, reason: Option<&str>| CheckResult {
        id: id.into(),
        outcome,
        covered: covered.into(),
        reason: reason.map(str::to_owned),
        seconds: 1.25,
        cost: Cost { requests: 2, prompt_tokens: 30, completion_tokens: 12 },
    };
    Report {
        schema: SCHEMA,
        lucid: "0.1.0".into(),
        started: "2026-11-29T12:00:00Z".into(),
        seconds: 12.5,
        subject: SubjectSummary {
            endpoint: Some("http://127.0.0.1:8000".into()),
            server: Some(ServerInfo {
                dialect: Dialect::Vllm,
                version: Some("0.32.0".into()),
                model: "<b>canary</b>\u{1b}[31m".into(),
                max_model_len: Some(4096),
            }),
            checkpoint: Some("models/canary".into()),
            reference: Some("reference mode".into()),
            ..SubjectSummary::default()
        },
        verdict: Verdict::Faulty,
        obstacles: Vec::new(),
        causes: ranking.causes,
        something_else: ranking.something_else,
        findings,
        checks: vec![
            check("endpoint.liveness", CheckOutcome::Passed, "vLLM 0.32.0 answers", None),
            check(
                "endpoint.ladder",
                CheckOutcome::Crashed,
                "the ladder",
                Some("the check itself broke down: oh. Please report it"),
            ),
            check("reference.logprobs", CheckOutcome::Found, "114 tokens of 4 prompts", None),
            check(
                "reference.prompt-tokens",
                CheckOutcome::Skipped,
                "template and tokenizer",
                Some("the server tells neither"),
            ),
        ],
        cost: Cost { requests: 3, prompt_tokens: 100, completion_tokens: 50 },
        ladder: vec![
            rung("fact", "Recalls a fact", 8, 8, RungState::Passed, None),
            rung(
                "code",
                "Writes a function that runs",
                0,
                3,
                RungState::Failing,
                Some("exchange 2: it says \u{201c}<script>alert(1)</script>\u{201d}"),
            ),
            rung(
                "long-needle",
                "Finds a needle in 3,500 tokens",
                0,
                0,
                RungState::Skipped,
                Some("not part of a quick examination"),
            ),
        ],
        divergence: Some(Divergence {
            decision: "different".into(),
            prompts: 4,
            positions: 114,
            of: "prompt and generated tokens".into(),
            kl: Estimate { mean: 0.2483, low: 0.2057, high: 0.3298 },
            delta: Estimate { mean: 0.9, low: 0.7, high: 1.2 },
            top1_agreement: 0.807,
            prefill: Some(0.21),
            decode: Some(0.3),
            by_position: vec![
                PositionBin { from: 1, to: 8, positions: 28, kl: 0.0004, delta: 0.01 },
                PositionBin { from: 8, to: 16, positions: 32, kl: 0.11, delta: 0.5 },
                PositionBin { from: 16, to: 32, positions: 54, kl: 0.4, delta: 1.5 },
            ],
            semantics: "reference mode".into(),
            witness: "what the checkpoint says".into(),
            hypotheses: vec![
                HypothesisFit { name: "rope-half-split".into(), kl: 1.2e-4, outcome: "fits".into() },
                HypothesisFit { name: "router-bias-missing".into(), kl: 0.2477, outcome: "excluded".into() },
            ],
        }),
        probes: Vec::new(),
        timeline: None,
        exchanges: vec![KeptExchange {
            check: "endpoint.liveness".into(),
            exchange: Exchange {
                method: "GET".into(),
                url: "http://127.0.0.1:8000/v1/models".into(),
                request: None,
                status: Some(200),
                content_type: Some("application/json".into()),
                body: "{\"a\": \"</pre><script>alert(1)</script>\"}".into(),
                truncated: false,
                sent_unix_ms: 0,
                first_byte_seconds: Some(0.1),
                seconds: 0.2,
                error: None,
            },
        }],
    }
}

#[test]
fn terminal_form() {
    insta::assert_snapshot!(terminal::render(&report(), &terminal::Style::plain(100)));
}

#[test]
fn json_form() {
    insta::assert_snapshot!(json::render(&report()));
}

#[test]
fn the_terminal_is_not_steered_by_the_server() {
    let text = terminal::render(&report(), &terminal::Style::plain(100));
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn the_page_is_self_contained_and_escaped() {
    let page = html::render(&report()).unwrap();
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    assert!(!page.contains("<b>canary"));
    // The only addresses are those that the report itself shows; nothing is loaded.
    for loading in ["src=", "@import", "url(", "<link"] {
        assert!(!page.contains(loading), "{loading}");
    }
    // The verdict and the first remedy come before everything else.
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} is missing"));
    assert!(at("class=\"reason\"") < at("What to do") && at("What to do") < at("Likely causes"));
    assert!(page.contains("What was not checked") && page.contains("the server tells neither"));
}

/// The nearest of mistakes that don't fit would look like an accusation of a healthy server.
#[test]
fn mistakes_that_explain_nothing_are_said_to() {
    let said = |report: &Report| {
        let page = html::render(report).unwrap().contains("explains the server better than rounding");
        let terminal = terminal::render(report, &terminal::Style::plain(100));
        assert_eq!(page, terminal.contains("explains the server better than rounding"));
        page
    };
    let mut report = report();
    assert!(!said(&report));
    let divergence = report.divergence.as_mut().unwrap();
    divergence.decision = "same".into();
    assert!(!said(&report), "one fits");
    report.divergence.as_mut().unwrap().hypotheses.remove(0);
    assert!(said(&report));
    report.divergence.as_mut().unwrap().hypotheses.clear();
    assert!(!said(&report), "none was tried");
}

#[test]
fn exit_codes() {
    let mut report = report();
    assert_eq!((report.exit_code(Severity::Error), report.exit_code(Severity::Warning)), (1, 1));
    report.findings.retain(|finding| finding.severity == Severity::Info);
    report.verdict = Verdict::Healthy;
    assert_eq!(report.exit_code(Severity::Info), 0, "facts never count");
    report.findings.push(Finding::new("x", "y", Severity::Warning, ""));
    assert_eq!((report.exit_code(Severity::Error), report.exit_code(Severity::Warning)), (0, 1));
    report.verdict = Verdict::Undecided;
    assert_eq!(report.exit_code(Severity::Error), 2);
}
