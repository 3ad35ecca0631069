use std::ops::Range;

use lucid_checkpoint::{MoE, ScoringFunc};

use super::full_width::config;
use super::random::{self, Random, decoded, dot};
use super::{bf16, gpu, gpu_with_terms, read, same_bits, some_of, split_vectors};
use crate::cuda::arguments::Order;
use crate::cuda::driver::{Address, Gpu};
use crate::cuda::experts::{ExpertBuffers, Job, Normed, Output, Pass, visit};
use crate::cuda::kernels::Kernels;
use crate::cuda::layout::Layout;
use crate::cuda::packing::Room;
use crate::cuda::router::{Routes, SharedVisits};
use crate::cuda::weights::{Mlps, upload_experts};
use crate::parallel::{ExpertSharing, Rank, Shard};
use crate::weights::Mlp;

const EXPERTS: usize = 6;
const PER_TOKEN: usize = 2;
const COUNTS: [usize; 7] = [1, 2, 5, 17, 64, 70, 301];

#[test]
fn visits_match_f64_and_never_depend_on_who_shares_the_pass() {
    visits_match_f64(3, 2e-5);
}

/// What goes from gate and up to down is rounded.
#[test]
fn visits_with_bf16_activations_match_f64_and_never_depend_on_who_shares_the_pass() {
    visits_match_f64(1, 1e-2);
}

fn visits_match_f64(terms: usize, tolerance: f64) {
    let Some((gpu, kernels)) = gpu_with_terms(terms) else { return };
    let shapes = [
        (Layout::Nvfp4, 256, 128),
        (Layout::Nvfp4, 128, 384),
        (Layout::Nvfp4, 1_024, 272),
        (Layout::Nvfp4, 48, 64),
        (Layout::Bf16, 64, 40),
        (Layout::F8E4m3, 33, 17),
        (Layout::Bf16, 256, 128),
        (Layout::Bf16, 1_024, 384),
        (Layout::Int4, 256, 128),
        (Layout::Int4, 1_024, 288),
        (Layout::Int4, 128, 1_152),
        (Layout::F8Blocks, 256, 128),
        (Layout::F8Blocks, 1_024, 272),
        (Layout::F8Blocks, 128, 1_152),
        (Layout::Q8_0, 64, 96),
        (Layout::Q8_0, 256, 128),
        (Layout::Q8_0, 1_024, 288),
        (Layout::Q8_0, 128, 1_152),
        (Layout::Q5_0, 256, 384),
        (Layout::Q4K, 256, 256),
        (Layout::Q4K, 1_024, 256),
        (Layout::Q5K, 512, 256),
        (Layout::Q6K, 256, 512),
        (Layout::Q6K, 1_792, 256),
        (Layout::Q5_1, 256, 384),
        (Layout::Q5_1, 1_024, 288),
        (Layout::Iq4Xs, 256, 256),
        (Layout::Iq4Xs, 1_792, 256),
        (Layout::Q2K, 256, 256),
    ];
    // Down in more bits, as llama.cpp's mixtures have it.
    let mixed = [(Layout::Q4K, 512, 256), (Layout::Q5K, 256, 1_024)];
    let alike = shapes.into_iter().map(|(layout, hidden, width)| (layout, layout, hidden, width));
    let unlike = mixed.into_iter().map(|(layout, hidden, width)| (layout, Layout::Q6K, hidden, width));
    for (layout, of_down, hidden, width) in some_of(alike.chain(unlike), |&(_, _, hidden, _)| hidden == 256) {
        let mlps: Vec<Mlp> = (0..=EXPERTS as u64)
            .map(|e| Mlp {
                gate: random::matrix(layout, width, hidden, 10 + e),
                up: random::matrix(layout, width, hidden, 20 + e),
                down: random::matrix(of_down, hidden, width, 30 + e),
            })
            .collect();
        // All experts, and the part of a rank that has some of them and the shared one.
        let counts = some_of(COUNTS, |count| [2, 17, 70].contains(count));
        let of_each = |here: Range<usize>| counts.iter().map(move |&count| (here.clone(), count));
        for (here, count) in [0..EXPERTS, 2..5].into_iter().flat_map(of_each) {
            let parts: Vec<&Mlp> = mlps[here.clone()].iter().chain(&mlps[EXPERTS..]).collect();
            let on_gpu = Mlps::upload(&gpu, &kernels, &parts).unwrap();
            let moe = MoE {
                n_routed_experts: EXPERTS,
                n_shared_experts: 1,
                num_experts_per_tok: PER_TOKEN,
                moe_intermediate_size: width,
                n_group: 1,
                topk_group: 1,
                scoring_func: ScoringFunc::Sigmoid,
                norm_topk_prob: true,
                routed_scaling_factor: 1.0,
            };
            let routes = Routes::new(&gpu, &moe, here.clone(), count).unwrap();
            let mut random = Random::new(count as u64);
            let logits: Vec<f32> = (0..count * EXPERTS).map(|_| random.number()).collect();
            gpu.write(routes.logits.address(), &logits).unwrap();
            routes.choose(&gpu, &kernels, Address::NULL, SharedVisits::All, count).unwrap();
            // Small enough that SiLU does not saturate.
            let xs = random::vector(count * hidden, 5);
            let round = |x: f32| if terms == 1 { bf16(x) } else { x };
            let xs: Vec<f32> = xs.iter().map(|x| round(x / 8.0)).collect();
            let natural = split_vectors(&gpu, &kernels, &xs, hidden, Order::Natural);
            let nvfp4 = match layout.order(hidden) {
                Order::Nvfp4 => split_vectors(&gpu, &kernels, &xs, hidden, Order::Nvfp4),
                Order::Natural => gpu.allocate(0).unwrap(),
            };
            let x = Normed { natural: natural.address(), nvfp4: nvfp4.address() };
            let visits = count * (PER_TOKEN + 1);
            let run = |pass: Pass| {
                let buffers =
                    ExpertBuffers::new(&gpu, &kernels, room(count, hidden, width), width, hidden).unwrap();
                gpu.write(buffers.outputs(), &vec![f32::NAN; visits * hidden]).unwrap();
                let slots = routes.most_active(SharedVisits::All, count);
                visit(Job {
                    gpu: &gpu,
                    kernels: &kernels,
                    mlps: &on_gpu,
                    visits: routes.visits(SharedVisits::All, count),
                    slots,
                    pass,
                    x,
                    buffers: &buffers,
                })
                .unwrap();
                let mut y = vec![0f32; visits * hidden];
                gpu.read(&mut y, buffers.outputs()).unwrap();
                y
            };
            let (plain, narrow) = (run(Pass::Plain), run(Pass::Narrow));
            let whole = kernels.prefill.then_some(Pass::Whole);
            let prefill = kernels.prefill.then_some(Pass::Prefill);
            let hopper =
                kernels.hopper.map(|_| [32, 64, 96, 128, 192].map(Pass::Hopper)).into_iter().flatten();
            for pass in [Pass::Many].into_iter().chain(whole).chain(prefill).chain(hopper) {
                assert!(
                    same_bits(&narrow, &run(pass)),
                    "{pass:?}, {layout:?} {hidden}x{width}, experts {here:?}, {count} tokens"
                );
            }
            let chosen = routes.read(&gpu, count).unwrap();
            let mut places = vec![0u32; count * PER_TOKEN];
            gpu.read(&mut places, routes.places.address()).unwrap();
            let mut pairs: Vec<(usize, usize, usize)> = (0..count * PER_TOKEN)
                .map(|i| (places[i] as usize, i / PER_TOKEN, chosen[i / PER_TOKEN][i % PER_TOKEN].expert))
                .filter(|(_, _, expert)| here.contains(expert))
                .collect();
            pairs.extend((0..count).map(|token| (count * PER_TOKEN + token, token, EXPERTS)));
            // f64 takes long: of many visits some, of every expert.
            for (place, token, expert) in pairs.into_iter().step_by(1 + count / 16) {
                let expected = swiglu(&mlps[expert], &xs[token * hidden..][..hidden]);
                let size = expected.iter().map(|y| y.abs()).fold(0.0, f64::max);
                for (which, y) in [("plain", &plain), ("fast", &narrow)] {
                    for (y, expected) in y[place * hidden..][..hidden].iter().zip(&expected) {
                        let error = (f64::from(*y) - expected).abs();
                        assert!(
                            error <= tolerance * size,
                            "{which} {layout:?} {hidden}x{width}: {y} for {expected}"
                        );
                    }
                }
            }
        }
    }
}

fn room(tokens: usize, hidden: usize, width: usize) -> Room {
    let visits = tokens * (PER_TOKEN + 1);
    Room { tokens, columns: hidden, visits, visit_columns: hidden.max(width), slots: EXPERTS + 1 }
}

fn swiglu(mlp: &Mlp, x: &[f32]) -> Vec<f64> {
    let (gate, up, down) = (decoded(&mlp.gate), decoded(&mlp.up), decoded(&mlp.down));
    let inner: Vec<f32> = (0..mlp.gate.rows)
        .map(|row| {
            let cut = |values: &[f32]| dot(&values[row * x.len()..][..x.len()], x).0;
            let gate = cut(&gate);
            (gate / (1.0 + (-gate).exp()) * cut(&up)) as f32
        })
        .collect();
    (0..mlp.down.rows).map(|row| dot(&down[row * inner.len()..][..inner.len()], &inner).0).collect()
}

/// The whole half of a layer, with weights, shared expert and residual; on one rank, and by the sum over ranks that have whole experts.
#[test]
fn a_layers_sum_is_the_weighted_sum_of_its_visits() {
    let Some((gpu, kernels)) = gpu() else { return };
    // One token visits two experts at the most, so some ranks have nothing to do.
    for (ranks, count) in [(1, 17), (2, 17), (2, 1), (4, 1), (4, 2), (4, 90), (4, 1_100)] {
        for shared in [Layout::Nvfp4, Layout::Bf16] {
            sum_over_ranks(&gpu, &kernels, shared, ranks, count);
        }
    }
}

fn sum_over_ranks(gpu: &Gpu, kernels: &Kernels, layout: Layout, ranks: usize, count: usize) {
    let (hidden, width) = (256, 128);
    let mlp = |layout, seed| Mlp {
        gate: random::matrix(layout, width, hidden, seed),
        up: random::matrix(layout, width, hidden, seed + 1),
        down: random::matrix(layout, hidden, width, seed + 2),
    };
    let host = crate::weights::Experts {
        router: random::matrix(Layout::Bf16, EXPERTS, hidden, 90),
        bias: None,
        mistake: None,
        first: 0,
        routed: (0..EXPERTS as u64).map(|e| mlp(Layout::Nvfp4, 10 * e)).collect(),
        shared: Some(mlp(layout, 70)),
        shared_by: None,
    };
    let moe = MoE {
        n_routed_experts: EXPERTS,
        n_shared_experts: 1,
        num_experts_per_tok: PER_TOKEN,
        moe_intermediate_size: width,
        n_group: 1,
        topk_group: 1,
        scoring_func: ScoringFunc::Sigmoid,
        norm_topk_prob: true,
        routed_scaling_factor: 1.5,
    };
    let xs: Vec<f32> = random::vector(count * hidden, 5).iter().map(|x| x / 8.0).collect();
    let residual = random::vector(count * hidden, 6);
    let natural = split_vectors(gpu, kernels, &xs, hidden, Order::Natural);
    let nvfp4 = split_vectors(gpu, kernels, &xs, hidden, Order::Nvfp4);
    let x = Normed { natural: natural.address(), nvfp4: nvfp4.address() };
    let y = gpu.upload(&residual).unwrap();
    let config = config(1);
    let mut choices = Vec::new();
    for rank in Rank::all(ranks) {
        let part = Shard::new(&config, rank, ExpertSharing::Whole).experts(&host).unwrap();
        let experts = upload_experts(gpu, kernels, &part).unwrap();
        let listed = match (layout, ranks) {
            (Layout::Bf16, _) => SharedVisits::Unlisted,
            (_, 1) => SharedVisits::All,
            _ => SharedVisits::Of(rank),
        };
        assert_eq!(experts.shared_visits, listed);
        let routes = Routes::new(gpu, &moe, experts.numbers.clone(), count).unwrap();
        let buffers = ExpertBuffers::new(gpu, kernels, room(count, hidden, width), width, hidden).unwrap();
        let out = Output { at: y.address(), add: true, then: None };
        crate::cuda::experts::run(gpu, kernels, &experts, &routes, &buffers, count, x, out).unwrap();
        choices.push(routes.read(gpu, count).unwrap());
    }
    assert!(choices.iter().all(|chosen| *chosen == choices[0]), "ranks choose different experts");
    let y = read(gpu, &y, count * hidden);
    for (token, chosen) in choices[0].iter().enumerate() {
        let x = &xs[token * hidden..][..hidden];
        let mut expected = swiglu(host.shared.as_ref().unwrap(), x);
        for route in chosen {
            let visit = swiglu(&host.routed[route.expert], x);
            expected.iter_mut().zip(visit).for_each(|(sum, y)| *sum += f64::from(route.weight) * y);
        }
        let size = expected.iter().map(|y| y.abs()).fold(1.0, f64::max);
        for (k, expected) in expected.iter().enumerate() {
            let i = token * hidden + k;
            let error = (f64::from(y[i]) - expected - f64::from(residual[i])).abs();
            assert!(error <= 2e-5 * size, "{} for {expected}", y[i]);
        }
    }
}
