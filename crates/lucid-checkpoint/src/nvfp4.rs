//! NVFP4: 4-bit floats (E2M1) in blocks of 16 along a row, an E4M3 scale per block, an `f32` scale per matrix.

use crate::float8::E4M3;

/// Weights that share one block scale.
pub const BLOCK: usize = 16;

/// The value of every E2M1 code: bit 3 is the sign.
/// Source: Open Compute Project, "OCP Microscaling Formats (MX) Specification" v1.0, section 5.3.3.
pub static E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Decodes one row: `out[i] = (E2M1(code[i]) * E4M3(scales[i / 16])) * global_scale`, each product rounded to `f32`
/// in this order.
///
/// `codes` holds `out.len() / 2` bytes, the even column in the low nibble; `scales` holds `out.len() / 16`.
/// Only whole blocks for which there are codes and scales are written.
pub fn decode_row(codes: &[u8], scales: &[u8], global_scale: f32, out: &mut [f32]) {
    for ((codes, &scale), out) in codes.chunks_exact(BLOCK / 2).zip(scales).zip(out.chunks_exact_mut(BLOCK)) {
        let scale = E4M3[scale as usize];
        for (&code, pair) in codes.iter().zip(out.chunks_exact_mut(2)) {
            pair[0] = E2M1[(code & 0xf) as usize] * scale * global_scale;
            pair[1] = E2M1[(code >> 4) as usize] * scale * global_scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_the_value_of_the_format() {
        for (code, &value) in E2M1.iter().enumerate() {
            let (exponent, fraction) = ((code >> 1 & 3) as i32, (code & 1) as f32 / 2.0);
            // Bias 1; exponent 0 is subnormal.
            let magnitude = if exponent == 0 { fraction } else { (1.0 + fraction) * 2f32.powi(exponent - 1) };
            let want = if code & 8 == 0 { magnitude } else { -magnitude };
            assert_eq!(value.to_bits(), want.to_bits(), "code {code}");
        }
    }
}
