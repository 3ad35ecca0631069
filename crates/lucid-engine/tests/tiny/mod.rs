//! Tiny models with sparse attention: weights from a formula, logits and choices from transformers (`tests/sparse/goldens.py`).

#![allow(dead_code)] // Not every test uses everything.
#![allow(clippy::unwrap_used)] // The lint spares test functions, not what they share.

use std::path::{Path, PathBuf};

use lucid_checkpoint::{Checkpoint, Files, TokenId};
use lucid_engine::{Request, Sampling};
use serde_json::{Map, Value, json};

pub const NAMES: [&str; 4] = ["deepseek-v3.2", "deepseek-v3.2-wide", "glm-5", "glm-5.2"];

/// A model and what transformers computes with it.
pub struct Tiny {
    pub name: &'static str,
    pub config: Map<String, Value>,
    pub tokens: Vec<TokenId>,
    seed: u64,
    header: Value,
    data: Vec<u8>,
}

impl Tiny {
    pub fn new(name: &'static str) -> Tiny {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sparse");
        let config = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
        let mut config: Map<String, Value> = serde_json::from_slice(&config).unwrap();
        let seed = config.remove("_seed").unwrap().as_u64().unwrap();
        let bytes = std::fs::read(folder.join(format!("{name}.safetensors"))).unwrap();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
        let data = bytes[8 + len..].to_vec();
        let mut tiny = Tiny { name, config, tokens: Vec::new(), seed, header, data };
        let count = tiny.golden("logits").0[0];
        let vocab = tiny.size("vocab_size") as u64;
        tiny.tokens = tiny.bits("tokens", count).map(|bits| TokenId((bits % vocab) as u32)).collect();
        tiny
    }

    pub fn size(&self, field: &str) -> usize {
        self.config[field].as_u64().unwrap() as usize
    }

    /// Shape and words of a golden.
    fn golden(&self, name: &str) -> (Vec<usize>, Vec<[u8; 4]>) {
        let entry = &self.header[name];
        let [from, to]: [usize; 2] = serde_json::from_value(entry["data_offsets"].clone()).unwrap();
        let shape = serde_json::from_value(entry["shape"].clone()).unwrap();
        (shape, self.data[from..to].as_chunks::<4>().0.to_vec())
    }

    /// `[tokens][vocab]`
    pub fn logits(&self) -> Vec<Vec<f32>> {
        let (shape, words) = self.golden("logits");
        let logits: Vec<f32> = words.into_iter().map(f32::from_le_bytes).collect();
        logits.chunks_exact(shape[1]).map(<[f32]>::to_vec).collect()
    }

    /// What each layer that chooses chose: `[layers][tokens]` ascending positions.
    pub fn selected(&self) -> Vec<Vec<Vec<u32>>> {
        let (shape, words) = self.golden("selected");
        let list = |words: &[[u8; 4]]| {
            let positions = words.iter().map(|word| i32::from_le_bytes(*word));
            positions.take_while(|&position| position >= 0).map(|position| position as u32).collect()
        };
        let layer = |words: &[[u8; 4]]| words.chunks_exact(shape[2]).map(list).collect();
        words.chunks_exact(shape[1] * shape[2]).map(layer).collect()
    }

    /// Names and shapes of the model's tensors, as transformers has them.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        serde_json::from_str(self.header["__metadata__"]["tensors"].as_str().unwrap()).unwrap()
    }

    /// The formula of `goldens.py`.
    pub fn bits(&self, name: &str, count: usize) -> impl Iterator<Item = u64> {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let start = 0xcbf2_9ce4_8422_2325u64.wrapping_add(self.seed);
        let hash =
            name.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        (1..=count as u64).map(move |i| {
            let z = hash.wrapping_add(i.wrapping_mul(GOLDEN));
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        })
    }

    /// As bf16, which loses nothing.
    pub fn values(&self, name: &str, shape: &[usize]) -> Vec<f32> {
        let bits_of_columns = shape.last().map_or(2, |columns| columns.ilog2() + 1);
        let matrix = 0.5f32.powi(((bits_of_columns - 2) / 2) as i32);
        let value = |bits: u64| {
            let k = (bits >> 56) as i32 - 128;
            match shape {
                _ if name == "model.embed_tokens.weight" => k as f32 / 128.0,
                [_, _] => k as f32 / 128.0 * matrix,
                _ if name.ends_with("norm.weight") => 1.0 + (k >> 2) as f32 / 128.0,
                _ => k as f32 / 512.0,
            }
        };
        self.bits(name, shape.iter().product()).map(value).collect()
    }

    /// Prompts below and above the limit, some with a common beginning of two pages; greedy and sampled.
    pub fn requests(&self) -> Vec<Request> {
        let tokens = &self.tokens;
        let prompts = [
            tokens[..9].to_vec(),
            tokens[..140].to_vec(),
            [&tokens[..128], &tokens[3..9]].concat(),
            tokens[20..80].to_vec(),
            [&tokens[..128], &tokens[40..60]].concat(),
            tokens[25..150].to_vec(),
        ];
        let request = |(i, prompt): (usize, Vec<TokenId>)| Request {
            prompt,
            max_tokens: 20,
            logprobs: Some(3),
            prompt_logprobs: (i == 3).then_some(1),
            sampling: Sampling { temperature: (i % 2) as f32, seed: Some(i as u64), ..Sampling::default() },
            ..Request::default()
        };
        prompts.into_iter().enumerate().map(request).collect()
    }

    /// Writes a checkpoint folder; `change` sees the config and may add tensors, named with their shapes.
    pub fn write(
        &self,
        folder: &Path,
        change: impl FnOnce(&mut Map<String, Value>, &mut Vec<(String, Vec<usize>)>),
    ) {
        let (mut config, mut tensors) = (self.config.clone(), self.tensors());
        change(&mut config, &mut tensors);
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, shape) in tensors {
            let values = self.values(&name, &shape);
            assert!(values.iter().all(|x| x.to_bits() & 0xffff == 0), "{name} is not bf16");
            let start = data.len();
            data.extend(values.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()));
            let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, data.len()]});
            header.insert(name, entry);
        }
        let header = serde_json::to_vec(&header).unwrap();
        let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
        std::fs::write(folder.join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
    }

    /// The checkpoint, in a folder that goes with the second value.
    pub fn checkpoint(&self) -> (Checkpoint, tempfile::TempDir) {
        self.checkpoint_with(|_, _| {})
    }

    pub fn checkpoint_with(
        &self,
        change: impl FnOnce(&mut Map<String, Value>, &mut Vec<(String, Vec<usize>)>),
    ) -> (Checkpoint, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path(), change);
        (Checkpoint::open(Files::open(folder.path()).unwrap()).unwrap(), folder)
    }
}

pub fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sparse")
}
