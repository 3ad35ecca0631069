//! Faults in the config: what the model is computed with, before anything is.

use lucid_checkpoint::{Config, ScoringFunc};

use super::{Dose, Plant};

/// So small that YaRN's magnitudes are 1: the fault is the missing factor of the softmax scale alone, and cosines and
/// sines keep theirs.
const NO_MSCALE: f64 = 1e-9;

/// DeepSeek-V3's groups of experts, and how many of them a token may go to (arXiv:2412.19437, §4.2).
const GROUPS: (usize, usize) = (8, 4);

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
            Some(moe) if moe.routed_scaling_factor != dose.strength => {
                moe.routed_scaling_factor = dose.strength;
            }
            _ => return false,
        },
        Plant::ExpertTopKMinusOne => match &mut config.moe {
            Some(moe) => {
                let asked = moe.num_experts_per_tok as f64 - dose.strength;
                if asked < 1.0 || asked > moe.n_routed_experts as f64 || dose.strength == 0.0 {
                    return false;
                }
                moe.num_experts_per_tok = asked as usize;
            }
            None => return false,
        },
        Plant::RouterSoftmax => match &mut config.moe {
            Some(moe) if moe.scoring_func == ScoringFunc::Sigmoid => moe.scoring_func = ScoringFunc::Softmax,
            _ => return false,
        },
        Plant::RopeThetaDefault => {
            if config.rope_theta == dose.strength {
                return false;
            }
            config.rope_theta = dose.strength;
        }
        Plant::RouterGroups => match &mut config.moe {
            Some(moe) if moe.n_group > 1 => (moe.n_group, moe.topk_group) = (1, 1),
            // A group counts with its two best.
            Some(moe)
                if moe.n_routed_experts.is_multiple_of(GROUPS.0) && moe.n_routed_experts >= 2 * GROUPS.0 =>
            {
                (moe.n_group, moe.topk_group) = GROUPS;
            }
            _ => return false,
        },
        Plant::NormTopkProbMissing => match &mut config.moe {
            Some(moe) if moe.norm_topk_prob => moe.norm_topk_prob = false,
            _ => return false,
        },
        Plant::RmsNormEps => {
            if config.rms_norm_eps == dose.strength {
                return false;
            }
            config.rms_norm_eps = dose.strength;
        }
        Plant::SoftmaxScale => {
            // The scale has the square of `0.1 · all_dim · ln(factor) + 1` in it: any other value by another all_dim. The
            // magnitude of cosines and sines is a quotient, and stays 1.
            let Some(yarn) = config.rope_scaling.as_mut().filter(|yarn| yarn.factor > 1.0) else {
                return false;
            };
            let Some(all_dim) = yarn.mscale_all_dim.filter(|all_dim| yarn.mscale == Some(*all_dim)) else {
                return false;
            };
            let step = 0.1 * yarn.factor.ln();
            let other = (dose.strength.sqrt() * (step * all_dim + 1.0) - 1.0) / step;
            (yarn.mscale, yarn.mscale_all_dim) = (Some(other), Some(other));
        }
        _ => {}
    }
    true
}
