//! The kernels by name, and the structures that they take: mirrors of those in `kernels/*.cu`.

use cudarc::driver::sys::CUfunction;

use super::compile::Module;
use super::driver::{Address, Gpu};
use crate::Error;

macro_rules! kernels {
    ($($name:ident),+ $(,)?) => {
        /// Every kernel of the program.
        pub struct Kernels {
            $(#[allow(missing_docs, dead_code)] pub $name: CUfunction,)+
            /// Keeps the program loaded.
            _module: Module,
        }

        impl Kernels {
            /// Loads the program for a model with these sizes of a cache entry.
            ///
            /// # Errors
            /// As [`Module::load`].
            pub fn load(gpu: &Gpu, latent: usize, rope: usize) -> Result<Kernels, Error> {
                let module = Module::load(gpu, latent, rope)?;
                Ok(Kernels { $($name: module.kernel(stringify!($name))?,)+ _module: module })
            }
        }
    };
}

kernels!(
    read_all,
    embed,
    tile_nvfp4,
    rms_norm,
    split,
    matmul_plain,
    matmul_2,
    matmul_8,
    matmul_16,
    attention_inputs_f32,
    attention_inputs_bf16,
    attend_f32,
    attend_bf16,
    attend_units_f32,
    attend_units_bf16,
    merge_units,
    route,
    group_visits,
    experts_gate_up_plain,
    experts_down_plain,
    experts_gate_up_2,
    experts_gate_up_8,
    experts_gate_up_8_wide,
    experts_down_2,
    experts_down_8,
    experts_down_8_wide,
    combine,
);

// SAFETY: handles of the driver, usable from any thread.
unsafe impl Send for Kernels {}

/// The terms of a vector in split form (see `numerics.cuh`), bf16 each.
pub const TERMS: usize = 3;

/// The order of a split vector's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Order {
    /// As they are.
    Natural = 0,
    /// As the NVFP4 products take them.
    Nvfp4 = 1,
}

/// `Product` of `matmul.cu`.
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

/// `ExpertWeight` of `experts.cu`.
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

/// `Visits` of `experts.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)] // As there.
pub struct VisitsArgs {
    pub slots: Address,
    pub tokens: Address,
    pub count: u32,
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
}
