//! Sparse attention in the engine: the same bits alone and together, in any chunk, on any number of threads, from the prefix cache and
//! after preemption. Index keys belong to pages, so they are found, shared and computed again with them.

#![allow(clippy::unwrap_used)] // The lint spares test functions, not what they share.

mod tiny;

use std::sync::mpsc::{Receiver, channel};

use lucid_engine::{Engine, EngineOptions, Event, Finish, LoadFormat, Request};
use tiny::Tiny;

fn submit(engine: &Engine, request: Request) -> Receiver<Event> {
    let (sender, events) = channel();
    engine.submit(request, move |event| sender.send(event).is_ok()).unwrap();
    events
}

/// All events of a request, and how much of its prompt was in the cache: that depends on who was there before.
fn collect(events: Receiver<Event>) -> (Vec<Event>, usize) {
    let mut cached = 0;
    let mut events: Vec<Event> = events.into_iter().collect();
    for event in &mut events {
        if let Event::Prompt { cached_tokens, .. } = event {
            cached = std::mem::take(cached_tokens);
        }
    }
    (events, cached)
}

fn alone(tiny: &Tiny, engine: &Engine) -> Vec<(Vec<Event>, usize)> {
    tiny.requests().into_iter().map(|request| collect(submit(engine, request))).collect()
}

fn together(tiny: &Tiny, engine: &Engine) -> Vec<Vec<Event>> {
    let running: Vec<_> = tiny.requests().into_iter().map(|request| submit(engine, request)).collect();
    running.into_iter().map(|events| collect(events).0).collect()
}

/// `Event` compares log-probabilities as floats, and none is NaN, so equal means equal bits (but for the sign of zero).
#[test]
fn the_same_bits_in_any_company_chunk_and_memory() {
    // Of each pairing one, and one with layers that share.
    for name in ["deepseek-v3.2", "glm-5.2"] {
        let tiny = Tiny::new(name);
        let (checkpoint, _folder) = tiny.checkpoint();
        let start = |options: EngineOptions| Engine::start(&checkpoint, &options).unwrap();
        let default = EngineOptions { max_model_len: Some(192), ..EngineOptions::default() };

        let cold = start(EngineOptions { threads: Some(1), prefix_cache: false, ..default.clone() });
        let (cold, cached): (Vec<_>, Vec<_>) = alone(&tiny, &cold).into_iter().unzip();
        assert_eq!(cached, [0; 6]);
        assert!(
            cold.iter().all(|events| matches!(
                events.last(),
                Some(Event::Finished(Finish::Length | Finish::Stop(_)))
            ))
        );
        for (max_step_tokens, threads) in [(1, 2), (7, 3), (64, 1)] {
            let engine = start(EngineOptions {
                max_step_tokens: Some(max_step_tokens),
                threads: Some(threads),
                ..default.clone()
            });
            assert!(
                together(&tiny, &engine) == cold,
                "{name}: steps of {max_step_tokens} on {threads} threads"
            );
        }
        // From the cache: the third and the fifth begin with two pages of the second.
        let (warm, cached): (Vec<_>, Vec<_>) = alone(&tiny, &start(default.clone())).into_iter().unzip();
        assert_eq!(cached, [0, 0, 128, 0, 128, 0]);
        assert!(warm == cold, "{name}: from the prefix cache");
        // Six requests grow from two pages to three at the same time, and there are eleven: some are pushed out.
        let growing = |engine: &Engine| {
            let request = |i: usize| Request {
                prompt: tiny.tokens[i..i + 120].to_vec(),
                max_tokens: 20,
                logprobs: Some(3),
                ..Request::default()
            };
            let running: Vec<_> = (0..6).map(|i| submit(engine, request(i))).collect();
            running.into_iter().map(|events| collect(events).0).collect::<Vec<_>>()
        };
        let roomy = growing(&start(EngineOptions { prefix_cache: false, ..default.clone() }));
        let tight = start(EngineOptions { kv_cache_tokens: 11 * 64, prefix_cache: false, ..default });
        assert!(growing(&tight) == roomy, "{name}: preempted");
    }
}

/// Random weights of a sparse model's shapes: every token has finite logits.
#[test]
fn dummy_weights_serve() {
    let tiny = Tiny::new("glm-5.2");
    let (checkpoint, _folder) = tiny.checkpoint();
    let options = EngineOptions { load_format: LoadFormat::Dummy, ..EngineOptions::default() };
    let request = Request { prompt: tiny.tokens[..100].to_vec(), max_tokens: 5, ..Request::default() };
    let events: Vec<Event> =
        submit(&Engine::start(&checkpoint, &options).unwrap(), request).into_iter().collect();
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Token { .. })).count(), 5);
    assert_eq!(events.last(), Some(&Event::Finished(Finish::Length)));
}
