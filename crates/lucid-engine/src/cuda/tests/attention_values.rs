use super::norm::words;
use super::random::{self, Random};
use super::{gpu_with_terms, poisoned};
use crate::cuda::arguments::Order;
use crate::cuda::attention::{Choices, Pages, PartialSums, Shape, StepRows, attend, attend_and_multiply};
use crate::cuda::cache::LayerCache;
use crate::cuda::driver::Gpu;
use crate::cuda::kernels::Kernels;
use crate::cuda::layout::Layout;
use crate::cuda::matmul::{Product, multiply, split};
use crate::cuda::weights::DeviceMatrix;
use crate::kv_cache::PAGE_TOKENS;
use crate::{KvCacheDtype, Mode};

const LATENT: usize = 512;
const WIDTH: usize = LATENT + 64;
const NOPE: usize = 128;

/// Sums merged and multiplied by one kernel and by two, to the bit: rows of one span, of several, and of more than a warp has lanes.
#[test]
fn sums_times_values_have_the_same_bits_in_one_kernel_as_in_two() {
    let Some((gpu, kernels)) = gpu_with_terms(1) else { return };
    if !kernels.prefill {
        return;
    }
    for (heads, value) in [(64, 128), (3, 48), (2, 144)] {
        for lengths in [&[1][..], &[70, 1_100], &[33_900]] {
            check(&gpu, &kernels, (heads, value), lengths);
        }
    }
}

fn check(gpu: &Gpu, kernels: &Kernels, (heads, value): (usize, usize), lengths: &[usize]) {
    let (rows, pages) = (lengths.len(), lengths.iter().map(|len| len.div_ceil(PAGE_TOKENS)).sum::<usize>());
    let mut random = Random::new(11);
    // bf16 numbers of about one.
    let entries: Vec<u32> = (0..pages * PAGE_TOKENS * WIDTH / 2)
        .map(|_| {
            let [low, high] = [random.number(), random.number()].map(|x| x.to_bits() >> 16);
            low | high << 16
        })
        .collect();
    let cache = gpu.upload(&entries).unwrap();
    let table = gpu.upload(&(0..pages as u32).collect::<Vec<_>>()).unwrap();
    let mut first = 0;
    let row = |&len: &usize| {
        let words = [len as u32 - 1, first];
        first += len.div_ceil(PAGE_TOKENS) as u32;
        words
    };
    let row_words = gpu.upload(&lengths.iter().flat_map(row).collect::<Vec<_>>()).unwrap();
    let most = *lengths.iter().max().unwrap();
    let shape = Shape {
        heads,
        nope: NOPE,
        latent: LATENT,
        rope: WIDTH - LATENT,
        scale: 0.05,
        mode: Mode::Serving,
        cache: KvCacheDtype::Bf16,
    };
    let step = StepRows {
        count: rows,
        rows: row_words.address(),
        pages: table.address(),
        most_pages: most.div_ceil(PAGE_TOKENS),
        choices: Choices::EVERYTHING,
    };
    let queries = gpu.upload(&random::vector(rows * heads * WIDTH, 4)).unwrap();
    let latents = gpu.upload(&random::vector(rows * heads * LATENT, 5)).unwrap();
    let matrix = random::matrix(Layout::Bf16, heads * (NOPE + value), LATENT, 6);
    let kv_b = DeviceMatrix::upload(gpu, kernels, &matrix).unwrap();
    let partial = PartialSums::new(gpu, shape, most).unwrap();
    let layer = LayerCache { at: cache.address(), scale: 1.0 };
    let len = rows * heads * value;
    let run = |pages: Pages, together: bool| {
        let (sums, out) = (poisoned(gpu, rows * heads * LATENT), gpu.upload(&vec![u16::MAX; len]).unwrap());
        if pages == Pages::Wide {
            let width = heads * LATENT;
            split(gpu, kernels, rows, width, latents.address(), Order::Natural, sums.address()).unwrap();
        }
        let values = Product::new(&kv_b, sums.address())
            .split_into(out.address(), Order::Natural)
            .per_head(heads, (NOPE, NOPE + value, value), (value, heads * value))
            .scaled(0.7);
        let (from, to) = (queries.address(), (sums.address(), Order::Natural));
        if together {
            attend_and_multiply(gpu, kernels, shape, step, layer, from, &partial, pages, to, values).unwrap();
        } else {
            attend(gpu, kernels, shape, step, layer, from, &partial, pages, to).unwrap();
            multiply(gpu, kernels, values, None, rows).unwrap();
        }
        words(gpu, &out, len)
    };
    let ways =
        if kernels.hopper.is_some() { vec![Pages::SideBySide, Pages::Wide] } else { vec![Pages::SideBySide] };
    for pages in ways {
        let two = run(pages, false);
        assert!(two.iter().any(|&bits| bits != 0 && bits != u16::MAX));
        assert!(two == run(pages, true), "{heads} heads of {value}, {lengths:?} tokens, {pages:?}");
    }
}
