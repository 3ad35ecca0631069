//! The speed of decoding at the full width of Kimi-K2.5, with random weights: no test, a table.
//!
//! `cargo test --release -p lucid-engine cuda::tests::bench -- --ignored --nocapture`

use std::time::Instant;

use lucid_checkpoint::TokenId;

use super::full_width::{CONTEXT, EXPERTS, HEADS, HIDDEN, Noise, VOCAB, WIDTH, config, model};
use super::random::Random;
use super::{gpu_with_terms, split_vectors};
use crate::cpu::Span;
use crate::cuda::arguments::Order;
use crate::cuda::attention::{Choices, Pages, PartialSums, Shape, StepRows, attend};
use crate::cuda::cache::LayerCache;
use crate::cuda::driver::{Address, Gpu, launch};
use crate::cuda::experts::{ExpertBuffers, Job, Normed, Pass, down, gate_up, visit};
use crate::cuda::forward::{All, CudaModel};
use crate::cuda::kernels::Kernels;
use crate::cuda::layout::Layout;
use crate::cuda::matmul::{Product, multiply};
use crate::cuda::packing::Room;
use crate::cuda::ranks::Ranks;
use crate::cuda::router::{Routes, SharedVisits};
use crate::cuda::weights::{DeviceMatrix, ExpertMatrices, FeedForward, Layer, Mlps, Query, Weights};
use crate::kv_cache::{PAGE_TOKENS, PagePool};
use crate::parallel::{ExpertSharing, Rank, Shard};
use crate::{KvCacheDtype, Mode, Semantics, SemanticsOptions};

/// Seconds for one call of `queue`, which gets the number of the call: median of five rounds of twenty, after a warm-up.
fn measure(gpu: &Gpu, mut queue: impl FnMut(usize)) -> f64 {
    let mut rounds: Vec<f64> = (0..6)
        .map(|round| {
            let all = || {
                (0..20).for_each(|i| queue(20 * round + i));
                Ok(())
            };
            gpu.time(all).unwrap() / 20.0
        })
        .skip(1)
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[2]
}

fn line(what: &str, seconds: f64, bytes: f64, copy: f64) {
    let rate = bytes / seconds;
    println!(
        "{what:<34} {:>8.1} us {:>8.1} MB {:>6.2} TB/s {:>5.0} % of the copy",
        seconds * 1e6,
        bytes / 1e6,
        rate / 1e12,
        100.0 * rate / copy
    );
}

#[test]
#[ignore = "a benchmark, for a GPU with 80 GB or more"]
fn decoding_at_full_width() {
    let Some((gpu, kernels)) = gpu_with_terms(1) else { return };
    let noise = Noise::new(&gpu);
    let copy = bandwidth(&gpu, &kernels, &noise);
    let layers: Vec<Layer> = (0..6).map(|_| noise.layer(&gpu)).collect();
    for batch in [1, 8, 32, 64] {
        experts_alone(&gpu, &kernels, &routed(&layers), batch, copy);
    }
    for batch in [1, 8, 32, 64] {
        projections(&gpu, &kernels, &noise, &layers, batch, copy);
        attention(&gpu, &kernels, &noise, KvCacheDtype::Bf16, (batch, CONTEXT), copy);
    }
    whole_layers(&gpu, kernels, &noise, layers, copy);
}

#[test]
#[ignore = "a benchmark, for a GPU with 80 GB or more"]
fn layers_at_full_width() {
    let Some((gpu, kernels)) = gpu_with_terms(1) else { return };
    let noise = Noise::new(&gpu);
    let copy = bandwidth(&gpu, &kernels, &noise);
    let layers: Vec<Layer> = (0..6).map(|_| noise.layer(&gpu)).collect();
    whole_layers(&gpu, kernels, &noise, layers, copy);
}

/// Layers with experts in GGUF's blocks, as Q4_K_M and Q8_0 have them; attention in bf16.
#[test]
#[ignore = "a benchmark, for a GPU with 80 GB or more"]
fn layers_in_blocks_at_full_width() {
    for layout in [Layout::Q4K, Layout::Q8_0] {
        let Some((gpu, kernels)) = gpu_with_terms(1) else { return };
        println!("{layout:?}");
        kernels.prepare(&gpu, [layout]).unwrap();
        let noise = Noise::new(&gpu);
        let copy = bandwidth(&gpu, &kernels, &noise);
        let layers: Vec<Layer> = (0..6).map(|_| noise.layer_in(&gpu, layout)).collect();
        whole_layers(&gpu, kernels, &noise, layers, copy);
    }
}

/// Bytes read and written a second in a copy; prints the read-only figure beside it.
fn bandwidth(gpu: &Gpu, kernels: &Kernels, noise: &Noise) -> f64 {
    let bytes = 4usize << 30;
    let (from, to) = (noise.fill(gpu, &noise.tiles, bytes), gpu.allocate(bytes).unwrap());
    let copy = 2.0 * bytes as f64 / measure(gpu, |_| gpu.copy(from.address(), to.address(), bytes).unwrap());
    let (values, count, out) = (from.address(), (bytes / 16) as u64, to.address());
    let seconds = measure(gpu, |_| {
        launch!(gpu, kernels.read_all, (132 * 16, 1, 1), 512, 0; values, count, out).unwrap();
    });
    println!(
        "copy {:.2} TB/s (read and written), read only {:.2} TB/s",
        copy / 1e12,
        bytes as f64 / seconds / 1e12
    );
    copy
}

fn expert_bytes(layer: &Mlps) -> f64 {
    let one = |m: &ExpertMatrices| (m.value_stride + m.scale_stride) as f64;
    one(&layer.gate) + one(&layer.up) + one(&layer.down)
}

fn routed(layers: &[Layer]) -> Vec<&Mlps> {
    layers
        .iter()
        .filter_map(|layer| match &layer.feed_forward {
            FeedForward::Experts(experts) => Some(&experts.routed),
            FeedForward::Dense(_) => None,
        })
        .collect()
}

/// The experts of native Kimi-K2.5 (INT4) and of Kimi-K2 (FP8 blocks), and bf16 ones, as shared experts are beside INT4; GGUF's blocks. The values are
/// noise, and some no numbers: only the time counts. With `ALL_PASSES` set, by all kernels that take them, not by the best alone;
/// with `FORMS`, only those that it names, with commas between them.
#[test]
#[ignore = "a benchmark, for a GPU with 80 GB or more"]
fn experts_in_other_forms_at_full_width() {
    let Some((gpu, kernels)) = gpu_with_terms(1) else { return };
    let noise = Noise::new(&gpu);
    let copy = bandwidth(&gpu, &kernels, &noise);
    let plain = [(Layout::Nvfp4, 3), (Layout::Int4, 3), (Layout::F8Blocks, 2), (Layout::Bf16, 1)];
    let blocks = [
        (Layout::Q4K, 3),
        (Layout::Q5_0, 2),
        (Layout::Q5_1, 2),
        (Layout::Q5K, 2),
        (Layout::Q6K, 2),
        (Layout::Q8_0, 2),
        (Layout::Iq4Xs, 2),
    ];
    let alike = plain.into_iter().chain(blocks).map(|(layout, layers)| ((layout, layout), layers));
    // As Q4_K_M has it in many layers.
    let mixed = ((Layout::Q4K, Layout::Q6K), 2);
    for ((layout, down), layers) in alike.chain([mixed]) {
        let form = if layout == down { format!("{layout:?}") } else { format!("{layout:?} and {down:?}") };
        if std::env::var("FORMS").is_ok_and(|forms| forms.split(',').all(|wanted| *wanted != form)) {
            continue;
        }
        kernels.prepare(&gpu, [layout, down]).unwrap();
        let mlps: Vec<Mlps> =
            (0..layers).map(|_| noise.mixed_mlps(&gpu, (layout, down), EXPERTS + 1, WIDTH)).collect();
        for batch in [1, 8, 32, 64, 128, 2_048] {
            println!("{form}");
            if std::env::var_os("ALL_PASSES").is_some() && batch <= 128 {
                for pass in [Pass::Narrow, Pass::Many, Pass::Whole] {
                    println!("{pass:?}");
                    experts_by(&gpu, &kernels, &mlps.iter().collect::<Vec<_>>(), batch, copy, Some(pass));
                }
            }
            experts_alone(&gpu, &kernels, &mlps.iter().collect::<Vec<_>>(), batch, copy);
        }
    }
    f8_projections(&gpu, &kernels, &noise, copy);
}

/// The output projection as DeepSeek-V3 stores it.
fn f8_projections(gpu: &Gpu, kernels: &Kernels, noise: &Noise, copy: f64) {
    let (rows, cols) = (HIDDEN, HEADS * 128);
    let weights: Vec<DeviceMatrix> = (0..6)
        .map(|_| DeviceMatrix {
            values: noise.fill(gpu, &noise.tiles, Layout::F8Blocks.tiled_bytes(rows, cols)),
            scales: None,
            global_scale: 1.0,
            layout: Layout::F8Blocks,
            rows,
            cols,
        })
        .collect();
    let mut random = Random::new(1);
    for batch in [1, 8, 32, 64, 2_048] {
        let xs: Vec<f32> = (0..batch * cols).map(|_| random.number()).collect();
        let x = split_vectors(gpu, kernels, &xs, cols, Order::Natural);
        let y = gpu.upload(&vec![0f32; batch * rows]).unwrap();
        let seconds = measure(gpu, |i| {
            let product = Product::new(&weights[i % 6], x.address()).add_to(y.address());
            multiply(gpu, kernels, product, None, batch).unwrap();
        });
        line(&format!("o in FP8, batch {batch}"), seconds, weights[0].values.bytes() as f64, copy);
    }
}

fn experts_alone(gpu: &Gpu, kernels: &Kernels, mlps: &[&Mlps], batch: usize, copy: f64) {
    experts_by(gpu, kernels, mlps, batch, copy, None);
}

fn experts_by(gpu: &Gpu, kernels: &Kernels, mlps: &[&Mlps], batch: usize, copy: f64, pass: Option<Pass>) {
    let moe = config(1).moe.unwrap();
    let mut random = Random::new(batch as u64);
    let xs: Vec<f32> = (0..batch * HIDDEN).map(|_| random.number()).collect();
    let x = split_vectors(gpu, kernels, &xs, HIDDEN, mlps[0].gate_layout.order(HIDDEN));
    let x = Normed { natural: x.address(), nvfp4: x.address() };
    let room =
        Room { tokens: batch, columns: HIDDEN, visits: 9 * batch, visit_columns: HIDDEN, slots: EXPERTS + 1 };
    let buffers = ExpertBuffers::new(gpu, kernels, room, WIDTH, HIDDEN).unwrap();
    // Eight routings by six layers: no weight is still in the second-level cache when its turn comes again.
    let mut distinct = 0;
    let routings: Vec<Routes> = (0..8)
        .map(|_| {
            let routes = Routes::new(gpu, &moe, 0..EXPERTS, batch).unwrap();
            let logits: Vec<f32> = (0..batch * EXPERTS).map(|_| random.number() * 2.0).collect();
            gpu.write(routes.logits.address(), &logits).unwrap();
            routes.choose(gpu, kernels, Address::NULL, SharedVisits::All, batch).unwrap();
            distinct += routes.active(gpu);
            routes
        })
        .collect();
    let experts = distinct as f64 / 8.0;
    println!("batch {batch}: {:.1} routed experts and the shared one", experts - 1.0);
    let slots = routings[0].most_active(SharedVisits::All, batch);
    let pass = pass.unwrap_or(Pass::best(
        kernels,
        mlps[0],
        Some(routings[0].expected(SharedVisits::All, batch)),
        batch,
    ));
    let bytes = experts * expert_bytes(mlps[0]);
    let job = |i: usize| {
        let (mlps, visits) = (mlps[i % mlps.len()], routings[i % 8].visits(SharedVisits::All, batch));
        Job { gpu, kernels, mlps, visits, slots, pass, x, buffers: &buffers }
    };
    if pass == Pass::Whole {
        let seconds = measure(gpu, |i| visit(job(i)).unwrap());
        return line("experts", seconds, bytes, copy);
    }
    let up = measure(gpu, |i| gate_up(job(i)).unwrap());
    line("experts, gate and up", up, bytes * 2.0 / 3.0, copy);
    let after = measure(gpu, |i| down(job(i)).unwrap());
    line("experts, down", after, bytes / 3.0, copy);
    line("experts", up + after, bytes, copy);
}

fn projections(gpu: &Gpu, kernels: &Kernels, noise: &Noise, layers: &[Layer], batch: usize, copy: f64) {
    let mut random = Random::new(1);
    let xs: Vec<f32> = (0..batch * HEADS * 512).map(|_| random.number()).collect();
    let x = split_vectors(gpu, kernels, &xs, HEADS * 512, Order::Natural);
    let y = gpu.allocate(batch * VOCAB * 4).unwrap();
    let (x, y) = (x.address(), y.address());
    let bytes = |matrix: &DeviceMatrix| 2.0 * (matrix.rows * matrix.cols) as f64;
    let attention = |i: usize| &layers[i % 6].attention;
    let Query::Latent { q_a, q_b, .. } = &attention(0).query else { return };
    let low = measure(gpu, |i| {
        let Query::Latent { q_a, .. } = &attention(i).query else { return };
        let second = Product::new(&attention(i).kv_a, x).into(y.offset(batch * 4 * VOCAB / 2));
        multiply(gpu, kernels, Product::new(q_a, x).into(y), Some(second), batch).unwrap();
    });
    line("q_a and kv_a", low, bytes(q_a) + bytes(&attention(0).kv_a), copy);
    let high = measure(gpu, |i| {
        let Query::Latent { q_b, .. } = &attention(i).query else { return };
        multiply(gpu, kernels, Product::new(q_b, x).into(y), None, batch).unwrap();
    });
    line("q_b", high, bytes(q_b), copy);
    let absorb = measure(gpu, |i| {
        let product = Product::new(&attention(i).k_b_transposed, x).into(y);
        let product = product.per_head(HEADS, (0, 512, 512), (576, HEADS * 576));
        multiply(gpu, kernels, product, None, batch).unwrap();
    });
    line("absorb (W_UK)", absorb, bytes(&attention(0).k_b_transposed), copy);
    let values = measure(gpu, |i| {
        let product = Product::new(&attention(i).kv_b, x).into(y);
        let product = product.per_head(HEADS, (128, 256, 128), (128, HEADS * 128));
        multiply(gpu, kernels, product, None, batch).unwrap();
    });
    line("values (W_UV)", values, bytes(&attention(0).kv_b) / 2.0, copy);
    let out = measure(gpu, |i| {
        multiply(gpu, kernels, Product::new(&attention(i).o, x).add_to(y), None, batch).unwrap();
    });
    line("o", out, bytes(&attention(0).o), copy);
    let lm_head = noise.bf16(gpu, VOCAB, HIDDEN);
    let head =
        measure(gpu, |_| multiply(gpu, kernels, Product::new(&lm_head, x).into(y), None, batch).unwrap());
    line("lm_head", head, bytes(&lm_head), copy);
}

#[test]
#[ignore = "a benchmark"]
fn attention_at_full_width() {
    let Some((gpu, kernels)) = gpu_with_terms(1) else { return };
    let noise = Noise::new(&gpu);
    for (batch, context) in
        [(1, 1_024), (8, 1_024), (32, 1_024), (64, 1_024), (1, 4_096), (32, 4_096), (1, 32_768), (8, 32_768)]
    {
        for dtype in [KvCacheDtype::Bf16, KvCacheDtype::Fp8E4m3] {
            attention(&gpu, &kernels, &noise, dtype, (batch, context), 4.26e12);
        }
    }
}

fn attention(
    gpu: &Gpu,
    kernels: &Kernels,
    noise: &Noise,
    dtype: KvCacheDtype,
    (batch, context): (usize, usize),
    copy: f64,
) {
    let mut random = Random::new(2);
    let queries: Vec<f32> = (0..batch * HEADS * 576).map(|_| random.number()).collect();
    let queries = gpu.upload(&queries).unwrap();
    let shape = Shape {
        heads: HEADS,
        nope: 128,
        latent: 512,
        rope: 64,
        scale: 0.1,
        mode: Mode::Serving,
        cache: dtype,
    };
    let pages = context / PAGE_TOKENS;
    let bytes = batch * context * 576 * if dtype == KvCacheDtype::Bf16 { 2 } else { 1 };
    // Codes are whatever bf16 numbers' bytes are.
    let cache = noise.fill(gpu, &noise.bf16, bytes);
    let at = LayerCache { at: cache.address(), scale: 1.0 };
    let words: Vec<u32> = (0..batch).flat_map(|row| [context as u32 - 1, (row * pages) as u32]).collect();
    let (rows, table) =
        (gpu.upload(&words).unwrap(), gpu.upload(&(0..(batch * pages) as u32).collect::<Vec<_>>()).unwrap());
    let step = StepRows {
        count: batch,
        rows: rows.address(),
        pages: table.address(),
        most_pages: pages,
        choices: Choices::EVERYTHING,
    };
    let partial = PartialSums::new(gpu, shape, context).unwrap();
    let out = noise.fill(gpu, &noise.bf16, batch * HEADS * 512 * kernels.terms * 2);
    let chosen = partial.choose(kernels, shape, step);
    for way in [Pages::SideBySide, Pages::Wide] {
        if way == Pages::Wide && kernels.hopper.is_none() {
            continue;
        }
        let seconds = measure(gpu, |_| {
            let to = (out.address(), Order::Natural);
            attend(gpu, kernels, shape, step, at, queries.address(), &partial, way, to).unwrap();
        });
        let mark = if way == chosen { "*" } else { "" };
        line(&format!("{dtype}, {batch} x {context}, {way:?}{mark}"), seconds, bytes as f64, copy);
    }
}

#[test]
#[ignore = "a benchmark, for a GPU with 80 GB or more"]
fn prefill_at_full_width() {
    let Some((gpu, kernels)) = gpu_with_terms(1) else { return };
    let noise = Noise::new(&gpu);
    let layers: Vec<Layer> = (0..4).map(|_| noise.layer(&gpu)).collect();
    let config = config(4);
    let semantics = Semantics::new(&config, &SemanticsOptions::default());
    let weights = Weights {
        embed_tokens: noise.embeddings(&gpu),
        layers,
        norm: gpu.upload(&vec![1f32; HIDDEN]).unwrap(),
        lm_head: Some(noise.bf16(&gpu, VOCAB, HIDDEN)),
    };
    const MOST: usize = 8_192;
    let mut model = CudaModel::assemble(
        gpu.clone(),
        kernels,
        Shard::new(&config, Rank::ALONE, ExpertSharing::Widths),
        (semantics, vec![1.0; 4]),
        weights,
        (MOST, MOST),
        Ranks::Alone,
    )
    .unwrap();
    let mut pool = PagePool::new(MOST);
    model.set_cache(pool.total()).unwrap();
    let mut pages = Vec::new();
    assert!(pool.extend(&mut pages, MOST));
    let mut random = Random::new(3);
    let sizes = [512, 2_048, MOST];
    let mut steps = [[0f64; 3]; 2];
    for (which, keep) in [4, 2].into_iter().enumerate() {
        model.keep_layers(keep);
        for (i, &count) in sizes.iter().enumerate() {
            let tokens: Vec<TokenId> = (0..count).map(|_| TokenId(random.below(VOCAB) as u32)).collect();
            let spans = [Span { pages: &pages, position: 0, count, row: 0, prompt: count }];
            let mut times: Vec<f64> = (0..4)
                .map(|_| gpu.time(|| model.forward(&tokens, &spans, None::<&mut ()>)).unwrap())
                .collect();
            times.sort_by(f64::total_cmp);
            steps[which][i] = times[1];
        }
    }
    println!(
        "a layer: (step with 4 - step with 2) / 2; operations as for vLLM: attention in the expanded form"
    );
    for (i, &count) in sizes.iter().enumerate() {
        let seconds = (steps[0][i] - steps[1][i]) / 2.0;
        let tokens = count as f64;
        let weights = 9.0 * 3.0 * (HIDDEN * WIDTH) as f64 + 101.1e6;
        let operations =
            2.0 * tokens * weights + tokens * tokens / 2.0 * HEADS as f64 * (192.0 + 128.0) * 2.0;
        println!(
            "prefill of {count}: {:.2} ms a layer, {:.0} TFLOP/s",
            seconds * 1e3,
            operations / seconds / 1e12
        );
    }
    model.time_parts(MOST, &pages);
}

/// Time of a layer: the step with six layers minus the step with three, over three, as for vLLM.
fn whole_layers(gpu: &Gpu, kernels: Kernels, noise: &Noise, layers: Vec<Layer>, copy: f64) {
    let per_expert = match &layers[0].feed_forward {
        FeedForward::Experts(experts) => expert_bytes(&experts.routed),
        FeedForward::Dense(_) => 0.0,
    };
    let (mut model, tables) = model(gpu, kernels, noise, layers);
    let batches = [1, 2, 8, 32, 64];
    let mut random = Random::new(9);
    let mut steps = [[(0.0, 0.0); 5]; 2];
    for (which, keep) in [6, 3].into_iter().enumerate() {
        model.keep_layers(keep);
        for (i, &batch) in batches.iter().enumerate() {
            let spans: Vec<Span<'_>> = (0..batch)
                .map(|row| Span { pages: &tables[row], position: CONTEXT - 1, count: 1, row, prompt: 0 })
                .collect();
            let mut distinct = 0.0;
            let mut times: Vec<f64> = (0..24)
                .map(|_| {
                    let tokens: Vec<TokenId> =
                        (0..batch).map(|_| TokenId(random.below(VOCAB) as u32)).collect();
                    let time = gpu.time(|| model.forward(&tokens, &spans, None::<&mut ()>)).unwrap();
                    distinct += model.active_experts() as f64 / 24.0;
                    time
                })
                .skip(4)
                .collect();
            times.sort_by(f64::total_cmp);
            steps[which][i] = (times[10], distinct);
        }
    }
    println!("a layer: (step with 6 - step with 3) / 3; bytes: experts, attention, router and cache");
    for (i, &batch) in batches.iter().enumerate() {
        let seconds = (steps[0][i].0 - steps[1][i].0) / 3.0;
        let experts = steps[0][i].1;
        let bytes = experts * per_expert + 202.3e6 + 5.5e6 + (batch * CONTEXT * 576 * 2) as f64;
        line(&format!("layer, batch {batch}, {experts:.1} experts"), seconds, bytes, copy);
    }
    for batch in [1, 8] {
        let spans: Vec<Span<'_>> = (0..batch)
            .map(|row| Span { pages: &tables[row], position: CONTEXT - 1, count: 1, row, prompt: 0 })
            .collect();
        let tokens = vec![TokenId(1); batch];
        let rows: Vec<usize> = (0..batch).collect();
        let (mut logits, mut times) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let start = Instant::now();
            model.forward(&tokens, &spans, None::<&mut ()>).unwrap();
            All::Here(std::slice::from_mut(&mut model)).logits(&rows, &mut logits).unwrap();
            times.push(start.elapsed().as_secs_f64());
            assert!(logits.iter().all(|x| x.is_finite()));
        }
        times.sort_by(f64::total_cmp);
        println!(
            "batch {batch}: a step with 3 layers, lm_head and the logits on the host: {:.0} us",
            times[10] * 1e6
        );
    }
}
