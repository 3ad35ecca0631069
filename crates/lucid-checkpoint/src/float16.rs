//! The two 16-bit floats.

/// The value of a bfloat16: the upper half of an `f32`.
#[must_use]
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The value of an IEEE 754 binary16, exactly; NaN payloads keep their upper bits.
#[must_use]
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let fraction = u32::from(bits & 0x3ff);
    match exponent {
        // Subnormal: fraction * 2^-24. Both factors and the product are exact in f32.
        0 => f32::from_bits(sign | (fraction as f32 * 2f32.powi(-24)).to_bits()),
        0x1f => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        // The exponent's bias changes from 15 to 127.
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IEEE 754-2019, 3.4: (-1)^s * 2^(e-bias) * (0 or 1 + fraction), computed in f64.
    fn by_definition(bits: u16, fraction_bits: u32, bias: i32) -> f64 {
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
        let exponent = i32::from(bits & 0x7fff) >> fraction_bits;
        let largest = (1 << (15 - fraction_bits)) - 1;
        if exponent == largest {
            return if fraction == 0.0 { sign * f64::INFINITY } else { f64::NAN };
        }
        if exponent == 0 {
            return sign * fraction * 2f64.powi(1 - bias);
        }
        sign * (1.0 + fraction) * 2f64.powi(exponent - bias)
    }

    fn check_all(decode: fn(u16) -> f32, fraction_bits: u32, bias: i32) {
        for bits in 0..=u16::MAX {
            let (got, want) = (decode(bits), by_definition(bits, fraction_bits, bias));
            if want.is_nan() {
                assert!(got.is_nan(), "{bits:#06x}: {got}");
            } else {
                assert_eq!(f64::from(got).to_bits(), want.to_bits(), "{bits:#06x}: {got} is not {want}");
            }
        }
    }

    #[test]
    fn every_f16_code_has_the_value_of_the_standard() {
        check_all(f16_to_f32, 10, 15);
    }

    #[test]
    fn every_bf16_code_has_the_value_of_the_format() {
        check_all(bf16_to_f32, 7, 127);
    }
}
