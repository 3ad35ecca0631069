//! A shard of any bytes beside a right config: header, tensors, the layouts of matrices.

#![no_main]

use libfuzzer_sys::fuzz_target;

const CONFIG: &[u8] = include_bytes!("../../models/canary/config.json");

fuzz_target!(|shard: &[u8]| {
    lucid_fuzz::bounded(shard.len(), || {
        let files = [("config.json", CONFIG), ("model.safetensors", shard)];
        if let Ok(checkpoint) = lucid_fuzz::open(files) {
            lucid_fuzz::walk(&checkpoint);
        }
    });
});
