//! The reference against what real servers said. See `tests/data/README.md`.

use std::path::Path;

use lucid_checkpoint::Files;
use lucid_client::{ChatAnswer, Endpoint, Exchange, Message};
use lucid_engine::{Mode, Plant, SemanticsOptions};
use serde_json::Value;

use super::*;

fn canary() -> Reference {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/canary"));
    Reference::open(Files::open(folder).unwrap(), None).unwrap()
}

/// The recorded answers as the check sees them: the prompt rendered and tokenized by us, the answer's tokens resolved.
fn recorded(reference: &Reference) -> Vec<(String, Observed)> {
    let recordings: Vec<Value> =
        serde_json::from_str(include_str!("../../tests/data/chat-logprobs.json")).unwrap();
    let observe = |recording: &Value| {
        let messages: Vec<Message> =
            serde_json::from_value(recording["request"]["body"]["messages"].clone()).unwrap();
        let body = recording["body"].as_str().unwrap();
        let answer: ChatAnswer = serde_json::from_str(body).unwrap();
        let exchange: Exchange = serde_json::from_value(serde_json::json!({
            "method": "POST", "url": "", "status": 200, "body": body, "sent_unix_ms": 0, "seconds": 0.0
        }))
        .unwrap();
        let scored = Endpoint::chat_logprobs(&exchange, &answer).unwrap().unwrap();
        let prompt = reference.prompt(&messages).unwrap();
        assert_eq!(
            prompt.len() as u64,
            answer.usage.unwrap().prompt_tokens,
            "our rendering has the server's length"
        );
        let observed = observed(&|name| reference.id(name), &prompt, &[], &scored, 1);
        assert_eq!(observed.observations.len(), 16, "every token of the answer is resolved");
        (recording["server"].as_str().unwrap().to_owned(), observed)
    };
    recordings.iter().map(observe).collect()
}

#[test]
fn honest_servers_are_near_the_reference() {
    let reference = canary();
    let mut scorer = reference.scorer_as(None).unwrap();
    for (server, observed) in recorded(&reference) {
        let score = compare(&mut scorer, &observed).unwrap();
        assert_eq!(score.positions.len(), 16);
        assert!(score.mean_kl() < 1e-3, "{server}: {}", score.mean_kl());
        assert!(
            score.positions.iter().all(|position| position.top1 && position.delta < 0.2),
            "{server}: {score:?}"
        );
    }
}

#[test]
fn honest_servers_are_far_from_mistaken_models() {
    let reference = canary();
    let recordings = recorded(&reference);
    for plant in [Plant::RopeHalfSplit, Plant::Nvfp4GlobalScaleInverted] {
        let mut scorer = reference
            .scorer_with(&SemanticsOptions {
                mode: Mode::Reference,
                plant: Some(plant.into()),
                ..SemanticsOptions::default()
            })
            .unwrap();
        for (server, observed) in &recordings {
            let score = compare(&mut scorer, observed).unwrap();
            assert!(score.mean_kl() > 0.05, "{plant} {server}: {}", score.mean_kl());
        }
    }
}

/// llama-server lists the end's token and draws another one under `ignore_eos`; what follows is no text of the model's, and bfloat16's
/// rounding moves it as a fault would.
#[test]
fn an_answer_that_had_to_go_on_is_compared_up_to_its_end() {
    let reference = canary();
    let recording: Value = serde_json::from_str(include_str!("../../tests/data/past-end.json")).unwrap();
    let prompt: Vec<u32> = serde_json::from_value(recording["request"]["body"]["prompt"].clone()).unwrap();
    let choice = serde_json::from_value(recording["choice"].clone()).unwrap();
    let scored = lucid_client::Dialect::LlamaCpp.completion_logprobs(&choice).unwrap();
    let prompt: Vec<_> = prompt.into_iter().map(lucid_checkpoint::TokenId).collect();
    let mut observed = observed(&|name| reference.id(name), &prompt, &[], &scored, 1);
    let mut scorer = reference.scorer_as(None).unwrap();
    let all = compare(&mut scorer, &observed).unwrap();
    assert!(all.mean_kl() > 1e-3, "beyond any other honest difference: {}", all.mean_kl());
    observed.find_end(&reference.ends());
    let end = observed.end.unwrap();
    let listed = &observed.observations[end - prompt.len()].top;
    assert!(reference.ends().contains(&listed[0].0), "the likeliest there");
    assert!(!reference.ends().contains(&observed.tokens[end]), "and not drawn");
    let known = compare(&mut scorer, &observed).unwrap();
    assert_eq!(known.positions.len(), all.positions.len());
    assert!(known.known().count() > 16 && known.mean_kl() < 1e-5, "{}", known.mean_kl());
}

/// A docker client without a daemon says so in one line: that line is no log, and a log that was named and not read gives no verdict.
#[test]
fn a_complaint_is_no_log() {
    let source = |lines, error: Option<&str>| lucid_logs::SourceSummary {
        lines,
        error: error.map(str::to_owned),
        ..lucid_logs::SourceSummary::default()
    };
    let failed = Some("`docker logs kimi` failed (exit status: 1): Cannot connect to the Docker daemon");
    assert!(super::sources::unread(&source(1, failed)).is_some_and(|why| why.contains("Cannot connect")));
    assert!(super::sources::unread(&source(0, failed)).is_some());
    // What was read before it stopped is evidence.
    assert!(super::sources::unread(&source(9_000, failed)).is_none());
    assert!(super::sources::unread(&source(1, None)).is_none());
}
