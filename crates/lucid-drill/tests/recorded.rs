//! A record in place of the checkpoint: what transformers computed, what a trusted server said, what another server says.
#![allow(clippy::unwrap_used)] // integration test

#[path = "../../lucid-engine/tests/goldens/mod.rs"]
mod goldens;

use lucid_checkpoint::{Files, TokenId};
use lucid_doctor::{
    CheckOutcome, Depth, Passage, Record, Recorded, Report, Subject, Verdict, diagnose, record,
};
use lucid_drill::serve;
use lucid_engine::Plant as Engine;
use lucid_server::{Plant, RunningServer};

fn server(plant: Option<Engine>) -> RunningServer {
    let files = Files::open(&goldens::models().join("canary")).unwrap();
    serve(&files, "canary", plant.map(Plant::Engine)).unwrap()
}

fn examine(server: &RunningServer, record: Record) -> Report {
    let subject = Subject {
        endpoint: Some(server.url().to_owned()),
        record: Some(record),
        depth: Depth::Quick,
        ..Subject::default()
    };
    diagnose(subject, &mut |_| {})
}

fn outcome(report: &Report, check: &str) -> CheckOutcome {
    report.checks.iter().find(|result| result.id == check).unwrap().outcome
}

/// The golden prompts and completions, with transformers' sixteen likeliest tokens at every position.
fn transformers() -> Record {
    let goldens = goldens::Goldens::open();
    let mut record = Record::new("transformers".to_owned(), String::new(), serde_json::Value::Null);
    for prompt in goldens::prompts() {
        let (shape, logprobs) = goldens.f32s(&format!("{}.top_logprobs", prompt.name));
        let ids = goldens.ids(&format!("{}.top_ids", prompt.name));
        let width = *shape.last().unwrap();
        let observations = (1..prompt.tokens.len()).filter_map(|position| {
            let row = (position - 1) * width..position * width;
            let top: Vec<(TokenId, f64)> = ids[row.clone()]
                .iter()
                .zip(&logprobs[row])
                .map(|(id, logprob)| (TokenId(*id as u32), f64::from(*logprob)))
                .collect();
            // Of a token that isn't listed nothing is known.
            let standing = top.iter().find(|(id, _)| *id == prompt.tokens[position])?.1;
            Some(Recorded { position, logprob: standing, rank: 0, top })
        });
        record.passages.push(Passage {
            name: prompt.name.clone(),
            tokens: prompt.tokens.clone(),
            prompt: prompt.prompt_len,
            observations: observations.collect(),
        });
    }
    record
}

#[test]
fn a_server_is_compared_with_what_transformers_computed() {
    let report = examine(&server(None), transformers());
    assert_eq!(report.verdict, Verdict::Healthy, "{:#?}", report.findings);
    let divergence = report.divergence.unwrap();
    assert!(divergence.decision == "same" && divergence.kl.mean < 1e-5, "{divergence:?}");
    assert_eq!(divergence.semantics, "recorded from transformers");
    let report = examine(&server(Some(Engine::RopeHalfSplit)), transformers());
    assert_eq!(
        (report.verdict, outcome(&report, "reference.logprobs")),
        (Verdict::Faulty, CheckOutcome::Found)
    );
    // Nobody can compute hypotheses from a record.
    assert_eq!(outcome(&report, "reference.hypotheses"), CheckOutcome::Skipped);
}

#[test]
fn a_trusted_server_takes_the_checkpoints_place() {
    let trusted = server(None);
    let subject = Subject {
        endpoint: Some(trusted.url().to_owned()),
        depth: Depth::Quick,
        seed: 3,
        ..Subject::default()
    };
    let mut steps = 0;
    let recorded = record(&subject, &mut |_, _| steps += 1).unwrap();
    assert!(recorded.passages.len() >= 8 && steps >= recorded.passages.len(), "{}", recorded.checkpoint);
    assert!(recorded.checkpoint.starts_with("Lucid") && recorded.semantics["kv_cache"] == "bf16");
    // As files keep it.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.json");
    std::fs::write(&path, serde_json::to_string(&recorded).unwrap()).unwrap();
    let recorded = Record::open(&path).unwrap();
    let healthy = examine(&server(None), recorded.clone());
    assert_eq!(healthy.verdict, Verdict::Healthy, "{:#?}", healthy.findings);
    assert!(healthy.divergence.unwrap().kl.mean < 1e-9, "the same program");
    let broken = examine(&server(Some(Engine::RoutedScalingMissing)), recorded);
    assert_eq!(broken.verdict, Verdict::Faulty);
    assert_eq!(broken.divergence.unwrap().decision, "different");
    std::fs::write(&path, "{}").unwrap();
    assert!(Record::open(&path).unwrap_err().to_string().contains("record.json"));
}
