//! Every kernel of every unit against the plain form.

use lucid_checkpoint::gguf::BlockType as B;
use lucid_checkpoint::{Bytes, Matrix, Packed, ScaleType, Scales};

use super::*;
use crate::cpu::row::Stored;

const GGUF: [B; 14] = [
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

fn vector(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

/// No infinity in any layout: exponents stay below the top.
fn bytes(len: usize, seed: u32) -> Vec<u8> {
    vector(len, seed).into_iter().map(|x| ((x + 1.0) * 48.0) as u8).collect()
}

/// Every byte but the two that are NaN in E4M3.
fn codes(len: usize, seed: u32) -> Vec<u8> {
    let byte = |x: f32| ((x + 1.0) * 128.0) as u8;
    vector(len, seed).into_iter().map(byte).map(|byte| if byte & 0x7f == 0x7f { 3 } else { byte }).collect()
}

fn units_and<const N: usize>(cols: [usize; N]) -> impl Iterator<Item = (Unit, usize)> {
    Unit::all().flat_map(move |unit| cols.map(|cols| (unit, cols)))
}

fn rows_of(layout: usize, stored: &[u8], count: usize, cols: usize) -> Rows<'_> {
    let cut = |width: usize| &stored[..count * cols * width];
    let stored = match layout {
        0 => Stored::F32(cut(4)),
        1 => Stored::F16(cut(2)),
        2 => Stored::Bf16(cut(2)),
        3 => Stored::F8E4m3(cut(1)),
        _ => Stored::Nvfp4 {
            codes: &cut(1)[..count * cols / 2],
            scales: &cut(1)[count * cols / 2..][..count * cols / 16],
        },
    };
    Rows { count, cols, stored, next: &[] }
}

/// Any layout, any shape, any tile: the same bits as the plain form, and every place written.
#[test]
fn every_tile_has_the_bits_of_the_plain_form() {
    let mut scratch = Scratch::new();
    for layout in 0..5 {
        for (unit, cols) in units_and([16, 32, 48, 256, 17, 31, 5, 100, 1040, 1100, 1553]) {
            if layout == 4 && cols % 16 != 0 {
                continue;
            }
            let tokens = [1, 2, 3, 4, 5, 6, 7, 13, 20];
            for (count, tokens) in [1, 3, 4, 5, 8, 9, 12, 33].into_iter().flat_map(|n| tokens.map(|t| (n, t)))
            {
                let make = if layout < 3 { bytes } else { codes };
                let stored = make(count * cols * 4, (count * cols) as u32);
                let rows = rows_of(layout, &stored, count, cols);
                let xs = vector(tokens * cols, (tokens + layout) as u32);
                let x = |t: usize| &xs[t * cols..][..cols];
                let stride = count + 3;
                let mut out = vec![f32::NAN; tokens * stride];
                let target = Target { at: out.as_mut_ptr(), stride, scale: 0.5 };
                // SAFETY: `out` has room for every token and row.
                unsafe { dots_on(unit, rows, tokens, x, &mut scratch, target) };
                for r in 0..count {
                    for t in 0..tokens {
                        let plain = dot_plain(&rows, r, x(t)) * 0.5;
                        let sum = out[t * stride + r];
                        assert_eq!(
                            sum.to_bits(),
                            plain.to_bits(),
                            "{unit:?}, layout {layout}, {count}x{cols}, {tokens} tokens, ({r}, {t}): {sum} {plain}"
                        );
                    }
                }
                let untouched =
                    (0..tokens).all(|t| out[t * stride + count..][..3].iter().all(|x| x.is_nan()));
                assert!(untouched, "written outside of the rows");
            }
        }
    }
}

/// NaN stays NaN in both units' arithmetic reading of E4M3.
#[test]
fn every_e4m3_code_has_its_value() {
    let all: Vec<u8> = (0..=255).collect();
    let rows = Rows { count: 16, cols: 16, stored: Stored::F8E4m3(&all), next: &[] };
    let ones = [1f32; 16];
    for unit in Unit::all() {
        for column in 0..16 {
            let mut x = [0f32; 16];
            x[column] = ones[column];
            let mut out = [0f32; 16];
            let target = Target { at: out.as_mut_ptr(), stride: 16, scale: 1.0 };
            // SAFETY: `out` has room for sixteen rows.
            unsafe { dots_on(unit, rows, 1, |_| &x, &mut Scratch::new(), target) };
            for (row, sum) in out.into_iter().enumerate() {
                let code = 16 * row + column;
                // 0 · NaN of a neighbour is NaN as well.
                let nan = (16 * row..16 * row + 16).any(|code| code & 0x7f == 0x7f);
                let value = lucid_checkpoint::e4m3_to_f32(code as u8);
                assert!(if nan { sum.is_nan() } else { sum == value }, "{unit:?}, code {code}: {sum}");
            }
        }
    }
}

/// A matrix in every layout that is stored with scales for groups of columns, or in blocks of GGUF; some have shapes that no
/// vector kernel takes.
fn packed_matrices(rows: usize) -> Vec<Matrix> {
    let scales = |kind: ScaleType, count: usize, width: usize| Scales {
        kind,
        bytes: Bytes::from(bytes(count * width, count as u32)),
    };
    let matrix = |cols: usize, packed: Packed| Matrix { name: "m".to_owned(), rows, cols, packed };
    let mut all = Vec::new();
    for (cols, group_size, kind, width) in [
        (96, 32, ScaleType::Bf16, 2),
        (256, 128, ScaleType::F16, 2),
        (64, 64, ScaleType::F32, 4),
        (96, 16, ScaleType::F8E8m0, 1),
        (96, 48, ScaleType::Bf16, 2),
        (80, 8, ScaleType::Bf16, 2),
    ] {
        let scales = scales(kind, rows * cols / group_size, width);
        let codes = Bytes::from(codes(rows * cols / 2, 1));
        all.push(matrix(cols, Packed::Int4 { codes, scales, group_size }));
    }
    for (cols, block) in [(96usize, [16usize, 64]), (144, [5, 16]), (100, [16, 64]), (96, [128, 24])] {
        let scales = scales(ScaleType::F32, rows.div_ceil(block[0]) * cols.div_ceil(block[1]), 4);
        all.push(matrix(cols, Packed::F8Blocks { codes: Bytes::from(codes(rows * cols, 2)), scales, block }));
    }
    for block in GGUF {
        for (cols, scale) in [(block.elements(), 1.0), (3 * block.elements(), 1.0), (512, 0.3)] {
            let mut bytes = codes(rows * cols / block.elements() * block.bytes(), 3);
            // binary16 scales stand at a block's beginning or end: no infinities there.
            for block in bytes.chunks_exact_mut(block.bytes()) {
                let len = block.len();
                for at in [1, 3, len - 3, len - 1] {
                    block[at] &= 0x3b;
                }
            }
            // A whole byte is MXFP4's exponent.
            if block == B::MXFP4 {
                bytes.chunks_exact_mut(block.bytes()).for_each(|block| block[0] = 0x60 | block[0] & 0x1f);
            }
            all.push(matrix(cols, Packed::Gguf { block, bytes: Bytes::from(bytes), scale }));
        }
    }
    all
}

/// Packed rows: the same bits as f32 rows of the values that the checkpoint's decoding gives, on every unit, for any number of
/// tokens and any part of the rows.
#[test]
fn packed_rows_have_the_bits_of_f32_rows() {
    for matrix in packed_matrices(37) {
        let (count, cols) = (matrix.rows, matrix.cols);
        let mut values = vec![0f32; count * cols];
        for (row, out) in values.chunks_exact_mut(cols).enumerate() {
            matrix.decode_row(row, out);
        }
        assert!(values.iter().all(|x| x.is_finite()), "{}", matrix.layout());
        for (first, rows, tokens) in [(0, 37, 1), (5, 32, 1), (3, 1, 9), (0, 37, 20), (30, 7, 2)] {
            let xs = vector(tokens * cols, tokens as u32);
            let x = |t: usize| &xs[t * cols..][..cols];
            let plain = Rows::f32s(&values[first * cols..(first + rows) * cols], cols);
            for unit in Unit::all() {
                let packed = Rows::of(&matrix, first..first + rows);
                assert_eq!(packed.value(0, 7).to_bits(), values[first * cols + 7].to_bits());
                let mut out = vec![f32::NAN; tokens * rows];
                let target = Target { at: out.as_mut_ptr(), stride: rows, scale: 1.0 };
                // SAFETY: `out` has room for every token and row.
                unsafe { dots_on(unit, packed, tokens, x, &mut Scratch::new(), target) };
                for (i, sum) in out.into_iter().enumerate() {
                    let expected = dot_plain(&plain, i % rows, x(i / rows));
                    assert_eq!(
                        sum.to_bits(),
                        expected.to_bits(),
                        "{unit:?}, {} with {cols} columns, rows {first}.., {tokens} tokens: {sum} {expected}",
                        matrix.layout()
                    );
                }
            }
        }
    }
}

/// Blocks of any bytes, all ones and zeros among them, with every kind of binary16 number where scales may stand: both units read each
/// type as stored, and every value has the bits of `decode_row` (which gguf-py's decoding is the witness of), unless both are no number.
#[cfg(target_arch = "x86_64")]
#[test]
fn blocks_of_any_bytes_are_read_as_stored() {
    const RANDOM: usize = 400;
    for block in GGUF {
        let (cols, width) = (block.elements(), block.bytes());
        let byte = |x: f32| ((x + 1.0) * 128.0) as u8;
        let mut stored: Vec<u8> = vector(RANDOM * width, 9).into_iter().map(byte).collect();
        for fill in [0x00, 0xff, 0x80, 0x7f, 0x55, 0x0f] {
            // Zeros, the smallest and the largest subnormal and normal numbers, one, infinity and none, of either sign.
            for scale in [0u16, 1, 0x03ff, 0x0400, 0x7bff, 0x3c00, 0x7c00, 0x7e00]
                .map(|x| [x, x | 0x8000])
                .as_flattened()
            {
                for at in [0, 2, width - 4, width - 2] {
                    let start = stored.len();
                    stored.resize(start + width, fill);
                    stored[start + at..start + at + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
        }
        let rows = stored.len() / width;
        for scale in if block == B::NVFP4 { vec![1.0, 0.3, 1e-30] } else { vec![1.0] } {
            let packed = Packed::Gguf { block, bytes: Bytes::from(stored.clone()), scale };
            let matrix = Matrix { name: "m".to_owned(), rows, cols, packed };
            for unit in Unit::all() {
                let (stored, mut scales) = (Rows::of(&matrix, 0..rows), Vec::new());
                let mut values = vec![f32::NAN; rows * cols];
                // SAFETY: the processor has the unit.
                let as_stored = unsafe {
                    match unit {
                        Unit::Avx512 => avx512::decode_packed(&stored, &mut scales, &mut values),
                        Unit::Avx2 => avx2::decode_packed(&stored, &mut scales, &mut values),
                        Unit::Plain => continue,
                    }
                };
                assert!(as_stored, "{unit:?} does not read {block}");
                let mut expected = vec![f32::NAN; cols];
                for (row, values) in values.chunks_exact(cols).enumerate() {
                    matrix.decode_row(row, &mut expected);
                    for (i, (value, expected)) in values.iter().zip(&expected).enumerate() {
                        assert!(
                            value.to_bits() == expected.to_bits() || (value.is_nan() && expected.is_nan()),
                            "{unit:?}, {block}, block {row}, column {i}: {value} {expected}"
                        );
                    }
                }
            }
        }
    }
}
