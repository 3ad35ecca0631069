//! Matrix products `y = x Wᵀ` on packed weights, with vectors in split form.

use super::driver::{Address, Gpu, launch};
use super::kernels::{
    HOPPER_SHARED, Kernels, MATMUL_FORMAT_SHARED, MATMUL_SHARED, Order, PREFILL_SHARED, PREFILL_VECTORS,
    ProductArgs,
};
use super::packing::{Packing, pack};
use super::weights::{DeviceMatrix, Layout};
use crate::Error;

/// Warps of a block, sixteen rows each (see `mma.cuh`).
const WARPS: usize = 8;
const TILE_ROWS: usize = 16;
/// Threads of a block of Hopper's kernels (see `hopper.cuh`).
pub const HOPPER_THREADS: usize = 384;

/// The two products of a launch, `Products` of `matmul.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Pair([ProductArgs; 2]);

/// Which kernels take a weight: products of one family share a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// bf16 and NVFP4.
    Common,
    Int4,
    F8Blocks,
}

/// A product over a whole weight, one for each head or just one.
#[derive(Clone, Copy)]
pub struct Product {
    args: ProductArgs,
    layout: Layout,
    heads: usize,
    packed: Option<Address>,
}

impl Product {
    /// `weight` times the vectors `x` `[_, terms, weight.cols]`, which are in the weight's order (see [`Layout::order`]).
    #[must_use]
    pub fn new(weight: &DeviceMatrix, x: Address) -> Product {
        let layout = weight.layout;
        let unit = if layout == Layout::Nvfp4 && layout.is_fast(weight.cols) { 128.0 } else { 1.0 };
        let args = ProductArgs {
            values: weight.values.address(),
            scales: weight.scales_address(),
            scale: weight.global_scale * unit,
            layout: layout.number(weight.cols),
            order: layout.order(weight.cols),
            rows: weight.rows as u32,
            cols: weight.cols as u32,
            row_first: 0,
            row_head: 0,
            x,
            x_width: weight.cols as u32,
            x_head: 0,
            gather: Address::NULL,
            y: Address::NULL,
            y_split: Address::NULL,
            y_order: Order::Natural,
            y_width: weight.rows as u32,
            y_head: 0,
            accumulate: 0,
            slices: layout.slices(weight.cols, WARPS) as u32,
        };
        Product { args, layout, heads: 1, packed: None }
    }

    /// Writes f32 `[vectors, rows]`.
    #[must_use]
    pub fn into(mut self, y: Address) -> Product {
        self.args.y = y;
        self
    }

    /// Results of a vector stand `width` values after the last one's.
    #[must_use]
    pub fn of_width(mut self, width: usize) -> Product {
        self.args.y_width = width as u32;
        self
    }

    /// Adds to f32 `[vectors, rows]`.
    #[must_use]
    pub fn add_to(mut self, y: Address) -> Product {
        (self.args.y, self.args.accumulate) = (y, 1);
        self
    }

    /// Writes split form `[vectors, terms, rows]`.
    #[must_use]
    pub fn split_into(mut self, y: Address, order: Order) -> Product {
        (self.args.y_split, self.args.y_order) = (y, order);
        self
    }

    /// Where vectors may be packed: Hopper's kernels for prompts need that.
    #[must_use]
    pub fn packed_in(mut self, packing: &Packing) -> Product {
        self.packed = Some(packing.vectors());
        self
    }

    /// Vector `i` is `x[rows[i]]`; `rows` are u32 on the GPU.
    #[must_use]
    pub fn gather(mut self, rows: Address) -> Product {
        self.args.gather = rows;
        self
    }

    /// One product for each head: `rows` rows of the weight from `first + head * stride` on; a head's vector is its
    /// `weight.cols` columns of `[_, terms, heads * weight.cols]`, and its result goes to columns `head * out_stride…` of vectors of
    /// `out_width`.
    #[must_use]
    pub fn per_head(
        mut self,
        heads: usize,
        (first, stride, rows): (usize, usize, usize),
        (out_stride, out_width): (usize, usize),
    ) -> Product {
        self.heads = heads;
        self.args.rows = rows as u32;
        self.args.row_first = first as u32;
        self.args.row_head = stride as u32;
        self.args.x_width = self.args.cols * heads as u32;
        self.args.x_head = self.args.cols;
        self.args.y_width = out_width as u32;
        self.args.y_head = out_stride as u32;
        self
    }

    /// Results times `scale`.
    #[must_use]
    pub fn scaled(mut self, scale: f32) -> Product {
        self.args.scale *= scale;
        self
    }

    /// Only `count` rows of the weight, from `first` on.
    #[must_use]
    pub fn rows(mut self, (first, count): (usize, usize)) -> Product {
        (self.args.row_first, self.args.rows) = (first as u32, count as u32);
        self
    }

    /// As the kernels take it.
    #[must_use]
    pub fn args(&self) -> ProductArgs {
        self.args
    }

    fn family(&self) -> Family {
        match self.layout {
            Layout::Int4 => Family::Int4,
            Layout::F8Blocks => Family::F8Blocks,
            _ => Family::Common,
        }
    }

    fn is_fast(&self) -> bool {
        // A head's columns begin at a multiple of its columns, so steps stay aligned; its rows must begin with a tile.
        let whole_tiles = self.args.row_first.is_multiple_of(16) && self.args.row_head.is_multiple_of(16);
        self.layout.is_fast(self.args.cols as usize) && whole_tiles
    }

    /// Whether [`multiply_prefill`] takes it: steps of 128 columns.
    fn is_for_prefill(&self, kernels: &Kernels) -> bool {
        let of_heads = self.args.x_head == 0 || self.args.x_head.is_multiple_of(128);
        kernels.prefill && self.is_fast() && self.args.cols.is_multiple_of(128) && of_heads
    }

    fn row_blocks(&self) -> usize {
        let rows_per_block = WARPS / self.args.slices as usize * TILE_ROWS;
        (self.args.rows as usize).div_ceil(rows_per_block)
    }
}

/// Computes one or two products of the same `count` vectors.
pub fn multiply(
    gpu: &Gpu,
    kernels: &Kernels,
    first: Product,
    second: Option<Product>,
    count: usize,
) -> Result<(), Error> {
    if count == 0 {
        return Ok(());
    }
    if count > PREFILL_VECTORS
        && first.is_for_prefill(kernels)
        && second.is_none_or(|p| p.is_for_prefill(kernels))
    {
        let as_they_stand = |product: &Product| product.args.gather == Address::NULL;
        let all_stand = as_they_stand(&first) && second.as_ref().is_none_or(as_they_stand);
        if let (true, Some(multiprocessors), Some(packed)) = (all_stand, kernels.hopper, first.packed) {
            return multiply_hopper(gpu, kernels, multiprocessors, packed, first, second, count);
        }
        let products = [Some(first), second].into_iter().flatten();
        return products.into_iter().try_for_each(|product| multiply_prefill(gpu, kernels, product, count));
    }
    let shares = |second: Product| {
        second.is_fast() && second.heads == first.heads && second.family() == first.family()
    };
    let together = first.is_fast() && second.is_none_or(shares);
    if !together {
        for product in [Some(first), second].into_iter().flatten() {
            if product.is_fast() {
                multiply(gpu, kernels, product, None, count)?;
            } else {
                multiply_plain(gpu, kernels, product, count)?;
            }
        }
        return Ok(());
    }
    let (kernel, columns) = match (first.family(), count * kernels.terms) {
        (Family::Int4, 0..=8) => (kernels.matmul_int4_8, 8),
        (Family::Int4, _) => (kernels.matmul_int4_32, 32),
        (Family::F8Blocks, 0..=8) => (kernels.matmul_f8_8, 8),
        (Family::F8Blocks, _) => (kernels.matmul_f8_32, 32),
        (Family::Common, 0..=8) => (kernels.matmul_8, 8),
        (Family::Common, 9..=24) => (kernels.matmul_24, 24),
        (Family::Common, 25..=32) => (kernels.matmul_32, 32),
        (Family::Common, _) => (kernels.matmul_64, 64),
    };
    let shared = if first.family() == Family::Common { MATMUL_SHARED } else { MATMUL_FORMAT_SHARED };
    let at_a_time = columns / kernels.terms;
    let blocks = first.row_blocks();
    let all_blocks = blocks + second.map_or(0, |second| second.row_blocks());
    let grid = (all_blocks, count.div_ceil(at_a_time), first.heads);
    let pair = Pair([first.args, second.unwrap_or(first).args]);
    let (first_blocks, vectors) = (blocks as u32, count as u32);
    launch!(gpu, kernel, grid, 256, shared; pair, first_blocks, vectors)
}

/// The kernel for prompts; the bits are those of decoding.
fn multiply_prefill(gpu: &Gpu, kernels: &Kernels, product: Product, count: usize) -> Result<(), Error> {
    let kernel = match product.layout {
        Layout::Nvfp4 => kernels.matmul_prefill_nvfp4,
        Layout::Int4 => kernels.matmul_prefill_int4,
        Layout::F8Blocks => kernels.matmul_prefill_f8,
        _ => kernels.matmul_prefill_bf16,
    };
    // A warp has two tiles of rows.
    let blocks = (product.args.rows as usize).div_ceil(2 * WARPS * TILE_ROWS);
    let (args, vectors) = (product.args, count as u32);
    let grid = (blocks, count.div_ceil(PREFILL_VECTORS), product.heads);
    launch!(gpu, kernel, grid, 256, PREFILL_SHARED; args, vectors)
}

/// The kernels for prompts on Hopper; the bits are those of decoding. Both products are of the same vectors.
fn multiply_hopper(
    gpu: &Gpu,
    kernels: &Kernels,
    multiprocessors: usize,
    packed: Address,
    first: Product,
    second: Option<Product>,
    count: usize,
) -> Result<(), Error> {
    let mut there = None;
    for product in [Some(first), second].into_iter().flatten() {
        let (kernel, width) = match product.layout {
            Layout::Nvfp4 => (kernels.matmul_hopper_nvfp4_128, 128),
            Layout::Int4 => (kernels.matmul_hopper_int4_96, 96),
            Layout::F8Blocks => (kernels.matmul_hopper_f8_96, 96),
            _ => (kernels.matmul_hopper_bf16_128, 128),
        };
        let args = product.args;
        let wanted = (args.x, args.x_width, width);
        if there != Some(wanted) {
            pack(gpu, kernels, args.x, count, width, args.x_width as usize, packed)?;
            there = Some(wanted);
        }
        let (heads, vectors) = (product.heads as u32, count as u32);
        launch!(gpu, kernel, (multiprocessors, 1, 1), HOPPER_THREADS, HOPPER_SHARED; args, heads, packed, vectors)?;
    }
    Ok(())
}

/// The plain kernel, whatever the layout.
pub fn multiply_plain(gpu: &Gpu, kernels: &Kernels, product: Product, count: usize) -> Result<(), Error> {
    let mut args = product.args;
    if product.layout == Layout::Nvfp4 && product.layout.is_fast(args.cols as usize) {
        args.scale /= 128.0;
    }
    let grid = ((args.rows as usize).div_ceil(8), count.min(65_535), product.heads);
    let vectors = count as u32;
    launch!(gpu, kernels.matmul_plain, grid, 256, 0; args, vectors)
}

/// Splits `count` f32 vectors of `width` values.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "products start from norms, which split; tests start from vectors")
)]
pub fn split(
    gpu: &Gpu,
    kernels: &Kernels,
    count: usize,
    width: usize,
    x: Address,
    order: Order,
    out: Address,
) -> Result<(), Error> {
    let width = width as u32;
    launch!(gpu, kernels.split, (count, 1, 1), 256, 0; x, width, order, out)
}
