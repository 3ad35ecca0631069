//! Matrix products `y = x Wᵀ` on packed weights, many small ones in one round of the threads.

use std::cell::RefCell;
use std::marker::PhantomData;

use lucid_checkpoint::Matrix;

use super::dot::{Scratch, Target, dots};
use super::row::{Rows, global_scale};
use super::threads::Threads;

/// Rows of a weight that one task computes: small enough to spread, large enough to hide the hand-over.
pub(super) const PANEL_ROWS: usize = 32;

/// Weights of a product with one token that one task reads: less would be gone before the hand-over is paid.
const ONE_TOKEN_WEIGHTS: usize = 16 << 10;

/// Rows of a product that one task computes.
fn panel_rows(product: &Product<'_>) -> usize {
    match product.count {
        1 => (ONE_TOKEN_WEIGHTS / product.weight.cols.max(1) / 8 * 8).clamp(PANEL_ROWS, 4 * PANEL_ROWS),
        _ => PANEL_ROWS,
    }
}

/// Tokens that one task computes: at full size the panel of decoded rows stays in the core's own cache.
pub(super) const PANEL_TOKENS: usize = 96;

thread_local! {
    /// What a thread needs for a panel.
    pub(super) static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
}

/// The vectors that a product reads: `[count, cols]` somewhere in a larger buffer.
#[derive(Clone, Copy)]
pub enum Inputs<'a> {
    /// Vector `i` starts at `start + i * stride`.
    Strided {
        /// The buffer.
        values: &'a [f32],
        /// Where vector 0 starts.
        start: usize,
        /// From one vector to the next.
        stride: usize,
    },
    /// Vector `i` is row `rows[i]` of a `[_, stride]` buffer.
    Gathered {
        /// The buffer.
        values: &'a [f32],
        /// Its row length.
        stride: usize,
        /// Which rows.
        rows: &'a [usize],
    },
}

impl<'a> Inputs<'a> {
    /// All rows of a dense `[_, cols]` buffer.
    pub fn dense(values: &'a [f32], cols: usize) -> Inputs<'a> {
        Inputs::Strided { values, start: 0, stride: cols }
    }

    /// Vector `i`, `[cols]`.
    pub fn vector(self, i: usize, cols: usize) -> &'a [f32] {
        match self {
            Inputs::Strided { values, start, stride } => &values[start + i * stride..][..cols],
            Inputs::Gathered { values, stride, rows } => &values[rows[i] * stride..][..cols],
        }
    }
}

/// Where a product goes: vector `i` starts at `start + i * stride` of the buffer.
pub struct Outputs<'a> {
    at: *mut f32,
    stride: usize,
    /// The buffer stays borrowed until the product is computed.
    buffer: PhantomData<&'a mut [f32]>,
}

impl Outputs<'_> {
    /// Where the product of vector `i` and row `row` goes.
    ///
    /// # Safety
    /// There are such a vector and such a row.
    pub unsafe fn at(&self, i: usize, row: usize) -> *mut f32 {
        // SAFETY: inside the buffer, as the caller promises and `OutputBuffer::rows` checked.
        unsafe { self.at.add(i * self.stride + row) }
    }

    /// From one vector to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }
}

/// A buffer that several products of one round write to, each to its own places.
pub struct OutputBuffer<'a>(&'a mut [f32]);

impl<'a> OutputBuffer<'a> {
    /// Wraps `values`.
    pub fn new(values: &'a mut [f32]) -> Self {
        OutputBuffer(values)
    }

    /// Vectors of `cols` values each, `count` of them, `stride` apart from `start` on.
    ///
    /// # Panics
    /// When they leave the buffer.
    ///
    /// # Safety
    /// No two outputs of one round overlap, and the buffer outlives the round.
    pub unsafe fn rows(&mut self, start: usize, stride: usize, count: usize, cols: usize) -> Outputs<'a> {
        assert!(cols <= stride || count <= 1, "vectors overlap");
        assert!(
            count == 0 || start + (count - 1) * stride + cols <= self.0.len(),
            "output leaves its buffer"
        );
        Outputs { at: self.0[start..].as_mut_ptr(), stride, buffer: PhantomData }
    }
}

/// One product: `count` vectors through one weight.
pub struct Product<'a> {
    /// `[rows, cols]`.
    pub weight: &'a Matrix,
    /// Rows of the weight to use: the whole matrix, or one head's part.
    pub rows: std::ops::Range<usize>,
    /// `[count, cols]`.
    pub inputs: Inputs<'a>,
    /// Vectors.
    pub count: usize,
    /// `[count, rows.len()]`.
    pub outputs: Outputs<'a>,
}

impl Product<'_> {
    /// Whether both products read the same vectors.
    pub fn same_inputs(&self, other: &Product<'_>) -> bool {
        let same = match (self.inputs, other.inputs) {
            (
                Inputs::Strided { values, start, stride },
                Inputs::Strided { values: other, start: other_start, stride: other_stride },
            ) => std::ptr::eq(values, other) && start == other_start && stride == other_stride,
            (
                Inputs::Gathered { values, stride, rows },
                Inputs::Gathered { values: other, stride: other_stride, rows: other_rows },
            ) => std::ptr::eq(values, other) && stride == other_stride && std::ptr::eq(rows, other_rows),
            _ => false,
        };
        same && self.count == other.count && self.weight.cols == other.weight.cols
    }
}

// SAFETY: `Outputs` is the only part that isn't Sync by itself; tasks write to disjoint elements (see `multiply`).
unsafe impl Sync for Product<'_> {}
// SAFETY: `Outputs` stands for a buffer that is borrowed for it alone.
unsafe impl Send for Product<'_> {}

/// Computes all products in one round of the threads.
pub fn multiply(threads: &mut Threads, products: &[Product<'_>]) {
    #[cfg(target_arch = "x86_64")]
    if threads.tiles() {
        return super::tiles::multiply(threads, products);
    }
    let tasks: usize = products.iter().map(tasks_of).sum();
    threads.for_each(tasks, |mut task| {
        for (i, product) in products.iter().enumerate() {
            let here = tasks_of(product);
            if task < here {
                // The thread's next task: in this product, or the first one of another.
                let next = match products.get(i + 1) {
                    _ if task + 1 < here => panel_of(product, task + 1).fetched(),
                    Some(product) if tasks_of(product) > 0 => panel_of(product, 0).fetched(),
                    _ => &[],
                };
                return multiply_panel(product, task, next);
            }
            task -= here;
        }
    });
}

/// Panels of a product.
pub fn tasks_of(product: &Product<'_>) -> usize {
    product.rows.len().div_ceil(panel_rows(product)) * product.count.div_ceil(PANEL_TOKENS)
}

/// The rows of a task.
fn panel_of<'a>(product: &Product<'a>, task: usize) -> Rows<'a> {
    let panel_rows = panel_rows(product);
    let first = product.rows.start + task % product.rows.len().div_ceil(panel_rows) * panel_rows;
    Rows::of(product.weight, first..product.rows.end.min(first + panel_rows))
}

/// One panel of rows by one panel of tokens.
pub fn panel(product: &Product<'_>, task: usize) {
    multiply_panel(product, task, &[]);
}

/// The same; meanwhile `next` is fetched, where that helps.
fn multiply_panel(product: &Product<'_>, task: usize, next: &[u8]) {
    let panel_rows = panel_rows(product);
    let row_panels = product.rows.len().div_ceil(panel_rows);
    let first_row = task % row_panels * panel_rows;
    let first_token = task / row_panels * PANEL_TOKENS;
    let tokens = PANEL_TOKENS.min(product.count - first_token);
    let weight = product.weight;
    let rows = Rows { next, ..panel_of(product, task) };
    // SAFETY: a task's first row and token exist.
    let at = unsafe { product.outputs.at(first_token, first_row) };
    let target = Target { at, stride: product.outputs.stride, scale: global_scale(weight) };
    SCRATCH.with_borrow_mut(|scratch| {
        let x = |t: usize| product.inputs.vector(first_token + t, weight.cols);
        // SAFETY: inside the buffer, and each (row, token) of a product belongs to one task.
        unsafe { dots(rows, tokens, x, scratch, target) };
    });
}
