//! What transformers' DeepseekV3ForCausalLM (float32) computed with the canary's weights.

#![allow(dead_code)] // Not every test reads everything.
#![allow(clippy::unwrap_used)] // The lint spares test functions, not what they share.

use std::collections::BTreeMap;
use std::path::Path;

use lucid_checkpoint::{Checkpoint, Files, TokenId};

/// transformers builds the latent norms with this epsilon whatever the config says.
pub const LATENT_NORM_EPS: f64 = 1e-6;
/// The largest difference of a log-probability that rounding explains.
pub const TOLERANCE: f32 = 2e-3;

pub fn models() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models"))
}

pub fn canary() -> Checkpoint {
    Checkpoint::open(Files::open(&models().join("canary")).unwrap()).unwrap()
}

#[derive(Clone)]
pub struct Prompt {
    pub name: String,
    pub tokens: Vec<TokenId>,
    pub prompt_len: usize,
}

pub fn prompts() -> Vec<Prompt> {
    let text = std::fs::read_to_string(models().join("canary-golden/golden.json")).unwrap();
    let golden: BTreeMap<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    let ids = |value: &serde_json::Value| -> Vec<TokenId> { serde_json::from_value(value.clone()).unwrap() };
    golden
        .iter()
        .map(|(name, entry)| {
            let mut tokens = ids(&entry["prompt_ids"]);
            let prompt_len = tokens.len();
            tokens.extend(ids(&entry["completion_ids"]));
            Prompt { name: name.clone(), tokens, prompt_len }
        })
        .collect()
}

/// The tensors of golden.safetensors, read with nothing but the format's definition.
pub struct Goldens {
    header: serde_json::Value,
    data: Vec<u8>,
}

impl Goldens {
    pub fn open() -> Goldens {
        let bytes = std::fs::read(models().join("canary-golden/golden.safetensors")).unwrap();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        Goldens {
            header: serde_json::from_slice(&bytes[8..8 + len]).unwrap(),
            data: bytes[8 + len..].to_vec(),
        }
    }

    pub fn words(&self, name: &str) -> (Vec<usize>, Vec<[u8; 4]>) {
        let entry = &self.header[name];
        let range: [usize; 2] = serde_json::from_value(entry["data_offsets"].clone()).unwrap();
        let shape = serde_json::from_value(entry["shape"].clone()).unwrap();
        (shape, self.data[range[0]..range[1]].as_chunks::<4>().0.to_vec())
    }

    pub fn f32s(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let (shape, words) = self.words(name);
        (shape, words.into_iter().map(f32::from_le_bytes).collect())
    }

    pub fn ids(&self, name: &str) -> Vec<usize> {
        self.words(name).1.into_iter().map(|word| i32::from_le_bytes(word) as usize).collect()
    }
}
