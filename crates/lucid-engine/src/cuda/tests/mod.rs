//! Every kernel against the formula in f64 (or the processor's own code) on random shapes, the ugly ones included; and every
//! variant of a kernel against the others, to the bit.

mod attention;
mod attention_values;
mod bench;
mod combine;
mod expanded;
mod expert_ranks;
mod experts;
mod full_width;
mod indexer;
mod matmul;
mod norm;
mod random;
mod ranks;
mod router;
mod sampling;
mod scoring;
mod timeline;

use std::io::Write;

use super::arguments::Order;
use super::compile::Sizes;
use super::driver::{Address, Buffer, Gpu};
use super::kernels::Kernels;
use super::matmul::split;

/// The first GPU with all kernels for exact activations, or `None` and a visible line where there is none. With `LUCID_REQUIRE_CUDA` set, its absence
/// is a failure: a machine that has a GPU must not skip.
fn gpu() -> Option<(Gpu, Kernels)> {
    gpu_with_terms(3)
}

/// The same for activations of so many bf16 terms.
fn gpu_with_terms(terms: usize) -> Option<(Gpu, Kernels)> {
    let opened = Gpu::open(0).and_then(|gpu| {
        let kernels = Kernels::load(&gpu, Sizes { latent: 512, rope: 64, terms })?;
        Ok((gpu, kernels))
    });
    match opened {
        Ok(both) => Some(both),
        Err(error) => {
            assert!(std::env::var_os("LUCID_REQUIRE_CUDA").is_none(), "{error}");
            // Not through `println!`, which the test harness swallows.
            let _ = writeln!(std::io::stderr(), "skipped: no CUDA device ({error})");
            None
        }
    }
}

/// Of many cases, some, if `LUCID_FEW_CASES` is set: under `compute-sanitizer` kernels take a hundred times as long.
fn some_of<T>(all: impl IntoIterator<Item = T>, keep: impl Fn(&T) -> bool) -> Vec<T> {
    let few = std::env::var_os("LUCID_FEW_CASES").is_some();
    all.into_iter().filter(|case| !few || keep(case)).collect()
}

/// `count` vectors of `width` values on the GPU, in split form.
fn split_vectors(gpu: &Gpu, kernels: &Kernels, x: &[f32], width: usize, order: Order) -> Buffer {
    let count = x.len() / width;
    let plain = gpu.upload(x).unwrap();
    let out = gpu.allocate(count * width * kernels.terms * 2).unwrap();
    split(gpu, kernels, count, width, plain.address(), order, out.address()).unwrap();
    gpu.synchronize().unwrap();
    out
}

/// The vectors again, from split form in natural order.
fn joined(gpu: &Gpu, kernels: &Kernels, from: Address, count: usize, width: usize) -> Vec<f32> {
    let mut terms = vec![0u16; count * width * kernels.terms];
    gpu.read(&mut terms, from).unwrap();
    let value = |i: usize| f32::from_bits(u32::from(terms[i]) << 16);
    (0..count * width)
        .map(|i| {
            let at = i / width * width * kernels.terms + i % width;
            (0..kernels.terms).rev().map(|term| value(at + term * width)).sum()
        })
        .collect()
}

/// What bf16 holds of a value: rounded to nearest, ties to even. Not for NaN.
fn bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// A buffer of f32 that nobody has written: all NaN, so that a missing write shows.
fn poisoned(gpu: &Gpu, len: usize) -> Buffer {
    gpu.upload(&vec![f32::NAN; len]).unwrap()
}

fn read(gpu: &Gpu, from: &Buffer, len: usize) -> Vec<f32> {
    let mut values = vec![0f32; len];
    gpu.read(&mut values, from.address()).unwrap();
    values
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[test]
fn splitting_a_vector_loses_nothing() {
    let Some((gpu, kernels)) = gpu() else { return };
    let mut x = random::vector(1_000, 1);
    x[..8].copy_from_slice(&[0.0, -0.0, 1.0, f32::MAX / 2.0, 1e-30, 3.0000002, -16_777_215.0, 1.0 / 3.0]);
    let out = split_vectors(&gpu, &kernels, &x, 1_000, Order::Natural);
    assert!(joined(&gpu, &kernels, out.address(), 1, 1_000).iter().zip(&x).all(|(a, b)| a == b));
}
