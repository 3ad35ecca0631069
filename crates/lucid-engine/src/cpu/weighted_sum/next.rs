//! Fetches what a sum reads next while tiles compute this one.

use std::arch::x86_64::*;

use super::Sizes;

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// What is left to fetch, and how often.
#[derive(Clone, Copy)]
pub(super) struct Next {
    at: *const u8,
    /// Of a tile's entries, those whose number has all of these bits set fetch a line; all bits: none.
    mask: usize,
}

impl Next {
    /// Spreads `sizes.next` over `tiles` tiles.
    pub(super) fn of(sizes: Sizes<'_>, tiles: usize) -> Next {
        let lines = size_of_val(sizes.next).div_ceil(LINE);
        let mask = match (tiles * sizes.entries).checked_div(lines) {
            // Rounded down, so that all of it is fetched; up to as many bytes again behind it are, which does no harm.
            Some(every) if every > 0 => (1 << every.ilog2()) - 1,
            Some(_) => 0,
            None => usize::MAX,
        };
        Next { at: sizes.next.as_ptr().cast(), mask }
    }

    /// Fetches a line to the second-level cache if entry `entry` is to.
    #[inline(always)]
    pub(super) fn fetch(&mut self, entry: usize) {
        if entry & self.mask == self.mask {
            // SAFETY: a prefetch reads nothing and never faults; every x86-64 processor has it.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.at.cast()) };
            self.at = self.at.wrapping_add(LINE);
        }
    }
}
