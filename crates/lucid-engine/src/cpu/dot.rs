//! Dot products of stored weight rows with f32 vectors: the plain form and the dispatch to vector forms.
//!
//! Every product is one chain of fused multiply-adds a lane: column `k` goes to lane `k mod 8`, columns in order, then
//! the eight lanes are added in a fixed tree. A tile of several rows and tokens runs many such chains side by side and
//! never mixes them, so a result does not depend on the tile: this is where batch invariance comes from.

use super::row::{Rows, Stored};

/// Lanes of one chain.
pub(super) const LANES: usize = 8;

/// Where products go: the product of row `r` and token `t`, times `scale`, goes to `at[t * stride + r]`.
#[derive(Clone, Copy)]
pub struct Target {
    /// Place of row 0, token 0.
    pub at: *mut f32,
    /// From one token to the next.
    pub stride: usize,
    /// Applied to every product.
    pub scale: f32,
}

impl Target {
    /// # Safety
    /// The place is valid for writes, and nobody else touches it meanwhile.
    #[inline]
    pub(super) unsafe fn put(self, row: usize, token: usize, sum: f32) {
        // SAFETY: promised by the caller.
        unsafe { self.at.add(token * self.stride + row).write(sum * self.scale) };
    }
}

/// The plain form: one row, one token.
#[must_use]
pub fn dot_plain(rows: &Rows<'_>, row: usize, x: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    for (k, &x) in x.iter().enumerate().take(rows.cols) {
        lanes[k % LANES] = rows.value(row, k).mul_add(x, lanes[k % LANES]);
    }
    sum_lanes(lanes)
}

/// `((0+4) + (2+6)) + ((1+5) + (3+7))`.
pub(super) fn sum_lanes(l: [f32; LANES]) -> f32 {
    ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

/// Whether the AVX2 forms can run here.
#[must_use]
pub fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // Looked up once by the standard library, then a load.
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The products of all `rows` with `tokens` vectors; `x(t)` gives a vector of at least `rows.cols` values.
///
/// `scratch` keeps decoded rows while many tokens pass; it grows once and is reused.
///
/// # Safety
/// `target` is valid for writes at every row and token, and nobody else touches these places meanwhile.
pub unsafe fn dots<'x>(
    rows: Rows<'_>,
    tokens: usize,
    x: impl Fn(usize) -> &'x [f32],
    scratch: &mut Vec<f32>,
    target: Target,
) {
    if matches!(rows.stored, Stored::Decoded { .. }) {
        let rows = rows.decoded(scratch);
        // SAFETY: promised by the caller. These rows are f32, which takes no scratch.
        return unsafe { dots(rows, tokens, x, &mut Vec::new(), target) };
    }
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: AVX2, FMA and F16C were found; `target` as promised by the caller.
        unsafe { super::dot_avx2::dots(rows, tokens, x, scratch, target) };
        return;
    }
    let _ = scratch;
    for t in 0..tokens {
        for r in 0..rows.count {
            // SAFETY: promised by the caller.
            unsafe { target.put(r, t, dot_plain(&rows, r, x(t))) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    fn bytes(len: usize, seed: u32) -> Vec<u8> {
        // Neither NaN nor infinity in any layout: exponents stay below the top.
        vector(len, seed).into_iter().map(|x| ((x + 1.0) * 48.0) as u8).collect()
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
        Rows { count, cols, stored }
    }

    /// Any layout, any shape, any tile: the same bits as the plain form, and every place written.
    #[test]
    fn every_tile_has_the_bits_of_the_plain_form() {
        let mut scratch = Vec::new();
        for layout in 0..5 {
            for cols in [16, 32, 48, 256, 17, 31, 5, 100] {
                if layout == 4 && cols % 16 != 0 {
                    continue;
                }
                for (count, tokens) in [(1, 1), (3, 2), (4, 1), (5, 3), (7, 6), (9, 7), (2, 13), (33, 20)] {
                    let stored = bytes(count * cols * 4, (count * cols) as u32);
                    let rows = rows_of(layout, &stored, count, cols);
                    let xs = vector(tokens * cols, (tokens + layout) as u32);
                    let x = |t: usize| &xs[t * cols..][..cols];
                    let stride = count + 3;
                    let mut out = vec![f32::NAN; tokens * stride];
                    let target = Target { at: out.as_mut_ptr(), stride, scale: 0.5 };
                    // SAFETY: `out` has room for every token and row.
                    unsafe { dots(rows, tokens, x, &mut scratch, target) };
                    for r in 0..count {
                        for t in 0..tokens {
                            let plain = dot_plain(&rows, r, x(t)) * 0.5;
                            let sum = out[t * stride + r];
                            assert_eq!(
                                sum.to_bits(),
                                plain.to_bits(),
                                "layout {layout}, {count}x{cols}, {tokens} tokens, ({r}, {t}): {sum} {plain}"
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

    /// Rows that are decoded first: the same bits as f32 rows of the same values, for any number of tokens.
    #[test]
    fn decoded_rows_have_the_bits_of_f32_rows() {
        use lucid_checkpoint::{Bytes, Matrix, Packed, ScaleType, Scales};
        let (count, cols) = (37, 96);
        let scales = |n: usize| Scales {
            kind: ScaleType::F32,
            bytes: Bytes::from(vector(n, 5).into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>()),
        };
        let packed = [
            Packed::Int4 {
                codes: Bytes::from(bytes(count * cols / 2, 1)),
                scales: scales(count * cols / 32),
                group_size: 32,
            },
            Packed::F8Blocks {
                codes: Bytes::from(bytes(count * cols, 2)),
                scales: scales(3 * 2),
                block: [16, 64],
            },
        ];
        for packed in packed {
            let matrix = Matrix { name: "m".to_owned(), rows: count, cols, packed };
            let mut values = vec![0f32; count * cols];
            for (row, out) in values.chunks_exact_mut(cols).enumerate() {
                matrix.decode_row(row, out);
            }
            for (first, rows, tokens) in [(0, 37, 1), (5, 32, 1), (3, 1, 9), (0, 37, 20)] {
                let xs = vector(tokens * cols, tokens as u32);
                let x = |t: usize| &xs[t * cols..][..cols];
                let mut outs = [vec![f32::NAN; tokens * rows], vec![f32::NAN; tokens * rows]];
                let plain = Rows::f32s(&values[first * cols..(first + rows) * cols], cols);
                for (out, rows) in outs.iter_mut().zip([Rows::of(&matrix, first..first + rows), plain]) {
                    let target = Target { at: out.as_mut_ptr(), stride: rows.count, scale: 1.0 };
                    // SAFETY: `out` has room for every token and row.
                    unsafe { dots(rows, tokens, x, &mut Vec::new(), target) };
                    assert_eq!(rows.value(0, 7).to_bits(), values[first * cols + 7].to_bits());
                }
                let [decoded, plain] = outs.map(|out| out.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
                assert_eq!(decoded, plain, "{:?}, rows {first}.., {tokens} tokens", matrix.layout());
            }
        }
    }
}
