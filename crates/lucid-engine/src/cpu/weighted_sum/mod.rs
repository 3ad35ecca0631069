//! `acc[q] += Σ_j p[q, j] · v[j]`, the second half of attention; with keys that stand in columns, the first half too.
//!
//! Every element is one chain of fused multiply-adds over `j` in order, so tiles don't change a bit, and no lanes are added at the end.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod next;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;

use super::cache::Entries;
use super::row::BLOCK;
use super::unit::Unit;
use crate::kv_cache::PAGE_TOKENS;

/// How many there are of what, and how far apart they stand.
#[derive(Clone, Copy)]
pub struct Sizes<'a> {
    /// Rows of weights, and of sums.
    pub queries: usize,
    /// Weights of a query, and rows of values.
    pub entries: usize,
    /// Columns of values and sums.
    pub cols: usize,
    /// From a query's first `PAGE_TOKENS` weights to the next ones, if it has more: weights are `[_, queries, PAGE_TOKENS]`, because
    /// with a stride that it knows the compiler needs one pointer for all queries of a tile.
    pub parts_stride: usize,
    /// From one entry's values to the next one's.
    pub values_stride: usize,
    /// Columns of values that stand side by side: all, or a multiple of sixteen.
    pub block: usize,
    /// From so many columns to the next ones.
    pub blocks_stride: usize,
    /// From one query's sums to the next one's.
    pub sums_stride: usize,
    /// What is read next: sent for meanwhile, a line of the cache now and then. A tile that walks down a page's columns is nothing that
    /// the processor foresees, so without this the third cache was waited for in every tile.
    pub next: &'a [f32],
}

impl Sizes<'_> {
    /// Weights `[queries, PAGE_TOKENS]`, sums `[queries, cols]`, nothing next.
    pub fn page(queries: usize, entries: usize, cols: usize, values_stride: usize) -> Self {
        Sizes {
            queries,
            entries,
            cols,
            parts_stride: 0,
            values_stride,
            block: cols.max(1),
            blocks_stride: 0,
            sums_stride: cols,
            next: &[],
        }
    }
}

/// Adds weighted rows of values to running sums.
///
/// # Panics
/// When a buffer is too small.
pub fn weighted_sum(sizes: Sizes<'_>, weights: &[f32], values: Entries<'_>, sums: &mut [f32]) {
    weighted_sum_on(Unit::best(), sizes, weights, values, sums);
}

/// The same on a unit of choice, which the processor has.
pub(super) fn weighted_sum_on(
    unit: Unit,
    sizes: Sizes<'_>,
    weights: &[f32],
    values: Entries<'_>,
    sums: &mut [f32],
) {
    let Sizes {
        queries, entries, cols, parts_stride, values_stride, block, blocks_stride, sums_stride, ..
    } = sizes;
    assert!(cols.min(block) <= values_stride && cols <= sums_stride);
    assert!(block >= cols || block.is_multiple_of(BLOCK), "tiles would go from one block to another");
    let fits =
        |rows: usize, stride: usize, cols: usize, len: usize| rows == 0 || len >= (rows - 1) * stride + cols;
    for part in 0..entries.div_ceil(PAGE_TOKENS) {
        let here = PAGE_TOKENS.min(entries - part * PAGE_TOKENS);
        let weights = weights.len().saturating_sub(part * parts_stride);
        assert!(fits(queries, PAGE_TOKENS, here, weights), "too few weights");
    }
    for number in 0..cols.div_ceil(block) {
        let here = block.min(cols - number * block);
        let values = values.len().saturating_sub(number * blocks_stride);
        assert!(fits(entries, values_stride, here, values), "too few values");
    }
    assert!(fits(queries, sums_stride, cols, sums.len()), "too few sums");
    match values {
        Entries::F32(values) => run(unit, sizes, weights, values, sums),
        Entries::Bf16(values) => run(unit, sizes, weights, values, sums),
    }
}

/// Values as they are stored.
#[cfg(target_arch = "x86_64")]
trait Stored: Copy + Into<Widened> + avx2::Load + avx512::Load {}
/// Values as they are stored.
#[cfg(not(target_arch = "x86_64"))]
trait Stored: Copy + Into<Widened> {}
impl Stored for f32 {}
impl Stored for u16 {}

/// The number that a stored value means.
struct Widened(f32);

impl From<f32> for Widened {
    fn from(value: f32) -> Widened {
        Widened(value)
    }
}

/// bf16
impl From<u16> for Widened {
    fn from(value: u16) -> Widened {
        Widened(f32::from_bits(u32::from(value) << 16))
    }
}

fn run<V: Stored>(unit: Unit, sizes: Sizes<'_>, weights: &[f32], values: &[V], sums: &mut [f32]) {
    // SAFETY: the unit is there; lengths were checked by the caller.
    unsafe {
        match unit {
            #[cfg(target_arch = "x86_64")]
            Unit::Avx512 if sizes.cols.is_multiple_of(16) => {
                avx512::weighted_sum(sizes, weights, values, sums);
            }
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2 if sizes.cols.is_multiple_of(16) => {
                avx2::weighted_sum(sizes, weights, values, sums);
            }
            _ => plain(sizes, weights, values, sums),
        }
    }
}

fn plain<V: Stored>(sizes: Sizes<'_>, weights: &[f32], values: &[V], sums: &mut [f32]) {
    let Sizes {
        queries, entries, cols, parts_stride, values_stride, block, blocks_stride, sums_stride, ..
    } = sizes;
    for q in 0..queries {
        for j in 0..entries {
            let weight = weights[j / PAGE_TOKENS * parts_stride + q * PAGE_TOKENS + j % PAGE_TOKENS];
            for (number, sums) in sums[q * sums_stride..][..cols].chunks_mut(block).enumerate() {
                let values = &values[number * blocks_stride + j * values_stride..];
                for (sum, &value) in sums.iter_mut().zip(values) {
                    *sum = weight.mul_add(value.into().0, *sum);
                }
            }
        }
    }
}
