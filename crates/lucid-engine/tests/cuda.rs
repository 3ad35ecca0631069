//! The model on a GPU: transformers' goldens, and the promise that batches and chunks don't change a bit.
//!
//! Without a GPU every test says "skipped: no CUDA device" and passes; with `LUCID_REQUIRE_CUDA` set it fails instead.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // The lints spare test functions, not what they share.

mod goldens;
mod on_gpu;
#[allow(dead_code)] // The processor's tests use all of it.
mod repack;

use std::io::Write;
use std::time::Instant;

use goldens::{Goldens, TOLERANCE, canary, models, prompts};
use lucid_checkpoint::{Checkpoint, Files, TokenId};
use lucid_engine::{
    Engine, EngineOptions, KvCacheDtype, Mode, Observer, Request, Route, Sampling, Scorer, SemanticsOptions,
};
use on_gpu::{Answer, GPU, engine, generate, request, semantics, skip};

fn scorer(mode: Mode) -> Option<Scorer> {
    Scorer::on(GPU, &canary(), &semantics(mode), None).map_err(|error| skip(&error)).ok()
}

#[test]
fn logprobs_match_at_every_position_of_every_prompt() {
    let goldens = Goldens::open();
    let Some(mut scorer) = scorer(Mode::Reference) else { return };
    for prompt in prompts() {
        let name = &prompt.name;
        let ids = goldens.ids(&format!("{name}.top_ids"));
        let (_, top) = goldens.f32s(&format!("{name}.top_logprobs"));
        let (mut worst, mut positions) = (0f32, 0);
        scorer
            .score(&prompt.tokens, |position, logprobs| {
                positions += 1;
                for k in position * 16..(position + 1) * 16 {
                    worst = worst.max((logprobs[ids[k]] - top[k]).abs());
                }
            })
            .unwrap();
        println!("{name}: {positions} positions, largest difference {worst:.2e}");
        assert_eq!(positions, prompt.tokens.len());
        assert!(worst < TOLERANCE, "{name}: a log-probability is off by {worst}");
    }
}

/// Every answer is generated, token by token, by the engine. The bf16 cache of serving may decide a near-tie the other way:
/// where it does, the float32 golden itself must have seen one.
#[test]
fn greedy_answers_are_the_goldens() {
    let goldens = Goldens::open();
    for mode in [Mode::Reference, Mode::Serving] {
        let Some(engine) = engine(EngineOptions { semantics: semantics(mode), ..EngineOptions::default() })
        else {
            return;
        };
        let prompts = prompts();
        let mut equal = 0;
        for prompt in &prompts {
            let answer = generate(&engine, &[request(prompt)]).remove(0);
            let golden = &prompt.tokens[prompt.prompt_len..];
            let Some(first) = answer.tokens.iter().zip(golden).position(|(ours, golden)| ours != golden)
            else {
                assert_eq!(answer.tokens.len(), golden.len(), "{mode:?} {}", prompt.name);
                equal += 1;
                continue;
            };
            let (_, top) = goldens.f32s(&format!("{}.top_logprobs", prompt.name));
            let at = (prompt.prompt_len + first - 1) * 16;
            let margin = top[at] - top[at + 1];
            println!(
                "{mode:?} {}: token {first} differs, where the golden's margin is {margin:.3}",
                prompt.name
            );
            assert!(
                mode == Mode::Serving && margin < 0.05,
                "{mode:?} {}: token {first} of the answer",
                prompt.name
            );
        }
        println!("{mode:?}: {equal} of {} answers are the goldens", prompts.len());
        assert_eq!(prompts.len(), 14);
        assert!(equal >= if mode == Mode::Reference { 14 } else { 13 });
        engine.shutdown();
    }
}

#[derive(Default)]
struct Trace {
    hidden: Vec<Vec<f32>>,
    routes: Vec<(usize, usize, Vec<Route>)>,
}

impl Observer for Trace {
    fn hidden(&mut self, _layer: usize, values: &[f32]) {
        self.hidden.push(values.to_vec());
    }

    fn routes(&mut self, layer: usize, row: usize, routes: &[Route]) {
        self.routes.push((layer, row, routes.to_vec()));
    }
}

/// Hidden states after every layer and all routes, against the processor.
#[test]
fn the_inside_of_a_step_matches_the_processor() {
    let Some(mut on_gpu) = scorer(Mode::Reference) else { return };
    let mut on_cpu = Scorer::new(&canary(), &semantics(Mode::Reference), None).unwrap();
    let prompt = prompts().into_iter().find(|prompt| prompt.name == "capital").unwrap();
    let (mut gpu, mut cpu) = (Trace::default(), Trace::default());
    on_gpu.score_observed(&prompt.tokens, |_, _| {}, &mut gpu).unwrap();
    on_cpu.score_observed(&prompt.tokens, |_, _| {}, &mut cpu).unwrap();
    assert_eq!((gpu.hidden.len(), gpu.routes.len()), (cpu.hidden.len(), cpu.routes.len()));
    for (layer, (gpu, cpu)) in gpu.hidden.iter().zip(&cpu.hidden).enumerate() {
        let difference = gpu.iter().zip(cpu).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
        let norm = cpu.iter().map(|a| a * a).sum::<f32>().sqrt();
        assert!(difference < 1e-4 * norm, "layer {layer}: {difference} of {norm}");
    }
    for ((layer, row, gpu), (cpu_layer, cpu_row, cpu)) in gpu.routes.iter().zip(&cpu.routes) {
        assert_eq!((layer, row), (cpu_layer, cpu_row));
        for (gpu, cpu) in gpu.iter().zip(cpu) {
            assert!(gpu.expert == cpu.expert && (gpu.weight - cpu.weight).abs() < 1e-4, "{gpu:?} {cpu:?}");
        }
    }
}

#[test]
fn batches_and_chunks_dont_change_a_bit() {
    for kv_cache in [None, Some(KvCacheDtype::Fp8E4m3)] {
        batches_and_chunks(&SemanticsOptions { kv_cache, ..semantics(Mode::Serving) });
    }
}

fn batches_and_chunks(semantics: &SemanticsOptions) {
    let prompts = prompts();
    let Some(alone) =
        engine(EngineOptions { max_running: 1, semantics: semantics.clone(), ..EngineOptions::default() })
    else {
        return;
    };
    // Seventeen: not a multiple of anything that the kernels like.
    let requests: Vec<Request> = (0..17).map(|i| request(&prompts[i % prompts.len()])).collect();
    let one_by_one: Vec<Answer> =
        requests.iter().map(|request| generate(&alone, std::slice::from_ref(request)).remove(0)).collect();
    alone.shutdown();
    for max_step_tokens in [512, 37, 1] {
        let together = engine(EngineOptions {
            max_step_tokens: Some(max_step_tokens),
            semantics: semantics.clone(),
            ..EngineOptions::default()
        })
        .unwrap();
        for (i, (alone, together)) in one_by_one.iter().zip(generate(&together, &requests)).enumerate() {
            let name = &prompts[i % prompts.len()].name;
            assert_eq!(alone.tokens, together.tokens, "{name}, steps of {max_step_tokens}");
            let same = alone.logprobs.iter().zip(&together.logprobs).position(|(a, b)| a != b);
            assert_eq!(same, None, "{name}, steps of {max_step_tokens}: a log-probability has other bits");
            assert_eq!(alone.logprobs.len(), together.logprobs.len());
        }
        together.shutdown();
    }
}

/// What the GPU draws is what the host draws, and log-probabilities have the same bits: the host reads whole logits where more likeliest tokens are
/// wanted than the GPU lists.
#[test]
fn draws_dont_depend_on_who_draws() {
    const HERE: usize = 5;
    const ON_HOST: usize = 40;
    let prompts = prompts();
    for ranks in [1, 2] {
        let options = EngineOptions { device: GPU, ranks, ..EngineOptions::default() };
        let engine = match Engine::start(&canary(), &options) {
            Ok(engine) => engine,
            Err(error) if ranks == 1 => return skip(&error),
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "skipped: no second CUDA device ({error})");
                return;
            }
        };
        let asked = |logprobs: Option<usize>| -> Vec<Request> {
            (0..40)
                .map(|i| Request {
                    prompt: prompts[i % prompts.len()].tokens[..20].to_vec(),
                    max_tokens: 40,
                    routes: false,
                    guide: None,
                    min_tokens: if i % 7 == 0 { 10 } else { 0 },
                    stop_tokens: vec![TokenId(3)],
                    sampling: Sampling {
                        temperature: [0.0, 0.6, 1.0, 1.5][i % 4],
                        top_p: [1.0, 0.95, 0.7][i % 3],
                        top_k: [0, 40][i % 2],
                        min_p: [0.0, 0.0, 0.0, 0.0, 0.05][i % 5],
                        presence_penalty: [0.0, 0.0, 0.0, 0.0, 0.0, 0.5][i % 6],
                        seed: Some(i as u64),
                        ..Sampling::default()
                    },
                    logprobs,
                    prompt_logprobs: logprobs,
                })
                .collect()
        };
        let mixed: Vec<Request> = [None, Some(HERE), Some(ON_HOST)].into_iter().flat_map(asked).collect();
        let answers = |requests: &[Request]| -> (Vec<Vec<TokenId>>, Vec<Vec<u32>>) {
            generate(&engine, requests).into_iter().map(|answer| (answer.tokens, answer.logprobs)).unzip()
        };
        let (on_gpu, _) = answers(&asked(None));
        let ((here, entries), (on_host, longer)) =
            (answers(&asked(Some(HERE))), answers(&asked(Some(ON_HOST))));
        for (short, long) in entries.iter().zip(&longer) {
            let (short, long) = (short.chunks(1 + HERE), long.chunks(1 + ON_HOST));
            assert!(short.len() > 19 && short.len() == long.len());
            assert!(short.zip(long).all(|(short, long)| short == &long[..=HERE]), "{ranks} ranks");
        }
        assert!(on_gpu == here && on_gpu == on_host, "{ranks} ranks");
        let (tokens, together) = answers(&mixed);
        assert!(tokens.chunks(40).all(|tokens| tokens == on_gpu), "{ranks} ranks");
        assert!(together[40..80] == entries && together[80..] == longer, "{ranks} ranks");
        let different: std::collections::HashSet<&Vec<TokenId>> = on_gpu.iter().collect();
        assert!(different.len() > 20, "the draws are all alike");
        engine.shutdown();
    }
}

/// The canary in INT4 (but attention), in FP8 blocks and in GGUF's Q4_K_M: the processor's answers, and the promise of batches.
#[test]
fn other_layouts_match_the_processor_and_dont_depend_on_the_batch() {
    let (int4, f8_blocks) = (repack::int4(), repack::f8_blocks());
    let gguf = Checkpoint::open(Files::open(&models().join("canary-gguf")).unwrap()).unwrap();
    let all = [("INT4", &int4.checkpoint), ("FP8 blocks", &f8_blocks.checkpoint), ("Q4_K_M", &gguf)];
    for (name, checkpoint) in all {
        let mut on_gpu = match Scorer::on(GPU, checkpoint, &semantics(Mode::Reference), None) {
            Ok(scorer) => scorer,
            Err(error) => return skip(&error),
        };
        let mut on_cpu = Scorer::new(checkpoint, &semantics(Mode::Reference), None).unwrap();
        let mut worst = 0f32;
        for prompt in prompts().iter().filter(|prompt| prompt.tokens.len() < 400) {
            let mut expected = Vec::new();
            on_cpu.score(&prompt.tokens, |_, logprobs| expected.push(logprobs.to_vec())).unwrap();
            on_gpu
                .score(&prompt.tokens, |position, logprobs| {
                    for (a, b) in expected[position].iter().zip(logprobs) {
                        // Far down the list, differences mean nothing.
                        if *a > -12.0 {
                            worst = worst.max((a - b).abs());
                        }
                    }
                })
                .unwrap();
        }
        println!("{name}: largest difference from the processor {worst:.1e}");
        assert!(worst < 1e-3, "{name}: a log-probability is off by {worst}");

        let start = |max_running, max_step_tokens| {
            let options = EngineOptions {
                device: GPU,
                max_running,
                max_step_tokens: Some(max_step_tokens),
                semantics: semantics(Mode::Serving),
                ..EngineOptions::default()
            };
            Engine::start(checkpoint, &options).unwrap()
        };
        let prompts = prompts();
        let requests: Vec<Request> = (0..9).map(|i| request(&prompts[i % prompts.len()])).collect();
        let alone = start(1, 512);
        let one_by_one: Vec<Answer> = requests
            .iter()
            .map(|request| generate(&alone, std::slice::from_ref(request)).remove(0))
            .collect();
        alone.shutdown();
        for max_step_tokens in [512, 37] {
            let together = start(16, max_step_tokens);
            for (alone, together) in one_by_one.iter().zip(generate(&together, &requests)) {
                assert!(
                    alone.tokens == together.tokens && alone.logprobs == together.logprobs,
                    "{name}, steps of {max_step_tokens}"
                );
            }
            together.shutdown();
        }
    }
}

/// Not a test of anything: prints the speed. `cargo test --release -p lucid-engine --test cuda -- --ignored --nocapture`
#[test]
#[ignore = "a benchmark"]
fn decoding_speed_of_the_canary() {
    for streams in [1, 8, 16] {
        let start = Instant::now();
        let Some(engine) = engine(EngineOptions::default()) else { return };
        let loaded = start.elapsed();
        let request = Request {
            prompt: prompts()[0].tokens.iter().copied().cycle().take(64).collect(),
            max_tokens: 512,
            ..Request::default()
        };
        generate(&engine, &[Request { max_tokens: 32, ..request.clone() }]);
        let first = start.elapsed();
        let mut speeds: Vec<f64> = (0..3)
            .map(|_| {
                let start = Instant::now();
                let answers = generate(&engine, &vec![request.clone(); streams]);
                answers.iter().map(|answer| answer.tokens.len()).sum::<usize>() as f64
                    / start.elapsed().as_secs_f64()
            })
            .collect();
        speeds.sort_by(f64::total_cmp);
        println!(
            "canary, {streams} streams, prompt 64, 512 tokens: {:.0} tok/s, median of 3 ({speeds:.0?}); loaded in {:.2} s, 32 \
             tokens after {:.2} s",
            speeds[1],
            loaded.as_secs_f64(),
            first.as_secs_f64()
        );
        engine.shutdown();
    }
}
