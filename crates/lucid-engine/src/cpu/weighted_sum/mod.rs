//! `acc[q] += Σ_j p[q, j] · v[j]`, the second half of attention; with keys that stand in columns, the first half too.
//!
//! Every element is one chain of fused multiply-adds over `j` in order, so tiles don't change a bit, and no lanes are added at the end.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;

use super::cache::Entries;
use super::unit::Unit;
use crate::kv_cache::PAGE_TOKENS;

/// How many queries, entries and columns.
type Shape = (usize, usize, usize);

/// Adds `entries` weighted value rows to `queries` running sums of `cols` columns.
///
/// `weights` `[queries, PAGE_TOKENS]`, `values` rows `stride` apart, `sums` `[queries, cols]`.
///
/// # Panics
/// When a buffer is too small.
pub fn weighted_sum(shape: Shape, weights: &[f32], values: Entries<'_>, stride: usize, sums: &mut [f32]) {
    weighted_sum_on(Unit::best(), shape, weights, values, stride, sums);
}

/// The same on a unit of choice, which the processor has.
fn weighted_sum_on(
    unit: Unit,
    shape: Shape,
    weights: &[f32],
    values: Entries<'_>,
    stride: usize,
    sums: &mut [f32],
) {
    let (queries, entries, cols) = shape;
    assert!(cols <= stride && entries <= PAGE_TOKENS);
    assert!(weights.len() >= queries * PAGE_TOKENS && sums.len() >= queries * cols);
    assert!(entries == 0 || values.len() >= (entries - 1) * stride + cols);
    match values {
        Entries::F32(values) => run(unit, shape, weights, values, stride, sums),
        Entries::Bf16(values) => run(unit, shape, weights, values, stride, sums),
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

fn run<V: Stored>(unit: Unit, shape: Shape, weights: &[f32], values: &[V], stride: usize, sums: &mut [f32]) {
    // SAFETY: the unit is there; lengths were checked by the caller.
    unsafe {
        match unit {
            #[cfg(target_arch = "x86_64")]
            Unit::Avx512 if shape.2.is_multiple_of(16) => {
                avx512::weighted_sum(shape, weights, values, stride, sums);
            }
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2 if shape.2.is_multiple_of(16) => {
                avx2::weighted_sum(shape, weights, values, stride, sums);
            }
            _ => plain(shape, weights, values, stride, sums),
        }
    }
}

fn plain<V: Stored>(
    (queries, entries, cols): Shape,
    weights: &[f32],
    values: &[V],
    stride: usize,
    sums: &mut [f32],
) {
    for q in 0..queries {
        for j in 0..entries {
            let weight = weights[q * PAGE_TOKENS + j];
            let value = &values[j * stride..j * stride + cols];
            for (sum, &value) in sums[q * cols..(q + 1) * cols].iter_mut().zip(value) {
                *sum = weight.mul_add(value.into().0, *sum);
            }
        }
    }
}
