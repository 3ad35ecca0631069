//! Fetches what a sum reads next while tiles compute this one.

use std::arch::x86_64::*;

use super::Sizes;

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// What is left to fetch, and how often.
#[derive(Clone, Copy)]
pub(super) struct Next {
    at: *const u8,
    /// Of a tile's entries, those whose number has none of these bits set fetch a line.
    mask: usize,
    /// Bytes from one to the next.
    step: usize,
}

impl Next {
    /// Spreads `sizes.next` over `tiles` tiles of `values`.
    pub(super) fn of<V>(sizes: Sizes<'_>, values: &[V], tiles: usize) -> Next {
        if sizes.next.is_empty() {
            // One useless fetch a tile, of a place that is there, costs less than asking for more than a bit.
            return Next { at: values.as_ptr().cast(), mask: usize::MAX, step: 0 };
        }
        let lines = size_of_val(sizes.next).div_ceil(LINE);
        // Rounded down, so that all of it is fetched; up to as many bytes again behind it are, which does no harm.
        let every = (tiles * sizes.entries / lines).max(1);
        Next { at: sizes.next.as_ptr().cast(), mask: (1 << every.ilog2()) - 1, step: LINE }
    }

    /// Fetches a line to the second-level cache if entry `entry` is to.
    #[inline(always)]
    pub(super) fn fetch(&mut self, entry: usize) {
        if entry & self.mask == 0 {
            // SAFETY: a prefetch reads nothing and never faults; every x86-64 processor has it.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.at.cast()) };
            self.at = self.at.wrapping_add(self.step);
        }
    }
}
