//! A GGUF file of any bytes: header, metadata, tensor infos, expert stacks, halves of the key-value matrix, rows of blocks.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    lucid_fuzz::bounded(file.len(), || {
        if let Ok(checkpoint) = lucid_fuzz::open([("model.gguf", file)]) {
            lucid_fuzz::walk(&checkpoint);
        }
    });
});
