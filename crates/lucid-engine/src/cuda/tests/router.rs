use lucid_checkpoint::{MoE, ScoringFunc};

use super::gpu;
use super::random::Random;
use crate::cpu::route;
use crate::cuda::driver::Address;
use crate::cuda::router::Routes;

fn moe(experts: usize, per_token: usize, groups: usize, keep: usize, scoring_func: ScoringFunc) -> MoE {
    MoE {
        n_routed_experts: experts,
        n_shared_experts: 1,
        num_experts_per_tok: per_token,
        moe_intermediate_size: 128,
        n_group: groups,
        topk_group: keep,
        scoring_func,
        norm_topk_prob: groups != 2,
        routed_scaling_factor: 2.5,
    }
}

#[test]
fn choices_match_the_processor_and_lists_hold_every_visit_once() {
    let Some((gpu, kernels)) = gpu() else { return };
    let mut random = Random::new(3);
    let models = [
        moe(32, 4, 1, 1, ScoringFunc::Sigmoid),
        moe(384, 8, 1, 1, ScoringFunc::Sigmoid),
        moe(256, 8, 8, 4, ScoringFunc::Sigmoid),
        moe(160, 6, 2, 1, ScoringFunc::Softmax),
        moe(7, 7, 1, 1, ScoringFunc::Sigmoid),
    ];
    for moe in &models {
        for (with_bias, shared) in [(true, true), (false, false)] {
            for count in [1, 2, 8, 17, 300] {
                let experts = moe.n_routed_experts;
                let mut logits: Vec<f32> = (0..count * experts).map(|_| random.number() * 4.0).collect();
                // Ties, and a NaN in the last token.
                logits[0] = logits[experts - 1];
                logits[count * experts - 2] = f32::NAN;
                let bias: Vec<f32> = (0..experts).map(|_| random.number()).collect();
                let routes = Routes::new(&gpu, moe, shared, count).unwrap();
                gpu.write(routes.logits.address(), &logits).unwrap();
                let on_gpu = gpu.upload(&bias).unwrap();
                let address = if with_bias { on_gpu.address() } else { Address::NULL };
                routes.choose(&gpu, &kernels, address, count).unwrap();
                let chosen = routes.read(&gpu, count).unwrap();
                let mut expected = Vec::new();
                for (token, chosen) in chosen.iter().enumerate() {
                    let logits = &logits[token * experts..][..experts];
                    route(moe, logits, with_bias.then_some(&bias), &mut expected);
                    assert_eq!(chosen.len(), expected.len());
                    // Under softmax a NaN makes all scores NaN; which experts it then gets is nobody's business.
                    if moe.scoring_func == ScoringFunc::Softmax && logits.iter().any(|x| x.is_nan()) {
                        continue;
                    }
                    for (ours, theirs) in chosen.iter().zip(&expected) {
                        let close = (ours.weight - theirs.weight).abs() <= 1e-6 * theirs.weight.abs()
                            || ours.weight.is_nan() && theirs.weight.is_nan();
                        assert!(
                            ours.expert == theirs.expert && close,
                            "{experts} experts: {ours:?} {theirs:?}"
                        );
                    }
                }

                let visits = routes.visits(count);
                let read = |from, len| {
                    let mut words = vec![0u32; len];
                    gpu.read(&mut words, from).unwrap();
                    words
                };
                let all = experts + usize::from(shared);
                let slots = read(visits.slots, 4 * (experts + 1));
                let active: Vec<&[u32]> = slots.chunks(4).take_while(|slot| slot[2] > 0).collect();
                assert!(slots.chunks(4).skip(active.len()).all(|slot| slot[2] == 0), "a gap in the slots");
                let (mut first, mut visitors) = (vec![0; all], vec![0; all]);
                for slot in &active {
                    (first[slot[0] as usize], visitors[slot[0] as usize]) = (slot[1], slot[2]);
                }
                let total = count * (moe.num_experts_per_tok + usize::from(shared));
                let tokens = read(visits.tokens, total);
                let places = read(routes.places.address(), count * moe.num_experts_per_tok);
                let mut seen = vec![false; total];
                for (i, &place) in places.iter().enumerate() {
                    let (token, expert) = (
                        i / moe.num_experts_per_tok,
                        chosen[i / moe.num_experts_per_tok][i % moe.num_experts_per_tok].expert,
                    );
                    assert!(!std::mem::replace(&mut seen[place as usize], true), "two visits at {place}");
                    assert_eq!(tokens[place as usize] as usize, token);
                    assert!((first[expert]..first[expert] + visitors[expert]).contains(&place));
                }
                if shared {
                    assert_eq!((first[experts] as usize, visitors[experts] as usize), (places.len(), count));
                    assert!((0..count).all(|token| tokens[places.len() + token] as usize == token));
                }
                assert!(active.len() <= routes.most_active(count));
                assert_eq!(
                    active.len(),
                    visitors.iter().filter(|&&count| count > 0).count(),
                    "an expert is listed twice"
                );
                assert_eq!(visitors.iter().sum::<u32>() as usize, total);
            }
        }
    }
}
