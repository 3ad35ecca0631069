//! From answers to verdicts, without a checkpoint.
#![allow(clippy::unwrap_used)] // tests

mod mock;

use std::time::Duration;

use lucid_client::ApiKey;
use lucid_doctor::{CheckOutcome, Progress, Report, Severity, Subject, Verdict, diagnose, report};
use mock::{Behaviour, start};

fn examine(behaviour: Behaviour) -> Report {
    diagnose(Subject { endpoint: Some(start(behaviour)), ..Subject::default() }, &mut |_| {})
}

fn has(report: &Report, id: &str) -> bool {
    report.findings.iter().any(|finding| finding.id == id)
}

fn top(report: &Report) -> Option<&str> {
    report.top_cause().map(|cause| cause.id.as_str())
}

#[test]
fn a_right_server_is_healthy_in_whatever_wording() {
    let report = examine(Behaviour::Right);
    assert_eq!(
        (report.verdict, report.exit_code(Severity::Warning)),
        (Verdict::Healthy, 0),
        "{:#?}",
        report.findings
    );
    assert!(has(&report, "endpoint.ladder/coherent") && has(&report, "endpoint.budget/separates"));
    assert!(
        report.ladder.iter().all(|rung| rung.rate.passed == rung.rate.trials && rung.rate.trials > 0),
        "{:#?}",
        report.ladder
    );
    // What could not be checked is said.
    let skipped: Vec<_> =
        report.checks.iter().filter(|check| check.outcome == CheckOutcome::Skipped).collect();
    assert!(skipped.iter().all(|check| check.reason.is_some() && !check.covered.is_empty()));
    let unarmed = skipped.iter().filter_map(|check| check.reason.as_deref());
    let needs = ["no checkpoint was given", "no checkpoint and no record was given"];
    // The checks of the reference, one of them about routes and one about numbers of tokens.
    assert_eq!(unarmed.filter(|reason| needs.contains(reason)).count(), 6);
    assert!(report.cost.requests > 40 && report.cost.completion_tokens > 1_000);
}

#[test]
fn answers_in_the_wrong_field_are_the_parsers_fault() {
    for (behaviour, finding) in [
        (Behaviour::HidesAnswers, "endpoint.budget/answer-inside-reasoning"),
        (Behaviour::ShowsThinking, "endpoint.budget/think-tag-in-content"),
    ] {
        let report = examine(behaviour);
        assert!(has(&report, finding), "{behaviour:?}: {:#?}", report.findings);
        assert!(!has(&report, "endpoint.ladder/incoherent"), "{behaviour:?}");
        assert_eq!(
            (report.verdict, top(&report)),
            (Verdict::Faulty, Some("reasoning-parser")),
            "{behaviour:?}"
        );
    }
}

#[test]
fn a_budget_that_reasoning_ate_is_not_incoherence() {
    let report = examine(Behaviour::CapsTokens);
    assert!(has(&report, "endpoint.budget/answers-cut"), "{:#?}", report.findings);
    assert!(
        report.findings.iter().all(|finding| !finding.id.starts_with("endpoint.ladder/")),
        "{:#?}",
        report.findings
    );
    assert_eq!(top(&report), Some("reasoning-budget"));
    // A cap that nobody asked for, on every answer, is the server's own mistake.
    assert_eq!((report.verdict, report.exit_code(Severity::Error)), (Verdict::Faulty, 1));
}

#[test]
fn garble_without_a_witness_accuses_nobody() {
    let report = examine(Behaviour::Garbled);
    assert_eq!((report.verdict, report.exit_code(Severity::Error)), (Verdict::Faulty, 1));
    assert!(has(&report, "endpoint.ladder/incoherent"));
    assert_eq!(top(&report), None, "{:#?}", report.causes);
    assert!(report.something_else > 0.3);
}

#[test]
fn one_character_points_to_nan() {
    let report = examine(Behaviour::OneCharacter);
    assert_eq!((report.verdict, top(&report)), (Verdict::Faulty, Some("nan-logits")), "{:#?}", report.causes);
}

#[test]
fn lost_needles_are_seen_apart() {
    let report = examine(Behaviour::LosesNeedles);
    assert!(
        has(&report, "endpoint.ladder/needle-low") && has(&report, "endpoint.ladder/only-long-fails"),
        "{:#?}",
        report.findings
    );
    assert!(!has(&report, "endpoint.ladder/incoherent"));
    assert_eq!(report.verdict, Verdict::Faulty);
}

#[test]
fn a_failing_server_is_faulty_with_its_own_words() {
    let report = examine(Behaviour::Fails);
    assert!(has(&report, "endpoint.ladder/requests-failed"), "{:#?}", report.findings);
    assert!(report.findings.iter().any(|finding| finding.detail.contains("CUDA error")));
}

#[test]
fn no_model_server_is_undecided() {
    for behaviour in [Behaviour::Html, Behaviour::ClosesEarly] {
        let report = examine(behaviour);
        assert_eq!(
            (report.verdict, report.exit_code(Severity::Error)),
            (Verdict::Undecided, 2),
            "{behaviour:?}"
        );
        assert_eq!(report.obstacles.len(), 1, "{behaviour:?}");
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = diagnose(
        Subject { endpoint: Some(format!("http://127.0.0.1:{port}")), ..Subject::default() },
        &mut |_| {},
    );
    assert_eq!(nobody.exit_code(Severity::Error), 2);
    assert!(nobody.obstacles[0].contains("can't be reached"), "{:?}", nobody.obstacles);
    let nothing = diagnose(Subject::default(), &mut |_| {});
    assert_eq!(nothing.verdict, Verdict::Undecided);
}

#[test]
fn a_server_that_never_answers_is_asked_a_handful_of_times() {
    for behaviour in [Behaviour::Hangs, Behaviour::Drips] {
        let subject = Subject {
            endpoint: Some(start(behaviour)),
            timeout: Duration::from_millis(300),
            ..Subject::default()
        };
        let report = diagnose(subject, &mut |_| {});
        let asked = report.exchanges.iter().filter(|kept| kept.exchange.url.ends_with("/chat/completions"));
        assert!(asked.count() <= 4, "{behaviour:?}");
        assert_ne!(report.verdict, Verdict::Healthy, "{behaviour:?}");
        let skipped = report.checks.iter().filter(|check| check.outcome == CheckOutcome::Skipped);
        assert!(skipped.filter(|check| check.reason.as_ref().unwrap().contains("stalls")).count() >= 5);
    }
}

#[test]
fn an_examination_ends_when_its_time_is_up() {
    let subject = Subject {
        endpoint: Some(start(Behaviour::Right)),
        patience: Some(Duration::ZERO),
        ..Subject::default()
    };
    let report = diagnose(subject, &mut |_| {});
    assert_eq!(report.verdict, Verdict::Undecided);
    let reasons: Vec<_> = report.checks.iter().filter_map(|check| check.reason.as_deref()).collect();
    assert!(reasons.iter().any(|reason| reason.contains("that is the limit")), "{reasons:?}");
    assert!(report.cost.requests < 10, "{:?}", report.cost);
}

#[test]
fn progress_is_told_and_the_key_is_nowhere() {
    let mut seen = Vec::new();
    let subject = Subject {
        endpoint: Some(start(Behaviour::Right)),
        api_key: ApiKey::new("sk-not-for-print"),
        ..Subject::default()
    };
    let report = diagnose(subject, &mut |progress| seen.push(progress));
    assert!(matches!(seen.first(), Some(Progress::Started { check: "endpoint.liveness" })));
    assert!(
        seen.iter()
            .any(|progress| matches!(progress, Progress::Step { check: "endpoint.ladder", of: 8, .. }))
    );
    let everything = report::json::render(&report) + &report::html::render(&report).unwrap();
    assert!(!everything.contains("sk-not-for-print"));
}
