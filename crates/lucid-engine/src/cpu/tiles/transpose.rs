//! Sixteen by sixteen dwords, turned.

use std::arch::x86_64::*;

/// `out[i]` has lane `i` of every row.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
    // Pairs, then quadruples of lanes inside 128 bits, then the 128-bit blocks.
    let mut pairs = rows;
    for i in (0..16).step_by(2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    let mut fours = pairs;
    for i in (0..16).step_by(4) {
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    let mut out = fours;
    for i in 0..4 {
        let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(fours[i], fours[i + 4]);
        let odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(fours[i], fours[i + 4]);
        let even_high = _mm512_shuffle_i32x4::<0b10_00_10_00>(fours[i + 8], fours[i + 12]);
        let odd_high = _mm512_shuffle_i32x4::<0b11_01_11_01>(fours[i + 8], fours[i + 12]);
        out[i] = _mm512_shuffle_i32x4::<0b10_00_10_00>(even, even_high);
        out[i + 8] = _mm512_shuffle_i32x4::<0b11_01_11_01>(even, even_high);
        out[i + 4] = _mm512_shuffle_i32x4::<0b10_00_10_00>(odd, odd_high);
        out[i + 12] = _mm512_shuffle_i32x4::<0b11_01_11_01>(odd, odd_high);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_become_rows() {
        if !is_x86_feature_detected!("avx512f") {
            return;
        }
        let mut values = [[0u32; 16]; 16];
        for (i, value) in values.as_flattened_mut().iter_mut().enumerate() {
            *value = i as u32;
        }
        let mut turned = [[0u32; 16]; 16];
        // SAFETY: AVX-512 was found; every row is sixteen dwords.
        unsafe {
            let rows = transpose(values.map(|row| _mm512_loadu_si512(row.as_ptr().cast())));
            for (out, row) in turned.iter_mut().zip(rows) {
                _mm512_storeu_si512(out.as_mut_ptr().cast(), row);
            }
        }
        for (i, row) in turned.iter().enumerate() {
            for (j, &value) in row.iter().enumerate() {
                assert_eq!(value, values[j][i]);
            }
        }
    }
}
