//! How AVX2 reads sixteen columns of a stored row, as two vectors in order.

use std::arch::x86_64::*;

use lucid_checkpoint::E4M3;

use super::layouts::{Bf16, F8E4m3, F16, F32, Layout, Nvfp4};
use super::staged::Staged;

/// Rows that AVX2 reads.
pub(super) trait Load: Layout {
    /// Columns `16 * block ..` of the first row.
    ///
    /// # Safety
    /// The row has these columns; the CPU has AVX2, FMA and F16C.
    unsafe fn load(self, block: usize) -> [__m256; 2];

    /// Brings what [`Load::staged`] reads of step `step` of one token's tile to `staged`.
    ///
    /// # Safety
    /// As [`Load::load`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn stage(self, _step: usize, _staged: &mut Staged) {}

    /// As [`Load::load`], of the step that was staged last.
    ///
    /// # Safety
    /// As there, and it was staged.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn staged(self, block: usize, _staged: &Staged) -> [__m256; 2] {
        // SAFETY: promised by the caller.
        unsafe { self.load(block) }
    }
}

impl Load for F32 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: 64 bytes of the row, as the caller promises.
        unsafe {
            let at = self.at.add(64 * block).cast::<f32>();
            [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))]
        }
    }
}

impl Load for F16 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: 32 bytes of the row.
        unsafe {
            let at = self.at.add(32 * block).cast::<__m128i>();
            [_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at.add(1)))]
        }
    }
}

impl Load for Bf16 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: 32 bytes of the row.
        unsafe {
            let at = self.at.add(32 * block).cast::<__m128i>();
            [widen(_mm_loadu_si128(at)), widen(_mm_loadu_si128(at.add(1)))]
        }
    }
}

impl Load for F8E4m3 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: 16 bytes of the row.
        e4m3(unsafe { _mm_loadu_si128(self.at.add(16 * block).cast()) })
    }
}

impl Load for Nvfp4 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, block: usize) -> [__m256; 2] {
        // SAFETY: 8 bytes of codes and one scale of the row. Doubled magnitudes are whole numbers, so a byte shuffle
        // decodes them; halving the scale in exchange is exact.
        unsafe {
            let doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
            let values = _mm_shuffle_epi8(doubled, nibbles(self.codes.add(8 * block)));
            let scale = _mm256_set1_ps(0.5 * E4M3[*self.scales.add(block) as usize]);
            let [low, high] = whole(values);
            [_mm256_mul_ps(low, scale), _mm256_mul_ps(high, scale)]
        }
    }
}

/// What [`widen`] shuffles by: a 16-bit number becomes the upper half of 32 bits.
static APART: Shuffle = Shuffle([
    -1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, //
    -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15,
]);

/// Bytes of a vector that an instruction may read where they are.
#[repr(align(32))]
struct Shuffle(#[expect(dead_code, reason = "instructions read it")] [i8; 32]);

/// Eight bf16 numbers, which are the upper halves of f32 numbers. Both halves of a vector get all eight, which the load does, and one
/// shuffle takes the right four apart: widening integers and shifting them takes an operation more, on the ports of multiply-adds.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen(eight: __m128i) -> __m256 {
    let mut wide = _mm256_broadcastsi128_si256(eight);
    // SAFETY: reads a static. As an intrinsic, the shuffle's bytes would be kept in a register and one of a tile's twelve sums in
    // memory, for which its chain then waits in every step.
    unsafe {
        std::arch::asm!(
            "vpshufb {wide}, {wide}, ymmword ptr [rip + {apart}]",
            wide = inout(ymm_reg) wide,
            apart = sym APART,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    _mm256_castsi256_ps(wide)
}

/// Sixteen nibbles of eight bytes, low ones first.
///
/// # Safety
/// Eight bytes can be read.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn nibbles(at: *const u8) -> __m128i {
    // SAFETY: promised by the caller.
    let packed = unsafe { _mm_loadl_epi64(at.cast()) };
    let mask = _mm_set1_epi8(15);
    _mm_unpacklo_epi8(_mm_and_si128(packed, mask), _mm_and_si128(_mm_srli_epi16::<4>(packed), mask))
}

/// Sixteen signed bytes as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn whole(bytes: __m128i) -> [__m256; 2] {
    [
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))),
    ]
}

/// Sixteen E4M3 numbers. Their bits are those of a binary16 number 256 times smaller, but for NaN.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn e4m3(codes: __m128i) -> [__m256; 2] {
    let wide = _mm256_cvtepu8_epi16(codes);
    let nan = _mm256_set1_epi16(0x3f80);
    let magnitude = _mm256_and_si256(_mm256_slli_epi16::<7>(wide), nan);
    let sign = _mm256_and_si256(_mm256_slli_epi16::<8>(wide), _mm256_set1_epi16(0x8000u16 as i16));
    // All ones make a NaN of binary16 too.
    let halves = _mm256_or_si256(_mm256_or_si256(magnitude, sign), _mm256_cmpeq_epi16(magnitude, nan));
    let scale = _mm256_set1_ps(256.0);
    [
        _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), scale),
        _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)), scale),
    ]
}
