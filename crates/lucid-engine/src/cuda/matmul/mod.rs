//! Matrix products `y = x Wᵀ` on packed weights, with vectors in split form: which kernels take them.

mod product;

pub use product::Product;

use cudarc::driver::sys::CUfunction;
use product::Family;

use super::driver::{Address, Gpu, launch};
use super::kernels::{
    HOPPER_SHARED, Kernels, MATMUL_EVEN_SHARED, MATMUL_FEW_SHARED, MATMUL_FORMAT_SHARED, MATMUL_SHARED,
    Order, PREFILL_SHARED, PREFILL_VECTORS, ProductArgs,
};
use super::packing::pack;
use super::weights::Layout;
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
    if let Some((kernel, threads, shared)) = row_tile_kernel(kernels, &first, second.as_ref(), count) {
        let pair = Pair([first.args, second.unwrap_or(first).args]);
        let (first_tiles, vectors) = (first.tiles() as u32, count as u32);
        let grid = (first.tiles() + second.map_or(0, |second| second.tiles()), 1, 1);
        return launch!(gpu, kernel, grid, threads, shared; pair, first_tiles, vectors);
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
