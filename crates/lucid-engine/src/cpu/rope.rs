//! Rotary position embedding with YaRN (Peng et al. 2023, arXiv:2309.00071), as DeepSeek-V3 uses it.

use lucid_checkpoint::{Config, Yarn};

use super::vectorize::vectorized;

/// The angles of every position, and the pairing that they rotate.
pub struct Rope {
    /// `[positions, dim / 2]` cosines and sines, interleaved.
    cos_sin: Vec<[f32; 2]>,
    pairs: usize,
    interleaved: bool,
}

impl Rope {
    /// Tables for `positions` positions.
    ///
    /// Frequencies and angles are f32, as in every implementation that these models were trained and are served with. It
    /// matters: with f64 angles a log-probability of the canary at position 3,500 moves by 0.006.
    #[must_use]
    pub fn new(config: &Config, positions: usize, interleaved: bool) -> Rope {
        let frequencies = frequencies(config);
        let magnitude = magnitude(config.rope_scaling.as_ref());
        let pairs = frequencies.len();
        let mut cos_sin = Vec::with_capacity(positions * pairs);
        for position in 0..positions {
            for frequency in &frequencies {
                let angle = position as f32 * frequency;
                let (sin, cos) = f64::from(angle).sin_cos();
                cos_sin.push([(cos * magnitude) as f32, (sin * magnitude) as f32]);
            }
        }
        Rope { cos_sin, pairs, interleaved }
    }

    /// Rotates `x` `[dim]` to `position`, in place.
    pub fn rotate(&self, x: &mut [f32], position: usize) {
        self.rotate_paired(x, position, self.interleaved);
    }

    /// The same with a pairing of choice: neighbours, or halves.
    pub fn rotate_paired(&self, x: &mut [f32], position: usize, interleaved: bool) {
        let angles = &self.cos_sin[position * self.pairs..(position + 1) * self.pairs];
        if interleaved {
            rotate_neighbours(x, angles);
        } else {
            rotate_halves(x, angles);
        }
    }
}

vectorized! {
    /// Checkpoints of this family hold pairs (x0, x1), (x2, x3), …
    fn rotate_neighbours(x: &mut [f32], angles: &[[f32; 2]]) {
        let (pairs, _) = x.as_chunks_mut::<2>();
        for (pair, &[cos, sin]) in pairs.iter_mut().zip(angles) {
            *pair = [pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin];
        }
    }

    /// Pairs (x0, x_R/2), (x1, x_R/2+1), …
    fn rotate_halves(x: &mut [f32], angles: &[[f32; 2]]) {
        let (low, high) = x.split_at_mut(angles.len());
        for ((low, high), &[cos, sin]) in low.iter_mut().zip(high).zip(angles) {
            (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
        }
    }
}

/// One frequency for each pair, in radians a position.
///
/// Fast dimensions keep `theta^(-2j/R)`, slow ones are divided by the YaRN factor, with a linear ramp between
/// the dimensions that turn `beta_fast` and `beta_slow` times over the original context.
fn frequencies(config: &Config) -> Vec<f32> {
    let dim = config.qk_rope_head_dim as f32;
    let wavelengths =
        (0..config.qk_rope_head_dim / 2).map(|j| (config.rope_theta as f32).powf(2.0 * j as f32 / dim));
    let Some(yarn) = &config.rope_scaling else { return wavelengths.map(|w| 1.0 / w).collect() };
    let (low, high) = ramp(config, yarn);
    let factor = yarn.factor as f32;
    wavelengths
        .enumerate()
        .map(|(j, wavelength)| {
            let fast = 1.0 - ((j as f32 - low) / (high - low)).clamp(0.0, 1.0);
            1.0 / (factor * wavelength) * (1.0 - fast) + 1.0 / wavelength * fast
        })
        .collect()
}

/// Between which dimensions the ramp runs.
fn ramp(config: &Config, yarn: &Yarn) -> (f32, f32) {
    let dim = config.qk_rope_head_dim as f64;
    let turns_at = |turns: f64| {
        let original = yarn.original_max_position_embeddings as f64;
        dim * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * config.rope_theta.ln())
    };
    let low = turns_at(yarn.beta_fast).floor().max(0.0);
    let mut high = turns_at(yarn.beta_slow).ceil().min(dim - 1.0);
    if low == high {
        high += 0.001;
    }
    (low as f32, high as f32)
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

#[cfg(test)]
mod tests {
    use lucid_checkpoint::Config;

    use super::*;

    fn config(theta: f64, factor: f64, beta_fast: f64) -> Config {
        let json = format!(
            r#"{{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 8,
            "hidden_size": 16, "num_hidden_layers": 1, "first_k_dense_replace": 1, "intermediate_size": 16,
            "num_attention_heads": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 16, "rms_norm_eps": 1e-6, "max_position_embeddings": 262144,
            "dtype": "bfloat16", "rope_theta": {theta}, "rope_scaling": {{"type": "yarn", "factor": {factor},
            "original_max_position_embeddings": 4096, "beta_fast": {beta_fast}, "beta_slow": 1.0,
            "mscale": 1.0, "mscale_all_dim": 1.0}}}}"#
        );
        Config::from_json("config.json", json.as_bytes()).unwrap()
    }

    /// Published frequencies of real models, computed with transformers: (j, f'_j).
    #[test]
    fn yarn_frequencies_of_the_real_models() {
        type Published = [(usize, f64); 5];
        let k25: Published = [
            (8, 0.066_874_030_5),
            (16, 0.001_537_296_73),
            (19, 0.000_158_374_991),
            (20, 1.807_023_39e-5),
            (31, 4.382_206_46e-7),
        ];
        let k2: Published = [
            (8, 0.066_874_030_5),
            (16, 0.004_472_135_95),
            (19, 0.001_621_759_91),
            (20, 3.614_046_77e-5),
            (31, 8.764_412_91e-7),
        ];
        let v3: Published =
            [(8, 0.1), (16, 0.005_5), (19, 0.001_370_513_64), (20, 0.000_790_569_415), (31, 3.333_803_58e-6)];
        for (config, published) in
            [(config(5e4, 64.0, 32.0), k25), (config(5e4, 32.0, 1.0), k2), (config(1e4, 40.0, 32.0), v3)]
        {
            let frequencies = frequencies(&config);
            assert_eq!(frequencies.len(), 32);
            for (j, expected) in published {
                let relative = (f64::from(frequencies[j]) - expected).abs() / expected;
                assert!(relative < 1e-6, "f'_{j} is {}, expected {expected}", frequencies[j]);
            }
            assert_eq!(magnitude(config.rope_scaling.as_ref()), 1.0);
        }
    }

    #[test]
    fn softmax_scales_of_the_real_models() {
        for (theta, factor, expected) in
            [(5e4, 32.0, 0.130_860_8), (5e4, 64.0, 0.144_679_63), (1e4, 40.0, 0.135_233_78)]
        {
            assert!((softmax_scale(&config(theta, factor, 32.0)) - expected).abs() < 1e-7);
        }
    }

    #[test]
    fn rotation_turns_pairs_and_keeps_lengths() {
        let rope = Rope::new(&config(1e4, 40.0, 32.0), 3, true);
        let mut x = [0f32; 64];
        (x[0], x[1]) = (1.0, 0.0);
        rope.rotate(&mut x, 2);
        assert!((x[0] - 2f32.cos()).abs() < 1e-6 && (x[1] - 2f32.sin()).abs() < 1e-6);
        assert!(x[2..].iter().all(|&x| x == 0.0));
        let halves = Rope::new(&config(1e4, 40.0, 32.0), 3, false);
        let mut x = [0f32; 64];
        x[0] = 1.0;
        halves.rotate(&mut x, 2);
        assert!((x[0] - 2f32.cos()).abs() < 1e-6 && (x[32] - 2f32.sin()).abs() < 1e-6);
    }
}
