//! Attention of prompts in the expanded form, against f64 from the same latents.

use lucid_checkpoint::{e4m3_to_f32, f32_to_e4m3};

use super::random::{self, decoded, dot};
use super::{bf16, gpu_with_terms};
use crate::cpu::Span;
use crate::cuda::arguments::Order;
use crate::cuda::attention::Shape;
use crate::cuda::cache::LayerCache;
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::expanded::Expanded;
use crate::cuda::kernels::Kernels;
use crate::cuda::layout::Layout;
use crate::cuda::packing::{Packing, Room};
use crate::cuda::weights::DeviceMatrix;
use crate::kv_cache::{PAGE_TOKENS, PageId, PagePool};
use crate::{KvCacheDtype, Mode};

const LATENT: usize = 512;
const ROPE: usize = 64;
const WIDTH: usize = LATENT + ROPE;
const NOPE: usize = 128;
const VALUE: usize = 128;
const HEADS: usize = 3;

/// A sequence's latents in scattered pages, and its queries.
struct Case {
    entries: Vec<f32>, // [len, WIDTH], values that the cache has
    nope: Vec<f32>,    // [len, HEADS, NOPE]
    rotated: Vec<f32>, // [len, HEADS, ROPE]
    pages: Vec<PageId>,
    cache: Buffer,
    shape: Shape,
    scale: f32,
}

fn bits(values: impl IntoIterator<Item = f32>) -> Vec<u16> {
    values.into_iter().map(|x| (x.to_bits() >> 16) as u16).collect()
}

fn case(gpu: &Gpu, dtype: KvCacheDtype, len: usize, seed: u64) -> Case {
    let codes = dtype == KvCacheDtype::Fp8E4m3;
    let scale = if codes { 0.011 } else { 1.0 };
    let values = random::vector(len * WIDTH, seed).into_iter();
    let entries: Vec<f32> =
        values.map(|x| if codes { e4m3_to_f32(f32_to_e4m3(x / scale)) * scale } else { bf16(x) }).collect();
    let mut pool = PagePool::new(len + 5 * PAGE_TOKENS);
    let (mut others, mut pages) = (Vec::new(), Vec::new());
    assert!(pool.extend(&mut others, 2 * PAGE_TOKENS) && pool.extend(&mut pages, len));
    // What nothing was written to is NaN.
    let mut cache = vec![0x7fc0u16; pool.total() * PAGE_TOKENS * WIDTH];
    let mut code_cache = vec![0x7fu8; cache.len()];
    for position in 0..len {
        let at = pages[position / PAGE_TOKENS].index() * PAGE_TOKENS + position % PAGE_TOKENS;
        let entry = bits(entries[position * WIDTH..][..WIDTH].iter().copied());
        cache[at * WIDTH..][..WIDTH].copy_from_slice(&entry);
        for (code, x) in code_cache[at * WIDTH..].iter_mut().zip(&entries[position * WIDTH..][..WIDTH]) {
            *code = f32_to_e4m3(x / scale);
        }
    }
    Case {
        entries,
        nope: random::vector(len * HEADS * NOPE, seed + 1),
        rotated: random::vector(len * HEADS * ROPE, seed + 2),
        pages,
        cache: if codes { gpu.upload(&code_cache) } else { gpu.upload(&cache) }.unwrap(),
        shape: Shape { cache: dtype, ..SHAPE },
        scale,
    }
}

const SHAPE: Shape = Shape {
    heads: HEADS,
    nope: NOPE,
    latent: LATENT,
    rope: ROPE,
    scale: 0.003,
    mode: Mode::Serving,
    cache: KvCacheDtype::Bf16,
};

impl Case {
    /// Rows `first` to `first + count` of the prompt, as one step; `[count, HEADS, VALUE]`.
    fn attend(
        &self,
        gpu: &Gpu,
        kernels: &Kernels,
        kv_b: &DeviceMatrix,
        (first, count): (usize, usize),
    ) -> Vec<u16> {
        let len = self.entries.len() / WIDTH;
        let cut = |values: &[f32], width: usize| values[first * width..][..count * width].to_vec();
        let nope = cut(&self.nope, HEADS * NOPE);
        let queries: Vec<f32> =
            nope.chunks(NOPE).flat_map(|part| [part, &[f32::NAN; ROPE]].concat()).collect();
        let queries = gpu.upload(&queries).unwrap();
        let rotated = cut(&self.rotated, HEADS * ROPE);
        let absorbed: Vec<f32> =
            rotated.chunks(ROPE).flat_map(|part| [&[f32::NAN; LATENT], part].concat()).collect();
        let absorbed = gpu.upload(&absorbed).unwrap();
        let out = gpu.upload(&vec![0x7fc0u16; count * HEADS * VALUE]).unwrap();
        let room = Room { tokens: PAGE_TOKENS, columns: LATENT, visits: 0, visit_columns: 0, slots: 0 };
        let packing = Packing::new(gpu, kernels, room).unwrap();
        let mut expanded = Expanded::new(gpu, kernels, self.shape, VALUE, kv_b, len).unwrap().unwrap();
        let span = Span { pages: &self.pages, position: first, count, row: 0, prompt: len };
        assert!(expanded.send(gpu, &[span], HEADS).unwrap().absorbed.is_empty());
        let (queries, to) = ((queries.address(), absorbed.address()), (out.address(), Order::Natural));
        let cache = LayerCache { at: self.cache.address(), scale: self.scale };
        expanded.attend(gpu, kernels, self.shape, kv_b, cache, &packing, queries, to).unwrap();
        let mut values = vec![0u16; count * HEADS * VALUE];
        gpu.read(&mut values, out.address()).unwrap();
        values
    }

    /// One row's output for one head, from kv_b `[HEADS * (NOPE + VALUE), LATENT]`.
    fn expected(&self, kv_b: &[f32], row: usize, head: usize) -> Vec<f64> {
        let nope = &self.nope[(row * HEADS + head) * NOPE..][..NOPE];
        let rotated = &self.rotated[(row * HEADS + head) * ROPE..][..ROPE];
        let of_head = &kv_b[head * (NOPE + VALUE) * LATENT..];
        let (mut weights, mut sums, mut total) = (Vec::new(), vec![0f64; VALUE], 0f64);
        for position in 0..=row {
            let entry = &self.entries[position * WIDTH..][..WIDTH];
            let keys: f64 = (0..NOPE)
                .map(|i| f64::from(nope[i]) * dot(&of_head[i * LATENT..][..LATENT], &entry[..LATENT]).0)
                .sum();
            weights.push((keys + dot(rotated, &entry[LATENT..]).0) * f64::from(SHAPE.scale));
        }
        let highest = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        for (position, weight) in weights.iter().enumerate() {
            let weight = (weight - highest).exp();
            let latent = &self.entries[position * WIDTH..][..LATENT];
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum += weight * dot(&of_head[(NOPE + i) * LATENT..][..LATENT], latent).0;
            }
            total += weight;
        }
        sums.iter().map(|sum| sum / total).collect()
    }
}

#[test]
fn prompts_match_f64_and_may_be_cut_anywhere() {
    let Some((gpu, kernels)) = gpu_with_terms(1) else { return };
    if kernels.hopper.is_none() {
        return;
    }
    for layout in [Layout::Bf16, Layout::F8Blocks] {
        let host = random::matrix(layout, HEADS * (NOPE + VALUE), LATENT, 8);
        let (kv_b, values) = (DeviceMatrix::upload(&gpu, &kernels, &host).unwrap(), decoded(&host));
        let lengths = [1, 64, 129, 300].into_iter();
        let cases = lengths.flat_map(|len| [(KvCacheDtype::Bf16, len), (KvCacheDtype::Fp8E4m3, len)]);
        for (dtype, len) in cases {
            let case = case(&gpu, dtype, len, len as u64);
            let whole = case.attend(&gpu, &kernels, &kv_b, (0, len));
            for row in [0, 1, 63, 64, 127, 128, len / 2, len - 1].into_iter().filter(|&row| row < len) {
                for head in 0..HEADS {
                    let expected = case.expected(&values, row, head);
                    let size = expected.iter().map(|y| y.abs()).fold(0.0, f64::max);
                    let got = &whole[(row * HEADS + head) * VALUE..][..VALUE];
                    for (&got, expected) in got.iter().zip(&expected) {
                        let error = (f64::from(f32::from_bits(u32::from(got) << 16)) - expected).abs();
                        // Keys, values and weights are rounded to bf16, 2^-9 each.
                        assert!(
                            error <= 0.02 * size,
                            "{layout:?}, {dtype}, {len}: row {row}, head {head}: {error} of {size}"
                        );
                    }
                }
            }
            for cut in [1, 5, 64, 200].into_iter().filter(|&cut| cut < len) {
                let first = case.attend(&gpu, &kernels, &kv_b, (0, cut));
                let second = case.attend(&gpu, &kernels, &kv_b, (cut, len - cut));
                assert!(
                    whole == [first, second].concat(),
                    "{layout:?}, {dtype}, {len} tokens cut at {cut}: other bits"
                );
            }
        }
    }
}
