//! How fast the engine prefills and decodes, without a server around it.
//!
//!     cargo run --release -p lucid-engine --example speed -- FOLDER [THREADS]

#![allow(clippy::print_stdout)] // This is what the program is for.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Instant;

use lucid_checkpoint::{Checkpoint, Files, TokenId};
use lucid_engine::{Engine, EngineOptions, Event, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("give the checkpoint's folder")?;
    let threads = arguments.next().map(|count| count.parse()).transpose()?;
    let checkpoint = Checkpoint::open(Files::open(Path::new(&folder))?)?;
    let options = EngineOptions { threads, ..EngineOptions::default() };
    let engine = Engine::start(&checkpoint, &options)?;
    println!("{}", engine.semantics());
    println!("{:>8} {:>8} {:>8} {:>12} {:>12}", "prompt", "output", "streams", "prefill t/s", "decode t/s");
    for (prompt, output, streams) in
        [(64, 1, 1), (512, 1, 1), (2048, 1, 1), (64, 256, 1), (64, 128, 8), (64, 128, 16)]
    {
        let (prefill, decode) = measure(&engine, prompt, output, streams)?;
        println!("{prompt:>8} {output:>8} {streams:>8} {prefill:>12.0} {decode:>12.0}");
    }
    Ok(())
}

/// Tokens a second until the last first token, and after it; best of three.
fn measure(
    engine: &Engine,
    prompt: usize,
    output: usize,
    streams: usize,
) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let mut best = (0f64, 0f64);
    for round in 0..3 {
        let (sender, events) = channel();
        let start = Instant::now();
        for stream in 0..streams {
            let token = |i: usize| TokenId(((i * 7 + stream * 13 + round) % 3800) as u32);
            let request = Request {
                prompt: (0..prompt).map(token).collect(),
                max_tokens: output,
                ..Request::default()
            };
            let sender = sender.clone();
            engine.submit(request, move |event| sender.send(event).is_ok())?;
        }
        drop(sender);
        let (mut prefilled, mut last_prompt) = (0, start);
        for event in events {
            if matches!(event, Event::Prompt { .. }) {
                prefilled += 1;
                if prefilled == streams {
                    last_prompt = Instant::now();
                }
            }
        }
        let prefill = (prompt * streams) as f64 / (last_prompt - start).as_secs_f64();
        let decode = ((output - 1) * streams) as f64 / last_prompt.elapsed().as_secs_f64();
        best = (best.0.max(prefill), best.1.max(decode));
    }
    Ok(best)
}
