//! AVX2 form of `dot`: sixteen columns a step, a chain's sixteen lanes are two vectors.
//!
//! No closures and no plain functions inside: they would not have the vector features, and be called instead of inlined.

use std::arch::x86_64::*;

use super::ahead::Own;
use super::panels::panels;
use super::staged::Staged;
use super::sums_avx2::put;
use crate::cpu::unroll::unroll;

// Twelve sums and what they are made of fit the sixteen vector registers.
panels! {
    features: "avx2,fma,f16c",
    load: super::layouts_avx2::Load,
    group: 4,
    rows_of_group: 3,
    tiles: { 1 => 4, 2 => 6, 3 => 4, 4 => 3 },
    fewer: 2,
    widen_tokens: 24,
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

/// `R` rows, from `first_row` on, against `T` tokens. With one token, chains are computed whole; with more, first all low halves, then the
/// high ones: twice as many chains fit the registers, and each weight is widened for twice as many tokens.
///
/// # Safety
/// As [`all_rows`]; the rows exist.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
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
    let mut loads = [load; R];
    let own = Own::of(load, cols, R, rows.count, WHOLE);
    let zero = [[_mm256_setzero_ps(); T]; R];
    // SAFETY: rows `0..R`; blocks are inside `cols`, which every row and vector has; `lanes` are of these rows and tokens.
    unsafe {
        unroll!(ROW < R => { loads[ROW] = load.skip(ROW); });
        let (mut low, mut high) = if T == 1 {
            both_halves::<L, R, T, FETCH>(loads, blocks, xs, own)
        } else if WHOLE {
            (
                half::<L, R, T, 0, FETCH>(loads, 0..blocks, xs, own, zero),
                half::<L, R, T, 1, false>(loads, 0..blocks, xs, own, zero),
            )
        } else {
            let (before, lanes) = (part.blocks.start > 0, part.lanes);
            let low = if before { load_half::<R, T, 0>(lanes) } else { zero };
            let low = half::<L, R, T, 0, FETCH>(loads, part.blocks.clone(), xs, own, low);
            if !part.last {
                store_half::<R, T, 0>(low, lanes);
            }
            let high = if before { load_half::<R, T, 1>(lanes) } else { zero };
            let high = half::<L, R, T, 1, false>(loads, part.blocks, xs, own, high);
            if !part.last {
                store_half::<R, T, 1>(high, lanes);
                return;
            }
            (low, high)
        };
        let rest = blocks * BLOCK..cols;
        if (T == 1 || !WHOLE) && !rest.is_empty() {
            (low, high) = with_rest(rows, first_row, rest, xs, low, high);
        }
        put(low, high, first_row, first_token, target);
    }
}

/// The columns that are no whole block. Rows hardly ever have such, and a call in the middle of a tile would keep its sums in memory.
///
/// # Safety
/// As [`tile`].
#[cold]
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn with_rest<const R: usize, const T: usize>(
    rows: &Rows<'_>,
    first_row: usize,
    rest: std::ops::Range<usize>,
    xs: [*const f32; T],
    mut low: [[__m256; T]; R],
    mut high: [[__m256; T]; R],
) -> ([[__m256; T]; R], [[__m256; T]; R]) {
    for row in 0..R {
        for token in 0..T {
            let mut lanes = [0f32; LANES];
            // SAFETY: eight floats each; the columns exist.
            unsafe {
                _mm256_storeu_ps(lanes.as_mut_ptr(), low[row][token]);
                _mm256_storeu_ps(lanes.as_mut_ptr().add(8), high[row][token]);
                for k in rest.clone() {
                    let lane = &mut lanes[k % LANES];
                    *lane = rows.value(first_row + row, k).mul_add(*xs[token].add(k), *lane);
                }
                low[row][token] = _mm256_loadu_ps(lanes.as_ptr());
                high[row][token] = _mm256_loadu_ps(lanes.as_ptr().add(8));
            }
        }
    }
    (low, high)
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
        debug_assert_eq!(blocks % L::STEPS, 0, "rows of whole blocks");
        let mut staged = [Staged::new(); R];
        for step in 0..blocks / L::STEPS {
            if FETCH {
                unroll!(STEP < L::STEPS => {
                    if own.now(step * L::STEPS + STEP) {
                        unroll!(ROW < R => { own.fetch(&loads, ROW, step * L::STEPS + STEP); });
                    }
                });
            }
            unroll!(ROW < R => { loads[ROW].stage(step, &mut staged[ROW]); });
            unroll!(STEP < L::STEPS => {
                let block = step * L::STEPS + STEP;
                unroll!(TOKEN < T => {
                    let x = xs[TOKEN].add(block * BLOCK);
                    let x = [_mm256_loadu_ps(x), _mm256_loadu_ps(x.add(8))];
                    unroll!(ROW < R => {
                        let weights = loads[ROW].staged(block, &staged[ROW]);
                        low[ROW][TOKEN] = _mm256_fmadd_ps(weights[0], x[0], low[ROW][TOKEN]);
                        high[ROW][TOKEN] = _mm256_fmadd_ps(weights[1], x[1], high[ROW][TOKEN]);
                    });
                });
            });
        }
    }
    (low, high)
}

/// Lanes 0 to 7 (`H` 0) or the others (1) of `[rows, tokens, LANES]`.
///
/// # Safety
/// They are there; the CPU has AVX2, FMA and F16C.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_half<const R: usize, const T: usize, const H: usize>(lanes: *const f32) -> [[__m256; T]; R] {
    let mut sums = [[_mm256_setzero_ps(); T]; R];
    // SAFETY: promised by the caller.
    unsafe {
        unroll!(ROW < R => {
            unroll!(TOKEN < T => { sums[ROW][TOKEN] = _mm256_loadu_ps(lanes.add((ROW * T + TOKEN) * LANES + 8 * H)); });
        });
    }
    sums
}

/// The other way.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store_half<const R: usize, const T: usize, const H: usize>(
    sums: [[__m256; T]; R],
    lanes: *mut f32,
) {
    // SAFETY: promised by the caller.
    unsafe {
        unroll!(ROW < R => {
            unroll!(TOKEN < T => { _mm256_storeu_ps(lanes.add((ROW * T + TOKEN) * LANES + 8 * H), sums[ROW][TOKEN]); });
        });
    }
}

/// Goes on with lanes 0 to 7 (`H` 0) or the others (1) alone.
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
                unroll!(ROW < R => { own.fetch(&loads, ROW, block); });
            }
            // What there is less of stays in registers, beside the sums.
            if R <= T {
                let mut weights = [_mm256_setzero_ps(); R];
                unroll!(ROW < R => { weights[ROW] = loads[ROW].load(block)[H]; });
                unroll!(TOKEN < T => {
                    let x = _mm256_loadu_ps(xs[TOKEN].add(block * BLOCK + 8 * H));
                    unroll!(ROW < R => { sums[ROW][TOKEN] = _mm256_fmadd_ps(weights[ROW], x, sums[ROW][TOKEN]); });
                });
            } else {
                let mut x = [_mm256_setzero_ps(); T];
                unroll!(TOKEN < T => { x[TOKEN] = _mm256_loadu_ps(xs[TOKEN].add(block * BLOCK + 8 * H)); });
                unroll!(ROW < R => {
                    let weights = loads[ROW].load(block)[H];
                    unroll!(TOKEN < T => { sums[ROW][TOKEN] = _mm256_fmadd_ps(weights, x[TOKEN], sums[ROW][TOKEN]); });
                });
            }
        }
    }
    sums
}
