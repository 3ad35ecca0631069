//! Place, strength and onset of a fault, drawn from its seed.

use std::fmt::Write;
use std::ops::Range;

use lucid_checkpoint::Config;

use super::{Dosage, Plant, Planted, Projection};

/// A fault's parameters in one model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dose {
    /// Layers that have it.
    pub(crate) layers: Range<usize>,
    /// How strong; the unit is the fault's own (see [`Dose::new`]).
    pub(crate) strength: f64,
    /// When it begins: requests, tokens, rows or sequences.
    pub(crate) onset: usize,
    /// Which projection is another layer's, and that layer, where it is said.
    pub(crate) copied: Option<(Projection, usize)>,
}

impl Dose {
    /// The dose of a fault in a model of this config.
    pub(crate) fn new(planted: Planted, config: &Config) -> Dose {
        let plant = planted.plant;
        let parts = layers_with(plant, config);
        let (typical, range) = strengths(plant);
        let (onset, onsets) = onsets(plant);
        match planted.dosage {
            Dosage::Typical => Dose { layers: parts, strength: typical, onset, copied: None },
            Dosage::InLayer(layer) => {
                Dose { layers: layer..layer + 1, strength: typical, onset, copied: None }
            }
            Dosage::Strength(strength, layer) => {
                let layers = layer.map_or(parts, |layer| layer..layer + 1);
                Dose { layers, strength, onset, copied: None }
            }
            Dosage::Copied { projection, layer, from, share } => {
                Dose { layers: layer..layer + 1, strength: share, onset, copied: Some((projection, from)) }
            }
            Dosage::Drawn(seed) => {
                let mut draws = Draws::new(seed ^ plant as u64);
                // Half of the drawn instances sit in a single layer, where the fault can.
                let single = plant == Plant::WeightsRequantized4Bit
                    || plant == Plant::PrefillOver64Garbage
                    || plant == Plant::PromptsTogether
                    || plant == Plant::GemmZerosAtSizes
                    || plant == Plant::LoaderViewOverwritten
                    || (plant.has_layers() && draws.below(2) == 0);
                let layers = match single {
                    true => {
                        let layer = parts.start + draws.below(parts.len().max(1));
                        layer..layer + 1
                    }
                    false => parts,
                };
                let strength = range[draws.below(range.len())];
                Dose { layers, strength, onset: onsets[draws.below(onsets.len())], copied: None }
            }
        }
    }

    /// In words.
    pub(crate) fn describe(&self, plant: Plant) -> String {
        let mut text = plant.name().to_owned();
        if plant.has_layers() {
            // Writing to a String can't fail.
            let _ = match self.layers.len() {
                1 => write!(text, " in layer {}", self.layers.start),
                _ => {
                    write!(text, " in layers {} to {}", self.layers.start, self.layers.end.saturating_sub(1))
                }
            };
        }
        if let Some((projection, from)) = self.copied {
            let _ = write!(text, ", {} of layer {from}", projection.name());
        }
        if strengths(plant).1.len() > 1 {
            let _ = write!(text, ", strength {}", self.strength);
        }
        if onsets(plant).1.len() > 1 {
            let _ = write!(text, ", onset {}", self.onset);
        }
        text
    }
}

/// Layers that have the part in question.
fn layers_with(plant: Plant, config: &Config) -> Range<usize> {
    let first = match plant {
        Plant::SharedExpertDropped
        | Plant::GateUpSwapped
        | Plant::ExpertsOfFirstRankAlone
        | Plant::ExpertsOfOneRankLost
        | Plant::SharedExpertUnderweighted
        | Plant::WeightsRequantized4Bit => {
            (0..config.num_hidden_layers).find(|&i| config.is_moe_layer(i)).unwrap_or(0)
        }
        _ => 0,
    };
    first..config.num_hidden_layers
}

/// The usual strength, and those that are drawn.
fn strengths(plant: Plant) -> (f64, &'static [f64]) {
    match plant {
        // Divides the factor.
        Plant::YarnFactorHalf => (2.0, &[2.0, 4.0]),
        // Experts that are left out.
        Plant::ExpertTopKMinusOne => (1.0, &[1.0]),
        // The factor that is used instead.
        Plant::RoutedScalingMissing => (1.0, &[1.0]),
        // The base: as it was first published (Su et al., arXiv:2104.09864), and those of other families.
        Plant::RopeThetaDefault => (1e4, &[1e4, 1e5, 5e5, 1e6]),
        // The epsilon; published models have 1e-6 or 1e-5.
        Plant::RmsNormEps => (1e-2, &[1e-3, 1e-2, 0.1]),
        // What the scale is multiplied with. Without the RoPE part, a head of 192 has 1.22 times the scale.
        Plant::SoftmaxScale => (1.22, &[0.7, 0.82, 1.22, 1.5]),
        // The epsilon itself; the right one is 1e-6 to 1e-5, and mean squares of latents are around 1.
        Plant::LatentNormEps => (1.0, &[0.3, 1.0, 3.0]),
        // Tensor-parallel ranks.
        Plant::KvBShardOrder => (2.0, &[2.0, 4.0, 8.0]),
        // Columns that share a scale.
        Plant::WeightsRequantized4Bit => (32.0, &[32.0, 64.0, 128.0]),
        // The same for answers alone.
        Plant::DecodeSoftmaxScale => (1.22, &[0.7, 0.82, 1.22, 1.5]),
        // Positions.
        Plant::DecodePositionShifted => (-1.0, &[-1.0, 1.0]),
        // What is left of an entry.
        Plant::DecodeKvScale => (0.5, &[0.35, 0.5, 2.0, 4.0]),
        Plant::KvScaleMissingOnRead => (0.5, &[0.2, 0.35, 0.5, 2.0, 4.0]),
        // How fast entries grow: so many times themselves after 64 positions.
        Plant::DriftAfterNTokens => (3.0, &[2.0, 3.0, 6.0]),
        // The power of the global scale that is applied.
        Plant::Nvfp4GlobalScaleLeftOut => (0.0, &[0.0, 2.0]),
        // Ranks that share the experts.
        Plant::ExpertsOfFirstRankAlone => (4.0, &[2.0, 4.0]),
        // Ranks that share the experts, and which of them is lost: 4.25 is the second of four.
        Plant::ExpertsOfOneRankLost => (4.75, &[2.0, 4.0, 4.25, 4.75, 8.0, 8.625]),
        // The same of the ranks of a sum.
        Plant::AttentionSumsLackARank | Plant::SumsLackARank => {
            (4.75, &[2.0, 2.5, 4.0, 4.25, 4.75, 8.0, 8.625])
        }
        // Ranks that share the heads.
        Plant::SmallSumsLackARank => (4.0, &[2.0, 4.0, 8.0]),
        // Share of the matrix that is the next layer's.
        Plant::LoaderViewOverwritten => (1.0, &[0.5, 1.0]),
        // bfloat16's steps from 4 and from 8 on: GLM-5.2's biases lie around 7.
        Plant::RouterBiasCoarse => (0.03125, &[0.03125, 0.0625]),
        // The power of `routed_scaling_factor` that the shared expert has too much.
        Plant::SharedExpertUnderweighted => (-1.0, &[-1.0, 1.0]),
        // Significant bits of E4M3 and E5M2. bfloat16 has 8, which move the canary by less than f32's rounding is allowed.
        Plant::RouterLogitsCoarse => (4.0, &[4.0, 3.0]),
        // Ranks that share the context, page by page.
        Plant::DecodeContextShardLost => (2.0, &[2.0, 4.0]),
        // Numbers of rows that are a multiple of this are too many.
        Plant::GemmZerosAtSizes => (8.0, &[4.0, 8.0, 16.0]),
        // Every so-many-th reuse: if every one failed, the page would hold its very first content for ever.
        Plant::StaleKvPage => (2.0, &[2.0, 3.0]),
        // Every so-many-th step.
        Plant::BatchCrossTalk => (1.0, &[1.0, 1.0, 2.0]),
        _ => (1.0, &[1.0]),
    }
}

/// The usual onset, and those that are drawn.
fn onsets(plant: Plant) -> (usize, &'static [usize]) {
    match plant {
        // Position in the sequence.
        Plant::DriftAfterNTokens => (48, &[40, 56, 72]),
        // Tokens at a page's beginning that are compared.
        Plant::PrefixPartialHash => (16, &[12, 16, 24, 32]),
        // Reuses of pages before the first stale one.
        Plant::StaleKvPage => (0, &[0, 5, 20]),
        // Sequences in the step.
        Plant::BatchCrossTalk => (2, &[2, 3, 4]),
        // Rows of the step that are still right.
        Plant::PrefillOver64Garbage => (64, &[64, 128, 256]),
        // Rows of the longest step whose sums are small.
        Plant::SmallSumsLackARank => (64, &[16, 64, 256]),
        // Position of the last token that is still right.
        Plant::DecodeContextShardLost => (128, &[128, 192, 256]),
        // Requests that are still answered.
        Plant::NanAfterNRequests | Plant::NanSanitized => (20, &[8, 20, 40]),
        _ => (0, &[0]),
    }
}

/// `SplitMix64`: Steele, Lea and Flood, OOPSLA 2014.
struct Draws(u64);

impl Draws {
    fn new(seed: u64) -> Draws {
        Draws(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * bound as u128) >> 64) as usize
    }
}
