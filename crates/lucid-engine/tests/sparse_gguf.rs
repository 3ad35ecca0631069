//! GGUF files of sparse-attention models (`glm-dsa`, `deepseek32`): headers by llama.cpp's Python package (`sparse/gguf_heads.py`),
//! weights from the formula, logits against transformers'.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // The lints spare test functions, not what they share.

mod tiny;

use std::path::Path;

use lucid_checkpoint::{Checkpoint, Files};
use lucid_engine::{Mode, Scorer, SemanticsOptions};
use tiny::Tiny;

/// Shape of a tensor as transformers has it.
fn shape(tiny: &Tiny, name: &str) -> Vec<usize> {
    tiny.tensors().into_iter().find(|(other, _)| other == name).unwrap().1
}

fn bf16(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

/// What stands in the file for the tensors `names`.
fn data(tiny: &Tiny, kind: &str, names: &[String]) -> Vec<u8> {
    let mut values = Vec::new();
    for name in names {
        values.extend(tiny.values(name, &shape(tiny, name)));
    }
    let (heads, latent) = (tiny.size("num_attention_heads"), tiny.size("kv_lora_rank"));
    let (nope, value) = (tiny.size("qk_nope_head_dim"), tiny.size("v_head_dim"));
    let kv_b =
        |head: usize, row: usize, column: usize| values[(head * (nope + value) + row) * latent + column];
    match kind {
        "f32" => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        "bf16" => bf16(values),
        // [heads, latent, nope]
        "keys" => {
            bf16((0..heads * latent * nope).map(|i| kv_b(i / (latent * nope), i % nope, i / nope % latent)))
        }
        // [heads, value, latent]
        "values" => bf16(
            (0..heads * value * latent)
                .map(|i| kv_b(i / (value * latent), nope + i / latent % value, i % latent)),
        ),
        "zeros" => Vec::new(),
        other => panic!("{other}"),
    }
}

fn write(tiny: &Tiny, path: &Path) {
    let folder = tiny::configs();
    let mut file = std::fs::read(folder.join(format!("{}.gguf-head", tiny.name))).unwrap();
    let fill = std::fs::read(folder.join(format!("{}.gguf.json", tiny.name))).unwrap();
    let fill: Vec<(usize, String, Vec<String>)> = serde_json::from_slice(&fill).unwrap();
    let start = file.len();
    for (offset, kind, names) in fill {
        file.resize(file.len().max(start + offset), 0);
        if kind != "end" {
            assert_eq!(file.len(), start + offset, "{names:?}");
            file.extend(data(tiny, &kind, &names));
            file.resize(file.len().next_multiple_of(32), 0);
        }
    }
    std::fs::write(path, file).unwrap();
}

#[test]
fn logits_are_those_of_transformers() {
    for (name, architecture, notices) in [
        ("glm-5.2", "GlmMoeDsaForCausalLM", 1),
        ("glm-5", "GlmMoeDsaForCausalLM", 0),
        ("deepseek-v3.2", "DeepseekV32ForCausalLM", 0),
    ] {
        let tiny = Tiny::new(name);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        write(&tiny, &path);
        let checkpoint = Checkpoint::open(Files::open(&path).unwrap()).unwrap();
        assert_eq!(checkpoint.config().architecture, architecture);
        // The one is about the tensors of multi-token prediction.
        assert_eq!(checkpoint.notices().len(), notices, "{:?}", checkpoint.notices());
        let (from_folder, _folder) = tiny.checkpoint();
        assert_eq!(checkpoint.config().indexer, from_folder.config().indexer, "{name}");

        let semantics = SemanticsOptions {
            mode: Mode::Reference,
            latent_norm_eps: Some(1e-6),
            ..SemanticsOptions::default()
        };
        let mut scorer = Scorer::new(&checkpoint, &semantics, Some(2)).unwrap();
        let (logits, mut worst) = (tiny.logits(), 0f32);
        let visit = |position: usize, logprobs: &[f32]| {
            let golden = &logits[position];
            let sum: f64 = golden.iter().map(|&x| f64::from(x).exp()).sum();
            for (&x, &found) in golden.iter().zip(logprobs) {
                worst = worst.max(((f64::from(x) - sum.ln()) as f32 - found).abs());
            }
        };
        scorer.score(&tiny.tokens, visit).unwrap();
        println!("{name}: largest difference {worst:.2e}");
        assert!(worst < 1e-3, "{name}: a log-probability is off by {worst}");
    }
}
