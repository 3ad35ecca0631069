//! The processor's kernels beside what this processor can do at all.
//!
//!     cargo bench -p lucid-engine [-- WORD]
//!
//! Runs what has WORD in its line. One thread, its own processor time, the best of some rounds: a crowded machine makes rounds
//! slower, never faster. Limits are measured in the same run: multiply-adds that need no memory, and reading.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // This is what the program is for.

mod limits;

use std::hint::black_box;

use limits::{fma_rate, processor_time, read_rate};
use lucid_checkpoint::gguf::BlockType;
use lucid_checkpoint::{Bytes, Matrix, Packed, ScaleType, Scales};
use lucid_engine::kernels::{PageValues, Scratch, Unit, columns_side_by_side, multiply, weighted_sum};

/// Seconds of a round.
const ROUND: f64 = 0.05;
const ROUNDS: usize = 5;

fn main() {
    // `cargo bench` adds `--bench`.
    let word = std::env::args().skip(1).find(|word| !word.starts_with("--")).unwrap_or_default();
    for unit in Unit::all() {
        println!("{unit:?}: {:.0} G multiply-adds a second", fma_rate(unit) / 1e9);
    }
    let sizes =
        [("first-level cache", 16 << 10), ("second", 512 << 10), ("third", 8 << 20), ("memory", 256 << 20)];
    for (name, bytes) in sizes {
        println!("reading {name}: {:.0} GB/s", read_rate(bytes) / 1e9);
    }
    println!(
        "\n{:24} {:>12} {:>7} {:>8} {:>9} {:>8} {:>8}",
        "layout", "shape", "tokens", "unit", "GMAC/s", "of limit", "GB/s"
    );
    for (rows, cols) in [(1024, 256), (2048, 7168)] {
        for (name, packed) in layouts(rows, cols) {
            let weight = Matrix { name: name.to_owned(), rows, cols, packed };
            for tokens in [1, 2, 4, 6, 8, 16, 32, 96] {
                for unit in Unit::all() {
                    let line = format!(
                        "{name:24} {:>12} {tokens:>7} {:>8}",
                        format!("{rows}x{cols}"),
                        format!("{unit:?}")
                    );
                    if line.contains(&word) && (unit != Unit::Plain || tokens == 1) {
                        measure(&line, unit, &weight, tokens);
                    }
                }
            }
        }
    }
    // Heads of 128 + 64 and 128 columns; latents of 512, whose scores are products of 64 rows of 576 columns.
    for queries in [8, 32, 96] {
        for (name, entries, cols) in
            [("scores, prompt", 192, 64), ("sums, prompt", 64, 128), ("sums, answer", 64, 512)]
        {
            for unit in Unit::all() {
                let line = format!(
                    "attention, {name:13} {:>12} {queries:>7} {:>8}",
                    format!("{entries}x{cols}"),
                    format!("{unit:?}")
                );
                if line.contains(&word) && unit != Unit::Plain {
                    measure_page(&line, unit, [queries, entries, cols], name == "sums, answer");
                }
            }
        }
    }
}

/// A page of attention: of the cache, in bf16, or of a prompt's expanded keys and values.
fn measure_page(line: &str, unit: Unit, sizes: [usize; 3], cache: bool) {
    let [queries, entries, cols] = sizes;
    let numbers = |count: usize| -> Vec<f32> { (0..count).map(|i| (i as f32 * 0.37).sin()).collect() };
    let weights = numbers(entries.div_ceil(64) * queries * 64);
    let values = numbers(entries * cols);
    let halves: Vec<u16> = values.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
    let page = match cache {
        true => PageValues::Rows(&halves),
        false => PageValues::Blocks { values: &values, block: columns_side_by_side() },
    };
    let mut sums = vec![0f32; queries * cols];
    let seconds = best(|| {
        weighted_sum(unit, sizes, black_box(&weights), black_box(page), &mut sums);
        black_box(&sums);
    });
    report(line, unit, queries * entries * cols, entries * cols * if cache { 2 } else { 4 }, seconds);
}

fn measure(line: &str, unit: Unit, weight: &Matrix, tokens: usize) {
    let x: Vec<f32> = (0..tokens * weight.cols).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut out = vec![0f32; tokens * weight.rows];
    let mut scratch = Scratch::default();
    let seconds = best(|| {
        multiply(unit, black_box(weight), black_box(&x), tokens, &mut scratch, &mut out);
        black_box(&out);
    });
    report(line, unit, weight.rows * weight.cols * tokens, weight.byte_len() as usize, seconds);
}

/// A line of the table.
fn report(line: &str, unit: Unit, products: usize, bytes: usize, seconds: f64) {
    let (products, bytes) = (products as f64 / seconds, bytes as f64 / seconds);
    println!(
        "{line} {:>9.1} {:>7.0}% {:>8.1}",
        products / 1e9,
        100.0 * products / fma_rate(unit),
        bytes / 1e9
    );
}

/// The shortest time of one call.
fn best(mut work: impl FnMut()) -> f64 {
    work();
    let mut calls = 1;
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        loop {
            let start = processor_time();
            for _ in 0..calls {
                work();
            }
            let spent = processor_time() - start;
            if spent > ROUND / 4.0 {
                best = best.min(spent / f64::from(calls));
                calls = ((ROUND / (spent / f64::from(calls))) as u32).max(1);
                break;
            }
            calls *= 2;
        }
    }
    best
}

/// Random bytes in every layout; scales of blocks may be odd numbers, which cost no more than others.
fn layouts(rows: usize, cols: usize) -> Vec<(&'static str, Packed)> {
    let bytes = |len: usize| -> Bytes {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // No infinities and no NaN in half numbers and scales, and nothing subnormal: Intel's multiply-adds take a hundred cycles
            // for one of those.
            (state >> 24) as u8 & 0x1b | 0x20
        };
        Bytes::from((0..len).map(|_| next()).collect::<Vec<u8>>())
    };
    let n = rows * cols;
    let gguf = |block: BlockType| {
        let bytes = bytes(n / block.elements() * block.bytes());
        (block.as_str(), Packed::Gguf { block, bytes, scale: 1.0 })
    };
    vec![
        ("F32", Packed::F32(bytes(4 * n))),
        ("BF16", Packed::Bf16(bytes(2 * n))),
        ("F16", Packed::F16(bytes(2 * n))),
        ("F8_E4M3", Packed::F8E4m3(bytes(n))),
        (
            "NVFP4",
            Packed::Nvfp4 {
                codes: bytes(n / 2),
                scales: bytes(n / 16),
                global_scale: 1.0,
                input_scale: None,
            },
        ),
        (
            "INT4 of 32",
            Packed::Int4 {
                codes: bytes(n / 2),
                scales: Scales { kind: ScaleType::Bf16, bytes: bytes(n / 32 * 2) },
                group_size: 32,
            },
        ),
        (
            "F8 blocks",
            Packed::F8Blocks {
                codes: bytes(n),
                scales: Scales {
                    kind: ScaleType::F32,
                    bytes: bytes(rows.div_ceil(128) * cols.div_ceil(128) * 4),
                },
                block: [128, 128],
            },
        ),
        gguf(BlockType::Q8_0),
        gguf(BlockType::Q6_K),
        gguf(BlockType::Q5_K),
        gguf(BlockType::Q5_1),
        gguf(BlockType::Q5_0),
        gguf(BlockType::Q4_K),
        gguf(BlockType::Q4_1),
        gguf(BlockType::Q4_0),
        gguf(BlockType::IQ4_NL),
        gguf(BlockType::IQ4_XS),
        gguf(BlockType::MXFP4),
        gguf(BlockType::NVFP4),
        gguf(BlockType::Q3_K),
        gguf(BlockType::Q2_K),
    ]
}
