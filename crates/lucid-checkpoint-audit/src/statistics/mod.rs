//! Statistics of the weights, and what is notable about them.

mod gguf_blocks;
mod moments;
mod notable;
mod scales;
mod summary;
mod zero_run;

use serde::{Deserialize, Serialize};

pub use moments::Moments;
pub(crate) use moments::{Partial, Reading};
pub(crate) use summary::{Read, summarize};

use crate::evidence::Capped;

/// What the bytes of the weights say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Statistics {
    /// Bytes that were read.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Tensors that were read.
    pub tensors: u64,
    /// Tensors that could not be read, with the reason; at most 64.
    pub unread: Capped<String>,
    /// Matrices and vectors by name pattern and layer; at most 20,000.
    pub layers: Capped<LayerStatistics>,
    /// What is notable, by kind.
    pub notable: Vec<Notable>,
    /// Global NVFP4 scales and static activation scales, by kind of name.
    pub scalars: Vec<ScalarStatistics>,
    /// Pairs of gate and up projections whose scales were compared.
    pub gate_up_pairs: u64,
    /// Scales of the KV cache (`k_scale`, `v_scale`).
    pub kv_scales: KvScales,
}

/// The modules of one name pattern in one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerStatistics {
    /// `model.layers.*.mlp.experts.*.gate_proj`.
    pub pattern: String,
    /// The layer, if the name has one.
    pub layer: Option<u32>,
    /// How many modules.
    pub modules: u64,
    /// Root mean square of the values, decoded as far as scales and codes are independent.
    pub rms: f64,
    /// Of the module with the smallest.
    pub least: f64,
    /// Of the module with the largest.
    pub greatest: f64,
}

/// Tensors with the same oddity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notable {
    /// The oddity.
    pub kind: NotableKind,
    /// The tensors; at most 64.
    pub tensors: Capped<NotableTensor>,
}

/// A tensor that is odd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NotableTensor {
    /// Its name.
    pub name: String,
    /// Its shard.
    pub shard: String,
    /// The oddity in numbers.
    pub text: String,
    /// The number that decides.
    pub value: f64,
}

/// Kinds of oddities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotableKind {
    /// Values that are no number or infinite.
    NotFinite,
    /// Scales that are no number or infinite.
    ScaleNotFinite,
    /// A matrix of zeros only.
    AllZero,
    /// A matrix in which every value is the same.
    Constant,
    /// A long run of zero bytes inside a tensor that otherwise has values.
    ZeroRun,
    /// The same, in whole rows of an embedding or a head: unused vocabulary.
    ZeroRows,
    /// Values far above what weights are.
    Implausible,
    /// Most values below the type's normal range.
    Subnormal,
    /// Nearly all block scales in the subnormal range of E4M3, where three bits of precision are gone.
    ScaleSubnormal,
    /// Scales below zero.
    ScaleNegative,
    /// Scales of zero.
    ScaleZero,
    /// A global scale that is zero, negative or no number.
    GlobalInvalid,
    /// A multiplier as large as only a divisor is, or the reverse.
    GlobalReciprocal,
    /// Decoded weights too large or too small by orders of magnitude.
    DecodedMagnitude,
    /// `gate_proj` and `up_proj` with different global scales.
    GateUpWeight,
    /// `gate_proj` and `up_proj` with different activation scales.
    GateUpInput,
    /// An activation scale that is zero, negative or no number.
    InputInvalid,
    /// An activation scale that no activation reaches.
    InputSaturated,
    /// A quantized module without an activation scale among others that have one.
    InputMissing,
    /// A quantized module without its block or global scales.
    ScaleMissing,
    /// A layer ten times off its neighbours.
    LayerOutlier,
    /// An expert ten times off the other experts of its layer.
    ExpertOutlier,
}

/// Scalars of one kind of name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalarStatistics {
    /// The last part of the names: `weight_scale_2`.
    pub name: String,
    /// How many.
    pub count: u64,
    /// The smallest.
    pub least: f64,
    /// The one in the middle.
    pub median: f64,
    /// The largest.
    pub greatest: f64,
}

/// Scales of the KV cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvScales {
    /// How many there are.
    pub count: u64,
    /// How many of them are exactly 1.
    pub ones: u64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub greatest: f64,
}
