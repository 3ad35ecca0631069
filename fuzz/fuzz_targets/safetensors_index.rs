//! `model.safetensors.index.json` of any bytes beside right shards: it is only a hint, so the model opens whatever it says.

#![no_main]

use libfuzzer_sys::fuzz_target;

const CONFIG: &[u8] = include_bytes!("../../models/canary/config.json");
const SHARD: &[u8] = include_bytes!("../seeds/safetensors/layouts.safetensors");

fuzz_target!(|index: &[u8]| {
    lucid_fuzz::bounded(SHARD.len() + index.len(), || {
        let files =
            [("config.json", CONFIG), ("model.safetensors", SHARD), ("model.safetensors.index.json", index)];
        match lucid_fuzz::open(files) {
            Ok(checkpoint) => lucid_fuzz::walk(&checkpoint),
            Err(error) => panic!("a hint is no reason to refuse a model: {error}"),
        }
    });
});
