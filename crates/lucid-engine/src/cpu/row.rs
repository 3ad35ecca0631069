//! One row of a weight matrix, as it is stored, and how its columns become f32, sixteen at a time.

use lucid_checkpoint::{Matrix, Packed, bf16_to_f32, e4m3_to_f32, f16_to_f32, nvfp4};

/// Columns that are decoded together: one NVFP4 block, two AVX2 vectors.
pub const BLOCK: usize = 16;

/// A row's stored bytes.
#[derive(Clone, Copy)]
pub enum Row<'a> {
    /// 4 bytes a column.
    F32(&'a [u8]),
    /// 2 bytes a column.
    F16(&'a [u8]),
    /// 2 bytes a column.
    Bf16(&'a [u8]),
    /// 1 byte a column.
    F8E4m3(&'a [u8]),
    /// Half a byte a column and one E4M3 scale for sixteen columns; the matrix' global scale is applied to the sum.
    Nvfp4 {
        /// `[cols / 2]`, low nibble first.
        codes: &'a [u8],
        /// `[cols / 16]`.
        scales: &'a [u8],
    },
}

impl<'a> Row<'a> {
    /// Row `row` of `matrix`. The checkpoint reader has checked all lengths against `rows` and `cols`.
    pub fn of(matrix: &'a Matrix, row: usize) -> Row<'a> {
        let cols = matrix.cols;
        let cut = |bytes: &'a [u8], width: usize| &bytes[row * width..(row + 1) * width];
        match &matrix.packed {
            Packed::F32(bytes) => Row::F32(cut(bytes, 4 * cols)),
            Packed::F16(bytes) => Row::F16(cut(bytes, 2 * cols)),
            Packed::Bf16(bytes) => Row::Bf16(cut(bytes, 2 * cols)),
            Packed::F8E4m3(bytes) => Row::F8E4m3(cut(bytes, cols)),
            Packed::Nvfp4 { codes, scales, .. } => {
                Row::Nvfp4 { codes: cut(codes, cols / 2), scales: cut(scales, cols / BLOCK) }
            }
        }
    }

    /// One column, without the global scale. The plain version of every kernel.
    pub fn column(self, i: usize) -> f32 {
        let two = |bytes: &[u8]| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
        match self {
            Row::F32(bytes) => {
                f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
            }
            Row::F16(bytes) => f16_to_f32(two(bytes)),
            Row::Bf16(bytes) => bf16_to_f32(two(bytes)),
            Row::F8E4m3(bytes) => e4m3_to_f32(bytes[i]),
            Row::Nvfp4 { codes, scales } => {
                let code = codes[i / 2] >> (4 * (i % 2)) & 15;
                nvfp4::E2M1[code as usize] * e4m3_to_f32(scales[i / BLOCK])
            }
        }
    }
}

/// What the sum over a row is multiplied with at the end.
pub fn global_scale(matrix: &Matrix) -> f32 {
    match matrix.packed {
        Packed::Nvfp4 { global_scale, .. } => global_scale,
        _ => 1.0,
    }
}
