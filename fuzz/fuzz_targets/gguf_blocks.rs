//! Rows of any bytes in every block type: a row is its blocks one after the other, whatever they hold, and the scale comes last.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lucid_checkpoint::gguf::BlockType as B;

const ALL: [B; 14] = [
    B::Q4_0,
    B::Q4_1,
    B::Q5_0,
    B::Q5_1,
    B::Q8_0,
    B::Q2_K,
    B::Q3_K,
    B::Q4_K,
    B::Q5_K,
    B::Q6_K,
    B::IQ4_NL,
    B::IQ4_XS,
    B::MXFP4,
    B::NVFP4,
];

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    let block = ALL[*kind as usize % ALL.len()];
    let count = bytes.len() / block.bytes();
    lucid_fuzz::bounded(input.len() + 4 * count * block.elements(), || {
        let mut row = vec![f32::NAN; count * block.elements()];
        block.decode_row(bytes, 1.0, &mut row);
        let mut scaled = row.clone();
        block.decode_row(bytes, 0.75, &mut scaled);
        let mut alone = vec![f32::NAN; block.elements()];
        for ((one, row), scaled) in
            bytes.chunks_exact(block.bytes()).zip(row.chunks(alone.len())).zip(scaled.chunks(alone.len()))
        {
            block.decode_row(one, 1.0, &mut alone);
            for ((a, b), scaled) in alone.iter().zip(row).zip(scaled) {
                assert_eq!(a.to_bits(), b.to_bits(), "{block}: a block depends on its neighbours");
                let same = (b * 0.75).to_bits() == scaled.to_bits() || (b.is_nan() && scaled.is_nan());
                assert!(same, "{block}: {b} times 0.75 is {scaled}");
            }
        }
    });
});
