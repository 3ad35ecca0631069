//! What is multiplied, and where results go.

use super::{TILE_ROWS, WARPS};
use crate::cuda::arguments::{Order, ProductArgs};
use crate::cuda::driver::Address;
use crate::cuda::kernels::Kernels;
use crate::cuda::layout::Layout;
use crate::cuda::packing::Packing;
use crate::cuda::weights::DeviceMatrix;

/// Which kernels take a weight: products of one family share a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// bf16 and NVFP4.
    Common,
    /// Each other form by itself.
    Form(Layout),
}

/// A product over a whole weight, one for each head or just one.
#[derive(Clone, Copy)]
pub struct Product {
    pub(super) args: ProductArgs,
    pub(super) layout: Layout,
    pub(super) heads: usize,
    pub(super) packed: Option<Address>,
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

    /// Whether its weights are bf16 in tiles, which its rows, or each head's, begin with.
    #[must_use]
    pub fn is_bf16_in_tiles(&self) -> bool {
        self.layout == Layout::Bf16 && self.is_fast()
    }

    pub(super) fn family(&self) -> Family {
        match self.layout {
            Layout::Bf16 | Layout::Nvfp4 => Family::Common,
            layout => Family::Form(layout),
        }
    }

    pub(super) fn is_fast(&self) -> bool {
        // A head's columns begin at a multiple of its columns, so steps stay aligned; its rows must begin with a tile.
        let whole_tiles = self.args.row_first.is_multiple_of(16) && self.args.row_head.is_multiple_of(16);
        self.layout.is_fast(self.args.cols as usize) && whole_tiles
    }

    /// Whether the kernels for prompts take it: steps of 128 columns.
    pub(super) fn is_for_prefill(&self, kernels: &Kernels) -> bool {
        let of_heads = self.args.x_head == 0 || self.args.x_head.is_multiple_of(128);
        kernels.prefill && self.is_fast() && self.layout.is_for_experts(self.args.cols as usize) && of_heads
    }

    pub(super) fn row_blocks(&self) -> usize {
        let rows_per_block = WARPS / self.args.slices as usize * TILE_ROWS;
        (self.args.rows as usize).div_ceil(rows_per_block)
    }

    /// Tiles of sixteen rows.
    #[must_use]
    pub fn tiles(&self) -> usize {
        (self.args.rows as usize).div_ceil(TILE_ROWS)
    }
}
