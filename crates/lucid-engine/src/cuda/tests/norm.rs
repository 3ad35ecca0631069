use super::{gpu_with_terms, joined, random, split_vectors};
use crate::cuda::arguments::Order;
use crate::cuda::driver::{Address, Buffer, Gpu};
use crate::cuda::norm::{Norm, rms_norm};

/// Widths that aren't a multiple of eight, rows that begin anywhere, and rows longer than a block takes at once, too.
#[test]
fn norms_match_f64() {
    for terms in [3, 1] {
        let Some((gpu, kernels)) = gpu_with_terms(terms) else { return };
        let rounding = if terms == 1 { 1.0 / 256.0 } else { 1e-6 };
        for (count, width, stride) in [
            (1, 256, 256),
            (17, 192, 200),
            (3, 7_168, 7_168),
            (2, 1_536, 1_537),
            (2, 5, 9),
            (1, 8_192, 8_192),
            (2, 8_193, 8_200),
            (2, 18_432, 18_432),
        ] {
            let (x, weight) = (random::vector(count * stride, 1), random::vector(width, 2));
            let (on_gpu, weight_on_gpu) = (gpu.upload(&x).unwrap(), gpu.upload(&weight).unwrap());
            let out = gpu.upload(&vec![u16::MAX; count * width * terms]).unwrap();
            let norm = Norm {
                weight: weight_on_gpu.address(),
                eps: 1e-5,
                width,
                natural: out.address(),
                nvfp4: Address::NULL,
            };
            rms_norm(&gpu, &kernels, count, (on_gpu.address(), stride), norm).unwrap();
            for (i, y) in joined(&gpu, &kernels, out.address(), count, width).into_iter().enumerate() {
                let row = &x[i / width * stride..][..width];
                let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / width as f64;
                let expected =
                    f64::from(row[i % width]) / (mean + 1e-5).sqrt() * f64::from(weight[i % width]);
                let error = (f64::from(y) - expected).abs();
                assert!(error <= rounding * expected.abs() + 1e-9, "{width} of {stride}: {y} {expected}");
            }
        }
    }
}

/// The order of NVFP4's products as `split` makes it, whose bits the tests of products hold to f64.
#[test]
fn norms_in_both_orders_are_the_same_values() {
    for terms in [3, 1] {
        let Some((gpu, kernels)) = gpu_with_terms(terms) else { return };
        let (count, width) = (3, 1_280);
        let x = gpu.upload(&random::vector(count * width, 1)).unwrap();
        let weight = gpu.upload(&random::vector(width, 2)).unwrap();
        let [natural, nvfp4, alone] =
            [0; 3].map(|_| gpu.upload(&vec![u16::MAX; count * width * terms]).unwrap());
        let norm = Norm {
            weight: weight.address(),
            eps: 1e-5,
            width,
            natural: natural.address(),
            nvfp4: nvfp4.address(),
        };
        rms_norm(&gpu, &kernels, count, (x.address(), width), norm).unwrap();
        let norm = Norm { natural: Address::NULL, nvfp4: alone.address(), ..norm };
        rms_norm(&gpu, &kernels, count, (x.address(), width), norm).unwrap();
        let values = joined(&gpu, &kernels, natural.address(), count, width);
        let expected = split_vectors(&gpu, &kernels, &values, width, Order::Nvfp4);
        let bits = |from: &Buffer| words(&gpu, from, count * width * terms);
        assert!(bits(&expected) == bits(&nvfp4) && bits(&nvfp4) == bits(&alone), "{terms} terms");
    }
}

/// The bits of `len` bf16 values.
pub fn words(gpu: &Gpu, from: &Buffer, len: usize) -> Vec<u16> {
    let mut words = vec![0u16; len];
    gpu.read(&mut words, from.address()).unwrap();
    words
}
