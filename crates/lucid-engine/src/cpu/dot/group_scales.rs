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
            let mut eight = [0f32; 8];
            store(scales, &mut eight);
            out.extend_from_slice(&eight);
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

/// `d · scale` of every 32 columns, then `dmin · min` of them; six bits each (`get_scale_min_k4` of llama.cpp). Q4_K has blocks of 144
/// bytes, Q5_K of 176.
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn q4_k_q5_k<const BYTES: usize>(bytes: &[u8], out: &mut Vec<f32>) {
    const LOW_SIX: u64 = 0x3f3f_3f3f_3f3f_3f3f;
    const LOW_FOUR: u64 = 0x0f0f_0f0f;
    const TOP_TWO: u64 = 0x0303_0303_0303_0303;
    let blocks = bytes.as_chunks::<BYTES>().0;
    let (scales, minima) = room(out, 16 * blocks.len()).split_at_mut(8 * blocks.len());
    let eights = scales.as_chunks_mut::<8>().0.iter_mut().zip(minima.as_chunks_mut::<8>().0);
    for (block, (scales, minima)) in blocks.iter().zip(eights) {
        // Scales and minima 0 to 3, below two bits of 4 to 7 each; then four bits of these.
        let (first, last) =
            (u64::from(word(block, 4)) | u64::from(word(block, 8)) << 32, u64::from(word(block, 12)));
        let (low, top) = (first & LOW_SIX, (first >> 6 & TOP_TWO) << 4);
        let scale = low & 0xffff_ffff | (last & LOW_FOUR | top & 0xffff_ffff) << 32;
        let minimum = low >> 32 | (last >> 4 & LOW_FOUR | top >> 32) << 32;
        store(times(half(block, 0), scale), scales);
        store(times(half(block, 2), minimum), minima);
    }
}

/// `d · scale` of every 16 columns, then `dmin · min` of them; four bits each.
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn q2_k(bytes: &[u8], out: &mut Vec<f32>) {
    let blocks = bytes.as_chunks::<84>().0;
    let (scales, minima) = room(out, 32 * blocks.len()).split_at_mut(16 * blocks.len());
    let sixteens = scales.as_chunks_mut::<16>().0.iter_mut().zip(minima.as_chunks_mut::<16>().0);
    for (block, (scales, minima)) in blocks.iter().zip(sixteens) {
        // SAFETY: the first sixteen bytes of the block.
        let both = unsafe { _mm_loadu_si128(block.as_ptr().cast()) };
        let four = _mm_set1_epi8(15);
        sixteen_times(half(block, 80), _mm_and_si128(both, four), scales);
        sixteen_times(half(block, 82), _mm_and_si128(_mm_srli_epi16::<4>(both), four), minima);
    }
}

/// `d · (scale - 32)` of every 16 columns; six bits each, the upper two apart.
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn q3_k(bytes: &[u8], out: &mut Vec<f32>) {
    let blocks = bytes.as_chunks::<110>().0;
    let scales = room(out, 16 * blocks.len()).as_chunks_mut::<16>().0;
    for (block, scales) in blocks.iter().zip(scales) {
        let fours = _mm_set_epi32(0, 0, word(block, 100).cast_signed(), word(block, 96).cast_signed());
        let low = _mm_and_si128(_mm_unpacklo_epi64(fours, _mm_srli_epi16::<4>(fours)), _mm_set1_epi8(15));
        // The upper bits of numbers 0, 4, 8 and 12 stand in one byte, and so on.
        let twos = _mm_set1_epi32(word(block, 104).cast_signed());
        let twos = _mm_and_si128(_mm_srlv_epi32(twos, _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
        let six = _mm_or_si128(low, _mm_slli_epi16::<4>(twos));
        sixteen_times(half(block, 108), _mm_sub_epi8(six, _mm_set1_epi8(32)), scales);
    }
}

/// `d · scale` of every 16 columns.
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn q6_k(bytes: &[u8], out: &mut Vec<f32>) {
    let blocks = bytes.as_chunks::<210>().0;
    let scales = room(out, 16 * blocks.len()).as_chunks_mut::<16>().0;
    for (block, scales) in blocks.iter().zip(scales) {
        // SAFETY: bytes 192 to 208 of the block.
        let numbers = unsafe { _mm_loadu_si128(block[192..208].as_ptr().cast()) };
        sixteen_times(half(block, 208), numbers, scales);
    }
}

/// `d · (scale - 32)` of every 32 columns; six bits each, the upper two apart.
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn iq4_xs(bytes: &[u8], out: &mut Vec<f32>) {
    let blocks = bytes.as_chunks::<136>().0;
    let scales = room(out, 8 * blocks.len()).as_chunks_mut::<8>().0;
    for (block, scales) in blocks.iter().zip(scales) {
        let fours = _mm_set1_epi32(word(block, 4).cast_signed());
        let fours = _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(fours, _mm_srli_epi16::<4>(fours)));
        let low = _mm256_and_si256(fours, _mm256_set1_epi32(15));
        let twos = _mm256_set1_epi32(i32::from(u16::from_le_bytes([block[2], block[3]])));
        let twos = _mm256_srlv_epi32(twos, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
        let high = _mm256_slli_epi32::<4>(_mm256_and_si256(twos, _mm256_set1_epi32(3)));
        let numbers = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
        store(_mm256_mul_ps(half(block, 0), _mm256_cvtepi32_ps(numbers)), scales);
    }
}

/// The first `len` of `out`, which grows: every place of it is written to.
fn room(out: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if out.len() < len {
        out.resize(len, 0.0);
    }
    &mut out[..len]
}

/// `d` times sixteen signed bytes.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn sixteen_times(d: __m256, numbers: __m128i, out: &mut [f32; 16]) {
    let (eights, _) = out.as_chunks_mut::<8>();
    for (part, out) in [numbers, _mm_srli_si128::<8>(numbers)].into_iter().zip(eights) {
        store(_mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(part))), out);
    }
}

/// The four bytes at `at`.
#[inline]
fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The binary16 number at `at`, eight times.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn half(block: &[u8], at: usize) -> __m256 {
    _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes([block[at], block[at + 1]])))
}

/// `d` times eight bytes.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn times(d: __m256, bytes: u64) -> __m256 {
    _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes.cast_signed()))))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn store(eight: __m256, out: &mut [f32; 8]) {
    // SAFETY: eight floats.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), eight) };
}
