//! The engine against transformers' DeepseekV3ForCausalLM (float32) on the same weights.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // The lints spare test functions, not what they share.

mod goldens;

use std::collections::BTreeMap;

use goldens::{Goldens, LATENT_NORM_EPS, Prompt, TOLERANCE, canary, prompts};
use lucid_engine::{Mode, Observer, Route, Scorer, SemanticsOptions};

fn scorer(mode: Mode) -> Scorer {
    let semantics =
        SemanticsOptions { mode, latent_norm_eps: Some(LATENT_NORM_EPS), ..SemanticsOptions::default() };
    Scorer::new(&canary(), &semantics, None).unwrap()
}

#[test]
fn reference_logprobs_and_greedy_choices_match_at_every_position_of_every_prompt() {
    let goldens = Goldens::open();
    let mut scorer = scorer(Mode::Reference);
    for prompt in prompts() {
        let name = &prompt.name;
        let ids = goldens.ids(&format!("{name}.top_ids"));
        let (shape, top) = goldens.f32s(&format!("{name}.top_logprobs"));
        let (_, next) = goldens.f32s(&format!("{name}.next_logprob"));
        assert_eq!(shape, [prompt.tokens.len(), 16]);
        let (mut worst, mut positions) = (0f32, 0);
        scorer
            .score(&prompt.tokens, |position, logprobs| {
                positions += 1;
                for k in position * 16..(position + 1) * 16 {
                    worst = worst.max((logprobs[ids[k]] - top[k]).abs());
                }
                if let Some(expected) = next.get(position) {
                    worst = worst.max((logprobs[prompt.tokens[position + 1].row()] - expected).abs());
                }
                check_greedy(&prompt, position, logprobs);
            })
            .unwrap();
        println!("{name}: {positions} positions, largest difference {worst:.2e}");
        assert_eq!(positions, prompt.tokens.len());
        assert!(worst < TOLERANCE, "{name}: a log-probability is off by {worst}");
    }
}

/// Teacher-forced greedy choices are the greedy completion: the first wrong one would differ here too.
fn check_greedy(prompt: &Prompt, position: usize, logprobs: &[f32]) {
    let Some(&expected) = prompt.tokens.get(position + 1) else { return };
    if position + 1 >= prompt.prompt_len {
        let best = (0..logprobs.len()).max_by(|&a, &b| logprobs[a].total_cmp(&logprobs[b]));
        assert_eq!(best, Some(expected.row()), "{} at {position}", prompt.name);
    }
}

#[test]
fn greedy_choices_match_with_a_bf16_cache() {
    let mut scorer = scorer(Mode::Serving);
    for prompt in prompts() {
        scorer.score(&prompt.tokens, |position, logprobs| check_greedy(&prompt, position, logprobs)).unwrap();
    }
}

#[derive(Default)]
struct Trace {
    hidden: Vec<Vec<f32>>,
    routes: BTreeMap<(usize, usize), Vec<Route>>,
}

impl Observer for Trace {
    fn hidden(&mut self, layer: usize, values: &[f32]) {
        assert_eq!(layer, self.hidden.len());
        self.hidden.push(values.to_vec());
    }

    fn routes(&mut self, layer: usize, row: usize, routes: &[Route]) {
        self.routes.insert((layer, row), routes.to_vec());
    }
}

#[test]
fn hidden_states_and_routes_of_capital_match() {
    let goldens = Goldens::open();
    let capital = prompts().into_iter().find(|prompt| prompt.name == "capital").unwrap();
    let mut trace = Trace::default();
    let mut logits_worst = 0f32;
    let (_, logits) = goldens.f32s("capital.logits");
    scorer(Mode::Reference)
        .score_observed(
            &capital.tokens,
            |position, logprobs| {
                // Logits are log-probabilities up to a constant.
                let golden = &logits[position * 4096..(position + 1) * 4096];
                let shift = golden[0] - logprobs[0];
                for (a, b) in golden.iter().zip(logprobs) {
                    logits_worst = logits_worst.max((a - b - shift).abs());
                }
            },
            &mut trace,
        )
        .unwrap();
    assert!(logits_worst < 2.0 * TOLERANCE, "logits differ by {logits_worst}");

    let (shape, golden) = goldens.f32s("capital.hidden_states");
    let [states, tokens, hidden] = shape[..] else { panic!("{shape:?}") };
    assert_eq!((states, tokens), (5, capital.tokens.len()));
    // The last golden state is taken after the final norm, ours before it.
    let norm = canary().vector("model.norm.weight", hidden).unwrap();
    for row in trace.hidden[states - 1].chunks_exact_mut(hidden) {
        let mean = row.iter().map(|x| x * x).sum::<f32>() / hidden as f32;
        for (x, weight) in row.iter_mut().zip(&norm) {
            *x *= weight / (mean + 1e-5).sqrt();
        }
    }
    for layer in 0..states {
        for token in 0..tokens {
            let at = (layer * tokens + token) * hidden;
            let golden = &golden[at..at + hidden];
            let ours = &trace.hidden[layer][token * hidden..(token + 1) * hidden];
            let difference = golden.iter().zip(ours).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
            let norm = golden.iter().map(|a| a * a).sum::<f32>().sqrt();
            assert!(difference < 1e-3 * norm, "layer {layer}, token {token}: {difference} of {norm}");
        }
    }
    for layer in 1..4 {
        let ids = goldens.ids(&format!("capital.layer{layer}.expert_ids"));
        let (_, weights) = goldens.f32s(&format!("capital.layer{layer}.expert_weights"));
        for token in 0..tokens {
            let mut golden: Vec<(usize, f32)> =
                (token * 4..token * 4 + 4).map(|k| (ids[k], weights[k])).collect();
            let mut ours: Vec<(usize, f32)> =
                trace.routes[&(layer, token)].iter().map(|route| (route.expert, route.weight)).collect();
            golden.sort_by_key(|route| route.0);
            ours.sort_by_key(|route| route.0);
            for (ours, golden) in ours.iter().zip(&golden) {
                assert_eq!(ours.0, golden.0, "layer {layer}, token {token}");
                assert!(
                    (ours.1 - golden.1).abs() < 1e-3,
                    "layer {layer}, token {token}: {ours:?} {golden:?}"
                );
            }
        }
    }
}
