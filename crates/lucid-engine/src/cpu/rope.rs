//! Rotary position embedding with YaRN (Peng et al. 2023, arXiv:2309.00071), as DeepSeek-V3 uses it.

use lucid_checkpoint::{Config, Yarn};

/// The angles of every position, and the pairing that they rotate.
pub struct Rope {
    /// `[positions, dim / 2]` cosines and sines, interleaved.
    cos_sin: Vec<[f32; 2]>,
    pairs: usize,
    interleaved: bool,
}

impl Rope {
    /// Tables for `positions` positions. Angles are computed in f64: at position 100,000 an f32 angle is off by 0.004.
    #[must_use]
    pub fn new(config: &Config, positions: usize, interleaved: bool) -> Rope {
        let frequencies = frequencies(config);
        let magnitude = magnitude(config.rope_scaling.as_ref());
        let pairs = frequencies.len();
        let mut cos_sin = Vec::with_capacity(positions * pairs);
        for position in 0..positions {
            for frequency in &frequencies {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                cos_sin.push([(cos * magnitude) as f32, (sin * magnitude) as f32]);
            }
        }
        Rope { cos_sin, pairs, interleaved }
    }

    /// Rotates `x` `[dim]` to `position`, in place.
    pub fn rotate(&self, x: &mut [f32], position: usize) {
        let angles = &self.cos_sin[position * self.pairs..(position + 1) * self.pairs];
        if self.interleaved {
            // Checkpoints of this family hold pairs (x0, x1), (x2, x3), …
            let (pairs, _) = x.as_chunks_mut::<2>();
            for (pair, &[cos, sin]) in pairs.iter_mut().zip(angles) {
                *pair = [pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin];
            }
        } else {
            let (low, high) = x.split_at_mut(self.pairs);
            for ((low, high), &[cos, sin]) in low.iter_mut().zip(high).zip(angles) {
                (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
            }
        }
    }
}

/// One frequency for each pair, in radians a position.
///
/// Fast dimensions keep `theta^(-2j/R)`, slow ones are divided by the YaRN factor, with a linear ramp between
/// the dimensions that turn `beta_fast` and `beta_slow` times over the original context.
fn frequencies(config: &Config) -> Vec<f64> {
    let dim = config.qk_rope_head_dim as f64;
    let theta = config.rope_theta;
    let plain = (0..config.qk_rope_head_dim / 2).map(|j| theta.powf(-2.0 * j as f64 / dim));
    let Some(yarn) = &config.rope_scaling else { return plain.collect() };
    let turns_at = |turns: f64| {
        let original = yarn.original_max_position_embeddings as f64;
        dim * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * theta.ln())
    };
    let low = turns_at(yarn.beta_fast).floor().max(0.0);
    let mut high = turns_at(yarn.beta_slow).ceil().min(dim - 1.0);
    if low == high {
        high += 0.001;
    }
    plain
        .enumerate()
        .map(|(j, frequency)| {
            let slow = ((j as f64 - low) / (high - low)).clamp(0.0, 1.0);
            frequency * (1.0 - slow) + frequency / yarn.factor * slow
        })
        .collect()
}

/// What cosines and sines are multiplied with: 1 for every published model of this family, whose `mscale` and
/// `mscale_all_dim` are equal. Without either, transformers takes `0.1 ln(factor) + 1`.
fn magnitude(yarn: Option<&Yarn>) -> f64 {
    let Some(yarn) = yarn else { return 1.0 };
    match (yarn.mscale, yarn.mscale_all_dim) {
        (Some(mscale), Some(all_dim)) if mscale != 0.0 && all_dim != 0.0 => {
            yarn_mscale(yarn.factor, mscale) / yarn_mscale(yarn.factor, all_dim)
        }
        _ => yarn_mscale(yarn.factor, 1.0),
    }
}

/// `0.1 · mscale · ln(factor) + 1`, and 1 for factors up to 1.
fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// The softmax scale: `(N + R)^-0.5 · m²`, with `m` from `mscale_all_dim` under YaRN.
#[must_use]
pub fn softmax_scale(config: &Config) -> f32 {
    let head_dim = (config.qk_nope_head_dim + config.qk_rope_head_dim) as f64;
    let m = match config.rope_scaling.as_ref().and_then(|yarn| Some((yarn.factor, yarn.mscale_all_dim?))) {
        Some((factor, all_dim)) => yarn_mscale(factor, all_dim),
        None => 1.0,
    };
    (m * m / head_dim.sqrt()) as f32
}
