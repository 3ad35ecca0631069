//! Fetches weights before they are multiplied: those further on in a tile's own rows, or the next panel's.
//!
//! A tile of few tokens waits for its weights, so it asks for its successor's. With more tokens a tile takes less time than its
//! successor's lines need from the third cache; but the next panel is a whole panel's time away, and its lines are spread over all tiles
//! of this one.

use std::arch::x86_64::*;

use super::layouts::Layout;
use crate::cpu::row::Rows;

/// Up to so many tokens, tiles fetch what comes next in their own rows, however short they are.
const FEW_TOKENS: usize = 3;

/// Rows so long that the hardware foresees their next bytes, and that a panel of them leaves the first cache before its turn comes:
/// tiles of whole rows fetch this far ahead in them, tiles of parts the next tile's part, whatever the number of tokens (AVX-512, rows of
/// 7168 and 4 tokens: 41 against 26 GMAC/s).
const LONG_ROWS: usize = 2048;

/// Bytes of a panel's beginning: until they are read, its own tiles have fetched what comes after.
const BEGINNING: usize = 4 << 10;

/// How far ahead tiles of whole short rows fetch, in the order in which bytes are stored and not row by row: what comes from memory in
/// order comes faster (AMD Zen 3, one token, rows of 512 bytes, 16 MB: 17 to 19 GB/s; each row its own successor, 12 to 14).
const IN_ORDER: usize = 4 << 10;

/// The next panel's lines that are left to fetch.
pub(super) struct Ahead {
    at: *const u8,
    lines: usize,
    lines_per_tile: usize,
    own: bool,
}

impl Ahead {
    /// For `rows` against `tokens`: the next panel is what `rows.next` says, or as many bytes as `rows` have, behind them. `tiles` share
    /// the work.
    pub(super) fn of(rows: &Rows<'_>, tokens: usize, tiles: usize) -> Ahead {
        let bytes = rows.fetched();
        let own = tokens <= FEW_TOKENS || bytes.len() > LONG_ROWS * rows.count;
        let behind = bytes.as_ptr_range().end;
        let (at, len) = match rows.next {
            [] => (behind, bytes.len()),
            next => (next.as_ptr(), next.len()),
        };
        let len = match own {
            false => len,
            // The last tiles fetch what stands behind their rows; if something else is next, its beginning is not among that.
            true if at == behind => 0,
            true => len.min(BEGINNING),
        };
        let lines = len.div_ceil(64);
        Ahead { at, lines, lines_per_tile: lines.div_ceil(tiles.max(1)), own }
    }

    /// Whether tiles fetch in their own rows, and not the next panel.
    pub(super) fn own(&self) -> bool {
        self.own
    }

    /// A tile's part of it.
    #[inline]
    pub(super) fn fetch(&mut self) {
        if self.lines == 0 {
            return;
        }
        let now = self.lines_per_tile.min(self.lines);
        for line in 0..now {
            // SAFETY: a prefetch reads nothing and never faults, also behind the last row; every x86-64 processor has it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at.wrapping_add(64 * line).cast()) };
        }
        self.at = self.at.wrapping_add(64 * now);
        self.lines -= now;
    }
}

/// How a tile of `R` rows fetches what stands behind its own rows.
#[derive(Clone, Copy)]
pub(super) struct Own {
    distance: usize,
    /// Blocks of sixteen columns in a line of the cache, as a power of two: once a line is enough.
    line: u32,
    /// Whether lines come in the order in which they are stored; otherwise each row fetches in itself.
    in_order: bool,
}

impl Own {
    /// For tiles of `tile_rows` rows of a panel's `rows`, `whole` or in parts of their columns.
    pub(super) fn of<L: Layout>(load: L, cols: usize, tile_rows: usize, rows: usize, whole: bool) -> Own {
        let row_bytes = load.row_bytes();
        let line = match row_bytes {
            bytes if bytes > cols => 1,
            bytes if 2 * bytes > cols => 2,
            _ => 3,
        };
        let in_order = whole && row_bytes <= LONG_ROWS;
        let distance = match row_bytes {
            // This panel is there already.
            bytes if L::SCALES_FIRST => rows * bytes,
            bytes if in_order => IN_ORDER.max(tile_rows * bytes),
            _ if whole => LONG_ROWS,
            bytes => tile_rows * bytes,
        };
        Own { distance, line, in_order }
    }

    /// Whether to, at this block of sixteen columns.
    #[inline]
    pub(super) fn now(self, block: usize) -> bool {
        block & ((1 << self.line) - 1) == 0
    }

    /// The tile's row `row` asks for its part, at its `block`.
    #[inline]
    pub(super) fn fetch<L: Layout, const R: usize>(self, loads: &[L; R], row: usize, block: usize) {
        let at = match self.in_order {
            true => loads[0].fetch(0).map(|at| at.wrapping_add(64 * ((block >> self.line) * R + row))),
            false => loads[row].fetch(block),
        };
        if let Some(at) = at {
            // SAFETY: a prefetch reads nothing and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(self.distance).cast()) };
        }
    }
}
