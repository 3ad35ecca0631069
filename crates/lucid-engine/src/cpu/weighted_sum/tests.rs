//! Every unit against the plain form.

use super::*;

#[test]
fn vector_forms_have_the_bits_of_the_plain_form() {
    let shapes = [
        (1, 1, 16),
        (3, 64, 32),
        (8, 5, 512),
        (6, 0, 16),
        (5, 33, 48),
        (14, 64, 144),
        (7, 192, 64),
        (2, 7, 21),
        (27, 9, 96),
    ];
    for (queries, entries, cols) in shapes {
        // All columns side by side, and so many.
        for block in [cols, BLOCK, 4 * BLOCK] {
            let (values_stride, blocks_stride) =
                if block == cols { (cols + 3, 0) } else { (block, entries * block + 7) };
            let parts_stride = (queries + 1) * PAGE_TOKENS;
            let sizes = Sizes {
                queries,
                entries,
                cols,
                parts_stride,
                values_stride,
                block,
                blocks_stride,
                sums_stride: cols + 2,
                next: &[0.5; 100],
            };
            compare(sizes);
        }
    }
}

/// All units, and one sum by hand.
fn compare(sizes: Sizes<'_>) {
    let Sizes {
        queries, entries, cols, parts_stride, values_stride, block, blocks_stride, sums_stride, ..
    } = sizes;
    let pseudo = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 500.0 - 1.0;
    let weights: Vec<f32> = (0..entries.div_ceil(PAGE_TOKENS) * parts_stride).map(pseudo).collect();
    let place = |j: usize, column: usize| column / block * blocks_stride + j * values_stride + column % block;
    let values: Vec<f32> = (0..place(entries, cols + block)).map(|i| pseudo(i + 5)).collect();
    let halves: Vec<u16> = values.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
    let start: Vec<f32> = (0..queries * sums_stride).map(|i| pseudo(i + 11)).collect();
    for values in [Entries::F32(&values), Entries::Bf16(&halves)] {
        let sums = |unit: Unit| -> Vec<u32> {
            let mut sums = start.clone();
            weighted_sum_on(unit, sizes, &weights, values, &mut sums);
            sums.into_iter().map(f32::to_bits).collect()
        };
        let plain = sums(Unit::Plain);
        for unit in Unit::all() {
            assert!(sums(unit) == plain, "{unit:?}");
        }
        let value = |i: usize| match values {
            Entries::F32(values) => values[i],
            Entries::Bf16(values) => f32::from_bits(u32::from(values[i]) << 16),
        };
        let (q, column) = (queries - 1, cols / 2);
        let by_hand = (0..entries).fold(start[q * sums_stride + column], |sum, j| {
            weights[j / PAGE_TOKENS * parts_stride + q * PAGE_TOKENS + j % PAGE_TOKENS]
                .mul_add(value(place(j, column)), sum)
        });
        assert_eq!(plain[q * sums_stride + column], by_hand.to_bits());
    }
}
