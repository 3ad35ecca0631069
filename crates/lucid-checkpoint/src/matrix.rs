//! A weight matrix as stored, and its decoding.

use serde::{Serialize, Serializer};

use crate::gguf::BlockType;
use crate::{Bytes, Error, float8, float16, int4, nvfp4};

/// A weight matrix `[rows, cols]` as stored, still packed. Rows are outputs, columns are inputs.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The name of its (first) tensor in the files.
    pub name: String,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The values.
    pub packed: Packed,
}

/// The values of a matrix in one of the layouts that Lucid decodes: little-endian, row-major, not always aligned.
#[derive(Clone, Debug)]
pub enum Packed {
    /// `f32 [rows, cols]`
    F32(Bytes),
    /// IEEE binary16 `[rows, cols]`
    F16(Bytes),
    /// bfloat16 `[rows, cols]`
    Bf16(Bytes),
    /// E4M3 `[rows, cols]`, without any scale
    F8E4m3(Bytes),
    /// NVFP4 as ModelOpt stores it.
    Nvfp4 {
        /// `[rows, cols / 2]`: two E2M1 codes per byte, the even column in the low nibble.
        codes: Bytes,
        /// E4M3 `[rows, cols / 16]`: one scale per 16 columns, row-major (not swizzled).
        scales: Bytes,
        /// `weight_scale_2`: finite and greater than zero.
        global_scale: f32,
        /// The activations' global scale as stored, if there is one. Weight-only semantics have no use for it, so it
        /// is not checked here: an expert that calibration never reached has 0.
        input_scale: Option<f32>,
    },
    /// INT4 as compressed-tensors packs it (`pack-quantized`, symmetric): native Kimi-K2 Thinking and K2.5.
    Int4 {
        /// `[rows, cols / 2]`: two codes per byte, the even column in the low nibble; a code is the value plus 8.
        codes: Bytes,
        /// `[rows, cols / group_size]`
        scales: Scales,
        /// Columns that share a scale; divides `cols`.
        group_size: usize,
    },
    /// E4M3 with a scale for each block of rows and columns: DeepSeek-V3.
    F8Blocks {
        /// E4M3 `[rows, cols]`
        codes: Bytes,
        /// `[ceil(rows / block[0]), ceil(cols / block[1])]`: multipliers.
        scales: Scales,
        /// Rows and columns of a block; those at the edges may be smaller.
        block: [usize; 2],
    },
    /// A block type of GGUF.
    Gguf {
        /// How a block is packed; `cols` is a multiple of its elements.
        block: BlockType,
        /// Whole blocks `[rows, cols / elements]`
        bytes: Bytes,
        /// Multiplies every value: NVFP4's global scale, else 1.
        scale: f32,
    },
}

/// Scales as stored: little-endian, not always aligned.
#[derive(Clone, Debug)]
pub struct Scales {
    /// Their type.
    pub kind: ScaleType,
    /// The values, row-major.
    pub bytes: Bytes,
}

/// The type of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names say it all.
pub enum ScaleType {
    F32,
    F16,
    Bf16,
    F8E8m0,
}

impl Scales {
    /// The same in memory of their own.
    fn read(&self) -> Result<Scales, Error> {
        Ok(Scales { kind: self.kind, bytes: self.bytes.read()? })
    }

    /// Scale number `i`.
    ///
    /// # Panics
    /// When there are not so many.
    #[must_use]
    pub fn get(&self, i: usize) -> f32 {
        let half = || u16::from_le_bytes([self.bytes[2 * i], self.bytes[2 * i + 1]]);
        match self.kind {
            ScaleType::F32 => {
                let at = &self.bytes[4 * i..4 * i + 4];
                f32::from_le_bytes([at[0], at[1], at[2], at[3]])
            }
            ScaleType::F16 => float16::f16_to_f32(half()),
            ScaleType::Bf16 => float16::bf16_to_f32(half()),
            ScaleType::F8E8m0 => float8::e8m0_to_f32(self.bytes[i]),
        }
    }
}

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // As in `Packed`.
pub enum Layout {
    F32,
    F16,
    Bf16,
    F8E4m3,
    Nvfp4,
    Int4,
    F8Blocks,
    Gguf(BlockType),
}

impl Layout {
    /// The layout's usual name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Layout::F32 => "F32",
            Layout::F16 => "F16",
            Layout::Bf16 => "BF16",
            Layout::F8E4m3 => "F8_E4M3",
            Layout::Nvfp4 => "NVFP4",
            Layout::Int4 => "INT4",
            Layout::F8Blocks => "F8_E4M3 blocks",
            Layout::Gguf(block) => block.as_str(),
        }
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Layout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Matrix {
    /// The same matrix with its values in memory of their own (see [`Bytes::read`]).
    ///
    /// # Errors
    /// When a file can't be read, or there is no memory.
    pub fn read(&self) -> Result<Matrix, Error> {
        let packed = match &self.packed {
            Packed::F32(bytes) => Packed::F32(bytes.read()?),
            Packed::F16(bytes) => Packed::F16(bytes.read()?),
            Packed::Bf16(bytes) => Packed::Bf16(bytes.read()?),
            Packed::F8E4m3(bytes) => Packed::F8E4m3(bytes.read()?),
            Packed::Nvfp4 { codes, scales, global_scale, input_scale } => Packed::Nvfp4 {
                codes: codes.read()?,
                scales: scales.read()?,
                global_scale: *global_scale,
                input_scale: *input_scale,
            },
            Packed::Int4 { codes, scales, group_size } => {
                Packed::Int4 { codes: codes.read()?, scales: scales.read()?, group_size: *group_size }
            }
            Packed::F8Blocks { codes, scales, block } => {
                Packed::F8Blocks { codes: codes.read()?, scales: scales.read()?, block: *block }
            }
            Packed::Gguf { block, bytes, scale } => {
                Packed::Gguf { block: *block, bytes: bytes.read()?, scale: *scale }
            }
        };
        Ok(Matrix { name: self.name.clone(), rows: self.rows, cols: self.cols, packed })
    }

    /// The stored parts: values, and scales if they are apart.
    #[must_use]
    pub fn stored(&self) -> (&Bytes, Option<&Bytes>) {
        match &self.packed {
            Packed::F32(bytes) | Packed::F16(bytes) | Packed::Bf16(bytes) | Packed::F8E4m3(bytes) => {
                (bytes, None)
            }
            Packed::Gguf { bytes, .. } => (bytes, None),
            Packed::Nvfp4 { codes, scales, .. } => (codes, Some(scales)),
            Packed::Int4 { codes, scales, .. } | Packed::F8Blocks { codes, scales, .. } => {
                (codes, Some(&scales.bytes))
            }
        }
    }

    /// The same, to be put elsewhere.
    pub fn stored_mut(&mut self) -> (&mut Bytes, Option<&mut Bytes>) {
        match &mut self.packed {
            Packed::F32(bytes) | Packed::F16(bytes) | Packed::Bf16(bytes) | Packed::F8E4m3(bytes) => {
                (bytes, None)
            }
            Packed::Gguf { bytes, .. } => (bytes, None),
            Packed::Nvfp4 { codes, scales, .. } => (codes, Some(scales)),
            Packed::Int4 { codes, scales, .. } | Packed::F8Blocks { codes, scales, .. } => {
                (codes, Some(&mut scales.bytes))
            }
        }
    }

    /// Bytes that it takes as it is stored.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        let (values, scales) = self.stored();
        values.len() + scales.map_or(0, |scales| scales.len())
    }

    /// Writes the values of one row, decoded exactly (NVFP4: see [`nvfp4::decode_row`]; INT4: see [`int4::decode_row`]).
    ///
    /// # Panics
    /// When `row >= self.rows` or `out.len() != self.cols`: mistakes of the caller, not of the file.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {} with {} rows", self.name, self.rows);
        assert_eq!(out.len(), self.cols, "a row of {}", self.name);
        let part = |per_row: usize| row * per_row..row * per_row + per_row;
        match &self.packed {
            Packed::F32(bytes) => {
                for (out, value) in out.iter_mut().zip(bytes[part(self.cols * 4)].as_chunks().0) {
                    *out = f32::from_le_bytes(*value);
                }
            }
            Packed::F16(bytes) => {
                for (out, value) in out.iter_mut().zip(bytes[part(self.cols * 2)].as_chunks().0) {
                    *out = float16::f16_to_f32(u16::from_le_bytes(*value));
                }
            }
            Packed::Bf16(bytes) => {
                for (out, value) in out.iter_mut().zip(bytes[part(self.cols * 2)].as_chunks().0) {
                    *out = float16::bf16_to_f32(u16::from_le_bytes(*value));
                }
            }
            Packed::F8E4m3(bytes) => {
                for (out, value) in out.iter_mut().zip(&bytes[part(self.cols)]) {
                    *out = float8::e4m3_to_f32(*value);
                }
            }
            Packed::Nvfp4 { codes, scales, global_scale, .. } => nvfp4::decode_row(
                &codes[part(self.cols / 2)],
                &scales[part(self.cols / nvfp4::BLOCK)],
                *global_scale,
                out,
            ),
            Packed::Int4 { codes, scales, group_size } => {
                let first_scale = row * (self.cols / group_size);
                int4::decode_row(&codes[part(self.cols / 2)], scales, first_scale, *group_size, out);
            }
            Packed::Gguf { block, bytes, scale } => {
                block.decode_row(&bytes[part(self.cols / block.elements() * block.bytes())], *scale, out);
            }
            Packed::F8Blocks { codes, scales, block } => {
                let first_scale = row / block[0] * self.cols.div_ceil(block[1]);
                let codes = codes[part(self.cols)].chunks(block[1]);
                for (i, (out, codes)) in out.chunks_mut(block[1]).zip(codes).enumerate() {
                    let scale = scales.get(first_scale + i);
                    for (out, code) in out.iter_mut().zip(codes) {
                        *out = float8::e4m3_to_f32(*code) * scale;
                    }
                }
            }
        }
    }

    /// How the matrix is stored.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match self.packed {
            Packed::F32(_) => Layout::F32,
            Packed::F16(_) => Layout::F16,
            Packed::Bf16(_) => Layout::Bf16,
            Packed::F8E4m3(_) => Layout::F8E4m3,
            Packed::Nvfp4 { .. } => Layout::Nvfp4,
            Packed::Int4 { .. } => Layout::Int4,
            Packed::F8Blocks { .. } => Layout::F8Blocks,
            Packed::Gguf { block, .. } => Layout::Gguf(block),
        }
    }

    /// Bytes that one pass over the matrix reads: codes and scales.
    #[must_use]
    pub fn byte_len(&self) -> u64 {
        match &self.packed {
            Packed::F32(bytes) | Packed::F16(bytes) | Packed::Bf16(bytes) | Packed::F8E4m3(bytes) => {
                bytes.len() as u64
            }
            Packed::Nvfp4 { codes, scales, .. } => codes.len() as u64 + scales.len() as u64 + 4,
            Packed::Int4 { codes, scales, .. } | Packed::F8Blocks { codes, scales, .. } => {
                codes.len() as u64 + scales.bytes.len() as u64
            }
            Packed::Gguf { bytes, .. } => bytes.len() as u64,
        }
    }
}
