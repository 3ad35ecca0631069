//! Random vectors and packed matrices.

use lucid_checkpoint::gguf::BlockType;
use lucid_checkpoint::{Bytes, Matrix, Packed, ScaleType, Scales};

use crate::cuda::layout::Layout;

/// A small generator (Steele et al. 2014, SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From -1 to 1.
    pub fn number(&mut self) -> f32 {
        (self.word() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end as u64) as usize
    }
}

pub fn vector(len: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.number() * 3.0).collect()
}

/// A matrix with values of about one.
pub fn matrix(layout: Layout, rows: usize, cols: usize, seed: u64) -> Matrix {
    let mut random = Random::new(seed);
    let len = rows * cols;
    let packed = match layout {
        Layout::F32 => Packed::F32(Bytes::from(
            (0..len).flat_map(|_| random.number().to_le_bytes()).collect::<Vec<u8>>(),
        )),
        // Exponents from 2^-3 to 1.
        Layout::F16 => Packed::F16(Bytes::from(
            (0..len)
                .flat_map(|_| {
                    let word = random.word() as u16;
                    (word & 0x83ff | (12 + (word >> 10 & 3)) << 10).to_le_bytes()
                })
                .collect::<Vec<u8>>(),
        )),
        Layout::Bf16 => Packed::Bf16(Bytes::from(
            (0..len)
                .flat_map(|_| ((random.number().to_bits() >> 16) as u16).to_le_bytes())
                .collect::<Vec<u8>>(),
        )),
        Layout::F8E4m3 => {
            Packed::F8E4m3(Bytes::from((0..len).map(|_| (random.word() as u8) & 0xbf).collect::<Vec<u8>>()))
        }
        Layout::Nvfp4 => Packed::Nvfp4 {
            codes: Bytes::from((0..len / 2).map(|_| random.word() as u8).collect::<Vec<u8>>()),
            // 2^-7 (subnormal) to 15.
            scales: Bytes::from((0..len / 16).map(|_| 4 + (random.word() % 90) as u8).collect::<Vec<u8>>()),
            global_scale: 0.0123,
            input_scale: None,
        },
        // Scales from 2^-3 to 2^-2, so that values are about one.
        Layout::Int4 => Packed::Int4 {
            codes: Bytes::from((0..len / 2).map(|_| random.word() as u8).collect::<Vec<u8>>()),
            scales: Scales {
                kind: ScaleType::Bf16,
                bytes: Bytes::from(
                    (0..len / 32)
                        .flat_map(|_| (0x3e00 + (random.word() % 128) as u16).to_le_bytes())
                        .collect::<Vec<u8>>(),
                ),
            },
            group_size: 32,
        },
        Layout::F8Blocks => Packed::F8Blocks {
            codes: Bytes::from((0..len).map(|_| (random.word() as u8) & 0xbf).collect::<Vec<u8>>()),
            scales: Scales {
                kind: ScaleType::F32,
                bytes: Bytes::from(
                    (0..rows.div_ceil(128) * cols.div_ceil(128))
                        .flat_map(|_| (0.5 + random.number().abs()).to_le_bytes())
                        .collect::<Vec<u8>>(),
                ),
            },
            block: [128, 128],
        },
        Layout::Q8_0 => blocks(&mut random, BlockType::Q8_0, len, &[0]),
        Layout::Q5_0 => blocks(&mut random, BlockType::Q5_0, len, &[0]),
        Layout::Q4K => blocks(&mut random, BlockType::Q4_K, len, &[0, 2]),
        Layout::Q5K => blocks(&mut random, BlockType::Q5_K, len, &[0, 2]),
        Layout::Q6K => blocks(&mut random, BlockType::Q6_K, len, &[208]),
        Layout::Q5_1 => blocks(&mut random, BlockType::Q5_1, len, &[0, 2]),
        Layout::Iq4Xs => blocks(&mut random, BlockType::IQ4_XS, len, &[0]),
        Layout::Q2K => blocks(&mut random, BlockType::Q2_K, len, &[80, 82]),
    };
    Matrix { name: format!("random {}", layout as i32), rows, cols, packed }
}

/// A matrix in a block type of GGUF that takes another one's tiles.
pub fn repacked(block: BlockType, rows: usize, cols: usize, seed: u64) -> Matrix {
    let mut random = Random::new(seed);
    let at: &[usize] = match block {
        BlockType::Q4_0 | BlockType::IQ4_NL => &[0],
        BlockType::Q4_1 => &[0, 2],
        BlockType::Q3_K => &[108],
        // Their scales are E4M3, or powers of two: any byte is one.
        _ => &[],
    };
    let mut packed = blocks(&mut random, block, rows * cols, at);
    if let (BlockType::MXFP4, Packed::Gguf { bytes, .. }) = (block, &mut packed) {
        // From 2^-17 to 2^-2, and one so small that f32 holds it as a subnormal.
        let powers = |(i, byte): (usize, u8)| match i % block.bytes() {
            0 => {
                if i == 0 {
                    1
                } else {
                    110 + byte % 16
                }
            }
            _ => byte,
        };
        *bytes = Bytes::from(bytes.iter().copied().enumerate().map(powers).collect::<Vec<u8>>());
    }
    Matrix { name: format!("random {block}"), rows, cols, packed }
}

/// Random blocks of GGUF, with binary16 scales from 2^-11 to 2^-8 `at` these bytes.
fn blocks(random: &mut Random, block: BlockType, len: usize, at: &[usize]) -> Packed {
    let mut bytes: Vec<u8> =
        (0..len / block.elements() * block.bytes()).map(|_| random.word() as u8).collect();
    for block in bytes.chunks_exact_mut(block.bytes()) {
        for &at in at {
            let scale = (4 + random.word() as u16 % 3) << 10 | random.word() as u16 & 0x3ff;
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    Packed::Gguf { block, bytes: Bytes::from(bytes), scale: 1.5 }
}

/// All values, decoded by the checkpoint reader.
pub fn decoded(matrix: &Matrix) -> Vec<f32> {
    let mut values = vec![0f32; matrix.rows * matrix.cols];
    for (row, out) in values.chunks_exact_mut(matrix.cols).enumerate() {
        matrix.decode_row(row, out);
    }
    values
}

/// The product of a row and a vector in f64, and the sum of its absolute terms: rounding is measured against that.
pub fn dot(row: &[f32], x: &[f32]) -> (f64, f64) {
    row.iter().zip(x).fold((0.0, 0.0), |(sum, size), (&w, &x)| {
        let term = f64::from(w) * f64::from(x);
        (sum + term, size + term.abs())
    })
}
