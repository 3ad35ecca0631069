//! The speed of layers at the full width of Kimi-K2.5 on one and two GPUs, loaded as `--load-format dummy` loads them: no test, a
//! table.
//!
//! `cargo test --release -p lucid-engine cuda::tests::ranks -- --ignored --nocapture`

use std::time::Instant;

use lucid_checkpoint::{Checkpoint, Files, TokenId};

use super::full_width::{CONFIG, CONTEXT};
use super::random::Random;
use crate::SemanticsOptions;
use crate::backend::{Backend, Device, Load, LoadFormat};
use crate::cpu::Span;
use crate::cuda::driver::Gpu;
use crate::kv_cache::PagePool;
use crate::parallel::ExpertSharing;

/// A folder without any tensor.
fn empty_checkpoint(layers: usize, quantization: &str) -> (tempfile::TempDir, Checkpoint) {
    let config = CONFIG.replace("LAYERS", &layers.to_string()).replace(NVFP4, quantization);
    assert!(config.contains(quantization));
    checkpoint_of(&config)
}

fn checkpoint_of(config: &str) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let header = b"{}      ";
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    std::fs::write(folder.path().join("none.safetensors"), file).unwrap();
    let checkpoint = Checkpoint::open(Files::open(folder.path()).unwrap()).unwrap();
    (folder, checkpoint)
}

const NVFP4: &str = r#"{"quant_method": "modelopt", "quant_algo": "NVFP4"}"#;
const INT4: &str = r#"{"quant_method": "compressed-tensors", "format": "pack-quantized"}"#;
const F8: &str = r#"{"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}"#;

#[test]
#[ignore = "a benchmark, for two GPUs with 80 GB or more"]
fn layers_on_one_and_two_gpus() {
    let (widths, whole) = (ExpertSharing::Widths, ExpertSharing::Whole);
    [(1, widths), (2, widths), (2, whole)].into_iter().for_each(|(ranks, by)| layers(NVFP4, 6, ranks, by));
}

/// Native Kimi-K2.5's layers (experts in INT4, all else in bf16) and those of Kimi-K2 as first published (FP8 blocks).
#[test]
#[ignore = "a benchmark, for a GPU with 120 GB or more"]
fn layers_in_other_forms() {
    layers(INT4, 6, 1, ExpertSharing::Widths);
    layers(F8, 4, 1, ExpertSharing::Widths);
}

fn layers(quantization: &str, layers: usize, ranks: usize, experts: ExpertSharing) {
    let (_folder, checkpoint) = empty_checkpoint(layers, quantization);
    let semantics = SemanticsOptions::default();
    let vocab = checkpoint.config().vocab_size;
    let batches = [1usize, 8, 32, 64];
    let load = Load {
        checkpoint: &checkpoint,
        format: LoadFormat::Dummy,
        semantics: &semantics,
        threads: None,
        positions: 4_096,
        max_step_tokens: 64,
        ranks,
        experts,
        progress: None,
    };
    let start = Instant::now();
    let mut model = match Backend::load(Device::Cuda(0), &load) {
        Ok(model) => model,
        Err(error) => return println!("{ranks} GPUs: {error}"),
    };
    let mut pool = PagePool::new(64 * CONTEXT);
    model.set_cache(pool.total()).unwrap();
    println!(
        "{ranks} GPUs, experts by {experts:?}, {quantization}, {layers} layers: loaded in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    for (i, (used, total)) in model.memory().into_iter().enumerate() {
        println!("  GPU {i}: {:.1} of {:.1} GB", used as f64 / 1e9, total as f64 / 1e9);
    }
    let tables: Vec<Vec<_>> = (0..64)
        .map(|_| {
            let mut pages = Vec::new();
            assert!(pool.extend(&mut pages, CONTEXT));
            pages
        })
        .collect();
    let mut steps = [[0f64; 4]; 2];
    for (which, keep) in [layers, layers / 2].into_iter().enumerate() {
        let Backend::Cuda(models) = &mut model else { unreachable!() };
        models.iter_mut().for_each(|model| model.keep_layers(keep));
        let mut random = Random::new(9);
        let mut logits = Vec::new();
        for (i, &batch) in batches.iter().enumerate() {
            let spans: Vec<Span<'_>> = (0..batch)
                .map(|row| Span { pages: &tables[row], position: CONTEXT - 1, count: 1, row, prompt: 0 })
                .collect();
            let mut times: Vec<f64> = (0..24)
                .map(|_| {
                    let tokens: Vec<TokenId> =
                        (0..batch).map(|_| TokenId(random.below(vocab) as u32)).collect();
                    let start = Instant::now();
                    model.forward(&tokens, &spans, None::<&mut ()>).unwrap();
                    // One row: the same for every batch.
                    model.logits(&[0], &mut logits).unwrap();
                    start.elapsed().as_secs_f64()
                })
                .skip(4)
                .collect();
            assert!(logits.iter().all(|x| x.is_finite()));
            times.sort_by(f64::total_cmp);
            steps[which][i] = times[10];
        }
    }
    for (i, batch) in batches.into_iter().enumerate() {
        let layer = (steps[0][i] - steps[1][i]) / (layers - layers / 2) as f64;
        println!(
            "{ranks} GPUs, batch {batch}: a layer {:.1} us, everything else in a step {:.0} us",
            layer * 1e6,
            (steps[0][i] - layers as f64 * layer) * 1e6
        );
    }
}

/// The same layers with and without DeepSeek-V3.2's indexer (64 heads of 128, 2,048 tokens), over long contexts.
#[test]
#[ignore = "a benchmark, for a GPU with 80 GB or more"]
fn sparse_layers_at_full_width() {
    const INDEXER: &str =
        r#""index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048, "num_hidden_layers""#;
    let contexts = [2_048usize, 16_384, 65_536, 131_072];
    for (name, sparse) in [("dense", false), ("sparse", true)] {
        let config = CONFIG
            .replace("LAYERS", "4")
            .replace("\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 131072");
        let config = if sparse { config.replacen("\"num_hidden_layers\"", INDEXER, 1) } else { config };
        let (_folder, checkpoint) = checkpoint_of(&config);
        assert_eq!(checkpoint.config().indexer.is_some(), sparse);
        let semantics = SemanticsOptions::default();
        let load = Load {
            checkpoint: &checkpoint,
            format: LoadFormat::Dummy,
            semantics: &semantics,
            threads: None,
            positions: 131_072,
            max_step_tokens: 2_048,
            ranks: 1,
            experts: ExpertSharing::Widths,
            progress: None,
        };
        let mut model = match Backend::load(Device::Cuda(0), &load) {
            Ok(model) => model,
            Err(error) => return println!("{error}"),
        };
        let mut pool = PagePool::new(8 * 131_072);
        model.set_cache(pool.total()).unwrap();
        let tables: Vec<Vec<_>> = (0..8)
            .map(|_| {
                let mut pages = Vec::new();
                assert!(pool.extend(&mut pages, 131_072));
                pages
            })
            .collect();
        let Backend::Cuda(models) = &mut model else { unreachable!() };
        // What was never written may be NaN, and then nothing is chosen.
        let (zeroes, gpu) = (vec![0u8; 64 << 20], Gpu::open(0).unwrap());
        models[0].fill_cache(|buffer, bytes| {
            for at in (0..bytes).step_by(zeroes.len()) {
                gpu.write(buffer.offset(at), &zeroes[..zeroes.len().min(bytes - at)]).unwrap();
            }
        });
        // Rows of decoding, and a chunk of a prompt that ends there.
        let kinds = [(8, 1), (1, 1), (1, 2_048)];
        let mut times = [[[0f64; 4]; 3]; 2];
        for (times, keep) in times.iter_mut().zip([4, 2]) {
            let Backend::Cuda(models) = &mut model else { unreachable!() };
            models[0].keep_layers(keep);
            for (times, (rows, chunk)) in times.iter_mut().zip(kinds) {
                for (time, context) in times.iter_mut().zip(contexts) {
                    let span = |row: usize| Span {
                        pages: &tables[row],
                        position: context - chunk,
                        count: chunk,
                        row: row * chunk,
                        prompt: if chunk > 1 { context } else { 0 },
                    };
                    let spans: Vec<Span<'_>> = (0..rows).map(span).collect();
                    let tokens: Vec<TokenId> =
                        (0..rows * chunk).map(|i| TokenId(100 + 7 * i as u32)).collect();
                    let mut seconds: Vec<f64> = (0..12)
                        .map(|_| {
                            let start = Instant::now();
                            model.forward(&tokens, &spans, None::<&mut ()>).unwrap();
                            model.logits(&[0], &mut Vec::new()).unwrap();
                            start.elapsed().as_secs_f64()
                        })
                        .skip(3)
                        .collect();
                    seconds.sort_by(f64::total_cmp);
                    *time = seconds[3];
                }
            }
        }
        for (kind, (rows, chunk)) in kinds.into_iter().enumerate() {
            for (i, context) in contexts.into_iter().enumerate() {
                let layer = (times[0][kind][i] - times[1][kind][i]) / 2.0;
                println!("{name}, {rows} x {chunk} tokens up to {context}: a layer {:.0} us", layer * 1e6);
            }
        }
    }
}
