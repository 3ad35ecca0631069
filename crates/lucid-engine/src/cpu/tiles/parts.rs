//! f32 as three bf16 numbers.

use std::arch::x86_64::*;

/// Parts of a vector, in the order in which they stand in memory: low, middle, high.
pub const PARTS: usize = 3;

/// `x = low + middle + high`, exactly: each part takes the next eight of the 24 significant bits.
///
/// Where `low` would be below 2^-126 the tile unit reads it as 0, which concerns `|x| < 2^-110` only. Of an infinity the rest is
/// NaN, so that it ends as NaN and is found in the logits.
#[cfg(test)]
pub fn split(x: f32) -> [f32; PARTS] {
    let cut = |x: f32| f32::from_bits(x.to_bits() & 0xffff_0000);
    let high = cut(x);
    let middle = cut(x - high);
    let low = cut(x - high - middle);
    [low, middle, high]
}

/// The same for 32 consecutive values: each part as 32 bf16 numbers in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub fn split_32(first: __m512, second: __m512) -> [__m512i; PARTS] {
    let mask = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    // The upper halves of all sixteen dwords of `first`, then of `second`.
    let upper = _mm512_set_epi16(
        63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23, 21, 19, 17, 15,
        13, 11, 9, 7, 5, 3, 1,
    );
    let (mut first, mut second) = (first, second);
    let mut parts = [_mm512_setzero_si512(); PARTS];
    for part in parts.iter_mut().rev() {
        let (a, b) = (_mm512_castps_si512(first), _mm512_castps_si512(second));
        *part = _mm512_permutex2var_epi16(a, upper, b);
        first = _mm512_sub_ps(first, _mm512_castsi512_ps(_mm512_and_si512(a, mask)));
        second = _mm512_sub_ps(second, _mm512_castsi512_ps(_mm512_and_si512(b, mask)));
    }
    parts
}

#[cfg(test)]
mod tests {
    use lucid_checkpoint::bf16_to_f32;

    use super::*;

    fn values() -> Vec<f32> {
        let mut bits = 0x1234_5678_u32;
        let mut values = vec![0.0, -0.0, 1.0, -1.5, f32::MAX, 1e-30, 3.162_277_7, f32::INFINITY];
        while values.len() < 512 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = f32::from_bits(bits);
            if x.is_finite() && x.abs() > 1e-30 {
                values.push(x);
            }
        }
        values
    }

    #[test]
    fn three_parts_are_the_whole() {
        for x in values() {
            let [low, middle, high] = split(x);
            for part in [low, middle, high] {
                assert_eq!(part.to_bits() & 0xffff, 0, "a part of {x} is not bf16");
            }
            let whole = f64::from(low) + f64::from(middle) + f64::from(high);
            assert!(whole == f64::from(x) || x.is_infinite() && whole.is_nan(), "{x} became {whole}");
        }
    }

    #[test]
    fn vectors_are_split_like_numbers() {
        if !super::super::available() {
            return;
        }
        for x in values().as_chunks::<32>().0 {
            let mut parts = [[0u16; 32]; PARTS];
            // SAFETY: AVX-512 was found; 16 floats and 32 halves each.
            unsafe {
                let split = split_32(_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16)));
                for (part, values) in parts.iter_mut().zip(split) {
                    _mm512_storeu_si512(part.as_mut_ptr().cast(), values);
                }
            }
            for (i, &x) in x.iter().enumerate() {
                for (part, plain) in parts.iter().zip(split(x)) {
                    let fast = bf16_to_f32(part[i]);
                    assert!(fast.to_bits() == plain.to_bits() || fast.is_nan() && plain.is_nan());
                }
            }
        }
    }
}
