//! AVX2 form of `dot`: sixteen columns a step, a chain's sixteen lanes are two vectors.
//!
//! No closures and no plain functions inside: they would not have the vector features, and be called instead of inlined.

use std::arch::x86_64::*;

use super::layouts::{F32, with_layout};
use super::layouts_avx2::Load;
use super::packed::{packed, with_packed};
use super::{LANES, Scratch, Target, sum_lanes};
use crate::cpu::aligned::Aligned;
use crate::cpu::row::{BLOCK, Rows, Stored};
use crate::cpu::unroll::unroll;

/// From so many tokens on, decoding a half-precision row once into scratch beats decoding it in every tile.
const DECODE_WIDE_FROM: usize = 32;

/// Rows of a tile with one token.
const ONE_TOKEN_ROWS: usize = 4;

/// How far ahead rows are fetched, in bytes. Rows of small models are too short for the hardware to follow: this made
/// decoding the canary 1.37, 1.18 and 1.16 times as fast at 1, 8 and 16 streams (medians of three pairs); 4096 was no better.
const PREFETCH: usize = 2048;

/// See [`super::dots`].
///
/// # Safety
/// As there, and the CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
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
    // SAFETY: features and target as promised by the caller; the pointers are to `rows.count` whole rows.
    unsafe {
        if matches!(rows.stored, Stored::Decoded { .. }) {
            if tokens == 1
                && let Some(packed) = packed(&rows, scales)
            {
                return with_packed!(packed, load => {
                    all_rows::<_, ONE_TOKEN_ROWS, 1>(load, &rows, 0, [x(0)], target)
                });
            }
            let values = room(decoded, rows.count * rows.cols);
            if decode_packed(&rows, scales, values) {
                let load = F32 { at: values.as_ptr().cast(), cols: rows.cols };
                return all_tokens(load, &Rows::f32s(values, rows.cols), tokens, x, target);
            }
            let rows = rows.decoded(decoded);
            let Stored::F32(bytes) = rows.stored else { unreachable!("decoded rows are f32") };
            let load = F32 { at: bytes.as_ptr(), cols: rows.cols };
            return all_tokens(load, &rows, tokens, x, target);
        }
        let decode_from = match rows.stored {
            Stored::F32(_) => usize::MAX,
            Stored::F16(_) | Stored::Bf16(_) => DECODE_WIDE_FROM,
            _ => 2,
        };
        if tokens >= decode_from {
            let decoded = room(decoded, rows.count * rows.cols);
            with_layout!(rows, load => decode(load, &rows, decoded), decode(load, &rows, decoded));
            let rows = Rows::f32s(decoded, rows.cols);
            let load = F32 { at: decoded.as_ptr().cast(), cols: rows.cols };
            return all_tokens(load, &rows, tokens, x, target);
        }
        with_layout!(
            rows,
            load => all_tokens(load, &rows, tokens, x, target),
            all_rows::<_, ONE_TOKEN_ROWS, 1>(load, &rows, 0, [x(0)], target)
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
/// The CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
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
/// The CPU has AVX2, FMA and F16C; `load` points to `rows`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decode<L: Load>(load: L, rows: &Rows<'_>, out: &mut [f32]) {
    let blocks = rows.cols / BLOCK;
    for (r, out) in out.chunks_exact_mut(rows.cols).enumerate() {
        for (block, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            // SAFETY: row `r` exists and has these columns.
            unsafe {
                let [low, high] = load.skip(r).load(block);
                _mm256_storeu_ps(out.as_mut_ptr(), low);
                _mm256_storeu_ps(out.as_mut_ptr().add(8), high);
            }
        }
        for (k, out) in out.iter_mut().enumerate().skip(blocks * BLOCK) {
            *out = rows.value(r, k);
        }
    }
}

/// All rows and tokens in tiles that fit the sixteen vector registers: 4 rows by 1 token, 3 by 2, 2 by 3.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C; `load` points to `rows`; `target` as in [`super::dots`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn all_tokens<'x, L: Load>(
    load: L,
    rows: &Rows<'_>,
    tokens: usize,
    x: impl Fn(usize) -> &'x [f32],
    target: Target,
) {
    let mut t = 0;
    // Groups of about equal size: 4 tokens are 2 and 2, not 3 and 1.
    for group in (1..=tokens.div_ceil(3)).rev() {
        let width = (tokens - t).div_ceil(group);
        // SAFETY: features, pointers and target as promised by the caller.
        unsafe {
            match width {
                1 => all_rows::<L, ONE_TOKEN_ROWS, 1>(load, rows, t, [x(t)], target),
                2 => all_rows::<L, 3, 2>(load, rows, t, [x(t), x(t + 1)], target),
                _ => all_rows::<L, 2, 3>(load, rows, t, [x(t), x(t + 1), x(t + 2)], target),
            }
        }
        t += width;
    }
}

/// All rows against `T` tokens.
///
/// # Safety
/// As [`all_tokens`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn all_rows<L: Load, const R: usize, const T: usize>(
    load: L,
    rows: &Rows<'_>,
    first_token: usize,
    xs: [&[f32]; T],
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
            tile::<L, R, T>(load.skip(r), rows, r, first_token, at, target);
            r += R;
        }
        while r < rows.count {
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
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<L: Load, const R: usize, const T: usize>(
    load: L,
    rows: &Rows<'_>,
    first_row: usize,
    first_token: usize,
    xs: [*const f32; T],
    target: Target,
) {
    let (cols, blocks) = (rows.cols, rows.cols / BLOCK);
    let zero = _mm256_setzero_ps();
    let (mut low, mut high) = ([[zero; T]; R], [[zero; T]; R]);
    let mut loads = [load; R];
    // SAFETY: rows `0..R`; blocks are inside `cols`, which every row and vector has; a prefetch never faults.
    unsafe {
        unroll!(ROW < R => { loads[ROW] = load.skip(ROW); });
        for block in 0..blocks {
            let mut weights = [[zero; 2]; R];
            unroll!(ROW < R => {
                weights[ROW] = loads[ROW].load(block);
                if let Some(next) = loads[ROW].fetch(block) {
                    _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(PREFETCH).cast());
                }
            });
            unroll!(TOKEN < T => {
                let x = _mm256_loadu_ps(xs[TOKEN].add(block * BLOCK));
                unroll!(ROW < R => {
                    low[ROW][TOKEN] = _mm256_fmadd_ps(weights[ROW][0], x, low[ROW][TOKEN]);
                });
            });
            unroll!(TOKEN < T => {
                let x = _mm256_loadu_ps(xs[TOKEN].add(block * BLOCK + 8));
                unroll!(ROW < R => {
                    high[ROW][TOKEN] = _mm256_fmadd_ps(weights[ROW][1], x, high[ROW][TOKEN]);
                });
            });
        }
        unroll!(ROW < R => {
            unroll!(TOKEN < T => {
                let sum = if blocks * BLOCK == cols {
                    sum_vectors(low[ROW][TOKEN], high[ROW][TOKEN])
                } else {
                    let mut lanes = [0f32; LANES];
                    _mm256_storeu_ps(lanes.as_mut_ptr(), low[ROW][TOKEN]);
                    _mm256_storeu_ps(lanes.as_mut_ptr().add(8), high[ROW][TOKEN]);
                    for k in blocks * BLOCK..cols {
                        let lane = &mut lanes[k % LANES];
                        *lane = rows.value(first_row + ROW, k).mul_add(*xs[TOKEN].add(k), *lane);
                    }
                    sum_lanes(lanes)
                };
                target.put(first_row + ROW, first_token + TOKEN, sum);
            });
        });
    }
}

/// The tree of [`sum_lanes`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_vectors(low: __m256, high: __m256) -> f32 {
    let eight = _mm256_add_ps(low, high); // i + (i + 8)
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight)); // i + (i + 4)
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four)); // i + (i + 2)
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}
