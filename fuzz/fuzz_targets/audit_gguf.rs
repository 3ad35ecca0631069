//! A GGUF file of any bytes that is audited.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lucid_fuzz::Audited;

fuzz_target!(init: Audited::start(&[]), |file: &[u8]| {
    Audited::look("model.gguf", file);
});
