//! The canary in other layouts gives the answers that its values call for.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // The lints spare test functions, not what they share.

mod goldens;
mod repack;

use goldens::{Goldens, LATENT_NORM_EPS, Prompt, canary, prompts};
use lucid_checkpoint::{Checkpoint, Layout};
use lucid_engine::{Mode, Scorer, SemanticsOptions};

/// The log-probabilities of a prompt, all of them.
fn logprobs(scorer: &mut Scorer, prompt: &Prompt) -> Vec<f32> {
    let mut all = Vec::new();
    scorer.score(&prompt.tokens, |_, logprobs| all.extend_from_slice(logprobs)).unwrap();
    all
}

fn scorer(checkpoint: &Checkpoint) -> Scorer {
    let semantics = SemanticsOptions {
        mode: Mode::Reference,
        latent_norm_eps: Some(LATENT_NORM_EPS),
        ..SemanticsOptions::default()
    };
    Scorer::new(checkpoint, &semantics, None).unwrap()
}

fn layout(checkpoint: &Checkpoint, module: &str, rows: usize, cols: usize) -> Layout {
    checkpoint.matrix(module, rows, cols).unwrap().layout()
}

/// `a` and `b` give the same bits on a few prompts.
fn assert_same_bits(a: &Checkpoint, b: &Checkpoint) {
    let (mut a, mut b) = (scorer(a), scorer(b));
    for prompt in prompts().iter().take(4) {
        let bits = |scorer: &mut Scorer| -> Vec<u32> {
            logprobs(scorer, prompt).into_iter().map(f32::to_bits).collect()
        };
        assert!(bits(&mut a) == bits(&mut b), "{} differs", prompt.name);
    }
}

/// The mean difference of the next token's log-probability from transformers' on the original values, over the shorter
/// prompts. Measured: 0.034 for INT4, 0.018 for FP8 (rounded from NVFP4).
fn mean_difference(checkpoint: &Checkpoint) -> f64 {
    let (goldens, mut scorer) = (Goldens::open(), scorer(checkpoint));
    let (mut sum, mut count) = (0f64, 0);
    for prompt in prompts().into_iter().filter(|prompt| prompt.tokens.len() < 400) {
        let (_, next) = goldens.f32s(&format!("{}.next_logprob", prompt.name));
        scorer
            .score(&prompt.tokens, |position, logprobs| {
                if let Some(expected) = next.get(position) {
                    sum += f64::from((logprobs[prompt.tokens[position + 1].row()] - expected).abs());
                    count += 1;
                }
            })
            .unwrap();
    }
    println!("mean difference over {count} positions: {:.4}", sum / f64::from(count));
    sum / f64::from(count)
}

/// The canary's global scales are powers of two, so that their reciprocals are exact and no bit may differ.
#[test]
fn nvfp4_of_compressed_tensors_is_that_of_modelopt() {
    let repacked = repack::nvfp4_compressed_tensors();
    assert_eq!(layout(&repacked.checkpoint, "model.layers.1.mlp.experts.0.up_proj", 128, 256), Layout::Nvfp4);
    assert_same_bits(&repacked.checkpoint, &canary());
}

#[test]
fn int4_is_computed_like_its_values_in_f32() {
    let repacked = repack::int4();
    assert_eq!(layout(&repacked.checkpoint, "model.layers.1.mlp.experts.0.up_proj", 128, 256), Layout::Int4);
    assert_same_bits(&repacked.checkpoint, &repack::f32_copy(&repacked.checkpoint).checkpoint);
    let mean = mean_difference(&repacked.checkpoint);
    assert!(mean < 0.05, "4-bit rounding changes log-probabilities by {mean} on average");
}

#[test]
fn f8_blocks_are_computed_like_their_values_in_f32() {
    let repacked = repack::f8_blocks();
    // 576 rows: four blocks and a half.
    let kv_a = "model.layers.0.self_attn.kv_a_proj_with_mqa";
    assert_eq!(layout(&repacked.checkpoint, kv_a, 576, 256), Layout::F8Blocks);
    assert_same_bits(&repacked.checkpoint, &repack::f32_copy(&repacked.checkpoint).checkpoint);
    let mean = mean_difference(&repacked.checkpoint);
    assert!(mean < 0.03, "8-bit rounding changes log-probabilities by {mean} on average");
}
