//! AVX2 form of `dot`: sixteen columns a step, a chain's sixteen lanes are two vectors.
//!
//! No closures and no plain functions inside: they would not have the vector features, and be called instead of inlined.

use std::arch::x86_64::*;

use super::LANES;
use super::ahead::Own;
use super::panels::panels;
use super::sums_avx2::put;
use crate::cpu::unroll::unroll;

/// Up to so many tokens, a tile's chains are computed whole; with more tokens, first all low halves, then the high ones.
const TOGETHER: usize = 1;

/// Blocks of which one half follows the other: six vectors of so many columns and two rows of f32 numbers are 32 KB.
const AT_A_TIME: usize = 64;

// Twelve sums and what they are made of fit the sixteen vector registers.
panels! {
    features: "avx2,fma,f16c",
    load: super::layouts_avx2::Load,
    group: 6,
    tiles: { 1 => 4, 2 => 4, 3 => 3, 4 => 2, 5 => 2, 6 => 2 },
    fewer: 2,
}

/// Sixteen columns.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store([low, high]: [__m256; 2], out: &mut [f32; BLOCK]) {
    // SAFETY: sixteen floats.
    unsafe {
        _mm256_storeu_ps(out.as_mut_ptr(), low);
        _mm256_storeu_ps(out.as_mut_ptr().add(8), high);
    }
}

/// `R` rows, from `first_row` on, against `T` tokens.
///
/// # Safety
/// As [`all_rows`]; the rows exist.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<L: Load, const R: usize, const T: usize, const FETCH: bool>(
    load: L,
    rows: &Rows<'_>,
    first_row: usize,
    first_token: usize,
    xs: [*const f32; T],
    target: Target,
) {
    let (cols, blocks) = (rows.cols, rows.cols / BLOCK);
    let mut loads = [load; R];
    let own = Own::of(load, cols, R);
    // SAFETY: rows `0..R`; blocks are inside `cols`, which every row and vector has.
    unsafe {
        unroll!(ROW < R => { loads[ROW] = load.skip(ROW); });
        let (mut low, mut high) = if T <= TOGETHER {
            both_halves::<L, R, T, FETCH>(loads, blocks, xs, own)
        } else {
            let zeros = [[_mm256_setzero_ps(); T]; R];
            let (mut low, mut high) = (zeros, zeros);
            for first in (0..blocks).step_by(AT_A_TIME) {
                let blocks = first..blocks.min(first + AT_A_TIME);
                low = half::<L, R, T, 0, FETCH>(loads, blocks.clone(), xs, own, low);
                high = half::<L, R, T, 1, false>(loads, blocks, xs, own, high);
            }
            (low, high)
        };
        let rest = blocks * BLOCK..cols;
        if !rest.is_empty() {
            unroll!(ROW < R => {
                unroll!(TOKEN < T => {
                    let mut lanes = [0f32; LANES];
                    _mm256_storeu_ps(lanes.as_mut_ptr(), low[ROW][TOKEN]);
                    _mm256_storeu_ps(lanes.as_mut_ptr().add(8), high[ROW][TOKEN]);
                    for k in rest.clone() {
                        let lane = &mut lanes[k % LANES];
                        *lane = rows.value(first_row + ROW, k).mul_add(*xs[TOKEN].add(k), *lane);
                    }
                    low[ROW][TOKEN] = _mm256_loadu_ps(lanes.as_ptr());
                    high[ROW][TOKEN] = _mm256_loadu_ps(lanes.as_ptr().add(8));
                });
            });
        }
        put(low, high, first_row, first_token, target);
    }
}

/// The chains' lanes of the first `blocks` blocks: lanes 0 to 7, and the others.
///
/// # Safety
/// As [`tile`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn both_halves<L: Load, const R: usize, const T: usize, const FETCH: bool>(
    loads: [L; R],
    blocks: usize,
    xs: [*const f32; T],
    own: Own,
) -> ([[__m256; T]; R], [[__m256; T]; R]) {
    let zero = _mm256_setzero_ps();
    let (mut low, mut high) = ([[zero; T]; R], [[zero; T]; R]);
    // SAFETY: the rows and vectors have these blocks.
    unsafe {
        let steps = const { if T == 1 { L::STEPS } else { 1 } };
        debug_assert_eq!(blocks % steps, 0, "rows of whole blocks");
        for step in 0..blocks / steps {
            unroll!(STEP < const { if T == 1 { L::STEPS } else { 1 } } => {
                let block = step * steps + STEP;
                if FETCH && own.now(block) {
                    unroll!(ROW < R => { own.fetch(loads[ROW], block); });
                }
                unroll!(TOKEN < T => {
                    let x = xs[TOKEN].add(block * BLOCK);
                    let x = [_mm256_loadu_ps(x), _mm256_loadu_ps(x.add(8))];
                    unroll!(ROW < R => {
                        let weights = loads[ROW].load(block);
                        low[ROW][TOKEN] = _mm256_fmadd_ps(weights[0], x[0], low[ROW][TOKEN]);
                        high[ROW][TOKEN] = _mm256_fmadd_ps(weights[1], x[1], high[ROW][TOKEN]);
                    });
                });
            });
        }
    }
    (low, high)
}

/// Goes on with lanes 0 to 7 (`H` 0) or the others (1) alone: twice as many chains fit the registers, and each weight is widened for twice as many
/// tokens.
///
/// # Safety
/// As [`tile`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half<L: Load, const R: usize, const T: usize, const H: usize, const FETCH: bool>(
    loads: [L; R],
    blocks: std::ops::Range<usize>,
    xs: [*const f32; T],
    own: Own,
    mut sums: [[__m256; T]; R],
) -> [[__m256; T]; R] {
    // SAFETY: the rows and vectors have these blocks.
    unsafe {
        for block in blocks {
            if FETCH && own.now(block) {
                unroll!(ROW < R => { own.fetch(loads[ROW], block); });
            }
            let mut weights = [_mm256_setzero_ps(); R];
            unroll!(ROW < R => { weights[ROW] = loads[ROW].load(block)[H]; });
            unroll!(TOKEN < T => {
                let x = _mm256_loadu_ps(xs[TOKEN].add(block * BLOCK + 8 * H));
                unroll!(ROW < R => { sums[ROW][TOKEN] = _mm256_fmadd_ps(weights[ROW], x, sums[ROW][TOKEN]); });
            });
        }
    }
    sums
}
