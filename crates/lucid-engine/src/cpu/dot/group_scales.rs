//! The scales of a panel's groups as f32, eight at a time.

use std::arch::x86_64::*;

use lucid_checkpoint::{ScaleType, Scales};

/// `count` scales from number `first` on.
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn int4(stored: &Scales, first: usize, count: usize, out: &mut Vec<f32>) {
    out.clear();
    out.reserve(count);
    let halves = |first: usize, count: usize| &stored.bytes[2 * first..2 * (first + count)];
    let mut done = 0;
    if matches!(stored.kind, ScaleType::Bf16 | ScaleType::F16) {
        for bytes in halves(first, count).as_chunks::<16>().0 {
            // SAFETY: 16 bytes.
            let eight = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
            let scales = match stored.kind {
                ScaleType::F16 => _mm256_cvtph_ps(eight),
                _ => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(eight))),
            };
            push(scales, out);
            done += 8;
        }
    }
    out.extend((first + done..first + count).map(|i| stored.get(i)));
}

/// `groups` scales for each of `count` rows; a row of scales stands for `height` rows of the matrix.
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn f8_blocks(
    stored: &Scales,
    height: usize,
    first_row: usize,
    count: usize,
    groups: usize,
    out: &mut Vec<f32>,
) {
    out.clear();
    out.reserve(count * groups);
    for row in first_row..first_row + count {
        if row > first_row && row / height == (row - 1) / height {
            out.extend_from_within(out.len() - groups..);
        } else {
            out.extend((0..groups).map(|i| stored.get(row / height * groups + i)));
        }
    }
}

/// `d · scale` of every 32 columns, then `dmin · min` of them; six bits each (`get_scale_min_k4` of llama.cpp).
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn q4_k(bytes: &[u8], out: &mut Vec<f32>) {
    const LOW_SIX: u32 = 0x3f3f_3f3f;
    const LOW_FOUR: u32 = 0x0f0f_0f0f;
    let blocks = bytes.as_chunks::<144>().0;
    out.clear();
    out.reserve(16 * blocks.len());
    let word = |block: &[u8; 144], at: usize| {
        u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
    };
    for block in blocks {
        let [a, c] = [word(block, 4), word(block, 12)];
        let low = a & LOW_SIX;
        let high = c & LOW_FOUR | (a >> 6 & 0x0303_0303) << 4;
        push(times(half(block, 0), low, high), out);
    }
    for block in blocks {
        let [b, c] = [word(block, 8), word(block, 12)];
        let low = b & LOW_SIX;
        let high = c >> 4 & LOW_FOUR | (b >> 6 & 0x0303_0303) << 4;
        push(times(half(block, 2), low, high), out);
    }
}

/// `d · scale` of every 16 columns.
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn q6_k(bytes: &[u8], out: &mut Vec<f32>) {
    let blocks = bytes.as_chunks::<210>().0;
    out.clear();
    out.reserve(16 * blocks.len());
    for block in blocks {
        let d = half(block, 208);
        // SAFETY: bytes 192 to 208 of the block.
        let scales = unsafe { _mm_loadu_si128(block[192..208].as_ptr().cast()) };
        for part in [scales, _mm_srli_si128::<8>(scales)] {
            push(_mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(part))), out);
        }
    }
}

/// The binary16 number at `at`, eight times.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn half(block: &[u8], at: usize) -> __m256 {
    _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes([block[at], block[at + 1]])))
}

/// `d` times the eight bytes of two words.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn times(d: __m256, low: u32, high: u32) -> __m256 {
    let bytes = _mm_cvtsi64_si128((u64::from(high) << 32 | u64::from(low)).cast_signed());
    _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn push(eight: __m256, out: &mut Vec<f32>) {
    let mut values = [0f32; 8];
    // SAFETY: eight floats.
    unsafe { _mm256_storeu_ps(values.as_mut_ptr(), eight) };
    out.extend_from_slice(&values);
}
