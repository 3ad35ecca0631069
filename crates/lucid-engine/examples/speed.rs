//! How fast the engine prefills and decodes, without a server around it.
//!
//!     cargo run --release -p lucid-engine --example speed -- MODEL [THREADS] [ROUNDS] [PROMPT OUTPUT STREAMS]
//!
//! MODEL is a folder or a GGUF file. Processor time is that of all threads: on a busy machine it says more than the clock, above
//! all with one thread, which never waits for another.

#![allow(clippy::print_stdout)] // This is what the program is for.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Instant;

use lucid_checkpoint::{Checkpoint, Files, TokenId};
use lucid_engine::{Engine, EngineOptions, Event, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().ok_or("give a checkpoint's folder or a GGUF file")?;
    let threads = arguments.next().map(|count| count.parse()).transpose()?;
    let rounds: usize = arguments.next().map_or(Ok(3), |count| count.parse())?;
    let checkpoint = Checkpoint::open(Files::open(Path::new(&model))?)?;
    let options = EngineOptions { threads, prefix_cache: false, ..EngineOptions::default() };
    let engine = Engine::start(&checkpoint, &options)?;
    println!("{}", engine.semantics());
    println!(
        "{:>8} {:>8} {:>8} {:>12} {:>12} {:>20} {:>20}",
        "prompt", "output", "streams", "prefill t/s", "decode t/s", "prefill cpu µs/t", "decode cpu µs/t"
    );
    let chosen: Vec<usize> = arguments.map(|number| number.parse()).collect::<Result<_, _>>()?;
    let cases = match chosen[..] {
        [] => vec![(64, 1, 1), (512, 1, 1), (2048, 1, 1), (64, 256, 1), (64, 128, 8), (64, 128, 16)],
        [prompt, output, streams] if output > 0 && streams > 0 => vec![(prompt, output, streams)],
        _ => return Err("a case is three numbers: prompt tokens, answered tokens, streams".into()),
    };
    for (prompt, output, streams) in cases {
        let Speed { prefill, decode } = measure(&engine, prompt, output, streams, rounds)?;
        println!(
            "{prompt:>8} {output:>8} {streams:>8} {:>12.0} {:>12.0} {:>20.1} {:>20.1}",
            prefill.tokens_per_second, decode.tokens_per_second, prefill.cpu_micros, decode.cpu_micros
        );
    }
    Ok(())
}

/// The best of some rounds.
#[derive(Clone, Copy)]
struct Best {
    tokens_per_second: f64,
    /// Processor time of all threads for one token.
    cpu_micros: f64,
}

impl Best {
    const NONE: Best = Best { tokens_per_second: 0.0, cpu_micros: f64::INFINITY };

    fn take(&mut self, tokens: usize, from: (Instant, f64), to: (Instant, f64)) {
        if tokens == 0 {
            return;
        }
        let tokens = tokens as f64;
        self.tokens_per_second = self.tokens_per_second.max(tokens / (to.0 - from.0).as_secs_f64());
        self.cpu_micros = self.cpu_micros.min((to.1 - from.1) * 1e6 / tokens);
    }
}

/// Until the last first token, and after it.
struct Speed {
    prefill: Best,
    decode: Best,
}

/// The clock, and the seconds that all threads have run (Linux; elsewhere 0).
fn now() -> (Instant, f64) {
    let mut nanoseconds = 0u64;
    for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        nanoseconds += text.split(' ').next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0);
    }
    (Instant::now(), nanoseconds as f64 / 1e9)
}

fn measure(
    engine: &Engine,
    prompt: usize,
    output: usize,
    streams: usize,
    rounds: usize,
) -> Result<Speed, Box<dyn std::error::Error>> {
    let mut best = Speed { prefill: Best::NONE, decode: Best::NONE };
    for round in 0..rounds {
        let (sender, events) = channel();
        let start = now();
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
                    last_prompt = now();
                }
            }
        }
        best.prefill.take(prompt * streams, start, last_prompt);
        best.decode.take((output - 1) * streams, last_prompt, now());
    }
    Ok(best)
}
