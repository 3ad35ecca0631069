//! Cutting packed matrices: some of the rows, or some of the columns, with the scales that belong to them.

use std::ops::Range;

use lucid_checkpoint::{Bytes, Matrix, Packed, ScaleType, Scales};

use crate::Error;

/// Rows `range` of a matrix; nothing is copied.
///
/// # Errors
/// When a block of scales lies across a border.
pub fn rows(matrix: &Matrix, range: Range<usize>) -> Result<Matrix, Error> {
    let cols = matrix.cols;
    let cut = |bytes: &Bytes, row_bytes: usize, rows: Range<usize>| {
        // Within bounds: the reader has checked the sizes, and callers stay within the rows.
        bytes.slice(rows.start * row_bytes..rows.end * row_bytes).ok_or_else(|| across(matrix, &range))
    };
    let packed = match &matrix.packed {
        Packed::F32(bytes) => Packed::F32(cut(bytes, 4 * cols, range.clone())?),
        Packed::F16(bytes) => Packed::F16(cut(bytes, 2 * cols, range.clone())?),
        Packed::Bf16(bytes) => Packed::Bf16(cut(bytes, 2 * cols, range.clone())?),
        Packed::F8E4m3(bytes) => Packed::F8E4m3(cut(bytes, cols, range.clone())?),
        Packed::Nvfp4 { codes, scales, global_scale, input_scale } => Packed::Nvfp4 {
            codes: cut(codes, cols / 2, range.clone())?,
            scales: cut(scales, cols / 16, range.clone())?,
            global_scale: *global_scale,
            input_scale: *input_scale,
        },
        Packed::Int4 { codes, scales, group_size } => {
            let per_row = cols / group_size * scale_bytes(scales.kind);
            Packed::Int4 {
                codes: cut(codes, cols / 2, range.clone())?,
                scales: Scales { kind: scales.kind, bytes: cut(&scales.bytes, per_row, range.clone())? },
                group_size: *group_size,
            }
        }
        Packed::F8Blocks { codes, scales, block } => {
            let blocks = units(&range, block[0], matrix.rows).ok_or_else(|| across(matrix, &range))?;
            let per_row = cols.div_ceil(block[1]) * scale_bytes(scales.kind);
            Packed::F8Blocks {
                codes: cut(codes, cols, range.clone())?,
                scales: Scales { kind: scales.kind, bytes: cut(&scales.bytes, per_row, blocks)? },
                block: *block,
            }
        }
        Packed::Gguf { block, bytes, scale } => Packed::Gguf {
            block: *block,
            bytes: cut(bytes, cols / block.elements() * block.bytes(), range.clone())?,
            scale: *scale,
        },
    };
    Ok(Matrix { name: matrix.name.clone(), rows: range.len(), cols, packed })
}

/// Columns `range` of a matrix, copied unless they are all.
///
/// # Errors
/// When a block of scales lies across a border.
pub fn columns(matrix: &Matrix, range: Range<usize>) -> Result<Matrix, Error> {
    let (rows, cols) = (matrix.rows, matrix.cols);
    if range == (0..cols) {
        return Ok(matrix.clone());
    }
    // `unit` columns are `bytes_of_unit` bytes.
    let cut = |bytes: &Bytes, rows: usize, unit: usize, bytes_of_unit: usize| {
        let part = units(&range, unit, cols).ok_or_else(|| across(matrix, &range))?;
        let part = part.start * bytes_of_unit..part.end * bytes_of_unit;
        let row_bytes = cols.div_ceil(unit) * bytes_of_unit;
        let mut out = Vec::with_capacity(rows * part.len());
        for row in bytes.chunks_exact(row_bytes.max(1)).take(rows) {
            out.extend_from_slice(&row[part.clone()]);
        }
        Ok::<Bytes, Error>(Bytes::from(out))
    };
    let packed = match &matrix.packed {
        Packed::F32(bytes) => Packed::F32(cut(bytes, rows, 1, 4)?),
        Packed::F16(bytes) => Packed::F16(cut(bytes, rows, 1, 2)?),
        Packed::Bf16(bytes) => Packed::Bf16(cut(bytes, rows, 1, 2)?),
        Packed::F8E4m3(bytes) => Packed::F8E4m3(cut(bytes, rows, 1, 1)?),
        Packed::Nvfp4 { codes, scales, global_scale, input_scale } => Packed::Nvfp4 {
            codes: cut(codes, rows, 16, 8)?,
            scales: cut(scales, rows, 16, 1)?,
            global_scale: *global_scale,
            input_scale: *input_scale,
        },
        Packed::Int4 { codes, scales, group_size } => Packed::Int4 {
            codes: cut(codes, rows, *group_size, group_size / 2)?,
            scales: Scales {
                kind: scales.kind,
                bytes: cut(&scales.bytes, rows, *group_size, scale_bytes(scales.kind))?,
            },
            group_size: *group_size,
        },
        Packed::F8Blocks { codes, scales, block } => {
            units(&range, block[1], cols).ok_or_else(|| across(matrix, &range))?;
            Packed::F8Blocks {
                codes: cut(codes, rows, 1, 1)?,
                scales: Scales {
                    kind: scales.kind,
                    bytes: cut(&scales.bytes, rows.div_ceil(block[0]), block[1], scale_bytes(scales.kind))?,
                },
                block: *block,
            }
        }
        Packed::Gguf { block, bytes, scale } => Packed::Gguf {
            block: *block,
            bytes: cut(bytes, rows, block.elements(), block.bytes())?,
            scale: *scale,
        },
    };
    Ok(Matrix { name: matrix.name.clone(), rows, cols: range.len(), packed })
}

/// The range in units, if it begins and ends with whole ones; the last unit of `total` may be smaller.
fn units(range: &Range<usize>, unit: usize, total: usize) -> Option<Range<usize>> {
    let whole = |at: usize| at.is_multiple_of(unit) || at == total;
    (whole(range.start) && whole(range.end)).then(|| range.start.div_ceil(unit)..range.end.div_ceil(unit))
}

fn scale_bytes(kind: ScaleType) -> usize {
    match kind {
        ScaleType::F32 => 4,
        ScaleType::F16 | ScaleType::Bf16 => 2,
        ScaleType::F8E8m0 => 1,
    }
}

fn across(matrix: &Matrix, range: &Range<usize>) -> Error {
    Error::Unsupported {
        what: format!(
            "a part ({}..{}) of {}, stored as {},",
            range.start,
            range.end,
            matrix.name,
            matrix.layout()
        ),
        hint: "its scales belong to blocks that lie across the border: use fewer ranks",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(len: usize, seed: u32) -> Vec<u8> {
        let mut state = seed;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // No NaN in any of the formats: exponents stay small.
                (state >> 24) as u8 & 0x3f
            })
            .collect()
    }

    fn matrices(rows: usize, cols: usize) -> Vec<Matrix> {
        let bytes = |len, seed| Bytes::from(random(len, seed));
        let scales = |kind, len| Scales { kind, bytes: bytes(len, 9) };
        let packed = [
            Packed::F32(bytes(4 * rows * cols, 1)),
            Packed::F16(bytes(2 * rows * cols, 2)),
            Packed::Bf16(bytes(2 * rows * cols, 3)),
            Packed::F8E4m3(bytes(rows * cols, 4)),
            Packed::Nvfp4 {
                codes: bytes(rows * cols / 2, 5),
                scales: bytes(rows * cols / 16, 6),
                global_scale: 0.5,
                input_scale: None,
            },
            Packed::Int4 {
                codes: bytes(rows * cols / 2, 7),
                scales: scales(ScaleType::Bf16, 2 * rows * cols / 32),
                group_size: 32,
            },
            Packed::F8Blocks {
                codes: bytes(rows * cols, 8),
                scales: scales(ScaleType::F32, 4 * rows.div_ceil(32) * cols.div_ceil(32)),
                block: [32, 32],
            },
        ];
        packed.into_iter().map(|packed| Matrix { name: "m".into(), rows, cols, packed }).collect()
    }

    fn decoded(matrix: &Matrix) -> Vec<Vec<f32>> {
        (0..matrix.rows)
            .map(|row| {
                let mut out = vec![0f32; matrix.cols];
                matrix.decode_row(row, &mut out);
                out
            })
            .collect()
    }

    #[test]
    fn packed_scales_go_with_their_rows_and_columns() {
        for matrix in matrices(80, 160) {
            let whole = decoded(&matrix);
            let below = decoded(&rows(&matrix, 32..80).unwrap());
            assert_eq!(below, whole[32..].to_vec(), "{}", matrix.layout());
            let right = decoded(&columns(&matrix, 96..160).unwrap());
            let expected: Vec<Vec<f32>> = whole.iter().map(|row| row[96..].to_vec()).collect();
            assert_eq!(right, expected, "{}", matrix.layout());
        }
    }

    #[test]
    fn a_border_within_a_block_is_refused_with_the_tensors_name() {
        for matrix in matrices(80, 160).into_iter().skip(4) {
            let error = columns(&matrix, 8..160).unwrap_err().to_string();
            assert!(error.contains("of m, stored as"), "{error}");
        }
    }
}
