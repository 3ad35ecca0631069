//! 8-bit floats: E4M3 for values, E8M0 for scales.
//!
//! E4M3 ("E4M3FN"): sign, 4 exponent bits with bias 7, 3 fraction bits.
//!
//! It has no infinities: 0x7F and 0xFF are NaN, and 0x7E is its largest value, 448.
//! Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning", table 1.
//!
//! E8M0: a bare exponent with bias 127; 0xFF is NaN.
//! Source: Open Compute Project, "OCP Microscaling Formats (MX) Specification" v1.0, section 5.4.1.

/// The value of every E4M3 code.
pub static E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = decode(code as u8);
        code += 1;
    }
    table
};

/// The value of an E4M3 code, exactly; NaN for 0x7F and 0xFF.
#[must_use]
#[inline]
pub fn e4m3_to_f32(code: u8) -> f32 {
    E4M3[code as usize]
}

/// The value of an E8M0 code: `2^(code - 127)`, exactly; NaN for 0xFF.
#[must_use]
#[inline]
pub fn e8m0_to_f32(code: u8) -> f32 {
    match code {
        // 2^-127 is subnormal in f32.
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

const fn decode(code: u8) -> f32 {
    let sign = ((code & 0x80) as u32) << 24;
    let exponent = ((code >> 3) & 0xf) as u32;
    let fraction = (code & 7) as u32;
    if code & 0x7f == 0x7f {
        return f32::from_bits(sign | 0x7fc0_0000);
    }
    if exponent == 0 {
        // Subnormal: fraction * 2^-9.
        return f32::from_bits(sign | (fraction as f32 / 512.0).to_bits());
    }
    // The exponent's bias changes from 7 to 127.
    f32::from_bits(sign | ((exponent + 120) << 23) | (fraction << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_the_value_of_the_format() {
        for code in 0..=255u8 {
            let got = e4m3_to_f32(code);
            let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
            let magnitude = match (exponent, code & 7) {
                (15, 7) => {
                    assert!(got.is_nan(), "{code:#04x}");
                    continue;
                }
                (0, _) => fraction * 2f64.powi(-6),
                _ => (1.0 + fraction) * 2f64.powi(exponent - 7),
            };
            let want = if code & 0x80 == 0 { magnitude } else { -magnitude };
            assert_eq!(f64::from(got).to_bits(), want.to_bits(), "{code:#04x}: {got} is not {want}");
        }
    }

    #[test]
    fn e8m0_is_a_power_of_two() {
        for code in 0..=254u8 {
            assert_eq!(f64::from(e8m0_to_f32(code)), 2f64.powi(i32::from(code) - 127), "{code}");
        }
        assert!(e8m0_to_f32(255).is_nan());
    }

    #[test]
    fn the_corners_are_those_of_the_paper() {
        assert_eq!(e4m3_to_f32(0x7e), 448.0);
        assert_eq!(e4m3_to_f32(0x08), 2f32.powi(-6));
        assert_eq!(e4m3_to_f32(0x07), 0.875 * 2f32.powi(-6));
        assert_eq!(e4m3_to_f32(0x01), 2f32.powi(-9));
        assert!(e4m3_to_f32(0x80) == 0.0 && e4m3_to_f32(0x80).is_sign_negative());
    }
}
