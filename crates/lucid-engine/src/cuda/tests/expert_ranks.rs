//! Whole experts against a part of every expert's width (`--enable-expert-parallel`), as one rank of several computes them, at the full
//! width of Kimi-K2.5: no test, a table. One GPU is enough, for what the ranks tell each other is the same either way.
//!
//! `cargo test --release -p lucid-engine experts_of_one_rank -- --ignored --nocapture`

use std::ops::Range;
use std::slice::from_ref;

use super::full_width::{EXPERTS, HIDDEN, Noise, WIDTH, config};
use super::random::Random;
use super::{gpu_with_terms, split_vectors};
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::experts::{ExpertBuffers, Normed, Output, run};
use crate::cuda::graph::Graphs;
use crate::cuda::kernels::{Kernels, Order};
use crate::cuda::layout::Layout;
use crate::cuda::packing::Room;
use crate::cuda::router::Routes;
use crate::cuda::weights::Experts;
use crate::parallel::{ExpertSharing, Rank};

/// So many layers take turns: what one of them reads is no longer in the second-level cache when its turn comes again.
const LAYERS: usize = 4;
/// Layers that are recorded together.
const RECORDED: usize = 8;

/// Everything between the norm and the sum over the ranks: router, choice, experts, shared expert. All ranks have the same time by widths.
/// With whole experts a step is as slow as the rank with the most to do: the largest of all ranks' times for the same tokens, and the mean over
/// some sets of tokens, whose routes are nearly uniform.
#[test]
#[ignore = "a benchmark, for a GPU with 80 GB or more"]
fn experts_of_one_rank_at_full_width() {
    let Some((gpu, kernels)) = gpu_with_terms(1) else { return };
    let noise = Noise::new(&gpu);
    for ranks in [2, 4, 8] {
        let layers =
            |sharing| -> Vec<Experts> { (0..LAYERS).map(|_| layer(&gpu, &noise, sharing, ranks)).collect() };
        let (widths, mut whole) = (layers(ExpertSharing::Widths), layers(ExpertSharing::Whole));
        let mut lines = Vec::new();
        for batch in [1, 8, 32, 64, 128, 256, 1_024, 4_096] {
            let steps: Vec<Step> = (0..if batch > 256 { 3 } else { 8 })
                .map(|seed| Step::new(&gpu, &kernels, batch, seed))
                .collect();
            let (by_widths, _) = slowest(&gpu, &kernels, &steps, &widths, from_ref(&(0..EXPERTS)));
            let parts: Vec<_> = Rank::all(ranks).map(|rank| rank.part(EXPERTS)).collect();
            let (by_number, mean) = slowest(&gpu, &kernels, &steps, &whole, &parts);
            lines.push((batch, by_widths, by_number, mean));
        }
        whole.iter_mut().for_each(|experts| experts.shared = None);
        for (batch, by_widths, by_number, mean) in lines {
            println!(
                "{ranks} ranks, batch {batch}: widths {:.1} us; whole experts {:.1} us on the slowest rank, {:.1} us on the mean one; \
                 {:.2} times as fast",
                by_widths * 1e6,
                by_number * 1e6,
                mean * 1e6,
                by_widths / by_number
            );
        }
        // What the separate products of the shared expert take.
        for batch in [1, 64, 1_024] {
            let steps = [Step::new(&gpu, &kernels, batch, 0)];
            let first = 0..EXPERTS / ranks;
            let (alone, _) = slowest(&gpu, &kernels, &steps, &whole, from_ref(&first));
            println!("{ranks} ranks, batch {batch}: rank 0 without the shared expert {:.1} us", alone * 1e6);
        }
    }
}

/// The weights of a rank, whichever it is.
fn layer(gpu: &Gpu, noise: &Noise, sharing: ExpertSharing, ranks: usize) -> Experts {
    let width = WIDTH / ranks;
    let mlps = |experts, width| noise.mlps(gpu, Layout::Nvfp4, experts, width);
    let (routed, shared_joined, shared) = match sharing {
        ExpertSharing::Widths => (mlps(EXPERTS + 1, width), true, None),
        ExpertSharing::Whole => (mlps(EXPERTS / ranks, WIDTH), false, Some(mlps(1, width))),
    };
    Experts {
        router: noise.bf16(gpu, EXPERTS, HIDDEN),
        bias: None,
        numbers: 0..EXPERTS,
        routed,
        shared_joined,
        shared,
    }
}

/// A step's normalized vectors.
struct Step {
    batch: usize,
    natural: Buffer,
    nvfp4: Buffer,
}

impl Step {
    fn new(gpu: &Gpu, kernels: &Kernels, batch: usize, seed: u64) -> Step {
        let mut random = Random::new(100 * batch as u64 + seed);
        let xs: Vec<f32> = (0..batch * HIDDEN).map(|_| random.number()).collect();
        let split = |order| split_vectors(gpu, kernels, &xs, HIDDEN, order);
        Step { batch, natural: split(Order::Natural), nvfp4: split(Order::Nvfp4) }
    }
}

/// Seconds that the slowest of ranks with these experts takes for a layer's half, and that ranks take in the mean; means over the steps.
fn slowest(
    gpu: &Gpu,
    kernels: &Kernels,
    steps: &[Step],
    layers: &[Experts],
    ranks: &[Range<usize>],
) -> (f64, f64) {
    let moe = config(1).moe.unwrap();
    let batch = steps[0].batch;
    let width = layers[0].routed.width;
    let slots = EXPERTS + 1;
    let room = Room { tokens: batch, columns: HIDDEN, visits: 9 * batch, visit_columns: HIDDEN, slots };
    let buffers = ExpertBuffers::new(gpu, kernels, room, width, HIDDEN).unwrap();
    let y = gpu.allocate(4 * batch * HIDDEN).unwrap();
    let out = Output { at: y.address(), add: false };
    let mut graphs = Graphs::new(gpu);
    let (mut of_slowest, mut of_all) = (0.0, 0.0);
    for (number, step) in steps.iter().enumerate() {
        let x = Normed { natural: step.natural.address(), nvfp4: step.nvfp4.address() };
        let times = ranks.iter().enumerate().map(|(rank, here)| {
            let routes = Routes::new(gpu, &moe, here.clone(), layers[0].shared_joined, batch).unwrap();
            let mut all = || {
                graphs.run((number, rank), || {
                    (0..RECORDED).try_for_each(|i| {
                        run(gpu, kernels, &layers[i % LAYERS], &routes, &buffers, batch, x, out)
                    })
                })
            };
            let mut times: Vec<f64> = (0..4).map(|_| gpu.time(&mut all).unwrap()).skip(1).collect();
            times.sort_by(f64::total_cmp);
            times[1] / RECORDED as f64
        });
        let times: Vec<f64> = times.collect();
        of_slowest += times.iter().copied().fold(0.0, f64::max) / steps.len() as f64;
        of_all += times.iter().sum::<f64>() / (times.len() * steps.len()) as f64;
    }
    (of_slowest, of_all)
}
