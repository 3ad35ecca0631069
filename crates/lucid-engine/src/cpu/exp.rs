//! `e^x` for softmax and SiLU: branch-free, so that the compiler vectorizes loops over it, and the same bits everywhere.

/// `e^x` in f32, within 3 units in the last place; 0 below -87.3, where the true value is under the smallest
/// normal; above 88 it stays at e^88, short of infinity.
///
/// Splits `x = n ln 2 + r` (ln 2 in two parts, after Cody & Waite 1980) and sums the Taylor series of `e^r` to r⁷, whose
/// rest is below half a unit in the last place for |r| ≤ ln 2 / 2.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2^23 leaves a whole number in the low mantissa bits: rounding without a branch.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.3, 88.0);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let series = 1.0 / 5_040.0;
    let series = series * r + 1.0 / 720.0;
    let series = series * r + 1.0 / 120.0;
    let series = series * r + 1.0 / 24.0;
    let series = series * r + 1.0 / 6.0;
    let series = series * r + 0.5;
    let series = series * r + 1.0;
    let series = series * r + 1.0;
    let exponent = (shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits());
    let power = f32::from_bits(exponent);
    if x < -87.3 {
        0.0
    } else {
        // NaN stays NaN: `clamp` keeps it, and so does the sum.
        series * power
    }
}

/// `x · sigmoid(x)`.
#[inline(always)]
#[must_use]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_within_three_units_of_the_last_place() {
        let mut x = -87.2f32;
        while x < 88.0 {
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 3.0 * f64::from(f32::EPSILON) / 2.0 * 1.5, "exp({x}) is off by {error:e}");
            x += 0.0137;
        }
    }

    #[test]
    fn edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-100.0), 0.0);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(1e9) > 1e38);
        assert_eq!(silu(0.0), 0.0);
        assert!((silu(1.0) - 0.731_058_6).abs() < 1e-6);
        assert!(silu(f32::NAN).is_nan());
    }
}
