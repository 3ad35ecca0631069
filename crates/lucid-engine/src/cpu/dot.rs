//! Dot products of stored weight rows with f32 vectors: the plain form and the dispatch to vector forms.
//!
//! Every product is one chain of fused multiply-adds a lane: column `k` goes to lane `k mod 8`, columns in order, then
//! the eight lanes are added in a fixed tree. A tile of several rows and tokens runs many such chains side by side and
//! never mixes them, so a result does not depend on the tile: this is where batch invariance comes from.

use super::row::Row;

/// Lanes of one chain.
pub(super) const LANES: usize = 8;

/// The plain form: one row, one token.
#[must_use]
pub fn dot_plain(row: Row<'_>, x: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    for (k, &x) in x.iter().enumerate() {
        lanes[k % LANES] = row.column(k).mul_add(x, lanes[k % LANES]);
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

/// The products of `rows` weight rows with `tokens` vectors of `cols` columns.
///
/// `row(r)` and `x(t)` give them, all rows of one layout; `write(r, t, sum)` receives each product. `scratch` keeps
/// decoded rows while many tokens pass; it grows once and is reused.
pub fn dots<'w, 'x>(
    (rows, tokens, cols): (usize, usize, usize),
    row: impl Fn(usize) -> Row<'w>,
    x: impl Fn(usize) -> &'x [f32],
    scratch: &mut Vec<f32>,
    mut write: impl FnMut(usize, usize, f32),
) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: AVX2, FMA and F16C were found.
        unsafe { super::dot_avx2::dots((rows, tokens, cols), row, x, scratch, write) };
        return;
    }
    let _ = (scratch, cols);
    for r in 0..rows {
        for t in 0..tokens {
            write(r, t, dot_plain(row(r), x(t)));
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

    fn row_of(layout: usize, stored: &[u8], cols: usize, r: usize) -> Row<'_> {
        let cut = |width: usize| &stored[r * cols * width..][..cols * width];
        match layout {
            0 => Row::F32(cut(4)),
            1 => Row::F16(cut(2)),
            2 => Row::Bf16(cut(2)),
            3 => Row::F8E4m3(cut(1)),
            _ => Row::Nvfp4 { codes: &cut(1)[..cols / 2], scales: &cut(1)[cols / 2..][..cols / 16] },
        }
    }

    /// Any layout, any shape, any tile: the same bits as the plain form.
    #[test]
    fn every_tile_has_the_bits_of_the_plain_form() {
        let mut scratch = Vec::new();
        for layout in 0..5 {
            for cols in [16, 32, 48, 256, 17, 31, 5, 100] {
                if layout == 4 && cols % 16 != 0 {
                    continue;
                }
                for (rows, tokens) in [(1, 1), (3, 2), (4, 1), (5, 3), (7, 6), (9, 7), (2, 13), (33, 20)] {
                    let stored = bytes(rows * cols * 4, (rows * cols) as u32);
                    let xs = vector(tokens * cols, (tokens + layout) as u32);
                    let x = |t: usize| &xs[t * cols..][..cols];
                    let mut seen = vec![None; rows * tokens];
                    dots(
                        (rows, tokens, cols),
                        |r| row_of(layout, &stored, cols, r),
                        x,
                        &mut scratch,
                        |r, t, sum| {
                            assert!(seen[r * tokens + t].replace(sum).is_none(), "written twice");
                        },
                    );
                    for r in 0..rows {
                        for t in 0..tokens {
                            let plain = dot_plain(row_of(layout, &stored, cols, r), x(t));
                            let sum = seen[r * tokens + t].expect("never written");
                            assert_eq!(
                                sum.to_bits(),
                                plain.to_bits(),
                                "layout {layout}, {rows}x{cols}, {tokens} tokens, ({r}, {t}): {sum} {plain}"
                            );
                        }
                    }
                }
            }
        }
    }
}
