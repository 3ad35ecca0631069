//! DeepSeek sparse attention against transformers' DeepseekV32ForCausalLM and GlmMoeDsaForCausalLM (float32), on tiny models with
//! random weights that choose 13 to 64 of 150 tokens: one mistake in one choice changes their logits.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // The lints spare test functions, not what they share.

mod tiny;

use std::collections::BTreeMap;

use lucid_checkpoint::{Checkpoint, TokenId};
use lucid_engine::{
    Device, ExpertSharing, Mode, Observer, Scorer, SemanticsOptions, Streaming, StreamingOptions,
    TokenLogprobs,
};
use serde_json::json;
use tiny::{NAMES, Tiny};

/// Of logits whose standard deviation is 1, in f32 on both sides.
const TOLERANCE: f32 = 1e-3;

#[derive(Default)]
struct Chosen(BTreeMap<(usize, usize), Vec<u32>>);

impl Observer for Chosen {
    fn chosen(&mut self, layer: usize, row: usize, positions: &[u32]) {
        self.0.insert((layer, row), positions.to_vec());
    }
}

/// transformers builds the latent norms with this epsilon whatever the config says.
fn semantics(mode: Mode) -> SemanticsOptions {
    SemanticsOptions { mode, latent_norm_eps: Some(1e-6), ..SemanticsOptions::default() }
}

/// Log-probabilities `[tokens][vocab]`, and what was chosen.
fn score(tiny: &Tiny, checkpoint: &Checkpoint, mode: Mode, ranks: usize) -> (Vec<Vec<f32>>, Chosen) {
    let mut scorer =
        Scorer::on_ranks(Device::Cpu, ranks, ExpertSharing::Widths, checkpoint, &semantics(mode), Some(2))
            .unwrap();
    let (mut all, mut chosen) = (Vec::new(), Chosen::default());
    let visit = |_: usize, logprobs: &[f32]| all.push(logprobs.to_vec());
    scorer.score_observed(&tiny.tokens, visit, &mut chosen).unwrap();
    (all, chosen)
}

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    logits.iter().map(|&x| (f64::from(x) - sum.ln()) as f32).collect()
}

fn largest_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn golden(tiny: &Tiny) -> Vec<Vec<f32>> {
    tiny.logits().iter().map(|logits| log_softmax(logits)).collect()
}

#[test]
fn logits_and_choices_are_those_of_transformers() {
    for name in NAMES {
        let tiny = Tiny::new(name);
        let (checkpoint, _folder) = tiny.checkpoint();
        let (logprobs, chosen) = score(&tiny, &checkpoint, Mode::Reference, 1);
        let difference = largest_difference(&logprobs, &golden(&tiny));
        println!("{name}: largest difference {difference:.2e}");

        let most = tiny.size("index_topk");
        let indexer = checkpoint.config().indexer.as_ref().unwrap();
        let layers = checkpoint.config().num_hidden_layers;
        let full: Vec<usize> = (0..layers).filter(|&layer| indexer.is_full(layer)).collect();
        let selected = tiny.selected();
        assert_eq!(full.len(), selected.len());
        for layer in 0..layers {
            // A layer that shares has the choice of the last one that chose.
            let source = full.iter().rposition(|&full| full <= layer).unwrap();
            for (row, expected) in selected[source].iter().enumerate() {
                let found = chosen.0.get(&(layer, row));
                // Below the limit nothing is chosen, and transformers' choice is everything.
                assert_eq!(found.is_some(), row >= most, "{name}, layer {layer}, token {row}");
                let everything: Vec<u32> = (0..=row as u32).collect();
                assert_eq!(found.unwrap_or(&everything), expected, "{name}, layer {layer}, token {row}");
            }
        }
        assert!(difference < TOLERANCE, "{name}: a log-probability is off by {difference}");
    }
}

/// The goldens see the mistakes that they are there to see.
#[test]
fn another_pairing_another_count_and_unshared_layers_are_noticed() {
    let wrong: [(&str, &str, serde_json::Value); 5] = [
        ("deepseek-v3.2", "indexer_rope_interleave", json!(true)),
        ("deepseek-v3.2", "index_topk", json!(17)),
        ("glm-5", "indexer_rope_interleave", json!(false)),
        ("glm-5", "index_topk", json!(150)),
        ("glm-5.2", "indexer_types", json!(["full", "full", "shared", "shared", "shared", "shared"])),
    ];
    for (name, field, value) in wrong {
        let tiny = Tiny::new(name);
        let change = |config: &mut serde_json::Map<_, _>, _: &mut Vec<_>| {
            config.insert(field.to_owned(), value);
        };
        let (checkpoint, _folder) = tiny.checkpoint_with(change);
        let (logprobs, _) = score(&tiny, &checkpoint, Mode::Reference, 1);
        let difference = largest_difference(&logprobs, &golden(&tiny));
        assert!(difference > 0.1, "{name} with another {field} differs by {difference} only");
    }
}

/// Every rank has the whole indexer, so all choose the same tokens; only sums over ranks have another order.
#[test]
fn two_ranks_choose_what_one_chooses() {
    for name in NAMES {
        let tiny = Tiny::new(name);
        let (checkpoint, _folder) = tiny.checkpoint();
        let (alone, chosen) = score(&tiny, &checkpoint, Mode::Reference, 1);
        let (together, same) = score(&tiny, &checkpoint, Mode::Reference, 2);
        assert_eq!(chosen.0, same.0, "{name}");
        let difference = largest_difference(&alone, &together);
        assert!(difference < TOLERANCE, "{name}: {difference}");
    }
}

/// With a bf16 cache near-ties may turn: the distributions stay close as a whole.
#[test]
fn serving_mode_is_close_to_the_reference() {
    for name in NAMES {
        let tiny = Tiny::new(name);
        let (checkpoint, _folder) = tiny.checkpoint();
        let (exact, chosen) = score(&tiny, &checkpoint, Mode::Reference, 1);
        let (served, other) = score(&tiny, &checkpoint, Mode::Serving, 1);
        let best = |row: &Vec<f32>| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
        let same = exact.iter().zip(&served).filter(|(a, b)| best(a) == best(b)).count();
        let lists = chosen.0.iter().filter(|(key, list)| other.0.get(key) == Some(*list)).count();
        println!(
            "{name}: {same} of {} greedy choices, {lists} of {} lists, largest difference {:.2}",
            exact.len(),
            chosen.0.len(),
            largest_difference(&exact, &served)
        );
        assert!(same * 10 >= exact.len() * 8, "{name}: {same} of {} greedy choices agree", exact.len());
    }
}

/// Before anything is asked of a GPU, so also where there is none.
#[test]
fn a_gpu_refuses_what_it_has_no_kernels_for() {
    let wide = |config: &mut serde_json::Map<_, _>, _: &mut Vec<_>| {
        config.insert("index_head_dim".into(), json!(144));
    };
    let refused = [
        (Tiny::new("glm-5").checkpoint(), ["kv_lora_rank 48", "qk_rope_head_dim 8"]),
        (Tiny::new("deepseek-v3.2-wide").checkpoint_with(wide), ["index_head_dim 144", "up to 128"]),
    ];
    for ((checkpoint, _folder), parts) in refused {
        let refused = Scorer::on(Device::Cuda(0), &checkpoint, &semantics(Mode::Serving), None);
        let error = refused.err().unwrap().to_string();
        for part in parts.iter().chain(&["on a GPU", "the processor takes any"]) {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}

const TOP: usize = 3;

fn streamed(
    checkpoint: &Checkpoint,
    passages: &[Vec<TokenId>],
) -> Result<Vec<Vec<TokenLogprobs>>, lucid_engine::Error> {
    let options = StreamingOptions {
        semantics: semantics(Mode::Reference),
        threads: Some(2),
        memory_limit: 4_000_000_000,
        batch_tokens: None,
        top: TOP,
        state: None,
    };
    let scored = Streaming::new(checkpoint, &options)?.score(passages, &mut |_| true)?;
    Ok(scored.expect("nobody stops it"))
}

/// Layer by layer, several passages at a time, longer than a chunk: each layer chooses for each passage anew. Layers that share
/// can't, so their models are streamed only as far as there is nothing to choose.
#[test]
fn the_streamed_witness_has_the_bits_of_the_resident_one() {
    for name in NAMES {
        let tiny = Tiny::new(name);
        let (checkpoint, _folder) = tiny.checkpoint();
        let shares = name == "glm-5.2";
        let longest = if shares { tiny.size("index_topk") } else { tiny.tokens.len() };
        let passages = [
            tiny.tokens[..longest].to_vec(),
            tiny.tokens[3..9].to_vec(),
            tiny.tokens[1..longest - 2].to_vec(),
        ];
        let mut scorer = Scorer::new(&checkpoint, &semantics(Mode::Reference), Some(1)).unwrap();
        let resident = passages.each_ref().map(|passage| {
            let mut all = Vec::new();
            let visit = |position: usize, logprobs: &[f32]| {
                if let Some(next) = passage.get(position + 1) {
                    all.push(lucid_engine::token_logprobs(logprobs, *next, TOP));
                }
            };
            scorer.score(passage, visit).unwrap();
            all
        });
        // Log-probabilities are compared as floats and none is NaN, so equal means equal bits.
        assert!(streamed(&checkpoint, &passages).unwrap() == resident, "{name}");
        if shares {
            let error =
                streamed(&checkpoint, &[tiny.tokens[..longest + 1].to_vec()]).unwrap_err().to_string();
            assert!(error.contains("passage of 14 tokens") && error.contains("choice of 13"), "{error}");
        }
    }
}
