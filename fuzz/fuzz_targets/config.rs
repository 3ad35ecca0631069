//! `config.json`, `generation_config.json` and `hf_quant_config.json` of any bytes beside a right shard. The three stand in one input,
//! with a zero byte between them.

#![no_main]

use libfuzzer_sys::fuzz_target;

const SHARD: &[u8] = include_bytes!("../seeds/safetensors/layouts.safetensors");

fuzz_target!(|input: &[u8]| {
    lucid_fuzz::bounded(SHARD.len() + input.len(), || {
        let mut parts = input.splitn(3, |byte| *byte == 0);
        let names = ["config.json", "generation_config.json", "hf_quant_config.json"];
        let configs = names.into_iter().filter_map(|name| Some((name, parts.next()?)));
        if let Ok(checkpoint) = lucid_fuzz::open(configs.chain([("model.safetensors", SHARD)])) {
            lucid_fuzz::walk(&checkpoint);
        }
    });
});
