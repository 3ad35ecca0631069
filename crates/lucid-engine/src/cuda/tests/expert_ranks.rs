//! Whole experts against a part of every expert's width (`--enable-expert-parallel`), as one rank of several computes them, at the full
//! width of Kimi-K2.5: no test, a table. One GPU is enough, for what the ranks tell each other is the same either way.
//!
//! `cargo test --release -p lucid-engine experts_of_one_rank -- --ignored --nocapture`

use std::ops::Range;

use super::full_width::{EXPERTS, HIDDEN, Noise, WIDTH, config};
use super::random::Random;
use super::{gpu_with_terms, split_vectors};
use crate::cuda::arguments::Order;
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::experts::{ExpertBuffers, Normed, Output, run};
use crate::cuda::graph::Graphs;
use crate::cuda::kernels::Kernels;
use crate::cuda::layout::Layout;
use crate::cuda::packing::Room;
use crate::cuda::router::{Routes, SharedVisits};
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
        for batch in [1, 8, 32, 64, 128, 256, 1_024, 4_096] {
            let steps: Vec<Step> = (0..if batch > 256 { 3 } else { 8 })
                .map(|seed| Step::new(&gpu, &kernels, batch, seed))
                .collect();
            let by_widths = times(&gpu, &kernels, &steps, &widths, &(0..EXPERTS));
            let of_ranks: Vec<Vec<f64>> = Rank::all(ranks)
                .map(|rank| {
                    whole.iter_mut().for_each(|experts| experts.shared_visits = SharedVisits::Of(rank));
                    times(&gpu, &kernels, &steps, &whole, &rank.part(EXPERTS))
                })
                .collect();
            let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
            let slowest: Vec<f64> = (0..steps.len())
                .map(|step| of_ranks.iter().map(|times| times[step]).fold(0.0, f64::max))
                .collect();
            println!(
                "{ranks} ranks, batch {batch}: widths {:.1} us; whole experts {:.1} us on the slowest rank, {:.1} us on the mean one; \
                 {:.2} times as fast",
                mean(&by_widths) * 1e6,
                mean(&slowest) * 1e6,
                mean(&of_ranks.concat()) * 1e6,
                mean(&by_widths) / mean(&slowest)
            );
        }
    }
}

/// The weights of a rank, whichever it is.
fn layer(gpu: &Gpu, noise: &Noise, sharing: ExpertSharing, ranks: usize) -> Experts {
    let (experts, width) = match sharing {
        ExpertSharing::Widths => (EXPERTS, WIDTH / ranks),
        ExpertSharing::Whole => (EXPERTS / ranks, WIDTH),
    };
    Experts {
        router: noise.bf16(gpu, EXPERTS, HIDDEN),
        bias: None,
        numbers: 0..experts,
        routed: noise.mlps(gpu, Layout::Nvfp4, experts + 1, width),
        shared_visits: SharedVisits::All,
        shared: None,
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

/// Seconds that a rank with the experts `here` takes for a layer's half in each of the steps.
fn times(gpu: &Gpu, kernels: &Kernels, steps: &[Step], layers: &[Experts], here: &Range<usize>) -> Vec<f64> {
    let moe = config(1).moe.unwrap();
    let batch = steps[0].batch;
    let width = layers[0].routed.width;
    let slots = EXPERTS + 1;
    let room = Room { tokens: batch, columns: HIDDEN, visits: 9 * batch, visit_columns: HIDDEN, slots };
    let buffers = ExpertBuffers::new(gpu, kernels, room, width, HIDDEN).unwrap();
    let routes = Routes::new(gpu, &moe, here.clone(), batch).unwrap();
    let y = gpu.allocate(4 * batch * HIDDEN).unwrap();
    let out = Output { at: y.address(), add: false, then: None };
    let mut graphs = Graphs::new(gpu);
    let mut time = |(number, step): (usize, &Step)| {
        let x = Normed { natural: step.natural.address(), nvfp4: step.nvfp4.address() };
        let mut all = || {
            graphs.run((number, 0), || {
                let mut turns = (0..RECORDED).map(|i| &layers[i % LAYERS]);
                turns.try_for_each(|layer| run(gpu, kernels, layer, &routes, &buffers, batch, x, out))
            })
        };
        let mut times: Vec<f64> = (0..4).map(|_| gpu.time(&mut all).unwrap()).skip(1).collect();
        times.sort_by(f64::total_cmp);
        times[1] / RECORDED as f64
    };
    steps.iter().enumerate().map(&mut time).collect()
}
