//! Whole numbers of 128 columns on their way through memory: a load widens eight or sixteen bytes for less than the shuffles would cost
//! that bring them to their place.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::layouts_avx512;
use crate::cpu::unroll::unroll;

/// As bytes, in order.
#[repr(align(64))]
#[derive(Clone, Copy)]
pub(super) struct Staged(MaybeUninit<[u8; 128]>);

impl Staged {
    /// Nothing yet.
    #[inline(always)]
    pub(super) fn new() -> Staged {
        Staged(MaybeUninit::uninit())
    }

    /// Takes 128 numbers.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn put(&mut self, numbers: [__m256i; 4]) {
        let at = self.0.as_mut_ptr().cast::<u8>();
        // SAFETY: 128 bytes, aligned; the instruction that is none touches nothing.
        unsafe {
            unroll!(I < 4, at most 4 => { _mm256_store_si256(at.add(32 * I).cast(), numbers[I]); });
            // Or the compiler would make shuffles of them after all.
            std::arch::asm!("/* {0} */", in(reg) at, options(nostack, preserves_flags));
        }
    }

    /// Columns `16 * i ..`, `i` below 8.
    ///
    /// # Safety
    /// Numbers were put; the CPU has AVX2.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn sixteen_avx2(&self, i: usize) -> [__m256; 2] {
        // SAFETY: eight bytes each.
        let (low, high) = unsafe {
            let at = self.0.as_ptr().cast::<u8>().add(16 * i);
            (_mm_loadl_epi64(at.cast()), _mm_loadl_epi64(at.add(8).cast()))
        };
        [_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high))]
    }

    /// The same in one vector.
    ///
    /// # Safety
    /// Numbers were put; the CPU has AVX-512 F, BW, VL and DQ.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) unsafe fn sixteen_avx512(&self, i: usize) -> __m512 {
        // SAFETY: sixteen bytes.
        layouts_avx512::whole(unsafe { _mm_load_si128(self.0.as_ptr().cast::<u8>().add(16 * i).cast()) })
    }
}
