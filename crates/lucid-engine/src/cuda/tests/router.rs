use std::ops::Range;

use lucid_checkpoint::{MoE, ScoringFunc};

use super::gpu;
use super::random::Random;
use crate::cpu::{Route, route};
use crate::cuda::driver::{Address, Gpu};
use crate::cuda::router::{Routes, SharedVisits};
use crate::parallel::{Rank, rank_of_shared};

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
    use SharedVisits::{All, Of, Unlisted};
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
        for (with_bias, shared) in
            [(true, All), (false, Unlisted), (true, Of(Rank::of(1, 3))), (false, Of(Rank::of(6, 7)))]
        {
            for count in [1, 2, 8, 17, 300, 1_500] {
                let experts = moe.n_routed_experts;
                let mut logits: Vec<f32> = (0..count * experts).map(|_| random.number() * 4.0).collect();
                // Ties, and a NaN in the last token.
                logits[0] = logits[experts - 1];
                logits[count * experts - 2] = f32::NAN;
                let bias: Vec<f32> = (0..experts).map(|_| random.number()).collect();
                let on_gpu = gpu.upload(&bias).unwrap();
                let address = if with_bias { on_gpu.address() } else { Address::NULL };
                // All experts, and the parts of ranks that have some: the first, the last, one alone.
                let middle = experts / 3..experts / 2 + 1;
                let parts = [0..experts, 0..experts / 3 + 1, middle, experts - 1..experts];
                for here in parts {
                    let routes = Routes::new(&gpu, moe, here.clone(), count).unwrap();
                    gpu.write(routes.logits.address(), &logits).unwrap();
                    routes.choose(&gpu, &kernels, address, shared, count).unwrap();
                    let bias = with_bias.then_some(&bias[..]);
                    let chosen = routes.read(&gpu, count).unwrap();
                    assert_choices(moe, &logits, bias, &chosen);
                    assert_lists(&gpu, moe, here, shared, &routes, &chosen);
                }
            }
        }
    }
}

/// The choices are the processor's, whichever experts are here.
fn assert_choices(moe: &MoE, logits: &[f32], bias: Option<&[f32]>, chosen: &[Vec<Route>]) {
    let experts = moe.n_routed_experts;
    let mut expected = Vec::new();
    for (token, chosen) in chosen.iter().enumerate() {
        let logits = &logits[token * experts..][..experts];
        route(moe, logits, bias, &mut expected);
        assert_eq!(chosen.len(), expected.len());
        // Under softmax a NaN makes all scores NaN; which experts it then gets is nobody's business.
        if moe.scoring_func == ScoringFunc::Softmax && logits.iter().any(|x| x.is_nan()) {
            continue;
        }
        for (ours, theirs) in chosen.iter().zip(&expected) {
            let close = (ours.weight - theirs.weight).abs() <= 1e-6 * theirs.weight.abs()
                || ours.weight.is_nan() && theirs.weight.is_nan();
            assert!(ours.expert == theirs.expert && close, "{experts} experts: {ours:?} {theirs:?}");
        }
    }
}

/// Every visit to an expert that is here stands in its list, once, in the order of the tokens; the others have no place.
fn assert_lists(
    gpu: &Gpu,
    moe: &MoE,
    here: Range<usize>,
    shared: SharedVisits,
    routes: &Routes,
    chosen: &[Vec<Route>],
) {
    let (count, per_token) = (chosen.len(), moe.num_experts_per_tok);
    let visits = routes.visits(shared, count);
    let read = |from, len| {
        let mut words = vec![0u32; len];
        gpu.read(&mut words, from).unwrap();
        words
    };
    let slots = read(visits.slots, 4 * (here.len() + 1));
    let active: Vec<&[u32]> = slots.chunks(4).take_while(|slot| slot[2] > 0).collect();
    assert!(slots.chunks(4).skip(active.len()).all(|slot| slot[2] == 0), "a gap in the slots");
    let (mut first, mut visitors) = (vec![0; here.len() + 1], vec![0; here.len() + 1]);
    for slot in &active {
        (first[slot[0] as usize], visitors[slot[0] as usize]) = (slot[1], slot[2]);
    }
    let routed = count * per_token;
    let tokens = read(visits.tokens, routed + count);
    let places = read(routes.places.address(), routed);
    let mut seen = vec![None; routed];
    for (i, &place) in places.iter().enumerate() {
        let (token, expert) = (i / per_token, chosen[i / per_token][i % per_token].expert);
        if !here.contains(&expert) {
            assert_eq!(place, u32::MAX, "expert {expert} is not among {here:?}");
            continue;
        }
        assert_eq!(seen[place as usize].replace(expert), None, "two visits at {place}");
        assert_eq!(tokens[place as usize] as usize, token);
        let number = expert - here.start;
        assert!((first[number]..first[number] + visitors[number]).contains(&place));
    }
    let listed = seen.iter().flatten().count();
    assert!(seen[..listed].iter().all(Option::is_some), "a gap in the visits");
    for (a, b) in (1..listed).map(|at| (at - 1, at)) {
        // A token whose scores are all NaN may go to one expert several times.
        let in_order = seen[a] < seen[b] || seen[a] == seen[b] && tokens[a] <= tokens[b];
        assert!(in_order, "visits out of order");
    }
    let visits_shared = |token: &usize| match shared {
        SharedVisits::Unlisted => false,
        SharedVisits::All => true,
        SharedVisits::Of(rank) => {
            let experts = chosen[*token].iter().map(|route| route.expert);
            rank_of_shared(experts, moe.n_routed_experts, rank.count()) == rank.number()
        }
    };
    let visitors_of_shared: Vec<usize> = (0..count).filter(visits_shared).collect();
    assert_eq!(visitors[here.len()] as usize, visitors_of_shared.len());
    assert!(visitors_of_shared.is_empty() || first[here.len()] as usize == routed);
    assert!(
        visitors_of_shared.iter().zip(&tokens[routed..]).all(|(&token, &listed)| listed as usize == token)
    );
    if let SharedVisits::Of(_) = shared {
        let mut expected = vec![u32::MAX; count];
        (routed..).zip(&visitors_of_shared).for_each(|(place, &token)| expected[token] = place as u32);
        assert_eq!(read(routes.shared_places(shared), count), expected);
    }
    let total = listed + visitors_of_shared.len();
    assert!(active.len() <= routes.most_active(shared, count));
    let visited = visitors.iter().filter(|&&count| count > 0).count();
    assert_eq!(active.len(), visited, "an expert is listed twice");
    assert_eq!(visitors.iter().sum::<u32>() as usize, total);
}
