//! The model on several GPUs, in one process or in two: the answers of one GPU, and the same promises.
//!
//! Without them every test says "skipped" and passes; with `LUCID_REQUIRE_TWO_GPUS` set it fails instead.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // The lints spare test functions, not what they share.

mod goldens;
mod on_gpu;
#[allow(dead_code)] // The processor's tests use all of it.
mod repack;

use std::io::Write;
use std::sync::mpsc::channel;
use std::time::Instant;

use goldens::{canary, prompts};
use lucid_checkpoint::Checkpoint;
use lucid_engine::{
    Device, Engine, EngineOptions, Event, ExpertSharing, Finish, Mode, Request, Scorer, World,
};
use on_gpu::{Answer, GPU, engine, generate, request, semantics, skip};

const SHARINGS: [ExpertSharing; 2] = [ExpertSharing::Widths, ExpertSharing::Whole];

/// Two GPUs against one: sums in another order, nothing else. Skipped where there is one GPU.
#[test]
fn two_gpus_agree_with_one() {
    for sharing in SHARINGS {
        agree_on_two("NVFP4", &canary(), sharing);
        agree_on_two("INT4", &repack::int4().checkpoint, sharing);
        agree_on_two("FP8 blocks", &repack::f8_blocks().checkpoint, sharing);
    }
}

fn agree_on_two(name: &str, checkpoint: &Checkpoint, sharing: ExpertSharing) {
    let on = |ranks| Scorer::on_ranks(GPU, ranks, sharing, checkpoint, &semantics(Mode::Reference), None);
    let mut alone = match on(1) {
        Ok(scorer) => scorer,
        Err(error) => return skip(&error),
    };
    let mut together = match on(2) {
        Ok(scorer) => scorer,
        // The canary's matrices are small, and no block of scales may lie across a border.
        Err(error @ lucid_engine::Error::Unsupported { .. }) => {
            let _ = writeln!(std::io::stderr(), "{name}: not to be dealt out to two ({error})");
            return;
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "skipped: no second CUDA device ({error})");
            assert!(std::env::var_os("LUCID_REQUIRE_TWO_GPUS").is_none(), "{error}");
            return;
        }
    };
    let mut worst = 0f32;
    for prompt in prompts().iter().filter(|prompt| prompt.tokens.len() < 600) {
        let mut expected = Vec::new();
        alone.score(&prompt.tokens, |_, logprobs| expected.push(logprobs.to_vec())).unwrap();
        let mut bits = [Vec::new(), Vec::new()];
        for bits in &mut bits {
            together
                .score(&prompt.tokens, |position, logprobs| {
                    bits.extend(logprobs.iter().map(|x| x.to_bits()));
                    for (a, b) in expected[position].iter().zip(logprobs) {
                        // Far down the list, differences mean nothing.
                        if *a > -12.0 {
                            worst = worst.max((a - b).abs());
                        }
                    }
                })
                .unwrap();
        }
        assert!(bits[0] == bits[1], "{}: another run, other bits", prompt.name);
    }
    println!("two GPUs, {name}, experts by {sharing:?}: largest difference {worst:.1e}");
    assert!(worst < 5e-4, "{name}: a log-probability is off by {worst}");
}

/// The same promise with the model on two GPUs.
#[test]
fn two_gpus_keep_the_bits_of_batches_and_chunks() {
    SHARINGS.into_iter().for_each(batches_and_chunks_on_two);
}

fn batches_and_chunks_on_two(experts: ExpertSharing) {
    let start = |max_running, max_step_tokens| {
        engine(EngineOptions {
            ranks: 2,
            experts,
            max_running,
            max_step_tokens: Some(max_step_tokens),
            semantics: semantics(Mode::Serving),
            ..EngineOptions::default()
        })
    };
    if Scorer::on_ranks(GPU, 2, experts, &canary(), &semantics(Mode::Serving), None).is_err() {
        let _ = writeln!(std::io::stderr(), "skipped: no second CUDA device");
        return;
    }
    let prompts = prompts();
    let requests: Vec<Request> = (0..9).map(|i| request(&prompts[i % prompts.len()])).collect();
    let alone = start(1, 512).unwrap();
    let one_by_one: Vec<Answer> =
        requests.iter().map(|request| generate(&alone, std::slice::from_ref(request)).remove(0)).collect();
    alone.shutdown();
    let together = start(16, 37).unwrap();
    for (alone, together) in one_by_one.iter().zip(generate(&together, &requests)) {
        assert!(alone.tokens == together.tokens && alone.logprobs == together.logprobs, "{experts:?}");
    }
    together.shutdown();
}

/// Rank `rank` of two that are in processes of their own.
fn apart(port: u16, rank: usize, mode: Mode, experts: ExpertSharing) -> EngineOptions {
    EngineOptions {
        device: GPU,
        ranks: 2,
        experts,
        world: Some(World { rank, size: 2, local_rank: rank, host: "127.0.0.1".into(), port }),
        semantics: semantics(mode),
        max_step_tokens: Some(512),
        ..EngineOptions::default()
    }
}

/// The second process of the tests below: this very program, started by them.
#[test]
#[ignore = "started by the tests of ranks in two processes"]
fn the_second_process() {
    let Some(port) = std::env::var("LUCID_TEST_PORT").ok().and_then(|port| port.parse().ok()) else { return };
    let mode =
        if std::env::var_os("LUCID_TEST_REFERENCE").is_some() { Mode::Reference } else { Mode::Serving };
    let whole = std::env::var_os("LUCID_TEST_WHOLE_EXPERTS").is_some();
    let options = apart(port, 1, mode, SHARINGS[usize::from(whole)]);
    let ended = lucid_engine::follow(&canary(), &options, options.world.as_ref().unwrap());
    println!("the second process: {ended:?}");
    ended.unwrap();
}

fn has_two_gpus() -> bool {
    Scorer::on(Device::Cuda(1), &canary(), &semantics(Mode::Serving), None).is_ok()
}

/// An engine in two processes, and the second one; `None` and a line where that can't be. Where there is one GPU, two processes can share it if NCCL is
/// told that they are on different machines: then parts travel through sockets, as between machines.
fn start_apart(mode: Mode, experts: ExpertSharing) -> Option<(Engine, std::process::Child)> {
    let shared = std::env::var_os("NCCL_HOSTID").is_some();
    if !shared && !has_two_gpus() {
        let _ = writeln!(std::io::stderr(), "skipped: no second CUDA device, and NCCL_HOSTID is not set");
        assert!(std::env::var_os("LUCID_REQUIRE_TWO_GPUS").is_none());
        return None;
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut second = std::process::Command::new(std::env::current_exe().unwrap());
    second.args(["--exact", "the_second_process", "--ignored", "--nocapture"]);
    second.env("LUCID_TEST_PORT", port.to_string());
    if mode == Mode::Reference {
        second.env("LUCID_TEST_REFERENCE", "1");
    }
    if experts == ExpertSharing::Whole {
        second.env("LUCID_TEST_WHOLE_EXPERTS", "1");
    }
    if shared {
        second.env("NCCL_HOSTID", "the-second-process");
    }
    let mut second = second.spawn().unwrap();
    match Engine::start(&canary(), &apart(port, 0, mode, experts)) {
        Ok(engine) => Some((engine, second)),
        Err(error) => {
            let _ = (second.kill(), second.wait());
            let required = ["LUCID_REQUIRE_TWO_GPUS", "NCCL_HOSTID"].map(std::env::var_os);
            assert!(required.iter().all(Option::is_none), "{error}");
            let _ = writeln!(std::io::stderr(), "skipped: {error}");
            None
        }
    }
}

/// Against one GPU, and the promise of batches. Where there are two GPUs, against two of one process, to the bit: sums are made in the order of the
/// ranks, whichever way the parts come.
#[test]
fn two_processes_agree_with_one() {
    let prompts = prompts();
    let requests: Vec<Request> = (0..9).map(|i| request(&prompts[i % prompts.len()])).collect();
    for (mode, experts) in
        [Mode::Serving, Mode::Reference].into_iter().flat_map(|mode| SHARINGS.map(|by| (mode, by)))
    {
        let Some((apart, mut second)) = start_apart(mode, experts) else { return };
        let together = generate(&apart, &requests);
        let alone = generate(&apart, &requests[3..4]);
        apart.shutdown();
        drop(apart);
        assert!(second.wait().unwrap().success());
        assert!(alone[0].tokens == together[3].tokens && alone[0].logprobs == together[3].logprobs);
        let ranks = if has_two_gpus() { 2 } else { 1 };
        let options = EngineOptions {
            ranks,
            experts,
            semantics: semantics(mode),
            max_step_tokens: Some(512),
            ..EngineOptions::default()
        };
        let expected = generate(&engine(options).unwrap(), &requests);
        let mut worst = 0f32;
        for (i, (apart, expected)) in together.iter().zip(&expected).enumerate() {
            if ranks == 2 {
                assert_eq!(apart.tokens, expected.tokens, "{mode:?}, request {i}");
                assert!(apart.logprobs == expected.logprobs, "{mode:?}, request {i}: other bits");
            } else if mode == Mode::Reference {
                assert_eq!(apart.tokens, expected.tokens, "{mode:?}, request {i}");
                let pairs = apart.logprobs.iter().zip(&expected.logprobs);
                let near = pairs.map(|(&a, &b)| (f32::from_bits(a), f32::from_bits(b)));
                // Far down the list, differences mean nothing.
                worst =
                    near.filter(|(a, _)| *a > -12.0).fold(worst, |worst, (a, b)| worst.max((a - b).abs()));
            }
        }
        println!(
            "two processes, {mode:?}, experts by {experts:?}, against {ranks} GPUs of one: largest difference {worst:.1e}"
        );
        assert!(worst < 5e-4, "a log-probability is off by {worst}");
    }
}

#[test]
fn a_lost_process_fails_requests_and_leaves_nobody_waiting() {
    let Some((engine, mut second)) = start_apart(Mode::Serving, ExpertSharing::Widths) else { return };
    let (send, receive) = channel();
    for i in 0..5 {
        let request =
            Request { prompt: prompts()[i].tokens[..20].to_vec(), max_tokens: 4_000, ..Request::default() };
        let send = send.clone();
        engine.submit(request, move |event| send.send((i, event)).is_ok()).unwrap();
    }
    drop(send);
    // Somebody answers; then the other process is killed.
    while !matches!(receive.recv().unwrap().1, Event::Token { .. }) {}
    second.kill().unwrap();
    second.wait().unwrap();
    let start = Instant::now();
    let mut ends = 0;
    while let Ok((i, event)) = receive.recv_timeout(std::time::Duration::from_secs(60)) {
        match event {
            Event::Finished(Finish::Failed(reason)) => {
                assert!(reason.contains("rank 1"), "request {i}: {reason}");
                println!("request {i}: {reason}");
                ends += 1;
            }
            Event::Finished(other) => panic!("request {i}: {other:?}"),
            _ => {}
        }
    }
    println!("all requests failed {:.2} s after the process was killed", start.elapsed().as_secs_f64());
    assert_eq!(ends, 5);
    assert!(engine.unhealthy().unwrap().contains("rank 1"));
}
