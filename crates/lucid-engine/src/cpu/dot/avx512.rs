//! AVX-512 form of `dot`: sixteen columns a step, a chain's sixteen lanes are one vector.
//!
//! No closures and no plain functions inside: they would not have the vector features, and be called instead of inlined.

use std::arch::x86_64::*;

use super::ahead::Ahead;
use super::layouts::{F32, with_layout};
use super::layouts_avx512::Load;
use super::packed::{packed, with_packed};
use super::sums_avx512::put;
use super::{Scratch, Target};
use crate::cpu::aligned::Aligned;
use crate::cpu::row::{BLOCK, Rows, Stored};
use crate::cpu::unroll::unroll;

/// Rows of a tile with one token.
const ONE_TOKEN_ROWS: usize = 8;

/// Up to so many tokens, tiles fetch their successors' rows while they run; more tokens leave it to [`Ahead`].
const FETCHING_TOKENS: usize = 3;

/// Rows so long that the hardware foresees their next bytes: fetched this far ahead, not one tile ahead.
const LONG_ROWS: usize = 2048;

/// Half-precision rows are widened anew for every tile of six tokens, or once for all tokens: that pays from this many tokens on, and
/// while a panel's f32 rows stay in the core's own cache (32 rows of 512 columns and 96 tokens: 72 against 60 GMAC/s).
const WIDEN_TOKENS: usize = 12;

/// The longest rows that are widened first.
const WIDEN_COLUMNS: usize = 1024;

/// See [`super::dots`].
///
/// # Safety
/// As there, and the CPU has AVX-512 F, BW, VL and DQ.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn dots<'x>(
    rows: Rows<'_>,
    tokens: usize,
    x: impl Fn(usize) -> &'x [f32],
    Scratch { decoded, scales }: &mut Scratch,
    target: Target,
) {
    if rows.count == 0 || tokens == 0 {
        return;
    }
    // Tiles have four rows where fetching ahead matters.
    let mut ahead = match tokens {
        ..=FETCHING_TOKENS => Ahead::nothing(),
        _ => Ahead::of(&rows, rows.count.div_ceil(4) * tokens.div_ceil(6)),
    };
    let ahead = &mut ahead;
    // SAFETY: features and target as promised by the caller; the pointers are to `rows.count` whole rows.
    unsafe {
        if matches!(rows.stored, Stored::Decoded { .. }) {
            if tokens == 1
                && let Some(packed) = packed(&rows, scales)
            {
                return with_packed!(packed, load => {
                    all_rows::<_, ONE_TOKEN_ROWS, 1>(load, &rows, 0, [x(0)], ahead, target)
                });
            }
            let values = room(decoded, rows.count * rows.cols);
            if decode_packed(&rows, scales, values) {
                let load = F32 { at: values.as_ptr().cast(), cols: rows.cols };
                return all_tokens(load, &Rows::f32s(values, rows.cols), tokens, x, ahead, target);
            }
            let rows = rows.decoded(decoded);
            let Stored::F32(bytes) = rows.stored else { unreachable!("decoded rows are f32") };
            let load = F32 { at: bytes.as_ptr(), cols: rows.cols };
            return all_tokens(load, &rows, tokens, x, ahead, target);
        }
        // Long half-precision rows are multiplied as stored in any number of tokens: they take half of the caches (96 tokens, rows of
        // 7168: 102 GMAC/s against 68 with rows decoded first).
        let as_stored = match rows.stored {
            Stored::F32(_) => true,
            Stored::F16(_) | Stored::Bf16(_) => tokens < WIDEN_TOKENS || rows.cols > WIDEN_COLUMNS,
            _ => tokens == 1,
        };
        if !as_stored {
            let decoded = room(decoded, rows.count * rows.cols);
            with_layout!(rows, load => decode(load, &rows, decoded), decode(load, &rows, decoded));
            let rows = Rows::f32s(decoded, rows.cols);
            let load = F32 { at: decoded.as_ptr().cast(), cols: rows.cols };
            return all_tokens(load, &rows, tokens, x, ahead, target);
        }
        with_layout!(
            rows,
            load => all_tokens(load, &rows, tokens, x, ahead, target),
            all_rows::<_, ONE_TOKEN_ROWS, 1>(load, &rows, 0, [x(0)], ahead, target)
        );
    }
}

/// The first `len` values of a buffer that grows.
fn room(buffer: &mut Aligned<f32>, len: usize) -> &mut [f32] {
    buffer.grow(len, 0.0);
    &mut buffer[..len]
}

/// Decodes rows of a layout that a kernel reads as stored into `out` `[count, cols]`; `false`, and nothing done, if none does.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and DQ.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn decode_packed(rows: &Rows<'_>, scales: &mut Vec<f32>, out: &mut [f32]) -> bool {
    // SAFETY: features as promised by the caller; the pointers are to `rows`.
    unsafe {
        let Some(packed) = packed(rows, scales) else { return false };
        with_packed!(packed, load => decode(load, rows, out));
    }
    true
}

/// Decodes all rows into `out` `[count, cols]`, without the global scale.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and DQ; `load` points to `rows`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn decode<L: Load>(load: L, rows: &Rows<'_>, out: &mut [f32]) {
    let blocks = rows.cols / BLOCK;
    for (r, out) in out.chunks_exact_mut(rows.cols).enumerate() {
        for (block, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            // SAFETY: row `r` exists and has these columns.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), load.skip(r).load(block)) };
        }
        for (k, out) in out.iter_mut().enumerate().skip(blocks * BLOCK) {
            *out = rows.value(r, k);
        }
    }
}

/// All rows and tokens in tiles that fit the 32 vector registers: 8 rows by 1 to 3 tokens, 4 rows by 4 to 6.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and DQ; `load` points to `rows`; `target` as in [`super::dots`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn all_tokens<'x, L: Load>(
    load: L,
    rows: &Rows<'_>,
    tokens: usize,
    x: impl Fn(usize) -> &'x [f32],
    ahead: &mut Ahead,
    target: Target,
) {
    let mut t = 0;
    // Groups of about equal size: 8 tokens are 4 and 4, not 6 and 2.
    for group in (1..=tokens.div_ceil(6)).rev() {
        let width = (tokens - t).div_ceil(group);
        // SAFETY: features, pointers and target as promised by the caller.
        unsafe {
            match width {
                1 => all_rows::<L, ONE_TOKEN_ROWS, 1>(load, rows, t, [x(t)], ahead, target),
                2 => all_rows::<L, 8, 2>(load, rows, t, [x(t), x(t + 1)], ahead, target),
                3 => all_rows::<L, 8, 3>(load, rows, t, [x(t), x(t + 1), x(t + 2)], ahead, target),
                4 => all_rows::<L, 4, 4>(load, rows, t, [x(t), x(t + 1), x(t + 2), x(t + 3)], ahead, target),
                5 => {
                    let xs = [x(t), x(t + 1), x(t + 2), x(t + 3), x(t + 4)];
                    all_rows::<L, 4, 5>(load, rows, t, xs, ahead, target);
                }
                _ => {
                    let xs = [x(t), x(t + 1), x(t + 2), x(t + 3), x(t + 4), x(t + 5)];
                    all_rows::<L, 4, 6>(load, rows, t, xs, ahead, target);
                }
            }
        }
        t += width;
    }
}

/// All rows against `T` tokens.
///
/// # Safety
/// As [`all_tokens`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn all_rows<L: Load, const R: usize, const T: usize>(
    load: L,
    rows: &Rows<'_>,
    first_token: usize,
    xs: [&[f32]; T],
    ahead: &mut Ahead,
    target: Target,
) {
    let mut at = [std::ptr::null(); T];
    for (at, x) in at.iter_mut().zip(xs) {
        assert!(x.len() >= rows.cols, "a vector is shorter than the rows");
        *at = x.as_ptr();
    }
    let mut r = 0;
    // SAFETY: every tile's rows exist, the vectors are as long as the rows, the rest as promised by the caller.
    unsafe {
        while r + R <= rows.count {
            ahead.fetch();
            tile::<L, R, T>(load.skip(r), rows, r, first_token, at, target);
            r += R;
        }
        while R > 4 && r + 4 <= rows.count {
            ahead.fetch();
            tile::<L, 4, T>(load.skip(r), rows, r, first_token, at, target);
            r += 4;
        }
        while r < rows.count {
            ahead.fetch();
            tile::<L, 1, T>(load.skip(r), rows, r, first_token, at, target);
            r += 1;
        }
    }
}

/// `R` rows, from `first_row` on, against `T` tokens.
///
/// # Safety
/// As [`all_tokens`]; the rows exist, and every vector has as many columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn tile<L: Load, const R: usize, const T: usize>(
    load: L,
    rows: &Rows<'_>,
    first_row: usize,
    first_token: usize,
    xs: [*const f32; T],
    target: Target,
) {
    let (cols, blocks) = (rows.cols, rows.cols / BLOCK);
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    let mut loads = [load; R];
    // With few tokens the time goes into waiting for weights: fetch those of the next tile, or further along long rows.
    let tile_bytes = R * load.row_bytes();
    let ahead = if load.row_bytes() > LONG_ROWS { LONG_ROWS } else { tile_bytes };
    // A line of the cache is 2, 4 or 8 blocks of 16 columns: once is enough.
    let line = if load.row_bytes() >= 2 * cols {
        2
    } else if load.row_bytes() >= cols {
        4
    } else {
        8
    };
    // SAFETY: rows `0..R`; blocks are inside `cols`, which every row and vector has; a prefetch never faults.
    unsafe {
        unroll!(ROW < R => { loads[ROW] = load.skip(ROW); });
        for block in 0..blocks {
            let mut weights = [_mm512_setzero_ps(); R];
            unroll!(ROW < R => { weights[ROW] = loads[ROW].load(block); });
            if T <= FETCHING_TOKENS && block & (line - 1) == 0 {
                unroll!(ROW < R => {
                    if let Some(next) = loads[ROW].fetch(block) {
                        _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(ahead).cast());
                    }
                });
            }
            unroll!(TOKEN < T => {
                let x = _mm512_loadu_ps(xs[TOKEN].add(block * BLOCK));
                unroll!(ROW < R => {
                    sums[ROW][TOKEN] = _mm512_fmadd_ps(weights[ROW], x, sums[ROW][TOKEN]);
                });
            });
        }
        let rest = cols - blocks * BLOCK;
        if rest > 0 {
            // Lanes without a column keep their sums.
            let mask = (1u16 << rest) - 1;
            unroll!(ROW < R => {
                let mut weights = [0f32; BLOCK];
                for (k, weight) in weights.iter_mut().enumerate().take(rest) {
                    *weight = rows.value(first_row + ROW, blocks * BLOCK + k);
                }
                let weights = _mm512_loadu_ps(weights.as_ptr());
                unroll!(TOKEN < T => {
                    let x = _mm512_maskz_loadu_ps(mask, xs[TOKEN].add(blocks * BLOCK));
                    sums[ROW][TOKEN] = _mm512_mask3_fmadd_ps(weights, x, sums[ROW][TOKEN], mask);
                });
            });
        }
        put(sums, first_row, first_token, target);
    }
}
