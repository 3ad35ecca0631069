//! Every kernel against the formula in f64 (or the processor's own code) on random shapes, the ugly ones included; and every
//! variant of a kernel against the others, to the bit.

mod attention;
mod bench;
mod experts;
mod matmul;
mod norm;
mod random;
mod router;

use std::io::Write;

use super::driver::{Address, Buffer, Gpu};
use super::kernels::{Kernels, Order, TERMS};
use super::matmul::split;

/// The first GPU with all kernels, or `None` and a visible line where there is none. With `LUCID_REQUIRE_CUDA` set, its absence
/// is a failure: a machine that has a GPU must not skip.
fn gpu() -> Option<(Gpu, Kernels)> {
    let opened = Gpu::open(0).and_then(|gpu| {
        let kernels = Kernels::load(&gpu, 512, 64)?;
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

/// `count` vectors of `width` values on the GPU, in split form.
fn split_vectors(gpu: &Gpu, kernels: &Kernels, x: &[f32], width: usize, order: Order) -> Buffer {
    let count = x.len() / width;
    let plain = gpu.upload(x).unwrap();
    let out = gpu.allocate(count * width * TERMS * 2).unwrap();
    split(gpu, kernels, count, width, plain.address(), order, out.address()).unwrap();
    gpu.synchronize().unwrap();
    out
}

/// The vectors again, from split form in natural order.
fn joined(gpu: &Gpu, from: Address, count: usize, width: usize) -> Vec<f32> {
    let mut terms = vec![0u16; count * width * TERMS];
    gpu.read(&mut terms, from).unwrap();
    let value = |i: usize| f32::from_bits(u32::from(terms[i]) << 16);
    (0..count * width)
        .map(|i| {
            let at = i / width * width * TERMS + i % width;
            value(at) + (value(at + width) + value(at + 2 * width))
        })
        .collect()
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
    assert!(joined(&gpu, out.address(), 1, 1_000).iter().zip(&x).all(|(a, b)| a == b));
}
