//! Matrix products on tiles: first the vectors are packed, once for all rows, then every panel of rows takes them.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::cell::RefCell;

use lucid_checkpoint::{Matrix, Packed as Layout};

use super::kernel::{NO_SUMS, ROWS, Sums, Tiles, multiply_block};
use super::vectors::{BLOCK, Form, Line, pack};
use super::weights::panel;
use crate::cpu::dot::Target;
use crate::cpu::matmul::{self, Product};
use crate::cpu::row::{Rows, Stored, global_scale};
use crate::cpu::threads::Threads;

/// Rows of a weight that one task computes: four tiles, which share what is read of the vectors.
const PANEL_ROWS: usize = 64;

/// Vectors that one task computes: packed they fill a good part of the core's own cache, and the next panel finds them there.
const PANEL_VECTORS: usize = 8 * BLOCK;

/// Up to so many dwords of packed vectors one thread packs faster than several meet: some microseconds.
const PACK_ALONE: usize = 1 << 15;

/// The packed vectors of one round.
#[derive(Default)]
struct Packed {
    lines: Vec<Line>,
    /// For each product, the dword at which its vectors begin.
    begins: Vec<usize>,
    blocks: Vec<Block>,
}

/// A block of vectors to pack.
struct Block {
    product: usize,
    first: usize,
    form: Form,
    at: usize,
}

/// What one thread needs for a panel.
struct Scratch {
    /// Its rows, decoded.
    decoded: Vec<Line>,
    sums: Sums,
}

thread_local! {
    /// Of the thread that starts rounds.
    static PACKED: RefCell<Packed> = RefCell::default();
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { decoded: Vec::new(), sums: NO_SUMS }) };
}

/// Where packed blocks go.
struct Place(*mut u32);
// SAFETY: every block has its own dwords, and is packed by one task.
unsafe impl Sync for Place {}

/// Whether the tile unit multiplies this weight exactly.
fn reads(weight: &Matrix) -> bool {
    matches!(weight.packed, Layout::Bf16(_) | Layout::F8E4m3(_) | Layout::Nvfp4 { .. })
}

/// See [`matmul::multiply`]. Weights that are not bf16 numbers go the way of f32.
pub fn multiply(threads: &mut Threads, products: &[Product<'_>]) {
    PACKED.with_borrow_mut(|packed| {
        packed.fill(threads, products);
        let packed = &*packed;
        let tasks_of = |product: &Product<'_>| {
            if reads(product.weight) {
                product.rows.len().div_ceil(PANEL_ROWS) * product.count.div_ceil(PANEL_VECTORS)
            } else {
                matmul::tasks_of(product)
            }
        };
        let tasks: usize = products.iter().map(tasks_of).sum();
        threads.for_each(tasks, |mut task| {
            for (product, &begin) in products.iter().zip(&packed.begins) {
                let here = tasks_of(product);
                if task < here {
                    return if reads(product.weight) {
                        let packed = packed.lines.as_ptr().cast::<u32>().wrapping_add(begin);
                        task_of(product, packed, task);
                    } else {
                        matmul::panel(product, task);
                    };
                }
                task -= here;
            }
        });
    });
}

impl Packed {
    fn fill(&mut self, threads: &mut Threads, products: &[Product<'_>]) {
        self.begins.clear();
        self.blocks.clear();
        let mut end = 0;
        for (index, product) in products.iter().enumerate() {
            // Neighbours often read the same vectors: gate and up, both projections of attention.
            if index > 0 && reads(products[index - 1].weight) && product.same_inputs(&products[index - 1]) {
                self.begins.push(self.begins[index - 1]);
                continue;
            }
            self.begins.push(end);
            if !reads(product.weight) {
                continue;
            }
            for first in (0..product.count).step_by(BLOCK) {
                let form = Form { vectors: BLOCK.min(product.count - first) };
                self.blocks.push(Block { product: index, first, form, at: end });
                end += form.len(product.weight.cols);
            }
        }
        self.lines.resize(self.lines.len().max(end.div_ceil(16)), Line::ZERO);
        let place = Place(self.lines.as_mut_ptr().cast());
        let (place, blocks) = (&place, &self.blocks);
        let pack_block = |number: usize| {
            let block = &blocks[number];
            let (product, cols) = (&products[block.product], products[block.product].weight.cols);
            // SAFETY: blocks lie side by side inside `lines`; AVX-512 comes with the tile unit.
            unsafe {
                let out = std::slice::from_raw_parts_mut(place.0.add(block.at), block.form.len(cols));
                pack(block.form, cols, |i| product.inputs.vector(block.first + i, cols), out);
            }
        };
        if end <= PACK_ALONE {
            (0..blocks.len()).for_each(pack_block);
        } else {
            threads.for_each(blocks.len(), pack_block);
        }
    }
}

/// One panel of rows by one panel of vectors.
fn task_of(product: &Product<'_>, packed: *const u32, task: usize) {
    let row_panels = product.rows.len().div_ceil(PANEL_ROWS);
    let first_row = task % row_panels * PANEL_ROWS;
    let count = PANEL_ROWS.min(product.rows.len() - first_row);
    let first = task / row_panels * PANEL_VECTORS;
    let last = product.count.min(first + PANEL_VECTORS);
    let weight = product.weight;
    let start = product.rows.start + first_row;
    let rows = Rows::of(weight, start..start + count);
    SCRATCH.with_borrow_mut(|Scratch { decoded, sums }| {
        // SAFETY: the tile unit was found, and AVX-512 comes with it. Blocks before `first` are full ones. Outputs are inside
        // their buffer, as `OutputBuffer::rows` checked, and each (row, vector) of a product belongs to one task.
        unsafe {
            if first == 0 {
                if task == 0 {
                    prefetch(&rows);
                }
                // Most likely this thread's next panel.
                let next = start + PANEL_ROWS;
                if next < product.rows.end {
                    prefetch(&Rows::of(weight, next..product.rows.end.min(next + PANEL_ROWS)));
                }
            }
            let panel = panel(&rows, decoded);
            let mut block = packed.add(first / BLOCK * Form { vectors: BLOCK }.len(weight.cols));
            let mut tiles: Option<(usize, Tiles)> = None;
            for at in (first..last).step_by(BLOCK) {
                let form = Form { vectors: BLOCK.min(last - at) };
                if tiles.as_ref().is_none_or(|(vectors, _)| *vectors != form.vectors) {
                    // The old one gives the unit back, so it goes before the new one sets it up.
                    drop(tiles.take());
                    tiles = Some((form.vectors, Tiles::for_product(count.min(ROWS), form)));
                }
                let out = product.outputs.at(at, first_row);
                let target =
                    Target { at: out, stride: product.outputs.stride(), scale: global_scale(weight) };
                multiply_block(panel, form, block, sums, target);
                block = block.add(form.len(weight.cols));
            }
        }
    });
}

/// Fetches the rows in the order of memory. Tiles read sixteen rows side by side, which the hardware doesn't foresee.
fn prefetch(rows: &Rows<'_>) {
    let Stored::Bf16(bytes) = rows.stored else { return };
    for line in bytes.chunks(64) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
}

#[cfg(test)]
mod tests {
    use lucid_checkpoint::Bytes;

    use super::super::plain::dot_plain;
    use super::*;
    use crate::cpu::matmul::{Inputs, OutputBuffer};

    fn vector(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    fn matrix(layout: usize, rows: usize, cols: usize) -> Matrix {
        let bytes = |len: usize| -> Bytes {
            // Neither NaN nor infinity in any layout: exponents stay below the top.
            Bytes::from(
                vector(len, len as u32).into_iter().map(|x| ((x + 1.0) * 48.0) as u8).collect::<Vec<u8>>(),
            )
        };
        let packed = match layout {
            0 => Layout::Bf16(bytes(rows * cols * 2)),
            1 => Layout::F8E4m3(bytes(rows * cols)),
            2 => Layout::Nvfp4 {
                codes: bytes(rows * cols / 2),
                scales: bytes(rows * cols / 16),
                global_scale: 0.25,
                input_scale: None,
            },
            _ => Layout::F16(bytes(rows * cols * 2)),
        };
        Matrix { name: "m".to_owned(), rows, cols, packed }
    }

    /// Any layout, shape and number of vectors: the bits of the plain form, on one thread and on three.
    #[test]
    fn every_tile_has_the_bits_of_the_plain_form() {
        if !super::super::available() {
            println!("skipped: no tile unit");
            return;
        }
        for (rows, cols) in [(64, 64), (200, 96), (5, 32), (16, 48), (129, 16), (70, 160)] {
            for count in [1, 2, 5, 6, 15, 16, 17, 21, 40, 150] {
                for layout in 0..4 {
                    let weight = matrix(layout, rows, cols);
                    let xs = vector(count * cols, (count + rows) as u32);
                    let (from, stride) = (rows / 7, rows + 3);
                    for threads in [1, 3] {
                        let mut threads = Threads::new(threads).unwrap();
                        threads.use_tiles();
                        let mut out = vec![f32::NAN; count * stride];
                        // SAFETY: one output.
                        let outputs =
                            unsafe { OutputBuffer::new(&mut out).rows(0, stride, count, rows - from) };
                        let inputs = Inputs::dense(&xs, cols);
                        multiply(
                            &mut threads,
                            &[Product { weight: &weight, rows: from..rows, inputs, count, outputs }],
                        );
                        for (vector, out) in xs.chunks_exact(cols).zip(out.chunks_exact(stride)) {
                            let all = Rows::of(&weight, 0..rows);
                            for row in from..rows {
                                let plain = if layout < 3 {
                                    dot_plain(&all, row, vector) * global_scale(&weight)
                                } else {
                                    crate::cpu::dot::dot_plain(&all, row, vector)
                                };
                                let fast = out[row - from];
                                assert_eq!(
                                    fast.to_bits(),
                                    plain.to_bits(),
                                    "layout {layout}, {rows}x{cols}, {count} vectors, row {row}: {fast} {plain}"
                                );
                            }
                            assert!(
                                out[rows - from..].iter().all(|x| x.is_nan()),
                                "written outside of the rows"
                            );
                        }
                    }
                }
            }
        }
    }

    /// Not further from the exact sum than a chain of f32 multiply-adds.
    #[test]
    fn sums_are_as_exact_as_in_f32() {
        let weight = matrix(0, 40, 1024);
        let x = vector(1024, 9);
        let rows = Rows::of(&weight, 0..40);
        let (mut tiles, mut chains) = (0f64, 0f64);
        for row in 0..40 {
            let exact: f64 = (0..1024).map(|k| f64::from(rows.value(row, k)) * f64::from(x[k])).sum();
            tiles += (f64::from(dot_plain(&rows, row, &x)) - exact).powi(2);
            let chain = (0..1024).fold(0f32, |sum, k| rows.value(row, k).mul_add(x[k], sum));
            chains += (f64::from(chain) - exact).powi(2);
        }
        assert!(tiles <= chains, "{tiles:e} {chains:e}");
    }
}
