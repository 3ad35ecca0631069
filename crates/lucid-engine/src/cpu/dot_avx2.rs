//! AVX2 form of `dot`: sixteen columns a step, several rows and tokens a tile.
//!
//! Everything that runs per block has the vector features in its own attribute: a closure or a function without them would
//! be called, not inlined, and a call costs more than a block.

use std::arch::x86_64::*;

use lucid_checkpoint::E4M3;

use super::dot::{LANES, Target, sum_lanes};
use super::row::{BLOCK, Rows, Stored};

/// From so many tokens on, decoding a row once into scratch beats decoding it in every tile.
const DECODE_ONCE_FROM: usize = 7;

/// How far ahead bf16 weights are fetched, in bytes. Rows of small models are too short for the hardware to follow: this made
/// decoding the canary 1.37, 1.18 and 1.16 times as fast at 1, 8 and 16 streams (medians of three pairs); 4096 was no better.
const PREFETCH: usize = 2048;

/// Pointers to stored rows that decode sixteen columns at a time.
trait Load: Copy {
    /// The same, `rows` rows of `cols` columns further on.
    ///
    /// # Safety
    /// Those rows exist.
    unsafe fn skip(self, rows: usize, cols: usize) -> Self;

    /// Columns `16 * block ..` of the first row as two vectors in order.
    ///
    /// # Safety
    /// The row has these columns; the CPU has AVX2, FMA and F16C.
    unsafe fn load(self, block: usize) -> [__m256; 2];
}

#[derive(Clone, Copy)]
struct F32(*const u8);
#[derive(Clone, Copy)]
struct F16(*const u8);
#[derive(Clone, Copy)]
struct Bf16(*const u8);
#[derive(Clone, Copy)]
struct F8E4m3(*const u8);
#[derive(Clone, Copy)]
struct Nvfp4 {
    codes: *const u8,
    scales: *const u8,
}

impl Load for F32 {
    #[inline]
    unsafe fn skip(self, rows: usize, cols: usize) -> Self {
        // SAFETY: inside the rows, as the caller promises; so for the other layouts.
        F32(unsafe { self.0.add(rows * cols * 4) })
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: 64 bytes of the row, as the caller promises; unaligned loads.
        unsafe {
            let at = self.0.add(64 * block).cast::<f32>();
            [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))]
        }
    }
}

impl Load for F16 {
    #[inline]
    unsafe fn skip(self, rows: usize, cols: usize) -> Self {
        // SAFETY: see `F32`.
        F16(unsafe { self.0.add(rows * cols * 2) })
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: 32 bytes of the row.
        unsafe {
            let at = self.0.add(32 * block).cast::<__m128i>();
            [_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at.add(1)))]
        }
    }
}

impl Load for Bf16 {
    #[inline]
    unsafe fn skip(self, rows: usize, cols: usize) -> Self {
        // SAFETY: see `F32`.
        Bf16(unsafe { self.0.add(rows * cols * 2) })
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: 32 bytes of the row. A bf16 is the high half of an f32.
        unsafe {
            let at = self.0.add(32 * block).cast::<__m128i>();
            // A prefetch may leave the rows: it never faults.
            _mm_prefetch::<_MM_HINT_T0>(self.0.wrapping_add(32 * block + PREFETCH).cast());
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(at));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.add(1)));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }
}

impl Load for F8E4m3 {
    #[inline]
    unsafe fn skip(self, rows: usize, cols: usize) -> Self {
        // SAFETY: see `F32`.
        F8E4m3(unsafe { self.0.add(rows * cols) })
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: 16 bytes of the row; a byte is always inside the table of 256.
        unsafe {
            let bytes = _mm_loadu_si128(self.0.add(16 * block).cast());
            let low = _mm256_cvtepu8_epi32(bytes);
            let high = _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes));
            [_mm256_i32gather_ps::<4>(E4M3.as_ptr(), low), _mm256_i32gather_ps::<4>(E4M3.as_ptr(), high)]
        }
    }
}

impl Load for Nvfp4 {
    #[inline]
    unsafe fn skip(self, rows: usize, cols: usize) -> Self {
        // SAFETY: see `F32`.
        unsafe {
            Nvfp4 { codes: self.codes.add(rows * cols / 2), scales: self.scales.add(rows * cols / BLOCK) }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: 8 bytes of codes and one scale of the row. Doubled magnitudes are whole numbers, so a byte shuffle
        // decodes them; halving the scale in exchange is exact.
        unsafe {
            let packed = _mm_loadl_epi64(self.codes.add(8 * block).cast());
            let nibble = _mm_set1_epi8(15);
            let even = _mm_and_si128(packed, nibble);
            let odd = _mm_and_si128(_mm_srli_epi16::<4>(packed), nibble);
            let doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
            let values = _mm_shuffle_epi8(doubled, _mm_unpacklo_epi8(even, odd));
            let scale = _mm256_set1_ps(0.5 * E4M3[*self.scales.add(block) as usize]);
            let low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(values));
            let high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(values)));
            [_mm256_mul_ps(low, scale), _mm256_mul_ps(high, scale)]
        }
    }
}

/// See [`super::dot::dots`].
///
/// # Safety
/// As there, and the CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dots<'x>(
    rows: Rows<'_>,
    tokens: usize,
    x: impl Fn(usize) -> &'x [f32],
    scratch: &mut Vec<f32>,
    target: Target,
) {
    if rows.count == 0 || tokens == 0 {
        return;
    }
    // SAFETY: features and target as promised by the caller; the pointers are to `rows.count` whole rows.
    unsafe {
        if tokens >= DECODE_ONCE_FROM && !matches!(rows.stored, Stored::F32(_)) {
            scratch.resize(scratch.len().max(rows.count * rows.cols), 0.0);
            let decoded = &mut scratch[..rows.count * rows.cols];
            decode_all(&rows, decoded);
            let rows = Rows::f32s(decoded, rows.cols);
            return tiles(F32(decoded.as_ptr().cast()), &rows, tokens, x, target);
        }
        match rows.stored {
            Stored::F32(bytes) => tiles(F32(bytes.as_ptr()), &rows, tokens, x, target),
            Stored::F16(bytes) => tiles(F16(bytes.as_ptr()), &rows, tokens, x, target),
            Stored::Bf16(bytes) => tiles(Bf16(bytes.as_ptr()), &rows, tokens, x, target),
            Stored::F8E4m3(bytes) => tiles(F8E4m3(bytes.as_ptr()), &rows, tokens, x, target),
            Stored::Nvfp4 { codes, scales } => {
                let load = Nvfp4 { codes: codes.as_ptr(), scales: scales.as_ptr() };
                tiles(load, &rows, tokens, x, target);
            }
            Stored::Decoded { .. } => unreachable!("`dot::dots` hands over decoded rows"),
        }
    }
}

/// Decodes all rows into `out` `[count, cols]`, without the global scale.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decode_all(rows: &Rows<'_>, out: &mut [f32]) {
    // SAFETY: the pointers are to `rows.count` whole rows.
    unsafe {
        match rows.stored {
            Stored::F32(bytes) => decode(F32(bytes.as_ptr()), rows, out),
            Stored::F16(bytes) => decode(F16(bytes.as_ptr()), rows, out),
            Stored::Bf16(bytes) => decode(Bf16(bytes.as_ptr()), rows, out),
            Stored::F8E4m3(bytes) => decode(F8E4m3(bytes.as_ptr()), rows, out),
            Stored::Nvfp4 { codes, scales } => {
                decode(Nvfp4 { codes: codes.as_ptr(), scales: scales.as_ptr() }, rows, out);
            }
            Stored::Decoded { .. } => unreachable!("`dot::dots` hands over decoded rows"),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decode<L: Load>(load: L, rows: &Rows<'_>, out: &mut [f32]) {
    for (r, out) in out.chunks_exact_mut(rows.cols).enumerate() {
        // SAFETY: row `r` exists.
        let load = unsafe { load.skip(r, rows.cols) };
        let blocks = rows.cols / BLOCK;
        for (block, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            // SAFETY: the row has these columns.
            unsafe {
                let [low, high] = load.load(block);
                _mm256_storeu_ps(out.as_mut_ptr(), low);
                _mm256_storeu_ps(out.as_mut_ptr().add(LANES), high);
            }
        }
        for (k, out) in out.iter_mut().enumerate().skip(blocks * BLOCK) {
            *out = rows.value(r, k);
        }
    }
}

/// All rows and tokens in tiles that fit the sixteen vector registers: 4 rows by 1 or 2 tokens, 2 rows by 3 to 6.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tiles<'x, L: Load>(
    load: L,
    rows: &Rows<'_>,
    tokens: usize,
    x: impl Fn(usize) -> &'x [f32],
    target: Target,
) {
    let mut t = 0;
    while t < tokens {
        let width = (tokens - t).min(6);
        // SAFETY: features and target as promised by the caller.
        unsafe {
            match width {
                1 => column::<L, 4, 1>(load, rows, t, [x(t)], target),
                2 => column::<L, 4, 2>(load, rows, t, [x(t), x(t + 1)], target),
                3 => column::<L, 2, 3>(load, rows, t, [x(t), x(t + 1), x(t + 2)], target),
                4 => column::<L, 2, 4>(load, rows, t, [x(t), x(t + 1), x(t + 2), x(t + 3)], target),
                5 => {
                    let xs = [x(t), x(t + 1), x(t + 2), x(t + 3), x(t + 4)];
                    column::<L, 2, 5>(load, rows, t, xs, target);
                }
                _ => {
                    let xs = [x(t), x(t + 1), x(t + 2), x(t + 3), x(t + 4), x(t + 5)];
                    column::<L, 2, 6>(load, rows, t, xs, target);
                }
            }
        }
        t += width;
    }
}

/// All rows against `T` tokens.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn column<L: Load, const R: usize, const T: usize>(
    load: L,
    rows: &Rows<'_>,
    first_token: usize,
    xs: [&[f32]; T],
    target: Target,
) {
    assert!(xs.iter().all(|x| x.len() >= rows.cols), "a vector is shorter than the rows");
    let mut r = 0;
    // SAFETY: every tile's rows exist, `xs` are as long as the rows, features and target as promised by the caller.
    unsafe {
        while r + R <= rows.count {
            tile::<L, R, T>(load.skip(r, rows.cols), rows, r, first_token, xs, target);
            r += R;
        }
        while r < rows.count {
            tile::<L, 1, T>(load.skip(r, rows.cols), rows, r, first_token, xs, target);
            r += 1;
        }
    }
}

/// `R` rows, from `first_row` on, against `T` tokens.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<L: Load, const R: usize, const T: usize>(
    load: L,
    rows: &Rows<'_>,
    first_row: usize,
    first_token: usize,
    xs: [&[f32]; T],
    target: Target,
) {
    let (cols, blocks) = (rows.cols, rows.cols / BLOCK);
    let mut sums = [[_mm256_setzero_ps(); T]; R];
    let mut loads = [load; R];
    for (r, load) in loads.iter_mut().enumerate() {
        // SAFETY: row `r` exists.
        *load = unsafe { load.skip(r, cols) };
    }
    for block in 0..blocks {
        // SAFETY: the block is inside `cols`, which every row and vector has.
        unsafe {
            let mut weights = [[_mm256_setzero_ps(); 2]; R];
            for r in 0..R {
                weights[r] = loads[r].load(block);
            }
            for t in 0..T {
                let x = xs[t].as_ptr().add(block * BLOCK);
                let (low, high) = (_mm256_loadu_ps(x), _mm256_loadu_ps(x.add(LANES)));
                for r in 0..R {
                    sums[r][t] = _mm256_fmadd_ps(weights[r][0], low, sums[r][t]);
                    sums[r][t] = _mm256_fmadd_ps(weights[r][1], high, sums[r][t]);
                }
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (t, &sum) in sums.iter().enumerate() {
            let sum = if blocks * BLOCK == cols {
                sum_vector(sum)
            } else {
                let mut lanes = [0f32; LANES];
                // SAFETY: eight floats.
                unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
                for k in blocks * BLOCK..cols {
                    lanes[k % LANES] = rows.value(first_row + r, k).mul_add(xs[t][k], lanes[k % LANES]);
                }
                sum_lanes(lanes)
            };
            // SAFETY: promised by the caller.
            unsafe { target.put(first_row + r, first_token + t, sum) };
        }
    }
}

/// The tree of [`sum_lanes`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_vector(v: __m256) -> f32 {
    let halves = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)); // 0+4, 1+5, 2+6, 3+7
    let pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves)); // (0+4)+(2+6), (1+5)+(3+7)
    _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)))
}
