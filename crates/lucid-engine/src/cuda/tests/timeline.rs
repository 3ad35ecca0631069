//! When the kernels of a recorded step could go on: the parts of a layer's time as they are in the step, gaps and all.
//!
//! `LUCID_TIMELINE=1 cargo test --release -p lucid-engine timeline_at_full_width -- --ignored --nocapture`

use std::collections::BTreeMap;

use lucid_checkpoint::TokenId;

use super::full_width::{CONTEXT, Noise, VOCAB, model};
use super::gpu_with_terms;
use super::random::Random;
use crate::cpu::Span;
use crate::cuda::driver::Gpu;
use crate::cuda::forward::CudaModel;

/// Layers of the model. The first is not counted: its weights' pages may be new to the GPU.
const LAYERS: usize = 6;
/// Words of an `Event` of `numerics.cuh`.
const EVENT: usize = 4;

/// What blocks of one launch noted, in nanoseconds of the GPU's clock.
struct Kernel {
    blocks: u32,
    threads: u32,
    /// The first and the last that could go on.
    went: (u64, u64),
    /// The first that came.
    came: u64,
}

/// The launches since the counters were zero, in order.
fn launches(gpu: &Gpu, model: &CudaModel) -> Vec<Kernel> {
    let mut all: BTreeMap<(usize, u64, u64), Kernel> = BTreeMap::new();
    for (part, (at, count)) in
        model.variables("timeline").into_iter().zip(model.variables("timeline_events")).enumerate()
    {
        let mut events = [0u32];
        gpu.read(&mut events, count.0).unwrap();
        let mut words = vec![0u64; at.1 / 8];
        gpu.read(&mut words, at.0).unwrap();
        for event in words.chunks(EVENT).take(events[0] as usize) {
            let (blocks, threads) = (event[3] as u32, (event[3] >> 32) as u32);
            let kernel = all.entry((part, event[0], event[3])).or_insert(Kernel {
                blocks,
                threads,
                went: (u64::MAX, 0),
                came: u64::MAX,
            });
            kernel.went = (kernel.went.0.min(event[2]), kernel.went.1.max(event[2]));
            kernel.came = kernel.came.min(event[1]);
        }
    }
    let mut all: Vec<Kernel> = all.into_values().collect();
    all.sort_by_key(|kernel| kernel.went.0);
    all
}

#[test]
#[ignore = "a benchmark, for a GPU with 80 GB or more"]
fn timeline_at_full_width() {
    let Some((gpu, kernels)) = gpu_with_terms(1) else { return };
    let noise = Noise::new(&gpu);
    let layers = (0..LAYERS).map(|_| noise.layer(&gpu)).collect();
    let (mut model, tables) = model(&gpu, kernels, &noise, layers);
    if model.variables("timeline").is_empty() {
        println!("set LUCID_TIMELINE=1: the kernels note nothing without it");
        return;
    }
    let mut random = Random::new(9);
    for batch in [1, 8] {
        let spans: Vec<Span<'_>> = (0..batch)
            .map(|row| Span { pages: &tables[row], position: CONTEXT - 1, count: 1, row, prompt: 0 })
            .collect();
        // By place in the layer: blocks, threads, and sums of how long it was the last that could go on, how long its blocks took to
        // go on, and how long the first had waited.
        let mut parts: Vec<(u32, u32, [f64; 3])> = Vec::new();
        let mut steps = 0.0;
        for step in 0..40 {
            let tokens: Vec<TokenId> = (0..batch).map(|_| TokenId(random.below(VOCAB) as u32)).collect();
            model.variables("timeline_events").iter().for_each(|at| gpu.write(at.0, &[0u32]).unwrap());
            model.forward(&tokens, &spans, None::<&mut ()>).unwrap();
            gpu.synchronize().unwrap();
            let kernels = launches(&gpu, &model);
            // An embedding and a norm before the layers, each of which ends with the norm of the next: a part of that one.
            let of_layer = (kernels.len() - 2) / LAYERS;
            if kernels.len() != 2 + LAYERS * of_layer {
                println!("{} launches are not {LAYERS} layers", kernels.len());
                continue;
            }
            if step < 8 {
                continue;
            }
            steps += (LAYERS - 1) as f64;
            parts.resize(of_layer, (0, 0, [0.0; 3]));
            for (i, pair) in kernels.windows(2).enumerate().skip(1 + of_layer).take((LAYERS - 1) * of_layer) {
                let (kernel, part) = (&pair[0], &mut parts[(i - 1) % of_layer]);
                (part.0, part.1) = (kernel.blocks, kernel.threads);
                let us = |from: u64, to: u64| (to as f64 - from as f64) / 1e3;
                part.2[0] += us(kernel.went.0, pair[1].went.0);
                part.2[1] += us(kernel.went.0, kernel.went.1);
                part.2[2] += us(kernel.came, kernel.went.0);
            }
        }
        println!("batch {batch}: a layer takes {:.1} us", parts.iter().map(|p| p.2[0]).sum::<f64>() / steps);
        println!("  blocks threads   until the next   blocks go on for   waited before, us");
        for (blocks, threads, sums) in parts {
            let [until, spread, waited] = sums.map(|sum| sum / steps);
            println!("{blocks:>8} {threads:>7} {until:>16.2} {spread:>18.2} {waited:>15.2}");
        }
    }
}
