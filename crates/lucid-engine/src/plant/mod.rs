//! Planted faults: known mistakes, so that the doctor can be scored on finding them.
//!
//! A fault changes exactly one thing. It is part of the normal binary, and a server refuses it without an explicit
//! acknowledgement (see `lucid serve --plant`). Where it sits and how strong it is comes from a [`Dosage`]: the doctor's
//! hypotheses take the typical one, the drill draws it from a seed, so that nothing can be tuned to one instance.
//!
//! Faults of the model's arithmetic change what is computed once, when the model is loaded: its [`config`] or its
//! [`weights`]. Faults of the serving depend on time and company, and act while the model runs ([`running`]).

mod config;
mod copies;
mod dose;
mod ranks;
mod running;
mod weights;

use std::fmt;

use lucid_checkpoint::Config;

pub use copies::Projection;
pub(crate) use dose::Dose;
pub(crate) use running::{Attended, Running};

use crate::Error;
use crate::weights::Weights;

/// A mistake that inference engines really make, planted in this one on purpose. New ones come last: what a seed draws depends on the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plant {
    /// Rotates the two halves of the RoPE part (NeoX style) where the checkpoint has adjacent pairs.
    /// The most common porting error: fluent for a few tokens, then garbage.
    RopeHalfSplit,
    /// Divides YaRN's factor: an override of the config, or a file of another context length.
    YarnFactorHalf,
    /// Leaves YaRN's magnitude out of the softmax scale.
    YarnMscaleMissing,
    /// Chooses experts without `e_score_correction_bias`.
    RouterBiasMissing,
    /// Weighs experts with the biased score, where the bias is for the choice alone.
    RouterBiasInWeights,
    /// Leaves `routed_scaling_factor` out.
    RoutedScalingMissing,
    /// Leaves the shared expert out.
    SharedExpertDropped,
    /// Asks one expert fewer than the config says.
    ExpertTopKMinusOne,
    /// Takes the experts' gate for their up projection and the reverse: the order of a fused tensor.
    GateUpSwapped,
    /// Gives each rank of a tensor-parallel group its neighbour's heads of `kv_b_proj`.
    KvBShardOrder,
    /// Uses 1 / `weight_scale_2` for NVFP4 weights: the compressed-tensors convention on a `ModelOpt` file.
    Nvfp4GlobalScaleInverted,
    /// Swizzles NVFP4 block scales for tensor cores, and reads them as plain rows.
    Nvfp4ScalesSwizzled,
    /// Takes the high nibble of an NVFP4 byte for the even column.
    Nvfp4NibblesSwapped,
    /// Adds a far too large epsilon in the two latent norms.
    LatentNormEps,
    /// Rounds one layer's routed experts to 4 bits a second time.
    WeightsRequantized4Bit,
    /// The attention mask is off by one: a token doesn't see itself.
    CausalOffByOne,
    /// KV entries of earlier steps are read without undoing the scale that they were written with.
    KvScaleMissingOnRead,
    /// Entries written while decoding lose their scale more and more, from some position on.
    DriftAfterNTokens,
    /// A page is taken for another one that begins with the same tokens.
    PrefixPartialHash,
    /// A reused page keeps what its former owner wrote.
    StaleKvPage,
    /// In a batch, a sequence reads its neighbour's first page.
    BatchCrossTalk,
    /// In one layer, rows of a step beyond a power of two get no attention output.
    PrefillOver64Garbage,
    /// After some requests every logit is NaN.
    NanAfterNRequests,
    /// Scores experts by softmax where the config says sigmoid: the rule of an older generation.
    RouterSoftmax,
    /// Takes another base for RoPE than the config's: the usual one, 10,000, or another model's.
    RopeThetaDefault,
    /// Chooses experts within groups that the config doesn't have, or without those that it has: the rule of another member of
    /// the family.
    RouterGroups,
    /// Doesn't divide the chosen experts' scores by their sum.
    NormTopkProbMissing,
    /// Norms have another epsilon than the config's.
    RmsNormEps,
    /// The softmax scale is multiplied by something: by YaRN's magnitude once more, or as if the heads had another width.
    SoftmaxScale,
    /// Folds NVFP4's global scale into the block scales, which have three bits of fraction and end at 2^-9 (vLLM #48536).
    Nvfp4ScalesFolded,
    /// In one layer, prompts that share a step with another prompt get no attention output, but for the first (SGLang #22688).
    PromptsTogether,
    /// Answers are attended to with another softmax scale than prompts: the decoding kernel has its own.
    DecodeSoftmaxScale,
    /// Tokens of answers are rotated as if they stood elsewhere: one position off.
    DecodePositionShifted,
    /// Entries of answers are written to the KV cache with a scale that nobody undoes.
    DecodeKvScale,
    /// Leaves NVFP4's global scale out, or applies it twice: once in the loader and once in the kernel.
    Nvfp4GlobalScaleLeftOut,
    /// After some requests every logit is NaN, and what hides NaNs turns the row into an even distribution (SGLang #33187).
    NanSanitized,
    /// In one layer, the matrix product after attention is zero for some numbers of rows (`FlashInfer` #3398).
    GemmZerosAtSizes,
    /// Only the experts of the first rank of an expert-parallel group answer (vllm-gaudi #1796).
    ExpertsOfFirstRankAlone,
    /// The experts of one rank of an expert-parallel group never answer: their part of the sum is lost.
    ExpertsOfOneRankLost,
    /// Sums over ranks lack the last rank's heads while a step has few rows: small messages take another all-reduce, whose peer writes are
    /// lost (club-3090 #922).
    SmallSumsLackARank,
    /// In one layer, the buffer behind a loaded query projection was used again for the next layer's (SGLang #37369).
    LoaderViewOverwritten,
    /// `e_score_correction_bias` is kept in bfloat16 at a magnitude where that has steps of 1/32: different biases become equal (SGLang #31213).
    RouterBiasCoarse,
    /// Answers beyond a length attend to what all ranks but the last hold of the context: the lost part of decode context parallelism
    /// (vLLM #41623).
    DecodeContextShardLost,
    /// Sums after attention lack one rank's heads, in every step: its part never arrives.
    AttentionSumsLackARank,
    /// Sums after attention, experts and MLPs lack one rank's part, in every step.
    SumsLackARank,
    /// A fused shared expert has a share of its weight: `routed_scaling_factor` is undone where nobody applies it (SGLang #28237).
    SharedExpertUnderweighted,
    /// A prompt's later steps merge what they attended to of earlier ones at wrong offsets: heads are read as if they were as wide as
    /// padded ones (vLLM #26042, #18807).
    ChunkedContextMerge,
    /// The router's logits are computed in a type of few bits, as FP8 has.
    RouterLogitsCoarse,
}

/// Where a fault acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    /// Sizes and rules, before anything is computed with them.
    Config,
    /// What was loaded.
    Weights,
    /// An attribute of [`Semantics`](crate::Semantics).
    Semantics,
    /// The mask: of the model's arithmetic, but made step by step.
    Mask,
    /// What belongs to no prompt: of the model's arithmetic as well, once it is known where the prompt ends.
    Decoding,
    /// The serving: depends on time and company.
    Running,
}

impl Plant {
    /// Every fault that the engine can plant.
    pub const ALL: [Plant; 48] = [
        Plant::RopeHalfSplit,
        Plant::YarnFactorHalf,
        Plant::YarnMscaleMissing,
        Plant::RouterBiasMissing,
        Plant::RouterBiasInWeights,
        Plant::RoutedScalingMissing,
        Plant::SharedExpertDropped,
        Plant::ExpertTopKMinusOne,
        Plant::RouterSoftmax,
        Plant::RopeThetaDefault,
        Plant::RouterGroups,
        Plant::NormTopkProbMissing,
        Plant::RmsNormEps,
        Plant::SoftmaxScale,
        Plant::GateUpSwapped,
        Plant::KvBShardOrder,
        Plant::Nvfp4GlobalScaleInverted,
        Plant::Nvfp4ScalesSwizzled,
        Plant::Nvfp4NibblesSwapped,
        Plant::Nvfp4ScalesFolded,
        Plant::Nvfp4GlobalScaleLeftOut,
        Plant::ExpertsOfFirstRankAlone,
        Plant::ExpertsOfOneRankLost,
        Plant::LoaderViewOverwritten,
        Plant::RouterBiasCoarse,
        Plant::RouterLogitsCoarse,
        Plant::AttentionSumsLackARank,
        Plant::SumsLackARank,
        Plant::SharedExpertUnderweighted,
        Plant::LatentNormEps,
        Plant::WeightsRequantized4Bit,
        Plant::CausalOffByOne,
        Plant::DecodeSoftmaxScale,
        Plant::DecodePositionShifted,
        Plant::DecodeKvScale,
        Plant::KvScaleMissingOnRead,
        Plant::DriftAfterNTokens,
        Plant::PrefixPartialHash,
        Plant::StaleKvPage,
        Plant::BatchCrossTalk,
        Plant::PrefillOver64Garbage,
        Plant::PromptsTogether,
        Plant::NanAfterNRequests,
        Plant::NanSanitized,
        Plant::GemmZerosAtSizes,
        Plant::SmallSumsLackARank,
        Plant::DecodeContextShardLost,
        Plant::ChunkedContextMerge,
    ];

    /// The fault's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Plant::RopeHalfSplit => "rope-half-split",
            Plant::YarnFactorHalf => "yarn-factor-half",
            Plant::YarnMscaleMissing => "yarn-mscale-missing",
            Plant::RouterBiasMissing => "router-bias-missing",
            Plant::RouterBiasInWeights => "router-bias-in-weights",
            Plant::RoutedScalingMissing => "routed-scaling-missing",
            Plant::SharedExpertDropped => "shared-expert-dropped",
            Plant::ExpertTopKMinusOne => "expert-top-k-minus-one",
            Plant::RouterSoftmax => "router-softmax",
            Plant::RopeThetaDefault => "rope-theta-default",
            Plant::RouterGroups => "router-groups",
            Plant::NormTopkProbMissing => "norm-topk-prob-missing",
            Plant::RmsNormEps => "rms-norm-eps",
            Plant::SoftmaxScale => "softmax-scale",
            Plant::GateUpSwapped => "gate-up-swapped",
            Plant::KvBShardOrder => "kv-b-shard-order",
            Plant::Nvfp4GlobalScaleInverted => "nvfp4-global-scale-inverted",
            Plant::Nvfp4ScalesSwizzled => "nvfp4-scales-swizzled",
            Plant::Nvfp4NibblesSwapped => "nvfp4-nibbles-swapped",
            Plant::Nvfp4ScalesFolded => "nvfp4-scales-folded",
            Plant::LatentNormEps => "latent-norm-eps",
            Plant::WeightsRequantized4Bit => "weights-requantized-4bit",
            Plant::CausalOffByOne => "causal-off-by-one",
            Plant::DecodeSoftmaxScale => "decode-softmax-scale",
            Plant::DecodePositionShifted => "decode-position-shifted",
            Plant::DecodeKvScale => "decode-kv-scale",
            Plant::KvScaleMissingOnRead => "kv-scale-missing-on-read",
            Plant::DriftAfterNTokens => "drift-after-n-tokens",
            Plant::PrefixPartialHash => "prefix-partial-hash",
            Plant::StaleKvPage => "stale-kv-page",
            Plant::BatchCrossTalk => "batch-cross-talk",
            Plant::PrefillOver64Garbage => "prefill-over-64-garbage",
            Plant::PromptsTogether => "prompts-together",
            Plant::NanAfterNRequests => "nan-after-n-requests",
            Plant::Nvfp4GlobalScaleLeftOut => "nvfp4-global-scale-left-out",
            Plant::NanSanitized => "nan-sanitized",
            Plant::GemmZerosAtSizes => "gemm-zeros-at-sizes",
            Plant::ExpertsOfFirstRankAlone => "experts-of-first-rank-alone",
            Plant::ExpertsOfOneRankLost => "experts-of-one-rank-lost",
            Plant::SmallSumsLackARank => "small-sums-lack-a-rank",
            Plant::LoaderViewOverwritten => "loader-view-overwritten",
            Plant::RouterBiasCoarse => "router-bias-coarse",
            Plant::RouterLogitsCoarse => "router-logits-coarse",
            Plant::DecodeContextShardLost => "decode-context-shard-lost",
            Plant::AttentionSumsLackARank => "attention-sums-lack-a-rank",
            Plant::SumsLackARank => "sums-lack-a-rank",
            Plant::SharedExpertUnderweighted => "shared-expert-underweighted",
            Plant::ChunkedContextMerge => "chunked-context-merge",
        }
    }

    /// The fault of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Plant> {
        Plant::ALL.into_iter().find(|plant| plant.name() == name)
    }

    fn site(self) -> Site {
        match self {
            Plant::YarnFactorHalf
            | Plant::YarnMscaleMissing
            | Plant::RoutedScalingMissing
            | Plant::ExpertTopKMinusOne
            | Plant::RouterSoftmax
            | Plant::RopeThetaDefault
            | Plant::RouterGroups
            | Plant::NormTopkProbMissing
            | Plant::RmsNormEps
            | Plant::SoftmaxScale => Site::Config,
            Plant::RouterBiasMissing
            | Plant::RouterBiasInWeights
            | Plant::SharedExpertDropped
            | Plant::GateUpSwapped
            | Plant::KvBShardOrder
            | Plant::Nvfp4GlobalScaleInverted
            | Plant::Nvfp4ScalesSwizzled
            | Plant::Nvfp4NibblesSwapped
            | Plant::Nvfp4ScalesFolded
            | Plant::Nvfp4GlobalScaleLeftOut
            | Plant::ExpertsOfFirstRankAlone
            | Plant::ExpertsOfOneRankLost
            | Plant::LoaderViewOverwritten
            | Plant::RouterBiasCoarse
            | Plant::RouterLogitsCoarse
            | Plant::AttentionSumsLackARank
            | Plant::SumsLackARank
            | Plant::SharedExpertUnderweighted
            | Plant::WeightsRequantized4Bit => Site::Weights,
            Plant::RopeHalfSplit | Plant::LatentNormEps => Site::Semantics,
            Plant::CausalOffByOne => Site::Mask,
            Plant::DecodeSoftmaxScale | Plant::DecodePositionShifted | Plant::DecodeKvScale => Site::Decoding,
            Plant::KvScaleMissingOnRead
            | Plant::DriftAfterNTokens
            | Plant::PrefixPartialHash
            | Plant::StaleKvPage
            | Plant::BatchCrossTalk
            | Plant::PrefillOver64Garbage
            | Plant::PromptsTogether
            | Plant::NanSanitized
            | Plant::GemmZerosAtSizes
            | Plant::SmallSumsLackARank
            | Plant::DecodeContextShardLost
            | Plant::ChunkedContextMerge
            | Plant::NanAfterNRequests => Site::Running,
        }
    }

    /// Whether the distribution after a token depends on the tokens before it alone, as it does in a sound model: then
    /// teacher forcing reproduces the fault, whatever the server did in between.
    #[must_use]
    pub fn is_of_the_model(self) -> bool {
        self.site() != Site::Running
    }

    /// Whether it shows in answers alone.
    #[must_use]
    pub fn is_of_decoding(self) -> bool {
        self.site() == Site::Decoding
    }

    /// Whether it sits in single layers.
    #[must_use]
    pub fn has_layers(self) -> bool {
        matches!(
            self,
            Plant::SharedExpertDropped
                | Plant::GateUpSwapped
                | Plant::KvBShardOrder
                | Plant::Nvfp4GlobalScaleInverted
                | Plant::Nvfp4ScalesSwizzled
                | Plant::Nvfp4NibblesSwapped
                | Plant::Nvfp4GlobalScaleLeftOut
                | Plant::GemmZerosAtSizes
                | Plant::LoaderViewOverwritten
                | Plant::WeightsRequantized4Bit
                | Plant::KvScaleMissingOnRead
                | Plant::BatchCrossTalk
                | Plant::PrefillOver64Garbage
                | Plant::PromptsTogether
        )
    }
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a fault sits and how strong it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dosage {
    /// As the mistake is usually made: in every layer that has the part.
    Typical,
    /// As usual, but in one layer.
    InLayer(usize),
    /// In another strength (tensor-parallel ranks, YaRN's divisor, an epsilon, a base), in one layer or in all that have the part.
    Strength(f64, Option<usize>),
    /// A projection of one layer holds what another layer's holds, to this share: of [`Plant::LoaderViewOverwritten`].
    Copied {
        /// Which.
        projection: Projection,
        /// Of the layer.
        layer: usize,
        /// The layer that it really belongs to.
        from: usize,
        /// The first rows, or the first experts, above 0 and up to 1.
        share: f64,
    },
    /// Place, strength and onset drawn from a seed.
    Drawn(u64),
}

/// A fault with its dosage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planted {
    /// The fault.
    pub plant: Plant,
    /// Where and how strong.
    pub dosage: Dosage,
}

impl From<Plant> for Planted {
    fn from(plant: Plant) -> Planted {
        Planted { plant, dosage: Dosage::Typical }
    }
}

impl Planted {
    /// A fault whose place and strength come from a seed.
    #[must_use]
    pub fn drawn(plant: Plant, seed: u64) -> Planted {
        Planted { plant, dosage: Dosage::Drawn(seed) }
    }

    /// What it is in a model of this config, for people: `gate-up-swapped in layer 3`.
    #[must_use]
    pub fn describe(self, config: &Config) -> String {
        Dose::new(self, config).describe(self.plant)
    }

    /// The config with the fault in it.
    ///
    /// # Errors
    /// When the model has nothing that this fault could change.
    pub(crate) fn change_config(self, config: &mut Config) -> Result<(), Error> {
        config::change(self.plant, &Dose::new(self, config), config)
            .then_some(())
            .ok_or_else(|| self.refused())
    }

    /// The weights with the fault in them.
    ///
    /// # Errors
    /// When the model has nothing that this fault could change.
    pub(crate) fn change_weights(self, config: &Config, weights: &mut Weights) -> Result<(), Error> {
        let done = self.plant.site() != Site::Weights
            || weights::change(self.plant, &Dose::new(self, config), config, weights);
        done.then_some(()).ok_or_else(|| self.refused())
    }

    /// Whether only the processor's forward pass can make it.
    pub(crate) fn needs_cpu(self, config: &Config) -> bool {
        self.running(config).is_some()
            || matches!(self.plant, Plant::RouterBiasInWeights | Plant::RouterLogitsCoarse)
    }

    /// The part that acts while the model runs, if there is one.
    pub(crate) fn running(self, config: &Config) -> Option<Running> {
        matches!(self.plant.site(), Site::Mask | Site::Decoding | Site::Running)
            .then(|| Running::new(self.plant, Dose::new(self, config), config.num_hidden_layers))
    }

    fn refused(self) -> Error {
        Error::Unsupported {
            what: format!("the planted fault {} on this checkpoint: it has no such part", self.plant),
            hint: "plant another fault, or serve the canary",
        }
    }
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dosage {
            Dosage::Typical => write!(f, "{}", self.plant),
            Dosage::InLayer(layer) => write!(f, "{} in layer {layer}", self.plant),
            Dosage::Strength(strength, None) => write!(f, "{} by {strength}", self.plant),
            Dosage::Strength(strength, Some(layer)) => {
                write!(f, "{} by {strength} in layer {layer}", self.plant)
            }
            Dosage::Copied { projection, layer, from, share } => {
                write!(
                    f,
                    "{} by {share} of {} of layer {from} in layer {layer}",
                    self.plant,
                    projection.name()
                )
            }
            Dosage::Drawn(seed) => write!(f, "{} (seed {seed})", self.plant),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_distinct_and_lead_back() {
        let names: HashSet<_> = Plant::ALL.iter().map(|plant| plant.name()).collect();
        assert_eq!(names.len(), Plant::ALL.len());
        for plant in Plant::ALL {
            assert_eq!(Plant::from_name(plant.name()), Some(plant));
        }
    }
}
