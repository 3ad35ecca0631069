//! The way of a panel of rows through a unit's tiles, written once for both vector units.
//!
//! A macro, because a generic function has the vector features of no unit: its tiles would be called instead of inlined.

use std::ops::Range;

use crate::cpu::aligned::Aligned;

/// The longest rows that are widened once for all tokens, if there are `widen_tokens`, and not anew for every group of tokens: while a
/// panel's f32 rows stay in the core's own cache (AVX-512, 32 rows of 512 columns and 96 tokens: 72 against 60 GMAC/s).
pub(super) const WIDEN_COLUMNS: usize = 1024;

/// Longer rows go in parts of so many blocks of sixteen columns, each through all rows of a panel: their vectors would not stay in the
/// first cache until the next tile reads them (six vectors of 512 columns are 12 KB, six of 7168 are 172).
pub(super) const PART_BLOCKS: usize = 32;

/// Rows of more blocks than this go in parts, and so do rows with columns left over, which are rare.
pub(super) const WHOLE_BLOCKS: usize = 64;

/// A place on the stack that aligns its function's frame. Sums that leave the registers for a moment go there; in an unaligned frame one of
/// them lies across two pages in some programs, by chance, and writing it took 15 % of all products' time.
#[repr(align(64))]
pub(super) struct Frame(#[allow(dead_code)] pub(super) u8);

/// The part of its rows that a tile goes through.
#[derive(Clone)]
pub(super) struct Part {
    /// In sixteens of columns.
    pub(super) blocks: Range<usize>,
    /// Whether the columns that are left over come with it, and then the lanes' sums.
    pub(super) last: bool,
    /// `[rows, tokens, LANES]`: sums of the parts before, unless this is the first.
    pub(super) lanes: *mut f32,
}

impl Part {
    /// Number `number` of rows of `blocks` blocks, in parts of `each`.
    pub(super) fn of(number: usize, blocks: usize, each: usize, lanes: *mut f32) -> Part {
        let end = blocks.min((number + 1) * each);
        Part { blocks: number * each..end, last: end == blocks, lanes }
    }
}

/// The first `len` values of a buffer that grows.
pub(super) fn room(buffer: &mut Aligned<f32>, len: usize) -> &mut [f32] {
    buffer.grow(len, 0.0);
    &mut buffer[..len]
}

/// Where the vectors of `T` tokens begin, from token `first` on.
///
/// # Panics
/// When one is shorter than `cols`.
pub(super) fn vectors<'x, const T: usize>(
    x: &impl Fn(usize) -> &'x [f32],
    first: usize,
    cols: usize,
) -> [*const f32; T] {
    let mut at = [std::ptr::null(); T];
    for (token, at) in at.iter_mut().enumerate() {
        let x = x(first + token);
        assert!(x.len() >= cols, "a vector is shorter than the rows");
        *at = x.as_ptr();
    }
    at
}

/// Defines `dots`, `decode_packed` and what they are made of, for a unit that has `tile` and `store`.
///
/// `tiles` says how many rows a tile has for each number of tokens that a group may have. Rows that are left over go by `fewer`, then
/// one by one. `rows_of_group` is how many rows a tile of a whole group has.
macro_rules! panels {
    (
        features: $features:literal,
        load: $load:path,
        group: $group:literal,
        rows_of_group: $rows_of_group:literal,
        tiles: { 1 => $one_token:literal, $($tokens:literal => $rows:literal),* },
        fewer: $fewer:literal,
        widen_tokens: $widen_tokens:literal,
    ) => {
        use super::ahead::Ahead;
        use super::layouts::{F32, with_layout};
        use super::packed::{packed, with_packed};
        use super::panels::{Frame, PART_BLOCKS, Part, WHOLE_BLOCKS, WIDEN_COLUMNS, room, vectors};
        use super::{LANES, Scratch, Target};
        use crate::cpu::aligned::Aligned;
        use crate::cpu::row::{BLOCK, Rows, Stored};
        use $load as Load;

        /// See [`super::dots`].
        ///
        /// # Safety
        /// As there, and the CPU has the unit.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn dots<'x>(
            rows: Rows<'_>,
            tokens: usize,
            x: impl Fn(usize) -> &'x [f32],
            Scratch { decoded, scales, lanes }: &mut Scratch,
            target: Target,
        ) {
            if rows.count == 0 || tokens == 0 {
                return;
            }
            let tiles = rows.count.div_ceil($rows_of_group) * tokens.div_ceil($group);
            let ahead = &mut Ahead::of(&rows, tokens, tiles);
            // SAFETY: features and target as promised by the caller; the pointers are to `rows.count` whole rows.
            unsafe {
                if matches!(rows.stored, Stored::Decoded { .. }) {
                    if tokens == 1
                        && let Some(packed) = packed(&rows, scales)
                    {
                        return with_packed!(packed, load => one_token(load, &rows, 0, vectors(&x, 0, rows.cols), ahead, target));
                    }
                    let values = room(decoded, rows.count * rows.cols);
                    if decode_packed(&rows, scales, values) {
                        let load = F32 { at: values.as_ptr().cast(), cols: rows.cols };
                        return all_tokens(load, &Rows::f32s(values, rows.cols), tokens, x, ahead, lanes, target);
                    }
                    let rows = rows.decoded(decoded);
                    let Stored::F32(bytes) = rows.stored else { unreachable!("decoded rows are f32") };
                    let load = F32 { at: bytes.as_ptr(), cols: rows.cols };
                    return all_tokens(load, &rows, tokens, x, ahead, lanes, target);
                }
                // Long half-precision rows are multiplied as stored in any number of tokens: they take half of the caches (AVX-512, 96
                // tokens, rows of 7168: 102 GMAC/s against 68 with rows decoded first).
                let as_stored = match rows.stored {
                    Stored::F32(_) => true,
                    Stored::F16(_) | Stored::Bf16(_) => tokens < $widen_tokens || rows.cols > WIDEN_COLUMNS,
                    _ => tokens == 1,
                };
                if !as_stored {
                    let decoded = room(decoded, rows.count * rows.cols);
                    with_layout!(rows, load => decode(load, &rows, decoded), decode(load, &rows, decoded));
                    let rows = Rows::f32s(decoded, rows.cols);
                    let load = F32 { at: decoded.as_ptr().cast(), cols: rows.cols };
                    return all_tokens(load, &rows, tokens, x, ahead, lanes, target);
                }
                with_layout!(
                    rows,
                    load => all_tokens(load, &rows, tokens, x, ahead, lanes, target),
                    one_token(load, &rows, 0, vectors(&x, 0, rows.cols), ahead, target)
                );
            }
        }

        /// Decodes rows of a layout that a kernel reads as stored into `out` `[count, cols]`; `false`, and nothing done, if none does.
        ///
        /// # Safety
        /// The CPU has the unit.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn decode_packed(rows: &Rows<'_>, scales: &mut Vec<f32>, out: &mut [f32]) -> bool {
            // SAFETY: features as promised by the caller; the pointers are to `rows`.
            unsafe {
                let Some(packed) = packed(rows, scales) else { return false };
                with_packed!(packed, load => decode(load, rows, out));
            }
            true
        }

        /// Decodes all rows into `out` `[count, cols]`, without the global scale.
        ///
        /// # Safety
        /// The CPU has the unit; `load` points to `rows`.
        #[target_feature(enable = $features)]
        unsafe fn decode<L: Load>(load: L, rows: &Rows<'_>, out: &mut [f32]) {
            let blocks = rows.cols / BLOCK;
            for (r, out) in out.chunks_exact_mut(rows.cols).enumerate() {
                for (block, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
                    // SAFETY: row `r` exists and has these columns.
                    unsafe { store(load.skip(r).load(block), out) };
                }
                for (k, out) in out.iter_mut().enumerate().skip(blocks * BLOCK) {
                    *out = rows.value(r, k);
                }
            }
        }

        /// All rows and tokens in tiles that fit the vector registers.
        ///
        /// # Safety
        /// The CPU has the unit; `load` points to `rows`; `target` as in [`super::dots`].
        #[target_feature(enable = $features)]
        unsafe fn all_tokens<'x, L: Load>(
            load: L,
            rows: &Rows<'_>,
            tokens: usize,
            x: impl Fn(usize) -> &'x [f32],
            ahead: &mut Ahead,
            lanes: &mut Aligned<f32>,
            target: Target,
        ) {
            let cols = rows.cols;
            let long = cols / BLOCK > WHOLE_BLOCKS || !cols.is_multiple_of(BLOCK);
            let lanes = if long { room(lanes, rows.count * $group * LANES).as_mut_ptr() } else { std::ptr::null_mut() };
            let mut t = 0;
            // Groups of about equal size: 8 tokens are 4 and 4, not 6 and 2.
            for group in (1..=tokens.div_ceil($group)).rev() {
                let width = (tokens - t).div_ceil(group);
                // SAFETY: features, pointers and target as promised by the caller; the vectors are as long as the rows.
                unsafe {
                    match (width, long, ahead.own()) {
                        (1, ..) => one_token(load, rows, t, vectors(&x, t, cols), ahead, target),
                        $(
                            ($tokens, true, _) => {
                                all_rows::<L, $rows, $tokens, true, false>(load, rows, t, vectors(&x, t, cols), ahead, lanes, target);
                            }
                            ($tokens, false, true) => {
                                all_rows::<L, $rows, $tokens, true, true>(load, rows, t, vectors(&x, t, cols), ahead, lanes, target);
                            }
                            ($tokens, false, false) => {
                                all_rows::<L, $rows, $tokens, false, true>(load, rows, t, vectors(&x, t, cols), ahead, lanes, target);
                            }
                        )*
                        _ => unreachable!("{width} of {tokens} tokens in a group"),
                    }
                }
                t += width;
            }
        }

        /// All rows against one token.
        ///
        /// # Safety
        /// As [`all_tokens`]; the vector has as many columns as the rows.
        #[target_feature(enable = $features)]
        unsafe fn one_token<L: Load>(
            load: L,
            rows: &Rows<'_>,
            first_token: usize,
            at: [*const f32; 1],
            ahead: &mut Ahead,
            target: Target,
        ) {
            // SAFETY: promised by the caller.
            unsafe { all_rows::<L, $one_token, 1, true, true>(load, rows, first_token, at, ahead, std::ptr::null_mut(), target) };
        }

        /// All rows against `T` tokens: `WHOLE`, or in parts of their columns.
        ///
        /// # Safety
        /// As [`all_tokens`]; every vector has as many columns as the rows; `lanes` has room for `[rows, T, LANES]`, unless rows go whole.
        #[target_feature(enable = $features)]
        unsafe fn all_rows<L: Load, const R: usize, const T: usize, const FETCH: bool, const WHOLE: bool>(
            load: L,
            rows: &Rows<'_>,
            first_token: usize,
            at: [*const f32; T],
            ahead: &mut Ahead,
            lanes: *mut f32,
            target: Target,
        ) {
            std::hint::black_box(&mut Frame(0));
            let blocks = rows.cols / BLOCK;
            let each = if WHOLE { blocks.max(1) } else { PART_BLOCKS };
            for number in 0..if WHOLE { 1 } else { blocks.div_ceil(each).max(1) } {
                let mut r = 0;
                // SAFETY: every tile's rows exist, the rest as promised by the caller.
                unsafe {
                    while r + R <= rows.count {
                        ahead.fetch();
                        let part = Part::of(number, blocks, each, lanes.wrapping_add(r * T * LANES));
                        tile::<L, R, T, FETCH, WHOLE>(load.skip(r), rows, r, first_token, at, part, target);
                        r += R;
                    }
                    while R > $fewer && r + $fewer <= rows.count {
                        ahead.fetch();
                        let part = Part::of(number, blocks, each, lanes.wrapping_add(r * T * LANES));
                        tile::<L, $fewer, T, FETCH, WHOLE>(load.skip(r), rows, r, first_token, at, part, target);
                        r += $fewer;
                    }
                    while r < rows.count {
                        ahead.fetch();
                        let part = Part::of(number, blocks, each, lanes.wrapping_add(r * T * LANES));
                        tile::<L, 1, T, FETCH, WHOLE>(load.skip(r), rows, r, first_token, at, part, target);
                        r += 1;
                    }
                }
            }
        }
    };
}

pub(super) use panels;
