//! The engine as a whole: the same bits in any batch, any chunk, any number of threads; requests that end as they should.

// clippy.toml allows `unwrap` in test functions; here the functions around them are tests as well.
#![allow(clippy::unwrap_used)]

mod goldens;

use std::sync::mpsc::{Receiver, channel};

use goldens::canary;
use lucid_checkpoint::TokenId;
use lucid_engine::{
    Activations, Engine, EngineOptions, Event, ExpertSharing, Finish, KvCacheDtype, LoadFormat, Mode,
    Rejected, Request, Sampling, SemanticsOptions,
};

fn start(options: &EngineOptions) -> Engine {
    Engine::start(&canary(), options).unwrap()
}

/// Prompts and completions of the goldens, the short ones.
fn prompts() -> Vec<(Vec<TokenId>, Vec<TokenId>)> {
    let all = goldens::prompts().into_iter().filter(|golden| golden.prompt_len < 200);
    all.map(|golden| {
        let (prompt, completion) = golden.tokens.split_at(golden.prompt_len);
        (prompt.to_vec(), completion.to_vec())
    })
    .collect()
}

fn submit(engine: &Engine, request: Request) -> Receiver<Event> {
    let (sender, events) = channel();
    engine.submit(request, move |event| sender.send(event).is_ok()).unwrap();
    events
}

/// Requests of every kind: greedy and sampled, with and without log-probabilities.
fn requests() -> Vec<Request> {
    let kinds = prompts().into_iter().enumerate().flat_map(|(i, (prompt, _))| {
        let request = Request {
            prompt,
            max_tokens: 12,
            logprobs: Some(i % 4),
            prompt_logprobs: (i % 2 == 0).then_some(2),
            ..Request::default()
        };
        let sampled = Sampling { temperature: 1.0, top_p: 0.95, seed: Some(i as u64), ..Sampling::default() };
        let sampled = Request { sampling: sampled, prompt_logprobs: None, ..request.clone() };
        [request, sampled]
    });
    kinds.collect()
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

fn run_alone(engine: &Engine) -> Vec<Vec<Event>> {
    requests().into_iter().map(|request| collect(submit(engine, request)).0).collect()
}

fn run_together(engine: &Engine) -> Vec<Vec<Event>> {
    let running: Vec<_> = requests().into_iter().map(|request| submit(engine, request)).collect();
    running.into_iter().map(|events| collect(events).0).collect()
}

/// `Event` compares log-probabilities as floats, and none is NaN, so equal means equal bits (but for the sign of zero).
#[test]
fn the_same_bits_alone_and_together_in_any_chunk_on_any_number_of_threads() {
    let cold = EngineOptions { threads: Some(1), prefix_cache: false, ..EngineOptions::default() };
    let alone = run_alone(&start(&cold));
    assert!(alone.len() > 17 && alone.iter().all(|events| matches!(events.last(), Some(Event::Finished(_)))));
    for (max_step_tokens, threads) in [(1, 2), (7, 3), (64, 2), (512, 1)] {
        let options = EngineOptions {
            max_step_tokens: Some(max_step_tokens),
            threads: Some(threads),
            ..EngineOptions::default()
        };
        let together = run_together(&start(&options));
        assert!(together == alone, "steps of {max_step_tokens} tokens on {threads} threads differ");
    }
}

/// W4A4 and an fp8 cache, in both modes: rounding must not see the batch either.
#[test]
fn the_same_bits_in_every_arithmetic() {
    let fp8 = Some(KvCacheDtype::Fp8E4m3);
    for (mode, kv_cache, activations) in [
        (Mode::Serving, fp8, Activations::W4A4),
        (Mode::Reference, fp8, Activations::W4A16),
        (Mode::Reference, Some(KvCacheDtype::Bf16), Activations::W4A4),
        (Mode::Serving, Some(KvCacheDtype::F32), Activations::W4A16),
    ] {
        let semantics = SemanticsOptions { mode, kv_cache, activations, ..SemanticsOptions::default() };
        let usual = EngineOptions { semantics, ..EngineOptions::default() };
        let alone =
            run_alone(&start(&EngineOptions { threads: Some(1), prefix_cache: false, ..usual.clone() }));
        for (max_step_tokens, threads) in [(7, 2), (512, 1)] {
            let options = EngineOptions {
                max_step_tokens: Some(max_step_tokens),
                threads: Some(threads),
                ..usual.clone()
            };
            let together = run_together(&start(&options));
            assert!(together == alone, "{mode:?} {kv_cache:?} {activations:?} in steps of {max_step_tokens}");
        }
    }
}

/// A processor computes prompts and answers by different forms of attention. The same tokens, once as an answer and once as a
/// prompt: differences come from the order of f32 sums and from what the cache rounds to bf16 in their wake.
#[test]
fn an_answer_that_comes_back_as_a_prompt_is_scored_alike() {
    let engine = start(&EngineOptions::default());
    let (mut worst, mut count) = (0f32, 0);
    for (prompt, _) in prompts() {
        let request =
            Request { prompt: prompt.clone(), max_tokens: 40, logprobs: Some(0), ..Request::default() };
        let mut tokens = prompt.clone();
        let mut drawn = Vec::new();
        for event in submit(&engine, request) {
            if let Event::Token { id, logprobs } = event {
                tokens.push(id);
                drawn.push(logprobs.unwrap().token.logprob);
            }
        }
        let scored =
            Request { prompt: tokens, max_tokens: 0, prompt_logprobs: Some(0), ..Request::default() };
        let events: Vec<Event> = submit(&engine, scored).into_iter().collect();
        let Some(Event::Prompt { logprobs: Some(logprobs), .. }) = events.first() else {
            panic!("{events:?}")
        };
        for (drawn, scored) in drawn.iter().zip(&logprobs[prompt.len()..]) {
            worst = worst.max((drawn - scored.as_ref().unwrap().token.logprob).abs());
            count += 1;
        }
    }
    println!("{count} log-probabilities, the largest difference is {worst:.2e}");
    assert!(count > 300 && worst < 2e-3, "{count} log-probabilities, the largest difference is {worst}");
}

#[test]
fn preempted_requests_go_on_with_the_same_bits() {
    let alone = run_alone(&start(&EngineOptions { prefix_cache: false, ..EngineOptions::default() }));
    // Five pages of 64 tokens for requests that need up to three each: they push each other out.
    let options = EngineOptions {
        kv_cache_tokens: 320,
        max_model_len: Some(320),
        max_running: 8,
        ..EngineOptions::default()
    };
    let engine = start(&options);
    assert!(run_together(&engine) == alone);
}

/// Requests that go on where another one's prompt ends, with and without the pages of that one.
#[test]
fn cold_and_warm_answers_have_the_same_bits() {
    let long = goldens::prompts().into_iter().max_by_key(|golden| golden.prompt_len).unwrap();
    let prompt = &long.tokens[..long.prompt_len.min(700)];
    let requests = |engine: &Engine| -> Vec<(Vec<Event>, usize)> {
        // Whole, then from the middle of a page, from a page's end, and beyond the pages that can be shared.
        let cuts = [prompt.len(), 200, 256, 320, prompt.len(), 130];
        let request = |cut: usize, other: u32| {
            let mut prompt = prompt[..cut].to_vec();
            prompt.extend((0..other).map(|i| TokenId(100 + other + i)));
            let (max_tokens, logprobs) = (20, Some(3));
            collect(submit(engine, Request { prompt, max_tokens, logprobs, ..Request::default() }))
        };
        cuts.into_iter().zip([0, 70, 3, 0, 0, 1]).map(|(cut, other)| request(cut, other)).collect()
    };
    let cold = requests(&start(&EngineOptions { prefix_cache: false, ..EngineOptions::default() }));
    let engine = start(&EngineOptions { max_step_tokens: Some(100), ..EngineOptions::default() });
    let warm = requests(&engine);
    assert_eq!(cold.iter().map(|(_, cached)| *cached).collect::<Vec<_>>(), [0; 6]);
    let pages = |tokens: usize| tokens / 64 * 64;
    let expected = [0, pages(200), 256, 256, pages(prompt.len() - 1), 128];
    assert_eq!(warm.iter().map(|(_, cached)| *cached).collect::<Vec<_>>(), expected);
    assert_eq!(engine.stats().cached_prompt_tokens, expected.iter().sum::<usize>() as u64);
    for ((cold, _), (warm, _)) in cold.iter().zip(&warm) {
        assert!(cold == warm);
    }
}

#[test]
fn greedy_completions_are_those_of_transformers() {
    let engine = start(&EngineOptions::default());
    for (prompt, completion) in prompts() {
        let end = *completion.last().unwrap();
        let request = Request { prompt, max_tokens: 300, stop_tokens: vec![end], ..Request::default() };
        let events: Vec<Event> = submit(&engine, request).into_iter().collect();
        let tokens: Vec<TokenId> = events
            .iter()
            .filter_map(|event| if let Event::Token { id, .. } = event { Some(*id) } else { None })
            .collect();
        assert_eq!(tokens, completion);
        assert_eq!(events.last(), Some(&Event::Finished(Finish::Stop(end))));
    }
    assert_eq!(engine.unhealthy(), None);
}

#[test]
fn a_receiver_that_goes_away_cancels_its_request() {
    let engine = start(&EngineOptions::default());
    let (prompt, _) = prompts().swap_remove(0);
    let (sender, events) = channel();
    let request = Request { prompt, max_tokens: 1000, ..Request::default() };
    let mut tokens = 0;
    engine
        .submit(request, move |event| {
            tokens += usize::from(matches!(event, Event::Token { .. }));
            sender.send(event).is_ok() && tokens < 3
        })
        .unwrap();
    let events: Vec<Event> = events.into_iter().collect();
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Token { .. })).count(), 3);
    assert_eq!(events.last(), Some(&Event::Finished(Finish::Cancelled)));
}

#[test]
fn cancelling_and_shutting_down_end_requests() {
    let engine = start(&EngineOptions::default());
    let (prompt, _) = prompts().swap_remove(0);
    let request = Request { prompt, max_tokens: 4000, ..Request::default() };
    let (sender, events) = channel();
    let id = engine.submit(request.clone(), move |event| sender.send(event).is_ok()).unwrap();
    engine.cancel(id);
    assert_eq!(events.into_iter().last(), Some(Event::Finished(Finish::Cancelled)));
    let events = submit(&engine, request.clone());
    engine.shutdown();
    assert_eq!(events.into_iter().last(), Some(Event::Finished(Finish::Cancelled)));
    // The thread may take a moment to end; what is submitted until then is dropped, which the receiver sees.
    let (sender, events) = channel();
    match engine.submit(request, move |event| sender.send(event).is_ok()) {
        Ok(_) => assert!(events.into_iter().all(|event| event == Event::Finished(Finish::Cancelled))),
        Err(rejected) => assert!(matches!(rejected, Rejected::Stopped(_))),
    }
}

#[test]
fn requests_that_cannot_run_are_refused() {
    let engine = start(&EngineOptions { max_model_len: Some(100), ..EngineOptions::default() });
    let refused = |request: Request| engine.submit(request, |_| true).unwrap_err();
    let prompt = |len: usize| vec![TokenId(5); len];
    assert_eq!(refused(Request::default()), Rejected::EmptyPrompt);
    let too_long = Request { prompt: prompt(100), max_tokens: 1, ..Request::default() };
    assert_eq!(refused(too_long), Rejected::TooLong { prompt: 100, max_model_len: 100 });
    let unknown = Request { prompt: vec![TokenId(4096)], ..Request::default() };
    assert_eq!(refused(unknown), Rejected::UnknownToken { token: 4096, vocab_size: 4096 });
    let sampling = Sampling { temperature: -1.0, ..Sampling::default() };
    let cold = Request { prompt: prompt(1), sampling, ..Request::default() };
    assert!(matches!(refused(cold), Rejected::BadParameter { parameter: "temperature", .. }));
    // A prompt that fills the context can still be scored.
    let scored = Request { prompt: prompt(100), prompt_logprobs: Some(0), ..Request::default() };
    let events: Vec<Event> = submit(&engine, scored).into_iter().collect();
    let [Event::Prompt { logprobs: Some(logprobs), .. }, Event::Finished(Finish::Length)] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(logprobs.len(), 100);
    assert!(logprobs[0].is_none() && logprobs[1..].iter().all(Option::is_some));
}

/// Ranks with whole experts: which of them have something to do depends on the batch, the bits don't.
#[test]
fn the_same_bits_in_any_batch_on_ranks_with_whole_experts() {
    let ranks = EngineOptions { ranks: 4, experts: ExpertSharing::Whole, ..EngineOptions::default() };
    let alone = run_alone(&start(&EngineOptions { threads: Some(1), prefix_cache: false, ..ranks.clone() }));
    for (max_step_tokens, threads) in [(7, 2), (512, 1)] {
        let options =
            EngineOptions { max_step_tokens: Some(max_step_tokens), threads: Some(threads), ..ranks.clone() };
        assert!(run_together(&start(&options)) == alone, "steps of {max_step_tokens} tokens");
    }
}

/// Random weights of the canary's shapes, on several ranks: every token has finite logits.
#[test]
fn dummy_weights_serve() {
    for (ranks, experts) in [(2, ExpertSharing::Widths), (4, ExpertSharing::Whole)] {
        let options =
            EngineOptions { load_format: LoadFormat::Dummy, ranks, experts, ..EngineOptions::default() };
        let request = Request { prompt: prompts()[0].0.clone(), max_tokens: 5, ..Request::default() };
        let events: Vec<Event> = submit(&start(&options), request).into_iter().collect();
        assert_eq!(events.iter().filter(|event| matches!(event, Event::Token { .. })).count(), 5);
        assert_eq!(events.last(), Some(&Event::Finished(Finish::Length)));
    }
}

/// Which experts each token went to, as the scorer's observer sees it: `[tokens][layers]`.
#[derive(Default)]
struct Seen(std::collections::BTreeMap<(usize, usize), Vec<usize>>);

impl lucid_engine::Observer for Seen {
    fn routes(&mut self, layer: usize, row: usize, routes: &[lucid_engine::Route]) {
        self.0.insert((row, layer), routes.iter().map(|route| route.expert).collect());
    }
}

#[test]
fn routes_are_those_that_the_scorer_sees_whoever_else_is_there() {
    let engine = start(&EngineOptions { max_step_tokens: Some(7), ..EngineOptions::default() });
    let asked = |routes| {
        let ask = |(prompt, _): &(Vec<TokenId>, Vec<TokenId>)| Request {
            prompt: prompt.clone(),
            max_tokens: 5,
            routes,
            ..Request::default()
        };
        prompts().iter().take(3).map(ask).collect::<Vec<_>>()
    };
    let silent: Vec<_> = asked(false).into_iter().map(|request| submit(&engine, request)).collect();
    let told: Vec<_> = asked(true).into_iter().map(|request| submit(&engine, request)).collect();
    for events in silent {
        assert!(!events.into_iter().any(|event| matches!(event, Event::Routes(_))));
    }
    let mut scorer = lucid_engine::Scorer::new(&canary(), &SemanticsOptions::default(), Some(2)).unwrap();
    for (events, (prompt, _)) in told.into_iter().zip(prompts()) {
        let mut tokens = prompt.clone();
        let mut routes = None;
        for event in events {
            match event {
                Event::Token { id, .. } => tokens.push(id),
                Event::Routes(told) => routes = Some(told),
                _ => {}
            }
        }
        // Nothing was computed after the last token.
        tokens.pop();
        let routes = routes.unwrap();
        let mut seen = Seen::default();
        assert!(tokens.len() < 256, "one chunk of the scorer");
        scorer.score_answer_observed(&tokens, prompt.len(), |_, _| (), &mut seen).unwrap();
        assert_eq!(routes.experts.len(), tokens.len() * routes.layers * routes.top_k);
        for (row, token) in routes.experts.chunks(routes.layers * routes.top_k).enumerate() {
            for (layer, experts) in token.chunks(routes.top_k).enumerate() {
                let experts: Vec<usize> = experts.iter().map(|expert| usize::from(*expert)).collect();
                match seen.0.get(&(row, layer)) {
                    Some(right) => assert_eq!(&experts, right, "token {row}, layer {layer}"),
                    None => assert!(layer == 0 && experts.iter().all(|expert| *expert == 0)),
                }
            }
        }
    }
}

#[test]
fn after_a_reset_nothing_comes_from_the_prefix_cache() {
    let engine = start(&EngineOptions::default());
    let (prompt, _) = prompts().into_iter().max_by_key(|(prompt, _)| prompt.len()).unwrap();
    assert!(prompt.len() > 64, "a whole page");
    let ask = || {
        let request = Request { prompt: prompt.clone(), max_tokens: 4, ..Request::default() };
        collect(submit(&engine, request))
    };
    let (first, cold) = ask();
    let (warm, cached) = ask();
    assert!(cold == 0 && cached > 0);
    let (told, done) = channel();
    engine.reset_prefix_cache(move || told.send(()).unwrap()).unwrap();
    done.recv().unwrap();
    let (again, cached) = ask();
    assert_eq!(cached, 0);
    assert_eq!((&warm, &again), (&first, &first));
    assert!(ask().1 > 0, "and it is filled anew");
}
