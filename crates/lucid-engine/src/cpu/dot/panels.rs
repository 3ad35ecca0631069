//! The way of a panel of rows through a unit's tiles, written once for both vector units.
//!
//! A macro, because a generic function has the vector features of no unit: its tiles would be called instead of inlined.

use crate::cpu::aligned::Aligned;

/// Half-precision rows are widened anew for every group of tokens, or once for all tokens: that pays from this many tokens on, and
/// while a panel's f32 rows stay in the core's own cache (32 rows of 512 columns and 96 tokens: 72 against 60 GMAC/s).
pub(super) const WIDEN_TOKENS: usize = 12;

/// The longest rows that are widened first.
pub(super) const WIDEN_COLUMNS: usize = 1024;

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
/// one by one.
macro_rules! panels {
    (
        features: $features:literal,
        load: $load:path,
        group: $group:literal,
        tiles: { 1 => $one_token:literal, $($tokens:literal => $rows:literal),* },
        fewer: $fewer:literal,
    ) => {
        use super::ahead::Ahead;
        use super::layouts::{F32, with_layout};
        use super::packed::{packed, with_packed};
        use super::panels::{WIDEN_COLUMNS, WIDEN_TOKENS, room, vectors};
        use super::{Scratch, Target};
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
            Scratch { decoded, scales }: &mut Scratch,
            target: Target,
        ) {
            if rows.count == 0 || tokens == 0 {
                return;
            }
            let tiles = rows.count.div_ceil($fewer) * tokens.div_ceil($group);
            let ahead = &mut Ahead::of(&rows, tokens, tiles);
            // SAFETY: features and target as promised by the caller; the pointers are to `rows.count` whole rows.
            unsafe {
                if matches!(rows.stored, Stored::Decoded { .. }) {
                    if tokens == 1
                        && let Some(packed) = packed(&rows, scales)
                    {
                        return with_packed!(packed, load => all_rows::<_, $one_token, 1, true>(load, &rows, 0, vectors(&x, 0, rows.cols), ahead, target));
                    }
                    let values = room(decoded, rows.count * rows.cols);
                    if decode_packed(&rows, scales, values) {
                        let load = F32 { at: values.as_ptr().cast(), cols: rows.cols };
                        return all_tokens(load, &Rows::f32s(values, rows.cols), tokens, x, ahead, target);
                    }
                    let rows = rows.decoded(decoded);
                    let Stored::F32(bytes) = rows.stored else { unreachable!("decoded rows are f32") };
                    let load = F32 { at: bytes.as_ptr(), cols: rows.cols };
                    return all_tokens(load, &rows, tokens, x, ahead, target);
                }
                // Long half-precision rows are multiplied as stored in any number of tokens: they take half of the caches (AVX-512, 96
                // tokens, rows of 7168: 102 GMAC/s against 68 with rows decoded first).
                let as_stored = match rows.stored {
                    Stored::F32(_) => true,
                    Stored::F16(_) | Stored::Bf16(_) => tokens < WIDEN_TOKENS || rows.cols > WIDEN_COLUMNS,
                    _ => tokens == 1,
                };
                if !as_stored {
                    let decoded = room(decoded, rows.count * rows.cols);
                    with_layout!(rows, load => decode(load, &rows, decoded), decode(load, &rows, decoded));
                    let rows = Rows::f32s(decoded, rows.cols);
                    let load = F32 { at: decoded.as_ptr().cast(), cols: rows.cols };
                    return all_tokens(load, &rows, tokens, x, ahead, target);
                }
                with_layout!(
                    rows,
                    load => all_tokens(load, &rows, tokens, x, ahead, target),
                    all_rows::<_, $one_token, 1, true>(load, &rows, 0, vectors(&x, 0, rows.cols), ahead, target)
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
            target: Target,
        ) {
            let cols = rows.cols;
            let mut t = 0;
            // Groups of about equal size: 8 tokens are 4 and 4, not 6 and 2.
            for group in (1..=tokens.div_ceil($group)).rev() {
                let width = (tokens - t).div_ceil(group);
                // SAFETY: features, pointers and target as promised by the caller; the vectors are as long as the rows.
                unsafe {
                    match (width, ahead.own()) {
                        (1, _) => all_rows::<L, $one_token, 1, true>(load, rows, t, vectors(&x, t, cols), ahead, target),
                        $(
                            ($tokens, true) => {
                                all_rows::<L, $rows, $tokens, true>(load, rows, t, vectors(&x, t, cols), ahead, target);
                            }
                            ($tokens, false) => {
                                all_rows::<L, $rows, $tokens, false>(load, rows, t, vectors(&x, t, cols), ahead, target);
                            }
                        )*
                        _ => unreachable!("{width} of {tokens} tokens in a group"),
                    }
                }
                t += width;
            }
        }

        /// All rows against `T` tokens.
        ///
        /// # Safety
        /// As [`all_tokens`]; every vector has as many columns as the rows.
        #[target_feature(enable = $features)]
        unsafe fn all_rows<L: Load, const R: usize, const T: usize, const FETCH: bool>(
            load: L,
            rows: &Rows<'_>,
            first_token: usize,
            at: [*const f32; T],
            ahead: &mut Ahead,
            target: Target,
        ) {
            let mut r = 0;
            // SAFETY: every tile's rows exist, the rest as promised by the caller.
            unsafe {
                while r + R <= rows.count {
                    ahead.fetch();
                    tile::<L, R, T, FETCH>(load.skip(r), rows, r, first_token, at, target);
                    r += R;
                }
                while R > $fewer && r + $fewer <= rows.count {
                    ahead.fetch();
                    tile::<L, $fewer, T, FETCH>(load.skip(r), rows, r, first_token, at, target);
                    r += $fewer;
                }
                while r < rows.count {
                    ahead.fetch();
                    tile::<L, 1, T, FETCH>(load.skip(r), rows, r, first_token, at, target);
                    r += 1;
                }
            }
        }
    };
}

pub(super) use panels;
