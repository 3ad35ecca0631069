//! Consecutive rows of a weight matrix, as they are stored, and how their columns become f32.

use std::ops::Range;

use lucid_checkpoint::{Matrix, Packed, bf16_to_f32, e4m3_to_f32, f16_to_f32, nvfp4};

use super::aligned::Aligned;

/// Columns that are decoded together: one NVFP4 block, two AVX2 vectors.
pub const BLOCK: usize = 16;

/// `count` rows of `cols` columns.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// Rows.
    pub count: usize,
    /// Columns.
    pub cols: usize,
    /// The values; every slice has exactly the bytes of these rows.
    pub stored: Stored<'a>,
    /// What the same thread reads next, if that is known: otherwise it is taken to be what stands behind these rows.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub next: &'a [u8],
}

/// The bytes of some rows.
#[derive(Clone, Copy)]
pub enum Stored<'a> {
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
        /// `[rows, cols / 2]`, low nibble first.
        codes: &'a [u8],
        /// `[rows, cols / 16]`.
        scales: &'a [u8],
    },
    /// Any other layout: whole rows are decoded, with all their scales, and multiplied as f32.
    Decoded {
        /// The matrix.
        matrix: &'a Matrix,
        /// Its row that is row 0 here.
        first_row: usize,
    },
}

impl<'a> Rows<'a> {
    /// Some rows of `matrix`.
    ///
    /// # Panics
    /// When the matrix has no such rows.
    pub fn of(matrix: &'a Matrix, rows: Range<usize>) -> Rows<'a> {
        let cols = matrix.cols;
        let cut = |bytes: &'a [u8], width: usize| &bytes[rows.start * width..rows.end * width];
        let stored = match &matrix.packed {
            Packed::F32(bytes) => Stored::F32(cut(bytes, 4 * cols)),
            Packed::F16(bytes) => Stored::F16(cut(bytes, 2 * cols)),
            Packed::Bf16(bytes) => Stored::Bf16(cut(bytes, 2 * cols)),
            Packed::F8E4m3(bytes) => Stored::F8E4m3(cut(bytes, cols)),
            Packed::Nvfp4 { codes, scales, .. } => {
                Stored::Nvfp4 { codes: cut(codes, cols / 2), scales: cut(scales, cols / BLOCK) }
            }
            _ => {
                assert!(rows.end <= matrix.rows, "rows {rows:?} of {}", matrix.rows);
                Stored::Decoded { matrix, first_row: rows.start }
            }
        };
        Rows { count: rows.len(), cols, stored, next: &[] }
    }

    /// Rows that are f32 already, `[count, cols]`.
    ///
    /// # Panics
    /// When `values` is not a whole number of rows.
    pub fn f32s(values: &'a [f32], cols: usize) -> Rows<'a> {
        assert!(values.len().is_multiple_of(cols), "{} values are no rows of {cols}", values.len());
        // SAFETY: any f32 is four plain bytes; the length is that of the slice.
        let bytes =
            unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), std::mem::size_of_val(values)) };
        Rows { count: values.len() / cols, cols, stored: Stored::F32(bytes), next: &[] }
    }

    /// Rows that are bf16 numbers of this machine, which stores low bytes first, `[count, cols]`.
    ///
    /// # Panics
    /// When `values` is not a whole number of rows.
    pub fn halves(values: &'a [u16], cols: usize) -> Rows<'a> {
        assert!(values.len().is_multiple_of(cols), "{} values are no rows of {cols}", values.len());
        // SAFETY: any u16 is two plain bytes; the length is that of the slice.
        let bytes =
            unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), std::mem::size_of_val(values)) };
        Rows { count: values.len() / cols, cols, stored: Stored::Bf16(bytes), next: &[] }
    }

    /// The bytes that are worth fetching before they are multiplied: none of few f32 rows, and none of packed blocks, which take longer to
    /// decode than to fetch.
    pub fn fetched(&self) -> &'a [u8] {
        match self.stored {
            Stored::F16(bytes) | Stored::Bf16(bytes) | Stored::F8E4m3(bytes) => bytes,
            Stored::Nvfp4 { codes, .. } => codes,
            Stored::F32(_) | Stored::Decoded { .. } => &[],
        }
    }

    /// Decodes rows that no kernel reads as stored into `scratch`, which grows; other rows stay as they are.
    pub fn decoded<'s>(self, scratch: &'s mut Aligned<f32>) -> Rows<'s>
    where
        'a: 's,
    {
        let Stored::Decoded { matrix, first_row } = self.stored else { return self };
        let len = self.count * self.cols;
        scratch.grow(len, 0.0);
        let decoded = &mut scratch[..len];
        for (row, out) in decoded.chunks_exact_mut(self.cols).enumerate() {
            matrix.decode_row(first_row + row, out);
        }
        Rows::f32s(decoded, self.cols)
    }

    /// One value, without the global scale. The plain version of every kernel.
    pub fn value(&self, row: usize, col: usize) -> f32 {
        let i = row * self.cols + col;
        let two = |bytes: &[u8]| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
        match self.stored {
            Stored::F32(bytes) => {
                f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
            }
            Stored::F16(bytes) => f16_to_f32(two(bytes)),
            Stored::Bf16(bytes) => bf16_to_f32(two(bytes)),
            Stored::F8E4m3(bytes) => e4m3_to_f32(bytes[i]),
            // Rows have an even number of columns, and a whole number of blocks.
            Stored::Nvfp4 { codes, scales } => {
                let code = codes[i / 2] >> (4 * (i % 2)) & 15;
                nvfp4::E2M1[code as usize] * e4m3_to_f32(scales[i / BLOCK])
            }
            Stored::Decoded { matrix, first_row } => {
                let mut values = vec![0f32; self.cols];
                matrix.decode_row(first_row + row, &mut values);
                values[col]
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
