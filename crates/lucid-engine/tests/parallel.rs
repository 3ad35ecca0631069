//! A model on several ranks of the processor: the same answers as on one, within what another order of sums changes.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // The lints spare test functions, not what they share.

mod goldens;

use goldens::{LATENT_NORM_EPS, canary, prompts};
use lucid_engine::{Device, Mode, Observer, Scorer, SemanticsOptions};

/// Sums over ranks run in another order than sums over columns; on the canary that moved log-probabilities by 3e-5 at the most.
const TOLERANCE: f32 = 5e-4;

fn scorer(ranks: usize) -> Scorer {
    let semantics = SemanticsOptions {
        mode: Mode::Reference,
        latent_norm_eps: Some(LATENT_NORM_EPS),
        ..SemanticsOptions::default()
    };
    Scorer::on_ranks(Device::Cpu, ranks, &canary(), &semantics, Some(1)).unwrap()
}

#[derive(Default)]
struct Hidden(Vec<Vec<u32>>);

impl Observer for Hidden {
    fn hidden(&mut self, _layer: usize, values: &[f32]) {
        self.0.push(values.iter().map(|x| x.to_bits()).collect());
    }
}

#[test]
fn ranks_agree_with_a_single_one() {
    let mut alone = scorer(1);
    for ranks in [2, 4, 8] {
        let mut together = scorer(ranks);
        let mut worst = 0f32;
        for prompt in prompts().iter().filter(|prompt| prompt.tokens.len() < 130) {
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
        println!("{ranks} ranks: largest difference {worst:.1e}");
        assert!(worst < TOLERANCE, "{ranks} ranks: a log-probability is off by {worst}");
    }
}

/// One rank is the plain engine; several give the same bits every time.
#[test]
fn ranks_are_deterministic() {
    let prompt = prompts().into_iter().find(|prompt| prompt.name == "capital").unwrap();
    for ranks in [1, 4] {
        let mut runs = [Hidden::default(), Hidden::default()];
        for run in &mut runs {
            scorer(ranks).score_observed(&prompt.tokens, |_, _| {}, run).unwrap();
        }
        assert!(!runs[0].0.is_empty() && runs[0].0 == runs[1].0, "{ranks} ranks");
    }
}

#[test]
fn a_number_of_ranks_that_does_not_divide_the_heads_is_refused() {
    let error = Scorer::on_ranks(Device::Cpu, 3, &canary(), &SemanticsOptions::default(), Some(1));
    let error = error.err().unwrap().to_string();
    assert!(error.contains("8 attention heads on 3 ranks"), "{error}");
}
