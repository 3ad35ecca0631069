//! AVX-512 form of `dot`: sixteen columns a step, a chain's sixteen lanes are one vector.
//!
//! No closures and no plain functions inside: they would not have the vector features, and be called instead of inlined.

use std::arch::x86_64::*;

use super::ahead::Own;
use super::panels::panels;
use super::sums_avx512::put;
use crate::cpu::unroll::unroll;

// Tiles fit the 32 vector registers.
panels! {
    features: "avx512f,avx512bw,avx512vl,avx512dq",
    load: super::layouts_avx512::Load,
    group: 6,
    rows_of_group: 4,
    tiles: { 1 => 8, 2 => 8, 3 => 8, 4 => 4, 5 => 4, 6 => 4 },
    fewer: 4,
    widen_tokens: 12,
}

/// Sixteen columns.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and DQ.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn store(values: __m512, out: &mut [f32; BLOCK]) {
    // SAFETY: sixteen floats.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), values) };
}

/// `R` rows, from `first_row` on, against `T` tokens.
///
/// # Safety
/// As [`all_rows`]; the rows exist.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn tile<L: Load, const R: usize, const T: usize, const FETCH: bool, const WHOLE: bool>(
    load: L,
    rows: &Rows<'_>,
    first_row: usize,
    first_token: usize,
    xs: [*const f32; T],
    part: Part,
    target: Target,
) {
    let (cols, blocks) = (rows.cols, rows.cols / BLOCK);
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    let mut loads = [load; R];
    let own = Own::of(load, cols, R, rows.count, WHOLE);
    // SAFETY: rows `0..R`; blocks are inside `cols`, which every row and vector has; `lanes` are of these rows and tokens.
    unsafe {
        unroll!(ROW < R => { loads[ROW] = load.skip(ROW); });
        if !WHOLE && part.blocks.start > 0 {
            unroll!(ROW < R => {
                unroll!(TOKEN < T => { sums[ROW][TOKEN] = _mm512_loadu_ps(part.lanes.add((ROW * T + TOKEN) * LANES)); });
            });
        }
        if T == 1 {
            debug_assert_eq!(blocks % L::STEPS, 0, "rows of whole blocks");
            for step in 0..blocks / L::STEPS {
                if FETCH {
                    unroll!(STEP < L::STEPS => {
                        if own.now(step * L::STEPS + STEP) {
                            unroll!(ROW < R => { own.fetch(&loads, ROW, step * L::STEPS + STEP); });
                        }
                    });
                }
                unroll!(ROW < R => {
                    let weights = loads[ROW].step(step);
                    unroll!(STEP < L::STEPS => {
                        let x = _mm512_loadu_ps(xs[0].add((step * L::STEPS + STEP) * BLOCK));
                        sums[ROW][0] = _mm512_fmadd_ps(weights[STEP], x, sums[ROW][0]);
                    });
                });
            }
        } else {
            for block in if WHOLE { 0..blocks } else { part.blocks } {
                let mut weights = [_mm512_setzero_ps(); R];
                unroll!(ROW < R => { weights[ROW] = loads[ROW].load(block); });
                if FETCH && own.now(block) {
                    unroll!(ROW < R => { own.fetch(&loads, ROW, block); });
                }
                unroll!(TOKEN < T => {
                    let x = _mm512_loadu_ps(xs[TOKEN].add(block * BLOCK));
                    unroll!(ROW < R => {
                        sums[ROW][TOKEN] = _mm512_fmadd_ps(weights[ROW], x, sums[ROW][TOKEN]);
                    });
                });
            }
        }
        if !WHOLE && !part.last {
            unroll!(ROW < R => {
                unroll!(TOKEN < T => { _mm512_storeu_ps(part.lanes.add((ROW * T + TOKEN) * LANES), sums[ROW][TOKEN]); });
            });
            return;
        }
        let rest = cols - blocks * BLOCK;
        if (T == 1 || !WHOLE) && rest > 0 {
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
