//! Planted faults: known mistakes, so that the doctor can be scored on finding them.
//!
//! A fault changes exactly one thing. It is part of the normal binary, and a server refuses it without
//! an explicit acknowledgement (see `lucid serve --plant`).

use std::fmt;

/// A mistake that inference engines really make, planted in this one on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plant {
    /// Rotates the two halves of the RoPE part (NeoX style) where the checkpoint has adjacent pairs.
    /// The most common porting error: fluent for a few tokens, then garbage.
    RopeHalfSplit,
    /// Chooses experts without `e_score_correction_bias`.
    RouterBiasMissing,
    /// Uses 1 / `weight_scale_2` for NVFP4 weights: the compressed-tensors convention on a ModelOpt file.
    Nvfp4GlobalScaleInverted,
}

impl Plant {
    /// Every fault that the engine can plant.
    pub const ALL: [Plant; 3] =
        [Plant::RopeHalfSplit, Plant::RouterBiasMissing, Plant::Nvfp4GlobalScaleInverted];

    /// The fault's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Plant::RopeHalfSplit => "rope-half-split",
            Plant::RouterBiasMissing => "router-bias-missing",
            Plant::Nvfp4GlobalScaleInverted => "nvfp4-global-scale-inverted",
        }
    }

    /// The fault of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Plant> {
        Plant::ALL.into_iter().find(|plant| plant.name() == name)
    }
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
