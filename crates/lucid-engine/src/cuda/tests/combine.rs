use super::norm::words;
use super::random::{self, Random};
use super::{gpu_with_terms, read, same_bits};
use crate::cuda::arguments::CombinedArgs;
use crate::cuda::driver::{Address, Gpu, launch};
use crate::cuda::kernels::Kernels;
use crate::cuda::norm::{Norm, rms_norm};

/// A route to an expert of another rank.
const ELSEWHERE: u32 = u32::MAX;

/// Where the shared expert's outputs stand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shared {
    Nowhere,
    Behind,
    OfSome,
}

/// Sums with their norm by one kernel and by two, to the bit, over rows of one warp and of all that a cluster has.
#[test]
fn a_sum_and_its_norm_have_the_same_bits_in_one_kernel_as_in_two() {
    for terms in [3, 1] {
        let Some((gpu, kernels)) = gpu_with_terms(terms) else { return };
        if gpu.capability() < 90 {
            return;
        }
        for (tokens, width, per_token) in
            [(1, 7_168, 8), (3, 256, 1), (5, 1_280, 9), (2, 8_192, 32), (2, 40, 0)]
        {
            for shared in [Shared::Nowhere, Shared::Behind, Shared::OfSome] {
                for accumulate in [0, 1] {
                    check(&gpu, &kernels, (tokens, width, per_token), shared, accumulate);
                }
            }
        }
    }
}

fn check(
    gpu: &Gpu,
    kernels: &Kernels,
    (tokens, width, per_token): (usize, usize, usize),
    shared: Shared,
    accumulate: i32,
) {
    let mut random = Random::new(3);
    let visits = tokens * (per_token + 1);
    let y = gpu.upload(&random::vector(visits * width, 1)).unwrap();
    let residual = random::vector(tokens * width, 2);
    let mut place = |of: usize| match random.below(4) {
        0 => ELSEWHERE,
        _ => random.below(of) as u32,
    };
    let places: Vec<u32> = (0..tokens * per_token).map(|_| place(visits)).collect();
    let of_shared: Vec<u32> = (0..tokens).map(|_| place(visits)).collect();
    let (places, of_shared) = (gpu.upload(&places).unwrap(), gpu.upload(&of_shared).unwrap());
    let weights = gpu.upload(&random::vector(tokens * per_token, 4)).unwrap();
    let hidden = [0; 2].map(|_| gpu.upload(&residual).unwrap());
    let weight = gpu.upload(&random::vector(width, 5)).unwrap();
    let len = tokens * width * kernels.terms;
    let out = [0; 4].map(|_| gpu.upload(&vec![u16::MAX; len]).unwrap());
    let mut args = CombinedArgs {
        y: y.address(),
        places: places.address(),
        weights: weights.address(),
        shared_places: if shared == Shared::OfSome { of_shared.address() } else { Address::NULL },
        per_token: per_token as u32,
        shared: i32::from(shared == Shared::Behind),
        shared_first: (tokens * per_token) as u32,
        width: width as u32,
        accumulate,
        hidden: hidden[0].address(),
    };
    let (natural, nvfp4) =
        (out[0].address(), if width % 128 == 0 { out[1].address() } else { Address::NULL });
    let norm = Norm { weight: weight.address(), eps: 1e-5, width, natural, nvfp4 };
    launch!(gpu, kernels.combine, (width.div_ceil(256), tokens, 1), 256, 0; args).unwrap();
    rms_norm(gpu, kernels, tokens, (args.hidden, width), norm).unwrap();
    args.hidden = hidden[1].address();
    let (weight, eps) = (norm.weight, norm.eps);
    let (natural, nvfp4) =
        (out[2].address(), if width % 128 == 0 { out[3].address() } else { Address::NULL });
    launch!(gpu, kernels.combine_norm, (8, tokens, 1), 128, 0; args, weight, eps, natural, nvfp4).unwrap();
    let [two, one] = [0, 1].map(|i| read(gpu, &hidden[i], tokens * width));
    assert!(same_bits(&two, &one), "sums: {tokens} × {width}, {per_token} routes, {shared:?}");
    assert!(one.iter().any(|x| *x != 0.0) || (per_token == 0 && accumulate == 0));
    for i in 0..2 {
        assert!(
            words(gpu, &out[i], len) == words(gpu, &out[2 + i], len),
            "norm {i}: {tokens} × {width}, {per_token} routes, {shared:?}"
        );
    }
}
