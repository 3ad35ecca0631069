//! Tiles of queries by columns, written once for both vector units.
//!
//! A macro, because a generic function has the vector features of no unit: `load` would be called instead of inlined.

/// Defines `columns`, all queries by `C` vectors of columns, and `tile`, some queries by as many, whose running sums stay in registers
/// while the entries pass. `queries` lists how many queries a tile may have, all numbers up to the most.
macro_rules! tiles {
    (
        features: $features:literal,
        lanes: $lanes:literal,
        zero: $zero:ident, load: $load:ident, store: $store:ident, broadcast: $broadcast:ident, multiply_add: $multiply_add:ident,
        queries: { $($queries:literal)* },
    ) => {
        use super::{PAGE_TOKENS, Sizes};
        use super::next::Next;
        use crate::cpu::unroll::unroll;

        /// All queries by `C` vectors of columns of one block, in groups of about equal size, at most `most` queries each.
        ///
        /// # Safety
        /// As [`weighted_sum`]; the columns exist, and `queries` has `most`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn columns<V: Load, const C: usize>(
            most: usize,
            column: usize,
            sizes: Sizes<'_>,
            weights: &[f32],
            values: &[V],
            sums: &mut [f32],
            next: &mut Next,
        ) {
            let Sizes { queries, block, blocks_stride, sums_stride, .. } = sizes;
            let mut q = 0;
            for group in (1..=queries.div_ceil(most)).rev() {
                let width = (queries - q).div_ceil(group);
                // SAFETY: queries `q..` and the columns exist; features as promised by the caller.
                unsafe {
                    let weights = weights.as_ptr().add(q * PAGE_TOKENS);
                    let values = values.as_ptr().add(column / block * blocks_stride + column % block);
                    let sums = sums.as_mut_ptr().add(q * sums_stride + column);
                    match width {
                        $( $queries => tile::<V, $queries, C>(sizes, weights, values, sums, next), )*
                        _ => unreachable!("{width} of {queries} queries in a group"),
                    }
                }
                q += width;
            }
        }

        /// `Q` queries by `C` vectors of columns.
        ///
        /// A function of its own: inside its caller, what the compiler keeps in registers beside the sums depends on everything around
        /// it, and once two sums were in memory, which doubled the time.
        ///
        /// # Safety
        /// The CPU has the unit; all of it is inside the buffers.
        #[inline(never)]
        #[target_feature(enable = $features)]
        unsafe fn tile<V: Load, const Q: usize, const C: usize>(
            sizes: Sizes<'_>,
            weights: *const f32,
            values: *const V,
            sums: *mut f32,
            next: &mut Next,
        ) {
            let Sizes { entries, parts_stride, values_stride, sums_stride, .. } = sizes;
            let mut ahead = *next;
            // SAFETY: promised by the caller.
            unsafe {
                let mut acc = [[$zero(); C]; Q];
                unroll!(I < Q, at most 12 => {
                    unroll!(J < C => { acc[I][J] = $load(sums.add(I * sums_stride + $lanes * J)); });
                });
                for part in 0..entries.div_ceil(PAGE_TOKENS) {
                    let weights = weights.add(part * parts_stride);
                    let values = values.add(part * PAGE_TOKENS * values_stride);
                    for j in 0..PAGE_TOKENS.min(entries - part * PAGE_TOKENS) {
                        ahead.fetch(j);
                        let mut value = [$zero(); C];
                        unroll!(J < C => { value[J] = V::load(values.add(j * values_stride + $lanes * J)); });
                        unroll!(I < Q, at most 12 => {
                            let weight = $broadcast(*weights.add(I * PAGE_TOKENS + j));
                            unroll!(J < C => { acc[I][J] = $multiply_add(weight, value[J], acc[I][J]); });
                        });
                    }
                }
                *next = ahead;
                unroll!(I < Q, at most 12 => {
                    unroll!(J < C => { $store(sums.add(I * sums_stride + $lanes * J), acc[I][J]); });
                });
            }
        }
    };
}

pub(super) use tiles;
