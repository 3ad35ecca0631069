//! `acc[q] += Σ_j p[q, j] · v[j]`, the second half of attention.
//!
//! Every element is one chain of fused multiply-adds over `j` in order, so tiles don't change a bit.

use crate::kv_cache::PAGE_TOKENS;

/// Adds `entries` weighted value rows to `queries` running sums of `cols` columns.
///
/// `weights` `[queries, PAGE_TOKENS]`, `values` rows `stride` apart, `sums` `[queries, cols]`.
pub fn weighted_sum(
    (queries, entries, cols): (usize, usize, usize),
    weights: &[f32],
    values: &[f32],
    stride: usize,
    sums: &mut [f32],
) {
    assert!(cols <= stride && entries <= PAGE_TOKENS);
    assert!(weights.len() >= queries * PAGE_TOKENS && sums.len() >= queries * cols);
    assert!(entries == 0 || values.len() >= (entries - 1) * stride + cols);
    #[cfg(target_arch = "x86_64")]
    if super::dot::has_avx2() && cols.is_multiple_of(16) {
        // SAFETY: AVX2 and FMA were found; all lengths are checked above.
        unsafe { avx2((queries, entries, cols), weights, values, stride, sums) };
        return;
    }
    plain((queries, entries, cols), weights, values, stride, sums);
}

fn plain(
    (queries, entries, cols): (usize, usize, usize),
    weights: &[f32],
    values: &[f32],
    stride: usize,
    sums: &mut [f32],
) {
    for q in 0..queries {
        for j in 0..entries {
            let weight = weights[q * PAGE_TOKENS + j];
            let value = &values[j * stride..j * stride + cols];
            for (sum, &value) in sums[q * cols..(q + 1) * cols].iter_mut().zip(value) {
                *sum = weight.mul_add(value, *sum);
            }
        }
    }
}

/// Six queries by sixteen columns a tile: twelve running sums in registers while the entries pass.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(
    (queries, entries, cols): (usize, usize, usize),
    weights: &[f32],
    values: &[f32],
    stride: usize,
    sums: &mut [f32],
) {
    use std::arch::x86_64::*;

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile<const Q: usize>(
        weights: *const f32,
        values: *const f32,
        stride: usize,
        entries: usize,
        sums: *mut f32,
        cols: usize,
    ) {
        // SAFETY: the caller's lengths, checked in `weighted_sum`.
        unsafe {
            let mut acc = [[_mm256_setzero_ps(); 2]; Q];
            for (q, acc) in acc.iter_mut().enumerate() {
                *acc = [_mm256_loadu_ps(sums.add(q * cols)), _mm256_loadu_ps(sums.add(q * cols + 8))];
            }
            for j in 0..entries {
                let value = values.add(j * stride);
                let value = [_mm256_loadu_ps(value), _mm256_loadu_ps(value.add(8))];
                for (q, acc) in acc.iter_mut().enumerate() {
                    let weight = _mm256_broadcast_ss(&*weights.add(q * PAGE_TOKENS + j));
                    acc[0] = _mm256_fmadd_ps(weight, value[0], acc[0]);
                    acc[1] = _mm256_fmadd_ps(weight, value[1], acc[1]);
                }
            }
            for (q, acc) in acc.iter().enumerate() {
                _mm256_storeu_ps(sums.add(q * cols), acc[0]);
                _mm256_storeu_ps(sums.add(q * cols + 8), acc[1]);
            }
        }
    }

    for column in (0..cols).step_by(16) {
        let mut q = 0;
        while q < queries {
            // SAFETY: queries `q..` and sixteen columns from `column` exist; features as promised by the caller.
            unsafe {
                let weights = weights.as_ptr().add(q * PAGE_TOKENS);
                let values = values.as_ptr().add(column);
                let sums = sums.as_mut_ptr().add(q * cols + column);
                match queries - q {
                    1 => tile::<1>(weights, values, stride, entries, sums, cols),
                    2 => tile::<2>(weights, values, stride, entries, sums, cols),
                    3 => tile::<3>(weights, values, stride, entries, sums, cols),
                    4 => tile::<4>(weights, values, stride, entries, sums, cols),
                    5 => tile::<5>(weights, values, stride, entries, sums, cols),
                    _ => tile::<6>(weights, values, stride, entries, sums, cols),
                }
            }
            q += 6;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vector_form_has_the_bits_of_the_plain_form() {
        for (queries, entries, cols) in [(1, 1, 16), (3, 64, 32), (8, 5, 512), (6, 0, 16), (5, 33, 48)] {
            let stride = cols + 3;
            let pseudo = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 500.0 - 1.0;
            let weights: Vec<f32> = (0..queries * PAGE_TOKENS).map(pseudo).collect();
            let values: Vec<f32> = (0..entries * stride).map(|i| pseudo(i + 5)).collect();
            let start: Vec<f32> = (0..queries * cols).map(|i| pseudo(i + 11)).collect();
            let (mut fast, mut slow) = (start.clone(), start);
            weighted_sum((queries, entries, cols), &weights, &values, stride, &mut fast);
            plain((queries, entries, cols), &weights, &values, stride, &mut slow);
            assert!(fast.iter().zip(&slow).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}
