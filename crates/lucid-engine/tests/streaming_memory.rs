//! A streamed run stays within its memory: measured, on a checkpoint several times as large. A process of its own, for its peak
//! memory is asked of the operating system.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod goldens;
mod sparse_checkpoint;

use goldens::models;
use lucid_checkpoint::{Checkpoint, Files, TokenId};
use lucid_engine::{Mode, SemanticsOptions, Streaming, StreamingOptions, resident};
use serde_json::json;

#[test]
fn a_run_stays_within_its_memory() {
    if resident().is_none() {
        println!("skipped: this system doesn't say what a process has in memory");
        return;
    }
    let text = std::fs::read_to_string(models().join("canary/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (field, value) in [
        ("hidden_size", 1024),
        ("num_hidden_layers", 5),
        ("intermediate_size", 2048),
        ("moe_intermediate_size", 1024),
        ("n_routed_experts", 144),
        ("vocab_size", 32_000),
    ] {
        config[field] = json!(value);
    }
    for (field, token) in [("bos_token_id", 1), ("eos_token_id", 2)] {
        config[field] = json!(token);
    }
    let folder = tempfile::tempdir().unwrap();
    let bytes = sparse_checkpoint::write(folder.path(), &config, "");
    let checkpoint = Checkpoint::open(Files::open(folder.path()).unwrap()).unwrap();
    let limit = 256_000_000;
    assert!(bytes > 4 * limit, "{bytes}");
    let semantics = SemanticsOptions { mode: Mode::Reference, ..SemanticsOptions::default() };
    let options = StreamingOptions {
        semantics,
        threads: Some(2),
        memory_limit: limit,
        batch_tokens: None,
        top: 4,
        state: Some(folder.path().join("state")),
    };
    let mut streaming = Streaming::new(&checkpoint, &options).unwrap();
    let passage =
        |i: u32| (0..40).map(|t| TokenId((i * 97 + t * 31) % sparse_checkpoint::TOKENS as u32)).collect();
    let passages: Vec<Vec<TokenId>> = (0..8).map(passage).collect();
    let mut read = 0;
    let scored = streaming
        .score(&passages, &mut |progress| {
            read = progress.bytes_read;
            true
        })
        .unwrap()
        .unwrap();
    let (_, peak) = resident().unwrap();
    println!(
        "{:.2} GB in files, {:.2} GB read, peak {:.0} MB of {:.0}",
        bytes as f64 / 1e9,
        read as f64 / 1e9,
        peak as f64 / 1e6,
        limit as f64 / 1e6
    );
    assert!(scored.iter().all(|passage| passage.len() == 39));
    // 320 tokens at 4 of 144 experts visit nearly all.
    assert!(read > bytes * 3 / 4, "{read} bytes were read: routing is not what it should be");
    assert!(peak <= limit, "{peak} bytes in memory, {limit} allowed");
}
