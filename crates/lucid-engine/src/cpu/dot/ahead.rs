//! Fetches the rows that will most likely be multiplied next, a little with every tile.
//!
//! A tile of few tokens takes less time than a line of the third cache needs to arrive, so what the next tile needs is too late to ask
//! for. The next panel is a whole panel's time away, and its lines are spread over all tiles of this one.

use std::arch::x86_64::*;

use crate::cpu::row::{Rows, Stored};

/// What is left to fetch.
pub(super) struct Ahead {
    at: *const u8,
    lines: usize,
    lines_per_tile: usize,
}

impl Ahead {
    /// Nothing.
    pub(super) fn nothing() -> Ahead {
        Ahead { at: std::ptr::null(), lines: 0, lines_per_tile: 0 }
    }

    /// As many bytes as `rows` have, behind them: the matrix' next panel, if there is one. `tiles` share the work.
    pub(super) fn of(rows: &Rows<'_>, tiles: usize) -> Ahead {
        let bytes = match rows.stored {
            Stored::F16(bytes) | Stored::Bf16(bytes) | Stored::F8E4m3(bytes) => bytes,
            Stored::Nvfp4 { codes, .. } => codes,
            // Few weights are f32, and packed blocks take longer to decode than to fetch.
            Stored::F32(_) | Stored::Decoded { .. } => return Ahead::nothing(),
        };
        let lines = bytes.len().div_ceil(64);
        Ahead { at: bytes.as_ptr_range().end, lines, lines_per_tile: lines.div_ceil(tiles.max(1)) }
    }

    /// A tile's part of it.
    #[inline]
    pub(super) fn fetch(&mut self) {
        let now = self.lines_per_tile.min(self.lines);
        for line in 0..now {
            // SAFETY: a prefetch reads nothing and never faults, also behind the last row; every x86-64 processor has it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at.wrapping_add(64 * line).cast()) };
        }
        self.at = self.at.wrapping_add(64 * now);
        self.lines -= now;
    }
}
