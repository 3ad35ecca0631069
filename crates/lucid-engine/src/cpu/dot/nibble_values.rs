//! What codes of four bits stand for, in the block types of GGUF.

use std::arch::x86_64::*;

/// Whole numbers.
pub(super) static FROM_0: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// Whole numbers, eight less.
pub(super) static FROM_MINUS_8: [f32; 16] =
    [-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];

/// E2M1 numbers are whole when doubled; there is no negative zero.
pub(super) static DOUBLED_E2M1: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// The values of IQ4_NL and IQ4_XS codes (`kvalues_iq4nl` of llama.cpp).
pub(super) static IQ4: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// The values of sixteen codes: the low nibbles of sixteen bytes (`half` 0) or the high ones (1). A lookup reads four bits of an index, so
/// that no mask is needed, and gives an f32, so that no conversion is.
///
/// # Safety
/// Sixteen bytes can be read; the CPU has AVX-512 F, BW, VL and DQ.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn looked_up(at: *const u8, half: usize, values: &'static [f32; 16]) -> __m512 {
    // From memory, because a register becomes a vector only on the port that does the lookups.
    static SHIFTS: [i32; 2] = [0, 4];
    // SAFETY: sixteen bytes as promised by the caller, and sixteen values.
    unsafe {
        let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()));
        let codes = _mm512_srlv_epi32(wide, _mm512_set1_epi32(SHIFTS[half & 1]));
        _mm512_permutexvar_ps(codes, _mm512_loadu_ps(values.as_ptr()))
    }
}

/// The same of eight bytes: their low nibbles, then their high ones.
///
/// # Safety
/// Eight bytes can be read; the CPU has AVX-512 F, BW, VL and DQ.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn looked_up_twice(at: *const u8, values: &'static [f32; 16]) -> __m512 {
    let shifts = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
    // SAFETY: eight bytes as promised by the caller, and sixteen values.
    unsafe {
        let wide = _mm512_cvtepu8_epi32(_mm_set1_epi64x(at.cast::<i64>().read_unaligned()));
        _mm512_permutexvar_ps(_mm512_srlv_epi32(wide, shifts), _mm512_loadu_ps(values.as_ptr()))
    }
}

/// The values of [`IQ4`] as bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq4_values(codes: __m128i) -> __m128i {
    let values = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    _mm_shuffle_epi8(values, codes)
}

/// The values of [`DOUBLED_E2M1`] as bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn doubled_e2m1(codes: __m128i) -> __m128i {
    let doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    _mm_shuffle_epi8(doubled, codes)
}
