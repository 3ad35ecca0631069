//! Rows of a weight in the form that the tile unit wants on its left-hand side: bf16, row after row.

use std::arch::x86_64::*;
use std::sync::LazyLock;

use lucid_checkpoint::{e4m3_to_f32, nvfp4};

use super::vectors::{Line, STEP};
use crate::cpu::row::{BLOCK, Rows, Stored};

/// Rows in bf16, and a number of columns that is a multiple of 32.
#[derive(Clone, Copy)]
pub struct Panel {
    /// Row 0.
    pub at: *const u8,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Rows.
    pub rows: usize,
    /// Steps of 32 columns.
    pub steps: usize,
}

/// The sixteen NVFP4 values of a block with each scale, in bf16: two significant bits times four are exact there.
static NVFP4: LazyLock<Vec<[u16; 16]>> = LazyLock::new(|| {
    (0..=255u8).map(|scale| nvfp4::E2M1.map(|value| upper_half(value * e4m3_to_f32(scale)))).collect()
});

/// Every E4M3 value in bf16.
static E4M3: LazyLock<[u16; 256]> =
    LazyLock::new(|| std::array::from_fn(|code| upper_half(e4m3_to_f32(code as u8))));

fn upper_half(x: f32) -> u16 {
    (x.to_bits() >> 16) as u16
}

/// The rows in place if they are bf16 and end with a whole step, else decoded into `scratch`, columns filled up with zeros.
///
/// # Safety
/// The CPU has AVX-512 F, BW and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub unsafe fn panel(rows: &Rows<'_>, scratch: &mut Vec<Line>) -> Panel {
    let steps = rows.cols.div_ceil(STEP);
    if let Stored::Bf16(bytes) = rows.stored
        && rows.cols.is_multiple_of(STEP)
    {
        return Panel { at: bytes.as_ptr(), stride: rows.cols * 2, rows: rows.count, steps };
    }
    // A line is one step of one row.
    scratch.resize(scratch.len().max(rows.count * steps), Line::ZERO);
    let decoded = &mut scratch[..rows.count * steps];
    for (row, out) in decoded.chunks_exact_mut(steps).enumerate() {
        // SAFETY: a line is 32 halves.
        let out = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<u16>(), steps * STEP) };
        let (out, rest) = out.split_at_mut(rows.cols);
        rest.fill(0);
        match rows.stored {
            Stored::Bf16(bytes) => {
                let bytes = &bytes[row * rows.cols * 2..(row + 1) * rows.cols * 2];
                for (out, value) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = u16::from_le_bytes(*value);
                }
            }
            Stored::F8E4m3(bytes) => {
                for (out, &code) in out.iter_mut().zip(&bytes[row * rows.cols..(row + 1) * rows.cols]) {
                    *out = E4M3[code as usize];
                }
            }
            Stored::Nvfp4 { codes, scales } => {
                let codes = &codes[row * rows.cols / 2..(row + 1) * rows.cols / 2];
                let scales = &scales[row * rows.cols / BLOCK..(row + 1) * rows.cols / BLOCK];
                nvfp4_row(codes, scales, out);
            }
            _ => unreachable!("`product::reads` was asked"),
        }
    }
    Panel { at: decoded.as_ptr().cast(), stride: steps * 64, rows: rows.count, steps }
}

/// One block of sixteen at a time: its scale chooses a table of sixteen values, its codes choose from the table.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn nvfp4_row(codes: &[u8], scales: &[u8], out: &mut [u16]) {
    let tables = NVFP4.as_slice();
    let blocks = codes.as_chunks::<8>().0.iter().zip(scales).zip(out.as_chunks_mut::<16>().0);
    for ((codes, &scale), out) in blocks {
        // SAFETY: 8, 32 and 32 bytes. The permutation reads only the four low bits of each index, so the neighbours'
        // bits above them do no harm.
        unsafe {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.as_ptr().cast()));
            let indices = _mm256_or_si256(bytes, _mm256_slli_epi32::<12>(bytes));
            let table = _mm256_loadu_si256(tables[scale as usize].as_ptr().cast());
            _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_permutexvar_epi16(indices, table));
        }
    }
}

#[cfg(test)]
mod tests {
    use lucid_checkpoint::bf16_to_f32;

    use super::*;

    #[test]
    fn decoded_rows_have_the_values_of_the_plain_form() {
        if !super::super::available() {
            return;
        }
        let bytes: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        // No NaN: 0x7f and 0xff of E4M3, exponents of 255 in bf16.
        let codes: Vec<u8> = bytes.iter().map(|&byte| if byte & 0x7f == 0x7f { 1 } else { byte }).collect();
        let halves: Vec<u8> = bytes.iter().map(|byte| byte & 0x3f).collect();
        let mut scratch = Vec::new();
        for (count, cols) in [(3, 64), (5, 48), (1, 16), (16, 96)] {
            let layouts = [
                Stored::Bf16(&halves[..count * cols * 2]),
                Stored::F8E4m3(&codes[..count * cols]),
                Stored::Nvfp4 { codes: &bytes[..count * cols / 2], scales: &codes[..count * cols / 16] },
            ];
            for stored in layouts {
                let rows = Rows { count, cols, stored, next: &[] };
                // SAFETY: AVX-512 was found.
                let panel = unsafe { panel(&rows, &mut scratch) };
                assert_eq!((panel.rows, panel.steps), (count, cols.div_ceil(STEP)));
                for row in 0..count {
                    for col in 0..panel.steps * STEP {
                        // SAFETY: inside the panel.
                        let half = unsafe {
                            panel.at.add(row * panel.stride).cast::<u16>().add(col).read_unaligned()
                        };
                        let expected = if col < cols { rows.value(row, col) } else { 0.0 };
                        assert_eq!(bf16_to_f32(half).to_bits(), expected.to_bits(), "({row}, {col})");
                    }
                }
            }
        }
    }
}
