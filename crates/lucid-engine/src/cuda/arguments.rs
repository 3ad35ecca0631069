//! What the kernels take: mirrors of the structures in `kernels/*.cu`.

use super::driver::Address;

/// The order of a split vector's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Order {
    /// As they are.
    Natural = 0,
    /// As the NVFP4 products take them.
    Nvfp4 = 1,
}

/// `Product` of `product.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)] // As there.
pub struct ProductArgs {
    pub values: Address,
    pub scales: Address,
    pub scale: f32,
    pub layout: i32,
    pub order: Order,
    pub rows: u32,
    pub cols: u32,
    pub row_first: u32,
    pub row_head: u32,
    pub x: Address,
    pub x_width: u32,
    pub x_head: u32,
    pub gather: Address,
    pub y: Address,
    pub y_split: Address,
    pub y_order: Order,
    pub y_width: u32,
    pub y_head: u32,
    pub accumulate: i32,
    pub slices: u32,
}

/// `ExpertWeight` of `visits.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)] // As there.
pub struct ExpertWeightArgs {
    pub values: Address,
    pub scales: Address,
    pub global_scales: Address,
    pub value_stride: u64,
    pub scale_stride: u64,
}

/// `ExpertsJob` of `experts_whole.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)] // As there.
pub struct ExpertsJobArgs {
    pub gate: ExpertWeightArgs,
    pub up: ExpertWeightArgs,
    pub down: ExpertWeightArgs,
    pub hidden: u32,
    pub width: u32,
    pub visits: VisitsArgs,
    pub slots: u32,
    pub x: Address,
    pub activated: Address,
    pub y: Address,
    pub done: Address,
    pub activated_order: Order,
    pub up_slices: u32,
    pub down_slices: u32,
}

/// `Combined` of `combine.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)] // As there.
pub struct CombinedArgs {
    pub y: Address,
    pub places: Address,
    pub weights: Address,
    pub shared_places: Address,
    pub per_token: u32,
    pub shared: i32,
    pub shared_first: u32,
    pub width: u32,
    pub accumulate: i32,
    pub hidden: Address,
}

/// `Visits` of `visits.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)] // As there.
pub struct VisitsArgs {
    pub slots: Address,
    pub tokens: Address,
    pub count: u32,
    pub shared: u32,
    pub step: u32,
}

/// `MOST_RANKS` of `ranks.cu`.
pub const MOST_RANKS: usize = 8;

/// `Ranks` of `ranks.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)] // As there.
pub struct RanksArgs {
    pub parts: [Address; MOST_RANKS],
    pub arrived: [Address; MOST_RANKS],
    pub turns: Address,
    pub count: u32,
    pub number: u32,
    pub patience: u64,
}

/// `Routing` of `router.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)] // As there.
pub struct RoutingArgs {
    pub experts: u32,
    pub per_token: u32,
    pub groups: u32,
    pub keep_groups: u32,
    pub softmax: i32,
    pub normalize: i32,
    pub scaling: f32,
    pub shared: i32,
    pub first: u32,
    pub here: u32,
    pub rank: u32,
    pub ranks: u32,
}
