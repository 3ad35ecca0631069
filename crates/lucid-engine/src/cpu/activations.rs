//! W4A4: activations rounded to NVFP4 before they meet NVFP4 weights, as Blackwell's kernels do.
//!
//! `input_scale` `s` is the activations' global scale, calibrated as amax(x) / (6 · 448). With `g = 1 / s`, for each block of
//! 16 values of a vector:
//!
//! ```text
//! b = E4M3(g · (max|x| / 6))            to nearest, ties to even, at most 448
//! q_i = E2M1(x_i · 1 / (b · (1 / g)))   to nearest, ties to even code, at most 6
//! x_i becomes q_i · b · s
//! ```
//!
//! A block of zeros, or one so small that `b` rounds to 0, becomes zeros. Sources: vLLM `csrc/quantization/fp4/nvfp4_utils.cuh`
//! (`cvt_warp_fp16_to_fp4`) and `tests/kernels/quantization/nvfp4_utils.py` (`ref_nvfp4_quant`); PTX ISA, `cvt.rn.satfinite.e2m1x2`.
//! The kernels use approximate reciprocals and bf16 inputs; here both are f32.
//!
//! The products of codes and block scales are summed and multiplied with `s` and the weights' global scale at the end there, here
//! `s` is in the values: the same but for the last bit of each value.

use lucid_checkpoint::{E4M3, Matrix, Packed, f32_to_e4m3, nvfp4};

use super::vectorize::vectorized;

/// The `input_scale` that weights share which read the same activations: the largest, as vLLM takes it. `None` if none is NVFP4.
#[must_use]
pub fn input_scale(weights: &[&Matrix]) -> Option<f32> {
    let scales = weights.iter().filter_map(|weight| match weight.packed {
        Packed::Nvfp4 { input_scale, .. } => input_scale,
        _ => None,
    });
    scales.reduce(f32::max)
}

vectorized! {
    /// Rounds every block of 16 values to NVFP4 and back. Values that are not finite become NaN: kernels would make the largest
    /// number of them, and nobody would see it. `values` are whole blocks: rows of a multiple of 16 columns.
    pub fn round_to_nvfp4(values: &mut [f32], input_scale: f32) {
        let inverse = 1.0 / input_scale;
        for block in values.as_chunks_mut::<{ nvfp4::BLOCK }>().0 {
            let mut highest = 0f32;
            for x in block.iter() {
                highest = if x.abs() > highest { x.abs() } else { highest };
            }
            let scale = E4M3[f32_to_e4m3(inverse * (highest / 6.0)) as usize];
            let factor = if scale == 0.0 { 0.0 } else { 1.0 / (scale * (1.0 / inverse)) };
            for x in block.iter_mut() {
                // Zero, or NaN for what is not finite.
                let strange = *x * 0.0;
                *x = (round_to_e2m1(*x * factor) * scale) * input_scale + strange;
            }
        }
    }
}

/// The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with x's sign; ties go to the even code, and 6 is the largest.
#[inline(always)]
fn round_to_e2m1(x: f32) -> f32 {
    let magnitude = x.abs();
    // The codes are 0.5 apart below 2, 1 apart below 4, 2 apart beyond.
    let step = if magnitude < 2.0 {
        0.5
    } else if magnitude < 4.0 {
        1.0
    } else {
        2.0
    };
    let rounded = (magnitude / step).round_ties_even() * step;
    (if rounded > 6.0 { 6.0 } else { rounded }).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OCP Microscaling Formats v1.0, 5.3.3: the codes, and to which of two a tie goes.
    #[test]
    fn e2m1_rounds_to_the_nearest_code_and_ties_to_the_even_one() {
        let ties =
            [(0.25f32, 0.0f32), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)];
        for (tie, even) in ties {
            let codes = &nvfp4::E2M1[..8];
            let above = codes.iter().copied().find(|code| *code > tie).unwrap();
            let below = codes.iter().copied().rev().find(|code| *code < tie).unwrap();
            for (x, want) in [(tie.next_down(), below), (tie, even), (tie.next_up(), above)] {
                assert_eq!(round_to_e2m1(x), want, "{x}");
                assert_eq!(round_to_e2m1(-x).to_bits(), (-want).to_bits(), "-{x}");
            }
        }
        for x in [6.0f32, 7.0, 1e30] {
            assert_eq!((round_to_e2m1(x), round_to_e2m1(-x)), (6.0, -6.0));
        }
        for &code in &nvfp4::E2M1 {
            assert_eq!(round_to_e2m1(code).to_bits(), code.to_bits());
        }
    }

    /// What ml_dtypes made of these vectors (tests/goldens/semantics.py): ties, zero and tiny blocks, saturation, random numbers.
    #[test]
    fn vectors_become_what_the_definition_makes_of_them() {
        let text = include_str!("../../tests/goldens/semantics.json");
        let golden: serde_json::Value = serde_json::from_str(text).unwrap();
        let floats = |value: &serde_json::Value| -> Vec<f32> {
            let digits: Vec<u8> = value
                .as_str()
                .unwrap()
                .bytes()
                .map(|digit| (digit as char).to_digit(16).unwrap() as u8)
                .collect();
            let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
            bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
        };
        let cases = golden["blocks"].as_array().unwrap();
        assert!(cases.len() > 10);
        for case in cases {
            let (scale, mut values) = (floats(&case["input_scale"])[0], floats(&case["before"]));
            let before = values.clone();
            round_to_nvfp4(&mut values, scale);
            for ((x, ours), expected) in before.iter().zip(&values).zip(floats(&case["after"])) {
                // A value that rounds to zero may have either sign.
                assert_eq!(*ours, expected, "{x:e} with scale {scale:e}");
            }
        }
    }

    #[test]
    fn blocks_of_nothing_stay_and_what_is_not_finite_is_seen() {
        let mut zeros = [0f32; 16];
        round_to_nvfp4(&mut zeros, 0.01);
        assert_eq!(zeros, [0f32; 16]);
        // 6 · 2^-10 · s: half of the smallest scale, a tie that goes to 0.
        let mut tiny = [0f32; 16];
        tiny[3] = 6.0 * 2f32.powi(-10) * 0.5;
        round_to_nvfp4(&mut tiny, 0.5);
        assert_eq!(tiny, [0f32; 16]);
        // Beyond 6 · 448 · s, the scale and the code are at their ends.
        let mut large = [1f32; 16];
        large[0] = -1e6;
        round_to_nvfp4(&mut large, 0.5);
        assert_eq!(large[0], -6.0 * 448.0 * 0.5);
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1f32; 32];
            values[5] = wrong;
            round_to_nvfp4(&mut values, 0.01);
            assert!(values[5].is_nan());
            assert!(values[16..].iter().all(|x| x.is_finite()));
        }
    }
}
