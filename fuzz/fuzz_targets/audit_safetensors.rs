//! A shard of any bytes in a folder that is audited: what a strict reader refuses is looked at too, and every check says something.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lucid_fuzz::Audited;

const CONFIG: &[u8] = include_bytes!("../../models/canary/config.json");

fuzz_target!(init: Audited::start(&[("config.json", CONFIG)]), |shard: &[u8]| {
    Audited::look("model.safetensors", shard);
});
