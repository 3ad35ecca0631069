//! Engines on a GPU, and what they answer.

use std::io::Write;
use std::sync::mpsc::channel;

use lucid_checkpoint::TokenId;
use lucid_engine::{Device, Engine, EngineOptions, Event, Finish, Mode, Request, Sampling, SemanticsOptions};

use crate::goldens::{LATENT_NORM_EPS, Prompt, canary};

pub const GPU: Device = Device::Cuda(0);

pub fn semantics(mode: Mode) -> SemanticsOptions {
    SemanticsOptions { mode, latent_norm_eps: Some(LATENT_NORM_EPS), ..SemanticsOptions::default() }
}

pub fn skip(error: &lucid_engine::Error) {
    assert!(std::env::var_os("LUCID_REQUIRE_CUDA").is_none(), "{error}");
    // Not through `println!`, which the test harness swallows.
    let _ = writeln!(std::io::stderr(), "skipped: no CUDA device ({error})");
}

pub fn engine(options: EngineOptions) -> Option<Engine> {
    let options = EngineOptions { device: GPU, ..options };
    Engine::start(&canary(), &options).map_err(|error| skip(&error)).ok()
}

pub struct Answer {
    pub tokens: Vec<TokenId>,
    /// Of prompt and answer, in order.
    pub logprobs: Vec<u32>,
}

pub fn request(prompt: &Prompt) -> Request {
    let stop = *prompt.tokens.last().unwrap();
    Request {
        prompt: prompt.tokens[..prompt.prompt_len].to_vec(),
        max_tokens: prompt.tokens.len() - prompt.prompt_len,
        sampling: Sampling::default(),
        stop_tokens: vec![stop],
        logprobs: Some(3),
        prompt_logprobs: Some(3),
        ..Request::default()
    }
}

/// Runs all requests together.
pub fn generate(engine: &Engine, requests: &[Request]) -> Vec<Answer> {
    let (send, receive) = channel();
    for (i, request) in requests.iter().enumerate() {
        let send = send.clone();
        engine.submit(request.clone(), move |event| send.send((i, event)).is_ok()).unwrap();
    }
    let mut answers: Vec<Answer> =
        requests.iter().map(|_| Answer { tokens: Vec::new(), logprobs: Vec::new() }).collect();
    let mut left = requests.len();
    while left > 0 {
        let (i, event) = receive.recv().unwrap();
        let bits = |entry: lucid_engine::TokenLogprobs| {
            let all = std::iter::once(entry.token).chain(entry.top);
            all.map(|candidate| candidate.logprob.to_bits()).collect::<Vec<u32>>()
        };
        match event {
            Event::Prompt { logprobs, .. } => {
                answers[i].logprobs.extend(logprobs.into_iter().flatten().flatten().flat_map(bits));
            }
            Event::Token { id, logprobs } => {
                answers[i].tokens.push(id);
                answers[i].logprobs.extend(logprobs.into_iter().flat_map(bits));
            }
            Event::Routes(_) => {}
            Event::Finished(Finish::Stop(_) | Finish::Length) => left -= 1,
            Event::Finished(other) => panic!("request {i}: {other:?}"),
        }
    }
    answers
}
