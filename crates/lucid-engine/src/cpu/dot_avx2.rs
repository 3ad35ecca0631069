//! AVX2 form of `dot`: sixteen columns a step, several rows and tokens a tile.

use std::arch::x86_64::*;

use lucid_checkpoint::E4M3;

use super::dot::{LANES, sum_lanes};
use super::row::{BLOCK, Row};

/// From so many tokens on, decoding a row once into scratch beats decoding it in every tile.
const DECODE_ONCE_FROM: usize = 7;

/// A stored row that decodes sixteen columns at a time.
trait Load<'a>: Copy {
    /// The row, if it is of this layout.
    fn of(row: Row<'a>) -> Option<Self>;

    /// Columns `16 * block ..` as two vectors in order.
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

impl<'a> Load<'a> for F32 {
    fn of(row: Row<'a>) -> Option<Self> {
        if let Row::F32(bytes) = row { Some(F32(bytes.as_ptr())) } else { None }
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

impl<'a> Load<'a> for F16 {
    fn of(row: Row<'a>) -> Option<Self> {
        if let Row::F16(bytes) = row { Some(F16(bytes.as_ptr())) } else { None }
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

impl<'a> Load<'a> for Bf16 {
    fn of(row: Row<'a>) -> Option<Self> {
        if let Row::Bf16(bytes) = row { Some(Bf16(bytes.as_ptr())) } else { None }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: 32 bytes of the row. A bf16 is the high half of an f32.
        unsafe {
            let at = self.0.add(32 * block).cast::<__m128i>();
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(at));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.add(1)));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }
}

impl<'a> Load<'a> for F8E4m3 {
    fn of(row: Row<'a>) -> Option<Self> {
        if let Row::F8E4m3(bytes) = row { Some(F8E4m3(bytes.as_ptr())) } else { None }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: 16 bytes of the row; a byte is always inside the table of 256.
        unsafe {
            let bytes = _mm_loadu_si128(self.0.add(16 * block).cast());
            let low = _mm256_cvtepu8_epi32(bytes);
            let high = _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes));
            [
                _mm256_i32gather_ps::<4>(E4M3.as_ptr(), low),
                _mm256_i32gather_ps::<4>(E4M3.as_ptr(), high),
            ]
        }
    }
}

impl<'a> Load<'a> for Nvfp4 {
    fn of(row: Row<'a>) -> Option<Self> {
        if let Row::Nvfp4 { codes, scales } = row {
            Some(Nvfp4 { codes: codes.as_ptr(), scales: scales.as_ptr() })
        } else {
            None
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
/// The CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dots<'w, 'x>(
    (rows, tokens, cols): (usize, usize, usize),
    row: impl Fn(usize) -> Row<'w>,
    x: impl Fn(usize) -> &'x [f32],
    scratch: &mut Vec<f32>,
    write: impl FnMut(usize, usize, f32),
) {
    if rows == 0 || tokens == 0 {
        return;
    }
    let shape = (rows, tokens, cols);
    let layout = row(0);
    // SAFETY: features as promised by the caller; rows and vectors are checked for their columns inside.
    unsafe {
        if tokens >= DECODE_ONCE_FROM && !matches!(layout, Row::F32(_)) {
            scratch.resize(scratch.len().max(rows * cols), 0.0);
            for (r, out) in scratch.chunks_exact_mut(cols).take(rows).enumerate() {
                decode(row(r), out);
            }
            let decoded: &[u8] = std::slice::from_raw_parts(scratch.as_ptr().cast(), rows * cols * 4);
            let row = |r: usize| Row::F32(&decoded[r * cols * 4..(r + 1) * cols * 4]);
            return tiles::<F32>(shape, row, x, write);
        }
        match layout {
            Row::F32(_) => tiles::<F32>(shape, row, x, write),
            Row::F16(_) => tiles::<F16>(shape, row, x, write),
            Row::Bf16(_) => tiles::<Bf16>(shape, row, x, write),
            Row::F8E4m3(_) => tiles::<F8E4m3>(shape, row, x, write),
            Row::Nvfp4 { .. } => tiles::<Nvfp4>(shape, row, x, write),
        }
    }
}

/// Decodes one row, without the global scale.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decode(row: Row<'_>, out: &mut [f32]) {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn blocks<'a, L: Load<'a>>(row: Row<'a>, out: &mut [f32]) -> bool {
        let Some(load) = L::of(row) else { return false };
        for (block, out) in out.chunks_exact_mut(BLOCK).enumerate() {
            // SAFETY: the caller's row has the columns of `out`; sixteen are left in this chunk.
            unsafe {
                let [low, high] = load.load(block);
                _mm256_storeu_ps(out.as_mut_ptr(), low);
                _mm256_storeu_ps(out.as_mut_ptr().add(LANES), high);
            }
        }
        true
    }
    // SAFETY: features as promised by the caller.
    let _ = unsafe {
        match row {
            Row::F32(_) => blocks::<F32>(row, out),
            Row::F16(_) => blocks::<F16>(row, out),
            Row::Bf16(_) => blocks::<Bf16>(row, out),
            Row::F8E4m3(_) => blocks::<F8E4m3>(row, out),
            Row::Nvfp4 { .. } => blocks::<Nvfp4>(row, out),
        }
    };
    for column in out.len() / BLOCK * BLOCK..out.len() {
        out[column] = row.column(column);
    }
}

/// All rows and tokens in tiles that fit the sixteen vector registers: 4 rows by 1 or 2 tokens, 2 rows by 3 to 6.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tiles<'w, 'x, L: Load<'w>>(
    (rows, tokens, cols): (usize, usize, usize),
    row: impl Fn(usize) -> Row<'w>,
    x: impl Fn(usize) -> &'x [f32],
    mut write: impl FnMut(usize, usize, f32),
) {
    let mut t = 0;
    while t < tokens {
        let width = (tokens - t).min(6);
        let mut r = 0;
        while r < rows {
            macro_rules! tile {
                ($height:literal, $width:literal) => {{
                    let height = usize::min($height, rows - r);
                    // A tile that hangs over the edge computes its last row or token again.
                    let rows: [Row<'w>; $height] = std::array::from_fn(|i| row(r + i.min(height - 1)));
                    let xs: [&'x [f32]; $width] = std::array::from_fn(|j| x(t + j));
                    // SAFETY: features as promised by the caller.
                    let sums = unsafe { tile::<L, $height, $width>(rows, xs, cols) };
                    for (i, sums) in sums.iter().enumerate().take(height) {
                        for (j, &sum) in sums.iter().enumerate() {
                            write(r + i, t + j, sum);
                        }
                    }
                    r += height;
                }};
            }
            match width {
                1 => tile!(4, 1),
                2 => tile!(4, 2),
                3 => tile!(2, 3),
                4 => tile!(2, 4),
                5 => tile!(2, 5),
                _ => tile!(2, 6),
            }
        }
        t += width;
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<'a, L: Load<'a>, const R: usize, const T: usize>(
    rows: [Row<'a>; R],
    xs: [&[f32]; T],
    cols: usize,
) -> [[f32; T]; R] {
    assert!(xs.iter().all(|x| x.len() >= cols), "a vector is shorter than the rows");
    let loads: [Option<L>; R] = rows.map(L::of);
    let blocks = cols / BLOCK;
    let mut sums = [[_mm256_setzero_ps(); T]; R];
    // All rows of a call come from one matrix, so one `None` means all: the layout was matched by the caller.
    let Some(loads) = all(loads) else { return [[f32::NAN; T]; R] };
    for block in 0..blocks {
        // SAFETY: the block is inside `cols`, which every row and vector has.
        unsafe {
            // No closures in here: they would not have the vector features, and nothing would be inlined.
            let mut weights = [[_mm256_setzero_ps(); 2]; R];
            for r in 0..R {
                weights[r] = loads[r].load(block);
            }
            for (half, start) in [block * BLOCK, block * BLOCK + LANES].into_iter().enumerate() {
                for t in 0..T {
                    let x = _mm256_loadu_ps(xs[t].as_ptr().add(start));
                    for r in 0..R {
                        sums[r][t] = _mm256_fmadd_ps(weights[r][half], x, sums[r][t]);
                    }
                }
            }
        }
    }
    let mut out = [[0f32; T]; R];
    for r in 0..R {
        for t in 0..T {
            let mut lanes = [0f32; LANES];
            // SAFETY: eight floats.
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sums[r][t]) };
            for k in blocks * BLOCK..cols {
                lanes[k % LANES] = rows[r].column(k).mul_add(xs[t][k], lanes[k % LANES]);
            }
            out[r][t] = sum_lanes(lanes);
        }
    }
    out
}

fn all<L: Copy, const R: usize>(loads: [Option<L>; R]) -> Option<[L; R]> {
    let first = loads.iter().copied().flatten().next()?;
    loads.iter().all(Option::is_some).then(|| loads.map(|load| load.unwrap_or(first)))
}
