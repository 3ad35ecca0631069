//! The scales inside GGUF's blocks: a block with a scale that is no number is a block of no numbers.

use lucid_checkpoint::{e4m3_to_f32, e8m0_to_f32, f16_to_f32};

/// A block type, as far as its scales go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) bytes: usize,
    scales: Scales,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scales {
    /// F16 values at these offsets; the second (a minimum) may be absent.
    Half(usize, Option<usize>),
    /// One E8M0 byte at the beginning.
    E8m0,
    /// Four E4M3 bytes at the beginning.
    FourE4m3,
}

impl Block {
    /// By llama.cpp's name. Source of sizes and offsets: ggml-common.h, `block_*`.
    pub(crate) fn of(name: &str) -> Option<Block> {
        let half = |bytes, at| Some(Block { bytes, scales: Scales::Half(at, None) });
        let two = |bytes, at, min| Some(Block { bytes, scales: Scales::Half(at, Some(min)) });
        match name {
            "Q4_0" | "IQ4_NL" => half(18, 0),
            "Q4_1" => two(20, 0, 2),
            "Q5_0" => half(22, 0),
            "Q5_1" => two(24, 0, 2),
            "Q8_0" => half(34, 0),
            "Q2_K" => two(84, 80, 82),
            "Q3_K" => half(110, 108),
            "Q4_K" => two(144, 0, 2),
            "Q5_K" => two(176, 0, 2),
            "Q6_K" => half(210, 208),
            "IQ4_XS" => half(136, 0),
            "IQ2_XXS" => half(66, 0),
            "IQ2_XS" => half(74, 0),
            "IQ3_XXS" => half(98, 0),
            "IQ1_S" => half(50, 0),
            "IQ3_S" => half(110, 0),
            "IQ2_S" => half(82, 0),
            "MXFP4" => Some(Block { bytes: 17, scales: Scales::E8m0 }),
            "NVFP4" => Some(Block { bytes: 36, scales: Scales::FourE4m3 }),
            _ => None,
        }
    }

    /// Calls `each` with value, whether it is subnormal, and bits.
    pub(crate) fn scales(self, bytes: &[u8], mut each: impl FnMut(f64, bool, u64)) {
        for block in bytes.chunks_exact(self.bytes) {
            match self.scales {
                Scales::Half(at, min) => {
                    for at in [Some(at), min].into_iter().flatten() {
                        let bits = u16::from_le_bytes([block[at], block[at + 1]]);
                        let subnormal = bits & 0x7c00 == 0 && bits & 0x7fff != 0;
                        each(f64::from(f16_to_f32(bits)), subnormal, u64::from(bits));
                    }
                }
                Scales::E8m0 => each(f64::from(e8m0_to_f32(block[0])), false, u64::from(block[0])),
                Scales::FourE4m3 => {
                    for &code in &block[..4] {
                        // The sign bit has no meaning here.
                        let code = code & 0x7f;
                        each(f64::from(e4m3_to_f32(code)), matches!(code, 1..=7), u64::from(code));
                    }
                }
            }
        }
    }
}
