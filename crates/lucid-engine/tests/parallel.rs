//! A model on several ranks of the processor: the same answers as on one, within what another order of sums changes.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // The lints spare test functions, not what they share.

mod goldens;
#[allow(dead_code)] // Other tests use all of it.
mod repack;

use goldens::{LATENT_NORM_EPS, canary, models, prompts};
use lucid_checkpoint::{Checkpoint, Files};
use lucid_engine::{Device, ExpertSharing, Mode, Observer, Route, Scorer, SemanticsOptions};

/// Sums over ranks run in another order than sums over columns; on the canary that moves log-probabilities by 8e-5 at the most.
const TOLERANCE: f32 = 5e-4;

const SHARINGS: [ExpertSharing; 2] = [ExpertSharing::Widths, ExpertSharing::Whole];

fn scorer(ranks: usize, experts: ExpertSharing, checkpoint: &Checkpoint) -> Result<Scorer, String> {
    let semantics = SemanticsOptions {
        mode: Mode::Reference,
        latent_norm_eps: Some(LATENT_NORM_EPS),
        ..SemanticsOptions::default()
    };
    Scorer::on_ranks(Device::Cpu, ranks, experts, checkpoint, &semantics, Some(1))
        .map_err(|error| error.to_string())
}

/// The largest difference of a log-probability on the goldens of up to so many tokens.
fn largest_difference(alone: &mut Scorer, together: &mut Scorer, longest: usize) -> f32 {
    let mut worst = 0f32;
    for prompt in prompts().iter().filter(|prompt| prompt.tokens.len() < longest) {
        let mut expected = Vec::new();
        alone.score(&prompt.tokens, |_, logprobs| expected.push(logprobs.to_vec())).unwrap();
        together
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
    worst
}

#[test]
fn ranks_agree_with_a_single_one() {
    let mut alone = scorer(1, ExpertSharing::Widths, &canary()).unwrap();
    for sharing in SHARINGS {
        for ranks in [2, 4, 8] {
            let mut together = scorer(ranks, sharing, &canary()).unwrap();
            let worst = largest_difference(&mut alone, &mut together, 130);
            println!("{ranks} ranks, experts by {sharing:?}: largest difference {worst:.1e}");
            assert!(worst < TOLERANCE, "{ranks} ranks, {sharing:?}: a log-probability is off by {worst}");
        }
    }
}

/// INT4, FP8 in blocks and GGUF's, on as many ranks as their scales allow where a matrix is cut.
#[test]
fn other_layouts_are_shared_too() {
    let gguf = Files::open(&models().join("canary-gguf/canary-q4_k_m.gguf")).unwrap();
    let (int4, f8) = (repack::int4(), repack::f8_blocks_of(32));
    let plain = repack::f32_copy(&canary());
    for (name, checkpoint, ranks) in [
        ("INT4", &int4.checkpoint, 4),
        ("FP8 blocks", &f8.checkpoint, 4),
        ("F32", &plain.checkpoint, 8),
        ("Q4_K_M", &Checkpoint::open(gguf).unwrap(), 2),
    ] {
        let mut alone = scorer(1, ExpertSharing::Widths, checkpoint).unwrap();
        for sharing in SHARINGS {
            let mut together = scorer(ranks, sharing, checkpoint).unwrap();
            let worst = largest_difference(&mut alone, &mut together, 60);
            println!("{name} on {ranks} ranks, experts by {sharing:?}: largest difference {worst:.1e}");
            assert!(worst < TOLERANCE, "{name}, {sharing:?}: a log-probability is off by {worst}");
        }
    }
}

#[derive(Default)]
struct Inside {
    hidden: Vec<Vec<u32>>,
    routes: Vec<Vec<usize>>,
}

impl Observer for Inside {
    fn hidden(&mut self, _layer: usize, values: &[f32]) {
        self.hidden.push(values.iter().map(|x| x.to_bits()).collect());
    }

    fn routes(&mut self, _layer: usize, _row: usize, routes: &[Route]) {
        self.routes.push(routes.iter().map(|route| route.expert).collect());
    }
}

fn inside(ranks: usize, sharing: ExpertSharing) -> Inside {
    let prompt = prompts().into_iter().find(|prompt| prompt.name == "capital").unwrap();
    let mut inside = Inside::default();
    scorer(ranks, sharing, &canary())
        .unwrap()
        .score_observed(&prompt.tokens, |_, _| {}, &mut inside)
        .unwrap();
    assert!(!inside.hidden.is_empty() && !inside.routes.is_empty());
    inside
}

/// One rank is the plain engine, however experts would be shared; several give the same bits every time, and report the routes of all.
#[test]
fn ranks_are_deterministic() {
    let plain = inside(1, ExpertSharing::Widths);
    assert!(plain.hidden == inside(1, ExpertSharing::Whole).hidden, "one rank has all experts whole");
    for sharing in SHARINGS {
        let (first, second) = (inside(4, sharing), inside(4, sharing));
        assert!(first.hidden == second.hidden, "{sharing:?}");
        assert_eq!(first.routes, plain.routes, "{sharing:?}");
    }
}

#[test]
fn what_cannot_be_dealt_out_is_refused_by_name() {
    let error = scorer(3, ExpertSharing::Whole, &canary()).err().unwrap();
    assert!(error.contains("8 attention heads on 3 ranks"), "{error}");
    // Blocks of scales lie across the border of a part of a width, and of no whole expert.
    let f8 = repack::f8_blocks();
    let error = scorer(2, ExpertSharing::Widths, &f8.checkpoint).err().unwrap();
    assert!(error.contains("mlp.experts.0.") && error.contains("use fewer ranks"), "{error}");
    assert!(scorer(2, ExpertSharing::Whole, &f8.checkpoint).is_ok());
}
