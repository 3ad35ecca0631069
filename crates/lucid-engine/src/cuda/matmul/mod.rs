//! Matrix products `y = x Wᵀ` on packed weights, with vectors in split form: which kernels take them.

mod product;

pub use product::Product;

use cudarc::driver::sys::CUfunction;
use product::Family;

use super::arguments::{Order, ProductArgs};
use super::driver::{Address, Gpu, launch};
use super::kernels::{
    HOPPER_SHARED, Kernels, MATMUL_EVEN_SHARED, MATMUL_FEW_SHARED, MATMUL_FORMAT_SHARED, MATMUL_SHARED,
    PREFILL_SHARED, PREFILL_VECTORS,
};
use super::layout::Layout;
use super::packing::pack;
use crate::Error;

/// Warps of a block, sixteen rows each (see `mma.cuh`).
const WARPS: usize = 8;
const TILE_ROWS: usize = 16;
/// Threads of a block of Hopper's kernels (see `hopper.cuh`).
pub const HOPPER_THREADS: usize = 384;

/// The two products of a launch, `Products` of `product.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Pair([ProductArgs; 2]);

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
        let for_hopper = |product: &Product| {
            product.args.gather == Address::NULL && kernels.form(product.layout).products.hopper.is_some()
        };
        let all = for_hopper(&first) && second.as_ref().is_none_or(for_hopper);
        if let (true, Some(multiprocessors), Some(packed)) = (all, kernels.hopper, first.packed) {
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
    if let Some((kernel, threads, shared)) = row_tile_kernel(kernels, &first, second.as_ref(), count) {
        let pair = Pair([first.args, second.unwrap_or(first).args]);
        let (first_tiles, vectors) = (first.tiles() as u32, count as u32);
        let grid = (first.tiles() + second.map_or(0, |second| second.tiles()), 1, 1);
        return launch!(gpu, kernel, grid, threads, shared; pair, first_tiles, vectors);
    }
    let few_and_more = match first.family() {
        Family::Form(Layout::F32) => Some((kernels.matmul_f32_8, kernels.matmul_f32_32)),
        Family::Form(layout) => kernels.form(layout).products.few_and_more,
        Family::Common => None,
    };
    let (kernel, columns) = match (few_and_more, count * kernels.terms) {
        (Some((few, _)), 0..=8) => (few, 8),
        (Some((_, more)), _) => (more, 32),
        (None, 0..=8) => (kernels.matmul_8, 8),
        (None, 9..=24) => (kernels.matmul_24, 24),
        (None, 25..=32) => (kernels.matmul_32, 32),
        (None, _) => (kernels.matmul_64, 64),
    };
    let shared = if few_and_more.is_some() { MATMUL_FORMAT_SHARED } else { MATMUL_SHARED };
    let at_a_time = columns / kernels.terms;
    let blocks = first.row_blocks();
    let all_blocks = blocks + second.map_or(0, |second| second.row_blocks());
    let grid = (all_blocks, count.div_ceil(at_a_time), first.heads);
    let pair = Pair([first.args, second.unwrap_or(first).args]);
    let (first_blocks, vectors) = (blocks as u32, count as u32);
    launch!(gpu, kernel, grid, 256, shared; pair, first_blocks, vectors)
}

/// The kernel with a row tile for each block, where it fills the GPU more evenly than the others, its threads and its shared memory. The bits are
/// the same.
fn row_tile_kernel(
    kernels: &Kernels,
    first: &Product,
    second: Option<&Product>,
    count: usize,
) -> Option<(CUfunction, usize, usize)> {
    let takes = |p: &Product| p.layout == Layout::Bf16 && p.args.slices as usize == WARPS && p.heads == 1;
    if !kernels.roomy || count * kernels.terms > 8 || !takes(first) || !second.is_none_or(takes) {
        return None;
    }
    let tiles = first.tiles() + second.map_or(0, Product::tiles);
    match tiles.div_ceil(kernels.multiprocessors) {
        1 if 2 * tiles <= kernels.multiprocessors => Some((kernels.matmul_few, 256, MATMUL_FEW_SHARED)),
        4 => Some((kernels.matmul_even, 128, MATMUL_EVEN_SHARED)),
        _ => None,
    }
}

/// The kernel for prompts; the bits are those of decoding.
fn multiply_prefill(gpu: &Gpu, kernels: &Kernels, product: Product, count: usize) -> Result<(), Error> {
    let kernel = kernels.form(product.layout).products.prefill;
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
        let Some((kernel, width)) = kernels.form(product.layout).products.hopper else { continue };
        let args = product.args;
        let sixteens = product.layout.scales_sixteens();
        let wanted = (args.x, args.x_width, width, sixteens);
        if there != Some(wanted) {
            pack(gpu, kernels, args.x, count, width, args.x_width as usize, sixteens, packed)?;
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
