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

/// The E4M3 code nearest to `x`: ties go to the even code, values beyond 448 (infinities too) to 448, and NaN stays NaN.
///
/// This is CUDA's `__nv_cvt_float_to_fp8` with `__NV_SATFINITE`, which vLLM stores KV caches with. PyTorch's cast does not
/// saturate; clamped to ±448 before, it gives the same codes.
#[must_use]
#[inline(always)]
pub fn f32_to_e4m3(x: f32) -> u8 {
    let bits = x.to_bits();
    let (sign, magnitude) = ((bits >> 24 & 0x80) as u8, bits & 0x7fff_ffff);
    // The smallest normal is 2^-6. Below it, codes are multiples of 2^-9: the step of f32 numbers from 2^14 on, so adding
    // 2^14 rounds to them.
    let subnormal = (f32::from_bits(magnitude) + 16_384.0).to_bits().wrapping_sub(16_384f32.to_bits());
    // 20 fraction bits go; the exponent's bias changes from 127 to 7.
    let rounded = magnitude.wrapping_add(0x7_ffff + (magnitude >> 20 & 1)) >> 20;
    let normal = rounded.wrapping_sub((127 - 7) << 3);
    let code = if magnitude < 0x3c80_0000 { subnormal } else { normal };
    let code = if magnitude >= 448f32.to_bits() { 0x7e } else { code };
    let code = if magnitude > 0x7f80_0000 { 0x7f } else { code };
    sign | code as u8
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

    /// IEEE 754-2019, 4.3.1: to the nearest code, of two equally near ones to the even one. Both neighbours and what lies
    /// between any two codes, in f32 and beyond it.
    #[test]
    fn encoding_rounds_to_the_nearest_code_and_saturates() {
        for code in 0..0x7eu8 {
            let (below, above) = (e4m3_to_f32(code), e4m3_to_f32(code + 1));
            let middle = (below + above) / 2.0;
            let even = if code % 2 == 0 { code } else { code + 1 };
            let neighbours = [
                (below, code),
                (middle.next_down(), code),
                (middle, even),
                (middle.next_up(), code + 1),
                (above, code + 1),
            ];
            for (x, want) in neighbours {
                assert_eq!(f32_to_e4m3(x), want, "{x:e}");
                assert_eq!(f32_to_e4m3(-x), want | 0x80, "-{x:e}");
            }
        }
        for x in [448.0, 448f32.next_up(), 464.0, 465.0, 1e30, f32::MAX, f32::INFINITY] {
            assert_eq!((f32_to_e4m3(x), f32_to_e4m3(-x)), (0x7e, 0xfe), "{x}");
        }
        assert_eq!((f32_to_e4m3(1e-38), f32_to_e4m3(f32::from_bits(1))), (0, 0));
        assert!(e4m3_to_f32(f32_to_e4m3(f32::NAN)).is_nan() && e4m3_to_f32(f32_to_e4m3(-f32::NAN)).is_nan());
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
