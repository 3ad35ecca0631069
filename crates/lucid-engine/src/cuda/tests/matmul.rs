use lucid_checkpoint::gguf::BlockType;
use lucid_checkpoint::{Bytes, Matrix, Packed, ScaleType, Scales, e4m3_to_f32, nvfp4};

use super::random::{self, Random, decoded, dot};
use super::{bf16, gpu, gpu_with_terms, poisoned, read, same_bits, some_of, split_vectors};
use crate::cuda::arguments::Order;
use crate::cuda::layout::Layout;
use crate::cuda::layout::check_layout;
use crate::cuda::matmul::{Product, multiply, multiply_plain};
use crate::cuda::packing::{Packing, Room};
use crate::cuda::weights::DeviceMatrix;

/// A sum's rounding, relative to the sum of its absolute terms: tensor cores cut products off below 2^-24 of the largest.
const TOLERANCE: f64 = 2e-6;

const LAYOUTS: [Layout; 15] = [
    Layout::F32,
    Layout::F16,
    Layout::Bf16,
    Layout::F8E4m3,
    Layout::Nvfp4,
    Layout::Int4,
    Layout::F8Blocks,
    Layout::Q8_0,
    Layout::Q5_0,
    Layout::Q4K,
    Layout::Q5K,
    Layout::Q6K,
    Layout::Q5_1,
    Layout::Iq4Xs,
    Layout::Q2K,
];

const COUNTS: [usize; 10] = [1, 2, 3, 8, 9, 17, 29, 37, 70, 133];

#[test]
fn products_match_f64_and_never_depend_on_the_batch() {
    products_match_f64(3);
}

#[test]
fn products_of_bf16_activations_match_f64_and_never_depend_on_the_batch() {
    products_match_f64(1);
}

fn products_match_f64(terms: usize) {
    let Some((gpu, kernels)) = gpu_with_terms(terms) else { return };
    let mut random = Random::new(7);
    let shapes = [
        (1, 32),
        (7, 96),
        (16, 128),
        (17, 256),
        (33, 192),
        (129, 512),
        (40, 1_536),
        (24, 7_168),
        (5, 48),
        (3, 17),
    ];
    for layout in LAYOUTS {
        for (rows, cols) in some_of(shapes, |&(rows, _)| rows > 30) {
            let group = match layout {
                Layout::Nvfp4 => 16,
                Layout::Int4 | Layout::Q8_0 | Layout::Q5_0 | Layout::Q5_1 => 32,
                Layout::Q4K | Layout::Q5K | Layout::Q6K | Layout::Iq4Xs | Layout::Q2K => 256,
                _ => 1,
            };
            if cols % group != 0 {
                continue;
            }
            let host = random::matrix(layout, rows, cols, random.word());
            let (weight, values) = (DeviceMatrix::upload(&gpu, &kernels, &host).unwrap(), decoded(&host));
            let xs = random::vector(133 * cols, random.word());
            let xs: Vec<f32> = xs.into_iter().map(|x| if terms == 1 { bf16(x) } else { x }).collect();
            let x = split_vectors(&gpu, &kernels, &xs, cols, layout.order(cols));
            let mut fewer = Vec::new();
            let room = Room { tokens: 133, columns: cols, visits: 0, visit_columns: 0, slots: 0 };
            let packing = Packing::new(&gpu, &kernels, room).unwrap();
            for count in some_of(COUNTS, |count| [1, 8, 17, 70].contains(count)) {
                let y = poisoned(&gpu, count * rows);
                let product = Product::new(&weight, x.address()).into(y.address());
                multiply(&gpu, &kernels, product.packed_in(&packing), None, count).unwrap();
                let fast = read(&gpu, &y, count * rows);
                multiply_plain(&gpu, &kernels, product, count).unwrap();
                let plain = read(&gpu, &y, count * rows);
                for (i, (&fast, &plain)) in fast.iter().zip(&plain).enumerate() {
                    let (vector, row) = (i / rows, i % rows);
                    let (sum, size) = dot(&values[row * cols..][..cols], &xs[vector * cols..][..cols]);
                    for (which, y) in [("fast", fast), ("plain", plain)] {
                        let error = (f64::from(y) - sum).abs();
                        assert!(
                            error <= TOLERANCE * size,
                            "{which} {layout:?} {rows}x{cols}, {count}: {y} for {sum}"
                        );
                    }
                }
                assert!(
                    same_bits(&fast[..fewer.len()], &fewer),
                    "{layout:?} {rows}x{cols}: fewer vectors and {count} differ"
                );
                fewer = fast;
            }
            // The last vector of 37, computed alone, through a gathered row.
            let y = poisoned(&gpu, rows);
            let all = poisoned(&gpu, 37 * rows);
            let at = gpu.upload(&[36u32]).unwrap();
            let product = Product::new(&weight, x.address());
            multiply(&gpu, &kernels, product.gather(at.address()).into(y.address()), None, 1).unwrap();
            multiply(&gpu, &kernels, product.into(all.address()), None, 37).unwrap();
            assert!(
                same_bits(&read(&gpu, &y, rows), &read(&gpu, &all, 37 * rows)[36 * rows..]),
                "{layout:?} {rows}x{cols}"
            );
        }
    }
}

/// On a GPU of 132 multiprocessors: more than three row tiles for each, and up to four; the last slice of the columns is shorter. Nine vectors
/// are taken by a kernel that the test above holds to f64.
#[test]
fn a_block_for_each_row_tile_gives_the_same_bits() {
    let Some((gpu, kernels)) = gpu_with_terms(1) else { return };
    let mut random = Random::new(11);
    for tiles in [3 * kernels.multiprocessors + 1, 4 * kernels.multiprocessors] {
        let (rows, cols) = (16 * tiles - 5, 2_080);
        let host = random::matrix(Layout::Bf16, rows, cols, random.word());
        let weight = DeviceMatrix::upload(&gpu, &kernels, &host).unwrap();
        let x = split_vectors(&gpu, &kernels, &random::vector(9 * cols, random.word()), cols, Order::Natural);
        let results = [1, 8, 9].map(|count| {
            let y = poisoned(&gpu, count * rows);
            let product = Product::new(&weight, x.address()).into(y.address());
            multiply(&gpu, &kernels, product, None, count).unwrap();
            read(&gpu, &y, count * rows)
        });
        for fewer in &results[..2] {
            assert!(same_bits(fewer, &results[2][..fewer.len()]), "{rows} rows, {}", fewer.len() / rows);
        }
    }
}

/// Products with unit vectors show every code under every scale, NaN too, as the reader decodes them.
#[test]
fn every_nvfp4_code_and_scale_is_decoded_exactly() {
    let Some((gpu, kernels)) = gpu() else { return };
    let (rows, cols) = (256, 128);
    // Column k has code k % 16 in both nibble places over the row; row r has scale r.
    let codes: Vec<u8> =
        (0..rows * cols / 2).map(|i| (2 * i % 16) as u8 + ((2 * i + 1) % 16) as u8 * 16).collect();
    let scales: Vec<u8> = (0..rows * cols / 16).map(|i| (i / (cols / 16)) as u8).collect();
    let packed = Packed::Nvfp4 {
        codes: Bytes::from(codes),
        scales: Bytes::from(scales),
        global_scale: 0.5,
        input_scale: None,
    };
    let host = Matrix { name: "codes".into(), rows, cols, packed };
    let weight = DeviceMatrix::upload(&gpu, &kernels, &host).unwrap();
    let mut units = vec![0f32; cols * cols];
    (0..cols).for_each(|k| units[k * cols + k] = 1.0);
    let x = split_vectors(&gpu, &kernels, &units, cols, Order::Nvfp4);
    let y = poisoned(&gpu, cols * rows);
    multiply(&gpu, &kernels, Product::new(&weight, x.address()).into(y.address()), None, cols).unwrap();
    let y = read(&gpu, &y, cols * rows);
    for k in 0..cols {
        for row in 0..rows {
            let expected = nvfp4::E2M1[k % 16] * e4m3_to_f32(row as u8) * 0.5;
            let got = y[k * rows + row];
            // A sum with zeros has no -0.
            assert!(
                got == expected || got.is_nan() && expected.is_nan(),
                "code {}, scale {row:#x}: {got}, not {expected}",
                k % 16
            );
        }
    }
}

/// The same for every code of E4M3 (NaN too) and of INT4, in every place of a word.
#[test]
fn every_code_of_f8_and_int4_is_decoded_exactly() {
    let Some((gpu, kernels)) = gpu() else { return };
    let (rows, cols) = (256, 128);
    let mut units = vec![0f32; cols * cols];
    (0..cols).for_each(|k| units[k * cols + k] = 1.0);
    // Row r has code r + k in column k.
    let codes: Vec<u8> = (0..rows * cols).map(|i| (i / cols + i % cols) as u8).collect();
    let scales = |kind, bytes: Vec<u8>| Scales { kind, bytes: Bytes::from(bytes) };
    let f8 = Packed::F8Blocks {
        codes: Bytes::from(codes.clone()),
        scales: scales(ScaleType::F32, [0.37f32, 1.9].iter().flat_map(|x| x.to_le_bytes()).collect()),
        block: [128, 128],
    };
    let int4 = Packed::Int4 {
        codes: Bytes::from(codes.chunks_exact(2).map(|c| c[0] & 15 | c[1] << 4).collect::<Vec<u8>>()),
        scales: scales(
            ScaleType::Bf16,
            (0..rows * cols / 32).flat_map(|i| (0x3c00 + i as u16 % 512).to_le_bytes()).collect(),
        ),
        group_size: 32,
    };
    for packed in [f8, int4] {
        let host = Matrix { name: "codes".into(), rows, cols, packed };
        let (weight, values) = (DeviceMatrix::upload(&gpu, &kernels, &host).unwrap(), decoded(&host));
        let x = split_vectors(&gpu, &kernels, &units, cols, Order::Natural);
        let y = poisoned(&gpu, cols * rows);
        multiply(&gpu, &kernels, Product::new(&weight, x.address()).into(y.address()), None, cols).unwrap();
        let y = read(&gpu, &y, cols * rows);
        for (i, &expected) in values.iter().enumerate() {
            let (row, k) = (i / cols, i % cols);
            // A NaN anywhere in a row is its neighbours' sum, too.
            let row_is_nan = values[row * cols..][..cols].iter().any(|x| x.is_nan());
            let got = y[k * rows + row];
            assert!(
                got == expected || got.is_nan() && row_is_nan,
                "{:?} {row} {k}: {got}, not {expected}",
                host.layout()
            );
        }
    }
}

/// The same for GGUF's blocks of random bytes, in tiles and, with 32 columns, as stored. A minimum is taken off the sum in place of the
/// value: a rounding's difference.
#[test]
fn codes_of_blocks_are_decoded_exactly() {
    let Some((gpu, kernels)) = gpu() else { return };
    let exact = [Layout::Q8_0, Layout::Q5_0, Layout::Q6K, Layout::Iq4Xs, Layout::Q2K];
    for layout in exact.into_iter().chain([Layout::Q4K, Layout::Q5K, Layout::Q5_1]) {
        let (rows, cols) = (67, 256);
        let host = random::matrix(layout, rows, cols, 17);
        let (weight, values) = (DeviceMatrix::upload(&gpu, &kernels, &host).unwrap(), decoded(&host));
        let units: Vec<f32> =
            (0..cols * cols).map(|i| if i / cols == i % cols { 1.0 } else { 0.0 }).collect();
        let x = split_vectors(&gpu, &kernels, &units, cols, Order::Natural);
        let y = poisoned(&gpu, cols * rows);
        let product = Product::new(&weight, x.address()).into(y.address());
        multiply(&gpu, &kernels, product, None, cols).unwrap();
        let fast = read(&gpu, &y, cols * rows);
        multiply_plain(&gpu, &kernels, product, cols).unwrap();
        let plain = read(&gpu, &y, cols * rows);
        // Values in a block are at most so far apart in size that a rounding of the largest shows.
        let largest = values.iter().fold(0f32, |most, x| most.max(x.abs()));
        let rounding = if exact.contains(&layout) { 0.0 } else { largest * 4.0 / 16_777_216.0 };
        for (i, &expected) in values.iter().enumerate() {
            let at = i % cols * rows + i / cols;
            assert!(plain[at] == expected, "{layout:?} {i}: {} as stored, not {expected}", plain[at]);
            let error = (fast[at] - expected).abs();
            assert!(error <= rounding, "{layout:?} {i}: {} in tiles, not {expected}", fast[at]);
        }
    }
}

/// What other block types become in tiles: the values that the reader decodes.
#[test]
fn repacked_blocks_have_the_same_values() {
    let Some((gpu, kernels)) = gpu() else { return };
    use BlockType::{IQ4_NL, MXFP4, NVFP4, Q3_K, Q4_0, Q4_1};
    for block in [Q4_0, Q4_1, IQ4_NL, Q3_K, MXFP4, NVFP4] {
        let (rows, cols) = (37, 512);
        let host = random::repacked(block, rows, cols, 23);
        check_layout(&host).unwrap();
        let (weight, values) = (DeviceMatrix::upload(&gpu, &kernels, &host).unwrap(), decoded(&host));
        let units: Vec<f32> =
            (0..cols * cols).map(|i| if i / cols == i % cols { 1.0 } else { 0.0 }).collect();
        let x = split_vectors(&gpu, &kernels, &units, cols, weight.order());
        let y = poisoned(&gpu, cols * rows);
        multiply(&gpu, &kernels, Product::new(&weight, x.address()).into(y.address()), None, cols).unwrap();
        let y = read(&gpu, &y, cols * rows);
        // A sum with what is added to every value is rounded once more.
        let largest = values.iter().fold(0f32, |most, x| most.max(x.abs()));
        let rounding = if block == Q4_1 { largest * 4.0 / 16_777_216.0 } else { 0.0 };
        for (i, &expected) in values.iter().enumerate() {
            let got = y[i % cols * rows + i / cols];
            assert!((got - expected).abs() <= rounding, "{block} {i}: {got}, not {expected}");
        }
    }
}

/// f32 in three parts loses nothing: products with unit vectors are the values. Values that bf16 holds become bf16.
#[test]
fn f32_weights_are_multiplied_exactly() {
    let Some((gpu, kernels)) = gpu() else { return };
    let (rows, cols) = (37, 160);
    let units: Vec<f32> = (0..cols * cols).map(|i| if i / cols == i % cols { 1.0 } else { 0.0 }).collect();
    let x = split_vectors(&gpu, &kernels, &units, cols, Order::Natural);
    let any = random::vector(rows * cols, 3);
    let short: Vec<f32> = any.iter().map(|&value| bf16(value)).collect();
    for (values, layout) in [(any, Layout::F32), (short, Layout::Bf16)] {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let packed = Packed::F32(Bytes::from(bytes));
        let host = Matrix { name: "values".into(), rows, cols, packed };
        let weight = DeviceMatrix::upload(&gpu, &kernels, &host).unwrap();
        assert_eq!(weight.layout, layout);
        let y = poisoned(&gpu, cols * rows);
        multiply(&gpu, &kernels, Product::new(&weight, x.address()).into(y.address()), None, cols).unwrap();
        let y = read(&gpu, &y, cols * rows);
        assert!(
            values.iter().enumerate().all(|(i, &value)| y[i % cols * rows + i / cols] == value),
            "{layout:?}"
        );
    }
}

#[test]
fn a_type_that_only_tiles_hold_needs_their_columns() {
    let odd = random::repacked(BlockType::Q4_0, 3, 96, 1);
    let error = check_layout(&odd).unwrap_err().to_string();
    assert!(error.contains("Q4_0 with rows of 96 values"), "{error}");
    assert!(check_layout(&random::repacked(BlockType::Q4_0, 3, 128, 1)).is_ok());
}

#[test]
fn heads_take_their_own_rows_and_columns() {
    let Some((gpu, kernels)) = gpu() else { return };
    let (heads, skip, rows, cols, count) = (5, 32, 48, 128, 3);
    for layout in [Layout::Bf16, Layout::F32, Layout::Nvfp4, Layout::Int4, Layout::Q8_0, Layout::Q5_0] {
        let host = random::matrix(layout, heads * (skip + rows), cols, 3);
        let (weight, values) = (DeviceMatrix::upload(&gpu, &kernels, &host).unwrap(), decoded(&host));
        let xs = random::vector(count * heads * cols, 4);
        let x = split_vectors(&gpu, &kernels, &xs, heads * cols, layout.order(cols));
        let y = gpu.upload(&vec![1f32; count * heads * rows]).unwrap();
        let product = Product::new(&weight, x.address())
            .per_head(heads, (skip, skip + rows, rows), (rows, heads * rows))
            .add_to(y.address());
        multiply(&gpu, &kernels, product, None, count).unwrap();
        for (i, y) in read(&gpu, &y, count * heads * rows).into_iter().enumerate() {
            let (vector, head, row) = (i / rows / heads, i / rows % heads, i % rows);
            let weights = &values[(head * (skip + rows) + skip + row) * cols..][..cols];
            let (sum, size) = dot(weights, &xs[(vector * heads + head) * cols..][..cols]);
            assert!(
                (f64::from(y) - sum - 1.0).abs() <= TOLERANCE * (size + 1.0),
                "{layout:?} {i}: {y} {sum}"
            );
        }
    }
}

#[test]
fn two_products_share_a_launch() {
    let Some((gpu, kernels)) = gpu() else { return };
    let (a, b) = (random::matrix(Layout::Bf16, 200, 256, 1), random::matrix(Layout::Bf16, 72, 256, 2));
    let (a, b) = (
        DeviceMatrix::upload(&gpu, &kernels, &a).unwrap(),
        DeviceMatrix::upload(&gpu, &kernels, &b).unwrap(),
    );
    let x = split_vectors(&gpu, &kernels, &random::vector(3 * 256, 5), 256, Order::Natural);
    let run = |together: bool| {
        let (y, z) = (poisoned(&gpu, 3 * 200), poisoned(&gpu, 3 * 72));
        let first = Product::new(&a, x.address()).into(y.address());
        let second = Product::new(&b, x.address()).into(z.address());
        if together {
            multiply(&gpu, &kernels, first, Some(second), 3).unwrap();
        } else {
            multiply(&gpu, &kernels, first, None, 3).unwrap();
            multiply(&gpu, &kernels, second, None, 3).unwrap();
        }
        [read(&gpu, &y, 3 * 200), read(&gpu, &z, 3 * 72)].concat()
    };
    let together = run(true);
    assert!(same_bits(&together, &run(false)) && together.iter().all(|y| y.is_finite()));
}

/// Not a test of anything: prints the times of products with GGUF's blocks.
#[test]
#[ignore = "a benchmark"]
fn products_with_blocks_at_full_width() {
    let Some((gpu, kernels)) = gpu_with_terms(1) else { return };
    let (rows, cols) = (16_384, 7_168);
    const MOST: usize = 2_048;
    for layout in [Layout::Int4, Layout::Q8_0, Layout::Q5_0, Layout::Q4K, Layout::Q5K, Layout::Q6K] {
        let weight = DeviceMatrix::upload(&gpu, &kernels, &random::matrix(layout, rows, cols, 3)).unwrap();
        let x = split_vectors(&gpu, &kernels, &random::vector(MOST * cols, 4), cols, layout.order(cols));
        let y = poisoned(&gpu, MOST * rows);
        let room = Room { tokens: MOST, columns: cols, visits: 0, visit_columns: 0, slots: 0 };
        let packing = Packing::new(&gpu, &kernels, room).unwrap();
        for count in [1, 8, 32, 64, MOST] {
            let product = Product::new(&weight, x.address()).packed_in(&packing).into(y.address());
            let mut times: Vec<f64> = (0..8)
                .map(|_| gpu.time(|| multiply(&gpu, &kernels, product, None, count)).unwrap())
                .collect();
            times.sort_by(f64::total_cmp);
            let speed = weight.values.bytes() as f64 / times[4] / 1e12;
            println!("{layout:?}, {count} vectors: {:.0} us, {speed:.2} TB/s", times[4] * 1e6);
        }
    }
}
