//! RMSNorm: `y = w ⊙ x / sqrt(mean(x²) + eps)`, statistics in f32 (Zhang & Sennrich 2019, arXiv:1910.07467).

use super::vectorize::vectorized;

vectorized! {
    /// Normalizes `x` into `out`; all three slices have the same length.
    ///
    /// The sum of squares runs over sixteen lanes, so that its order is fixed whatever the vector width.
    pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let scale = inverse_rms(x, eps);
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    }

    /// The same, in place.
    pub fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
        let scale = inverse_rms(x, eps);
        for (x, &weight) in x.iter_mut().zip(weight) {
            *x = *x * scale * weight;
        }
    }
}

vectorized! {
    /// LayerNorm, in place: `y = w ⊙ (x - mean(x)) / sqrt(var(x) + eps) + b` (Ba et al. 2016, arXiv:1607.06450).
    pub fn layer_norm_in_place(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
        let mean = mean(x);
        for x in x.iter_mut() {
            *x -= mean;
        }
        let scale = inverse_rms(x, eps);
        for ((x, &weight), &bias) in x.iter_mut().zip(weight).zip(bias) {
            *x = *x * scale * weight + bias;
        }
    }
}

/// Over sixteen lanes, as below.
#[inline(always)]
fn mean(x: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    for block in x.chunks(16) {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane += x;
        }
    }
    lanes.iter().sum::<f32>() / x.len() as f32
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let mut lanes = [0f32; 16];
    let (blocks, tail) = x.as_chunks::<16>();
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane += x * x;
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(tail) {
        *lane += x * x;
    }
    let mean = lanes.iter().sum::<f32>() / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_formula_in_f64() {
        let x: Vec<f32> = (0..37).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let weight: Vec<f32> = (0..37).map(|i| 0.5 + i as f32 / 40.0).collect();
        let mut out = vec![0.0; 37];
        rms_norm(&x, &weight, 1e-5, &mut out);
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 37.0;
        for ((&out, &x), &w) in out.iter().zip(&x).zip(&weight) {
            let expected = f64::from(w) * f64::from(x) / (mean + 1e-5).sqrt();
            assert!((f64::from(out) - expected).abs() < 1e-6);
        }
        let mut same = x.clone();
        rms_norm_in_place(&mut same, &weight, 1e-5);
        assert_eq!(same, out);
    }

    #[test]
    fn layer_norm_matches_the_formula_in_f64() {
        let mut x: Vec<f32> = (0..43).map(|i| (i as f32 * 0.7).sin() * 3.0 + 5.0).collect();
        let before = x.clone();
        let weight: Vec<f32> = (0..43).map(|i| 0.5 + i as f32 / 40.0).collect();
        let bias: Vec<f32> = (0..43).map(|i| (i as f32).cos()).collect();
        layer_norm_in_place(&mut x, &weight, &bias, 1e-6);
        let mean = before.iter().map(|&x| f64::from(x)).sum::<f64>() / 43.0;
        let variance = before.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / 43.0;
        for (((x, before), w), b) in x.iter().zip(&before).zip(&weight).zip(&bias) {
            let [x, before, w, b] = [x, before, w, b].map(|&x| f64::from(x));
            let expected = w * (before - mean) / (variance + 1e-6).sqrt() + b;
            assert!((x - expected).abs() < 2e-6, "{x} {expected}");
        }
    }
}
