//! The block types of GGUF: a few scales and the codes of 32, 64 or 256 neighbours in a row.
//!
//! Every decoding rounds where llama.cpp's reference (`ggml-quants.c`, `dequantize_row_*`) rounds: scales are multiplied
//! first, then the code, then the minimum is taken off.

use crate::dtype::Dtype;
use crate::float8::E4M3;
use crate::float16::f16_to_f32;
use crate::nvfp4::E2M1;

/// How GGUF packs a quantized tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, non_camel_case_types)] // llama.cpp's names.
pub enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
}

/// The type of a tensor in a file.
#[derive(Clone, Debug)]
pub(super) enum TensorType {
    /// As in safetensors.
    Plain(Dtype),
    Block(BlockType),
    /// The number of a type that Lucid does not decode.
    Other(u32),
}

/// The values of IQ4_NL and IQ4_XS codes (`kvalues_iq4nl`).
const IQ4: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// The scales of NVFP4 blocks: E4M3 without a sign; llama.cpp reads NaN as 0 (`ggml_ue4m3_to_fp32`).
pub static UNSIGNED_E4M3: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        if code & 0x7f != 0x7f {
            values[code] = E4M3[code & 0x7f];
        }
        code += 1;
    }
    values
};

impl TensorType {
    pub(super) fn from_id(id: u32) -> TensorType {
        use BlockType as B;
        match id {
            0 => TensorType::Plain(Dtype::F32),
            1 => TensorType::Plain(Dtype::F16),
            24 => TensorType::Plain(Dtype::I8),
            25 => TensorType::Plain(Dtype::I16),
            26 => TensorType::Plain(Dtype::I32),
            27 => TensorType::Plain(Dtype::I64),
            28 => TensorType::Plain(Dtype::F64),
            30 => TensorType::Plain(Dtype::Bf16),
            2 => TensorType::Block(B::Q4_0),
            3 => TensorType::Block(B::Q4_1),
            6 => TensorType::Block(B::Q5_0),
            7 => TensorType::Block(B::Q5_1),
            8 => TensorType::Block(B::Q8_0),
            10 => TensorType::Block(B::Q2_K),
            11 => TensorType::Block(B::Q3_K),
            12 => TensorType::Block(B::Q4_K),
            13 => TensorType::Block(B::Q5_K),
            14 => TensorType::Block(B::Q6_K),
            20 => TensorType::Block(B::IQ4_NL),
            23 => TensorType::Block(B::IQ4_XS),
            39 => TensorType::Block(B::MXFP4),
            40 => TensorType::Block(B::NVFP4),
            other => TensorType::Other(other),
        }
    }

    pub(super) fn dtype(&self) -> Dtype {
        match self {
            TensorType::Plain(dtype) => dtype.clone(),
            TensorType::Block(block) => Dtype::Gguf(*block),
            TensorType::Other(id) => Dtype::Other(match id {
                9 => "Q8_1".to_owned(),
                15 => "Q8_K".to_owned(),
                16 => "IQ2_XXS".to_owned(),
                17 => "IQ2_XS".to_owned(),
                18 => "IQ3_XXS".to_owned(),
                19 => "IQ1_S".to_owned(),
                21 => "IQ3_S".to_owned(),
                22 => "IQ2_S".to_owned(),
                29 => "IQ1_M".to_owned(),
                34 => "TQ1_0".to_owned(),
                35 => "TQ2_0".to_owned(),
                other => format!("GGML type {other}"),
            }),
        }
    }

    /// Bytes of a tensor with these dimensions, fastest first; `None` for a type of unknown size.
    pub(super) fn size(&self, dims: &[usize]) -> Result<Option<u64>, String> {
        let (elements, bytes) = match self {
            TensorType::Plain(dtype) => (1, dtype.size().unwrap_or(1)),
            TensorType::Block(block) => (block.elements() as u64, block.bytes() as u64),
            TensorType::Other(_) => return Ok(None),
        };
        let row = dims.first().copied().unwrap_or(1) as u64;
        if !row.is_multiple_of(elements) {
            return Err(format!("has rows of {row} values, which are no whole blocks of {elements}"));
        }
        let rows = dims.iter().skip(1).try_fold(1u64, |product, &dim| product.checked_mul(dim as u64));
        match rows.and_then(|rows| rows.checked_mul(row / elements)?.checked_mul(bytes)) {
            Some(size) => Ok(Some(size)),
            None => Err(format!("has a shape that no file can hold: {dims:?}")),
        }
    }
}

impl BlockType {
    /// llama.cpp's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            BlockType::Q4_0 => "Q4_0",
            BlockType::Q4_1 => "Q4_1",
            BlockType::Q5_0 => "Q5_0",
            BlockType::Q5_1 => "Q5_1",
            BlockType::Q8_0 => "Q8_0",
            BlockType::Q2_K => "Q2_K",
            BlockType::Q3_K => "Q3_K",
            BlockType::Q4_K => "Q4_K",
            BlockType::Q5_K => "Q5_K",
            BlockType::Q6_K => "Q6_K",
            BlockType::IQ4_NL => "IQ4_NL",
            BlockType::IQ4_XS => "IQ4_XS",
            BlockType::MXFP4 => "MXFP4",
            BlockType::NVFP4 => "NVFP4 (GGUF)",
        }
    }

    /// Values in a block.
    #[must_use]
    pub fn elements(self) -> usize {
        use BlockType as B;
        match self {
            B::Q4_0 | B::Q4_1 | B::Q5_0 | B::Q5_1 | B::Q8_0 | B::IQ4_NL | B::MXFP4 => 32,
            B::NVFP4 => 64,
            B::Q2_K | B::Q3_K | B::Q4_K | B::Q5_K | B::Q6_K | B::IQ4_XS => 256,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            BlockType::Q4_0 | BlockType::IQ4_NL => 18,
            BlockType::Q4_1 => 20,
            BlockType::Q5_0 => 22,
            BlockType::Q5_1 => 24,
            BlockType::Q8_0 => 34,
            BlockType::Q2_K => 84,
            BlockType::Q3_K => 110,
            BlockType::Q4_K => 144,
            BlockType::Q5_K => 176,
            BlockType::Q6_K => 210,
            BlockType::IQ4_XS => 136,
            BlockType::MXFP4 => 17,
            BlockType::NVFP4 => 36,
        }
    }

    /// Decodes the blocks of a row, times `scale`. Only whole blocks that are in both slices are written.
    pub fn decode_row(self, bytes: &[u8], scale: f32, out: &mut [f32]) {
        for (block, out) in bytes.chunks_exact(self.bytes()).zip(out.chunks_exact_mut(self.elements())) {
            self.decode(block, out);
        }
        if scale != 1.0 {
            out.iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// One block of [`bytes`](Self::bytes) to [`elements`](Self::elements) values.
    fn decode(self, b: &[u8], out: &mut [f32]) {
        match self {
            BlockType::Q8_0 => {
                let d = half(b, 0);
                fill(out, |i| d * f32::from(b[2 + i].cast_signed()));
            }
            BlockType::Q4_0 => {
                let d = half(b, 0);
                fill(out, |i| d * (halves(&b[2..], i) - 8.0));
            }
            BlockType::Q4_1 => {
                let (d, m) = (half(b, 0), half(b, 2));
                fill(out, |i| d * halves(&b[4..], i) + m);
            }
            BlockType::Q5_0 => {
                let (d, high) = (half(b, 0), word(b, 2));
                fill(out, |i| d * (halves(&b[6..], i) + fifth_bit(high, i) - 16.0));
            }
            BlockType::Q5_1 => {
                let (d, m, high) = (half(b, 0), half(b, 2), word(b, 4));
                fill(out, |i| d * (halves(&b[8..], i) + fifth_bit(high, i)) + m);
            }
            BlockType::IQ4_NL => {
                let d = half(b, 0);
                fill(out, |i| d * IQ4[halves(&b[2..], i) as usize]);
            }
            BlockType::MXFP4 => {
                // Doubled codes and half the scale, so that the largest scale is still finite. Codes are whole numbers in
                // llama.cpp, without a negative zero; adding zero makes it positive.
                let e = u32::from(b[0]);
                let half_scale = f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 });
                fill(out, |i| half_scale * (2.0 * E2M1[halves(&b[1..], i) as usize] + 0.0));
            }
            BlockType::NVFP4 => fill(out, |i| {
                let (k, r) = (i / 16, i % 16);
                let code = b[4 + 8 * k + r % 8] >> (4 * (r / 8)) & 15;
                UNSIGNED_E4M3[usize::from(b[k])] * (E2M1[code as usize] + 0.0)
            }),
            BlockType::Q2_K => {
                let (d, dmin) = (half(b, 80), half(b, 82));
                fill(out, |i| {
                    let s = b[i / 16];
                    d * f32::from(s & 15) * f32::from(two_bits(&b[16..], i)) - dmin * f32::from(s >> 4)
                });
            }
            BlockType::Q3_K => {
                let d = half(b, 108);
                fill(out, |i| {
                    let q =
                        i16::from(two_bits(&b[32..], i)) - if b[i % 32] >> (i / 32) & 1 == 0 { 4 } else { 0 };
                    let (s, k) = (&b[96..], i / 16);
                    let low = s[k % 8] >> (4 * (k / 8)) & 15;
                    let high = s[8 + k % 4] >> (2 * (k / 4)) & 3;
                    d * (f32::from(low | high << 4) - 32.0) * f32::from(q)
                });
            }
            BlockType::Q4_K => {
                let (d, dmin) = (half(b, 0), half(b, 2));
                fill(out, |i| {
                    let (scale, min) = scale_and_min(&b[4..], i / 32);
                    d * scale * f32::from(pairs(&b[16..], i)) - dmin * min
                });
            }
            BlockType::Q5_K => {
                let (d, dmin) = (half(b, 0), half(b, 2));
                fill(out, |i| {
                    let (scale, min) = scale_and_min(&b[4..], i / 32);
                    let q = pairs(&b[48..], i) | (b[16 + i % 32] >> (i / 32) & 1) << 4;
                    d * scale * f32::from(q) - dmin * min
                });
            }
            BlockType::Q6_K => {
                let d = half(b, 208);
                fill(out, |i| {
                    let (h, g, e) = (i / 128, i % 128 / 32, i % 32);
                    let low = b[64 * h + 32 * (g % 2) + e] >> (4 * (g / 2)) & 15;
                    let high = b[128 + 32 * h + e] >> (2 * g) & 3;
                    let scale = f32::from(b[192 + i / 16].cast_signed());
                    d * scale * (f32::from(low | high << 4) - 32.0)
                });
            }
            BlockType::IQ4_XS => {
                let (d, scales_high) = (half(b, 0), u16::from_le_bytes([b[2], b[3]]));
                fill(out, |i| {
                    let k = i / 32;
                    let low = b[4 + k / 2] >> (4 * (k % 2)) & 15;
                    let high = (scales_high >> (2 * k) & 3) as u8;
                    let code = b[8 + 16 * k + i % 16] >> (4 * (i % 32 / 16)) & 15;
                    d * (f32::from(low | high << 4) - 32.0) * IQ4[code as usize]
                });
            }
        }
    }
}

impl std::fmt::Display for BlockType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

fn fill(out: &mut [f32], value: impl Fn(usize) -> f32) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = value(i);
    }
}

fn half(b: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([b[at], b[at + 1]]))
}

fn word(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Of 32 codes, the first 16 are the low nibbles.
fn halves(codes: &[u8], i: usize) -> f32 {
    f32::from(codes[i % 16] >> (4 * (i / 16)) & 15)
}

/// Of 64 codes, the first 32 are the low nibbles.
fn pairs(codes: &[u8], i: usize) -> u8 {
    codes[32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 15
}

/// Of 128 codes, each 32 are two bits further up.
fn two_bits(codes: &[u8], i: usize) -> u8 {
    codes[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3
}

/// 16 or 0.
fn fifth_bit(high: u32, i: usize) -> f32 {
    f32::from((high >> i & 1) as u8) * 16.0
}

/// Scale and minimum of sub-block `j`, six bits each, of twelve bytes (`get_scale_min_k4`).
fn scale_and_min(s: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}
