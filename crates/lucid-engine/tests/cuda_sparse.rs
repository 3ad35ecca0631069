//! Sparse attention on a GPU: transformers' goldens, the processor's choices, and the promise that batches and chunks don't change a bit.
//!
//! Without a GPU every test says "skipped: no CUDA device" and passes; with `LUCID_REQUIRE_CUDA` set it fails instead.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // The lints spare test functions, not what they share.

mod tiny;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::mpsc::channel;

use lucid_checkpoint::{Checkpoint, TokenId};
use lucid_engine::{
    Device, Engine, EngineOptions, Event, Finish, Mode, Observer, Request, Scorer, SemanticsOptions,
};
use serde_json::json;
use tiny::Tiny;

/// Of logits whose standard deviation is 1, in f32 on both sides.
const TOLERANCE: f32 = 1e-3;
/// The one whose sizes the GPU takes.
const NAME: &str = "deepseek-v3.2-wide";

#[derive(Default)]
struct Chosen(BTreeMap<(usize, usize), Vec<u32>>);

impl Observer for Chosen {
    fn chosen(&mut self, layer: usize, row: usize, positions: &[u32]) {
        self.0.insert((layer, row), positions.to_vec());
    }
}

fn skip(error: &lucid_engine::Error) {
    assert!(std::env::var_os("LUCID_REQUIRE_CUDA").is_none(), "{error}");
    // Not through `println!`, which the test harness swallows.
    let _ = writeln!(std::io::stderr(), "skipped: no CUDA device ({error})");
}

/// Log-probabilities `[tokens][vocab]`, and what was chosen; transformers builds the latent norms with 1e-6 whatever the config says.
fn score(device: Device, tokens: &[TokenId], checkpoint: &Checkpoint) -> Option<(Vec<Vec<f32>>, Chosen)> {
    let semantics = SemanticsOptions {
        mode: Mode::Reference,
        latent_norm_eps: Some(1e-6),
        ..SemanticsOptions::default()
    };
    let mut scorer =
        Scorer::on(device, checkpoint, &semantics, Some(2)).map_err(|error| skip(&error)).ok()?;
    let (mut all, mut chosen) = (Vec::new(), Chosen::default());
    let visit = |_: usize, logprobs: &[f32]| all.push(logprobs.to_vec());
    scorer.score_observed(tokens, visit, &mut chosen).unwrap();
    Some((all, chosen))
}

fn largest_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn logits_and_choices_are_those_of_transformers() {
    let tiny = Tiny::new(NAME);
    let (checkpoint, _folder) = tiny.checkpoint();
    let Some((logprobs, chosen)) = score(Device::Cuda(0), &tiny.tokens, &checkpoint) else { return };
    let golden: Vec<Vec<f32>> = tiny
        .logits()
        .iter()
        .map(|logits| {
            let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            logits.iter().map(|&x| (f64::from(x) - sum.ln()) as f32).collect()
        })
        .collect();
    let most = tiny.size("index_topk");
    for (layer, selected) in tiny.selected().iter().enumerate() {
        for (row, expected) in selected.iter().enumerate().skip(most) {
            assert_eq!(&chosen.0[&(layer, row)], expected, "layer {layer}, token {row}");
        }
    }
    let difference = largest_difference(&logprobs, &golden);
    println!("largest difference {difference:.2e}");
    assert!(difference < TOLERANCE, "a log-probability is off by {difference}");
}

/// The other pairing, and a layer that shares: as GLM has them. The processor's answers are held to transformers' elsewhere.
#[test]
fn what_glm_does_otherwise_is_as_on_the_processor() {
    let tiny = Tiny::new(NAME);
    let (checkpoint, _folder) = tiny.checkpoint_with(|config, _| {
        config.insert("indexer_rope_interleave".into(), json!(true));
        config.insert("indexer_types".into(), json!(["full", "shared", "full"]));
    });
    let Some((logprobs, chosen)) = score(Device::Cuda(0), &tiny.tokens, &checkpoint) else { return };
    let (expected, same) = score(Device::Cpu, &tiny.tokens, &checkpoint).unwrap();
    assert_eq!(chosen.0, same.0);
    assert_eq!(chosen.0[&(0, 149)], chosen.0[&(1, 149)]);
    let difference = largest_difference(&logprobs, &expected);
    assert!(difference < TOLERANCE, "a log-probability is off by {difference}");
}

/// Each request's events, but for how much of its prompt was in the cache: that depends on who was there before.
fn run(engine: &Engine, requests: &[Request]) -> Vec<Vec<Event>> {
    let (send, receive) = channel();
    for (i, request) in requests.iter().enumerate() {
        let send = send.clone();
        engine.submit(request.clone(), move |event| send.send((i, event)).is_ok()).unwrap();
    }
    drop(send);
    let mut events = vec![Vec::new(); requests.len()];
    for (i, event) in receive {
        events[i].push(match event {
            Event::Prompt { logprobs, .. } => Event::Prompt { cached_tokens: 0, logprobs },
            event => event,
        });
    }
    for events in &events {
        assert!(
            matches!(events.last(), Some(Event::Finished(Finish::Length | Finish::Stop(_)))),
            "{events:?}"
        );
    }
    events
}

/// `Event` compares log-probabilities as floats, and none is NaN, so equal means equal bits (but for the sign of zero).
#[test]
fn the_same_bits_in_any_company_and_chunk() {
    let tiny = Tiny::new(NAME);
    let (checkpoint, _folder) = tiny.checkpoint();
    let default =
        EngineOptions { device: Device::Cuda(0), max_model_len: Some(192), ..EngineOptions::default() };
    let start = |options: EngineOptions| Engine::start(&checkpoint, &options);
    let cold = match start(EngineOptions { prefix_cache: false, ..default.clone() }) {
        Ok(engine) => engine,
        Err(error) => return skip(&error),
    };
    let requests = tiny.requests();
    let alone: Vec<Vec<Event>> =
        requests.iter().map(|request| run(&cold, std::slice::from_ref(request)).remove(0)).collect();
    assert_eq!(run(&cold, &requests), alone);
    for max_step_tokens in [1, 7, 64, 100] {
        let engine =
            start(EngineOptions { max_step_tokens: Some(max_step_tokens), ..default.clone() }).unwrap();
        assert_eq!(run(&engine, &requests), alone, "steps of {max_step_tokens}");
        // Now from the cache.
        assert_eq!(run(&engine, &requests), alone, "again, steps of {max_step_tokens}");
    }
}
