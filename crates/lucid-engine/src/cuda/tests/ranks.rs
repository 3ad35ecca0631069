//! The speed of layers at the full width of Kimi-K2.5 on one and two GPUs, loaded as `--load-format dummy` loads them: no test, a
//! table.
//!
//! `cargo test --release -p lucid-engine cuda::tests::ranks -- --ignored --nocapture`

use std::time::Instant;

use lucid_checkpoint::{Checkpoint, Files, TokenId};

use super::bench::{CONFIG, CONTEXT};
use super::random::Random;
use crate::SemanticsOptions;
use crate::backend::{Backend, Device, Load, LoadFormat};
use crate::cpu::Span;
use crate::kv_cache::PagePool;

/// A folder without any tensor.
fn empty_checkpoint(layers: usize) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), CONFIG.replace("LAYERS", &layers.to_string())).unwrap();
    let header = b"{}      ";
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    std::fs::write(folder.path().join("none.safetensors"), file).unwrap();
    let checkpoint = Checkpoint::open(Files::open(folder.path()).unwrap()).unwrap();
    (folder, checkpoint)
}

#[test]
#[ignore = "a benchmark, for two GPUs with 80 GB or more"]
fn layers_on_one_and_two_gpus() {
    const LAYERS: usize = 6;
    let (_folder, checkpoint) = empty_checkpoint(LAYERS);
    let semantics = SemanticsOptions::default();
    let vocab = checkpoint.config().vocab_size;
    let batches = [1usize, 8, 32, 64];
    for ranks in [1, 2] {
        let load = Load {
            checkpoint: &checkpoint,
            format: LoadFormat::Dummy,
            semantics: &semantics,
            threads: None,
            positions: 4_096,
            max_step_tokens: 64,
            ranks,
            progress: None,
        };
        let start = Instant::now();
        let mut model = match Backend::load(Device::Cuda(0), &load) {
            Ok(model) => model,
            Err(error) => return println!("{ranks} GPUs: {error}"),
        };
        let mut pool = PagePool::new(64 * CONTEXT);
        model.set_cache(pool.total()).unwrap();
        println!("{ranks} GPUs, {LAYERS} layers: loaded in {:.1} s", start.elapsed().as_secs_f64());
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
        for (which, keep) in [LAYERS, LAYERS / 2].into_iter().enumerate() {
            let Backend::Cuda(models) = &mut model else { unreachable!() };
            models.iter_mut().for_each(|model| model.keep_layers(keep));
            let mut random = Random::new(9);
            let mut logits = Vec::new();
            for (i, &batch) in batches.iter().enumerate() {
                let spans: Vec<Span<'_>> = (0..batch)
                    .map(|row| Span { pages: &tables[row], position: CONTEXT - 1, count: 1, row })
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
            let layer = (steps[0][i] - steps[1][i]) / (LAYERS - LAYERS / 2) as f64;
            println!(
                "{ranks} GPUs, batch {batch}: a layer {:.1} us, everything else in a step {:.0} us",
                layer * 1e6,
                (steps[0][i] - LAYERS as f64 * layer) * 1e6
            );
        }
    }
}
