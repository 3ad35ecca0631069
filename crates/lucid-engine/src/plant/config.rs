//! Faults in the config: what the model is computed with, before anything is.

use lucid_checkpoint::{Config, ScoringFunc};

use super::{Dose, Plant};

/// So small that YaRN's magnitudes are 1: the fault is the missing factor of the softmax scale alone, and cosines and
/// sines keep theirs.
const NO_MSCALE: f64 = 1e-9;

/// The base that RoPE has where nobody says otherwise (Su et al., arXiv:2104.09864).
const USUAL_THETA: f64 = 10_000.0;

/// Makes the mistake; false if the model has nothing that it could change. Faults of other sites change nothing here.
pub(super) fn change(plant: Plant, dose: &Dose, config: &mut Config) -> bool {
    match plant {
        Plant::YarnFactorHalf => {
            let Some(yarn) = config.rope_scaling.as_mut().filter(|yarn| yarn.factor > 1.0) else {
                return false;
            };
            yarn.factor = (yarn.factor / dose.strength).max(1.0);
        }
        Plant::YarnMscaleMissing => {
            let Some(yarn) = &mut config.rope_scaling else { return false };
            if yarn.factor <= 1.0 || yarn.mscale_all_dim.is_none_or(|all_dim| all_dim == 0.0) {
                return false;
            }
            (yarn.mscale, yarn.mscale_all_dim) = (Some(NO_MSCALE), Some(NO_MSCALE));
        }
        Plant::RoutedScalingMissing => match &mut config.moe {
            Some(moe) if moe.routed_scaling_factor != 1.0 => moe.routed_scaling_factor = 1.0,
            _ => return false,
        },
        Plant::ExpertTopKMinusOne => match &mut config.moe {
            Some(moe) if moe.num_experts_per_tok > 1 => moe.num_experts_per_tok -= 1,
            _ => return false,
        },
        Plant::RouterSoftmax => match &mut config.moe {
            Some(moe) if moe.scoring_func == ScoringFunc::Sigmoid => moe.scoring_func = ScoringFunc::Softmax,
            _ => return false,
        },
        Plant::RopeThetaDefault => {
            if config.rope_theta == USUAL_THETA {
                return false;
            }
            config.rope_theta = USUAL_THETA;
        }
        _ => {}
    }
    true
}
