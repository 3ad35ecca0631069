//! The router: which experts a token goes to, and with what weight (DeepSeek-V3, arXiv:2412.19437, §2.1).

use std::cell::RefCell;

use lucid_checkpoint::{MoE, ScoringFunc};

/// One token's choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    /// The expert's number.
    pub expert: usize,
    /// What its output is multiplied with.
    pub weight: f32,
}

/// Chooses the experts of one token.
///
/// `logits` `[experts]` is `W_g · x`; `bias` `[experts]` is `e_score_correction_bias`, used for the choice alone. `routes`
/// receives `num_experts_per_tok` routes, best first; equal scores go to the lower number. A NaN counts as the lowest
/// score: it is found in the logits, not here.
pub fn route(moe: &MoE, logits: &[f32], bias: Option<&[f32]>, routes: &mut Vec<Route>) {
    BUFFERS.with_borrow_mut(|buffers| choose(moe, logits, bias, buffers, routes));
}

/// What a choice needs; it grows to the number of experts and stays.
#[derive(Default)]
struct Buffers {
    scores: Vec<f32>,          // [experts]
    choice: Vec<f32>,          // [experts]
    groups: Vec<(usize, f32)>, // [groups]: number and value
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers::default());
}

fn choose(
    moe: &MoE,
    logits: &[f32],
    bias: Option<&[f32]>,
    Buffers { scores, choice, groups }: &mut Buffers,
    routes: &mut Vec<Route>,
) {
    routes.clear();
    score(moe.scoring_func, logits, scores);
    prefer(moe, scores, bias, choice, groups);
    for _ in 0..moe.num_experts_per_tok {
        let best = choice.iter().enumerate().reduce(better);
        let Some((expert, _)) = best else { break };
        routes.push(Route { expert, weight: scores[expert] });
        choice[expert] = f32::NEG_INFINITY;
    }
    if moe.norm_topk_prob {
        let sum: f32 = routes.iter().map(|route| route.weight).sum();
        for route in routes.iter_mut() {
            route.weight /= sum + 1e-20;
        }
    }
    for route in routes {
        route.weight *= moe.routed_scaling_factor as f32;
    }
}

/// What the experts of one token are chosen by, `[experts]`: the score plus the bias; -∞ where the expert's group is out.
pub fn preferences(moe: &MoE, logits: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let Buffers { mut scores, mut choice, mut groups } = Buffers::default();
    score(moe.scoring_func, logits, &mut scores);
    prefer(moe, &scores, bias, &mut choice, &mut groups);
    choice
}

fn prefer(
    moe: &MoE,
    scores: &[f32],
    bias: Option<&[f32]>,
    choice: &mut Vec<f32>,
    groups: &mut Vec<(usize, f32)>,
) {
    choice.clear();
    match bias {
        Some(bias) => choice.extend(scores.iter().zip(bias).map(|(s, b)| s + b)),
        None => choice.extend_from_slice(scores),
    }
    if moe.n_group > 1 {
        keep_best_groups(choice, moe.n_group, moe.topk_group, bias.is_some(), groups);
    }
}

/// The mistake of taking the biased score for the weight too (`Plant::RouterBiasInWeights`): the same experts, other weights.
pub fn weigh_with_bias(moe: &MoE, logits: &[f32], bias: &[f32], routes: &mut [Route]) {
    let mut scores = Vec::new();
    score(moe.scoring_func, logits, &mut scores);
    let biased = |expert: usize| scores[expert] + bias[expert];
    let sum: f32 =
        if moe.norm_topk_prob { routes.iter().map(|route| biased(route.expert)).sum() } else { 1.0 };
    for route in routes {
        route.weight = biased(route.expert) / (sum + 1e-20) * moe.routed_scaling_factor as f32;
    }
}

/// The nearest number of so many significant bits, ties to even: what a narrower type keeps of it (`RouterMistake::LogitBits`).
pub fn of_bits(x: f32, bits: u32) -> f32 {
    let cut = f32::MANTISSA_DIGITS.saturating_sub(bits.max(1));
    if cut == 0 || !x.is_finite() {
        return x;
    }
    let half = (1_u32 << (cut - 1)) - 1 + (x.to_bits() >> cut & 1);
    f32::from_bits(x.to_bits().wrapping_add(half) >> cut << cut)
}

/// The later candidate only if it is really better; anything is better than NaN.
fn better<'a>(best: (usize, &'a f32), next: (usize, &'a f32)) -> (usize, &'a f32) {
    if next.1 > best.1 || best.1.is_nan() { next } else { best }
}

/// Turns logits into scores.
fn score(function: ScoringFunc, logits: &[f32], scores: &mut Vec<f32>) {
    scores.clear();
    match function {
        ScoringFunc::Sigmoid => scores.extend(logits.iter().map(|&x| 1.0 / (1.0 + (-x).exp()))),
        ScoringFunc::Softmax => {
            let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores.extend(logits.iter().map(|&x| (x - highest).exp()));
            let sum: f32 = scores.iter().sum();
            scores.iter_mut().for_each(|score| *score /= sum);
        }
    }
}

/// Sets the choice scores outside of the best groups to minus infinity: 0 would beat a negative biased score.
///
/// A group counts with the sum of its two best scores (with bias, DeepSeek-V3), or its best one (without, DeepSeek-V2).
fn keep_best_groups(
    choice: &mut [f32],
    groups: usize,
    keep: usize,
    two_best: bool,
    ranked: &mut Vec<(usize, f32)>,
) {
    let size = choice.len() / groups;
    let value = |group: &[f32]| {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &score in group {
            if score > first {
                (first, second) = (score, first);
            } else if score > second {
                second = score;
            }
        }
        if two_best { first + second } else { first }
    };
    ranked.clear();
    ranked.extend(choice.chunks(size).map(value).enumerate());
    // Numbers differ, so an unstable order, which needs no memory, is the same.
    ranked.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    for &(group, _) in &ranked[keep.min(ranked.len())..] {
        choice[group * size..(group + 1) * size].fill(f32::NEG_INFINITY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What bfloat16 has for 0.3 and for 7.03, and what E4M3 has beside 1.1875 and 1.3125, which lie between two of its numbers.
    #[test]
    fn a_narrower_type_keeps_the_nearest() {
        assert_eq!([0.3, 7.03, -129.3, 1.0].map(|x| of_bits(x, 8)), [0.300_781_25, 7.031_25, -129.0, 1.0]);
        assert_eq!([1.18, 1.19, 1.1875, 1.3125].map(|x| of_bits(x, 4)), [1.125, 1.25, 1.25, 1.25]);
        assert!(of_bits(f32::NAN, 8).is_nan() && of_bits(0.3, 24) == 0.3);
    }

    fn moe(experts: usize, per_token: usize, groups: usize, keep: usize) -> MoE {
        MoE {
            n_routed_experts: experts,
            n_shared_experts: 1,
            num_experts_per_tok: per_token,
            moe_intermediate_size: 1,
            n_group: groups,
            topk_group: keep,
            scoring_func: ScoringFunc::Sigmoid,
            norm_topk_prob: true,
            routed_scaling_factor: 2.5,
        }
    }

    #[test]
    fn the_bias_chooses_and_the_plain_score_weighs() {
        let logits = [0.0, 2.0, 1.0, -1.0];
        let mut routes = Vec::new();
        route(&moe(4, 2, 1, 1), &logits, Some(&[0.0, -9.0, 0.0, 9.0]), &mut routes);
        assert_eq!(routes.iter().map(|r| r.expert).collect::<Vec<_>>(), [3, 2]);
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let (a, b) = (sigmoid(-1.0), sigmoid(1.0));
        assert!((routes[0].weight - 2.5 * a / (a + b)).abs() < 1e-6);
        assert!((routes.iter().map(|r| r.weight).sum::<f32>() - 2.5).abs() < 1e-6);
    }

    #[test]
    fn masked_groups_lose_even_to_negative_scores() {
        // Group 0 is kept for its two best; all choice scores are negative, so a mask of 0 would choose group 1.
        let logits = [0.0, 0.0, -3.0, -3.0];
        let bias = [-1.0, -1.0, -1.0, -1.0];
        let mut routes = Vec::new();
        route(&moe(4, 2, 2, 1), &logits, Some(&bias), &mut routes);
        assert_eq!(routes.iter().map(|r| r.expert).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn equal_scores_go_to_the_lower_number_and_nan_is_never_first() {
        let mut routes = Vec::new();
        route(&moe(4, 2, 1, 1), &[1.0, 1.0, 1.0, 1.0], None, &mut routes);
        assert_eq!(routes.iter().map(|r| r.expert).collect::<Vec<_>>(), [0, 1]);
        route(&moe(4, 2, 1, 1), &[f32::NAN, 1.0, 2.0, 0.0], None, &mut routes);
        assert_eq!(routes.iter().map(|r| r.expert).collect::<Vec<_>>(), [2, 1]);
    }
}
