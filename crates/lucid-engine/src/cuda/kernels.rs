//! The kernels by name, and how much shared memory they take.

use std::sync::{Mutex, OnceLock};

use cudarc::driver::sys::CUfunction;

use super::compile::{Module, PARTS, Part, Sizes, part_of_blocks};
use super::driver::Gpu;
use super::form_kernels::{Features, FormKernels, Widths, widths_of_blocks};
use super::layout::Layout;
use crate::Error;

macro_rules! kernels {
    ($($name:ident),+ $(,)?) => {
        /// Every kernel of the program.
        pub struct Kernels {
            $(#[allow(missing_docs, dead_code)] pub $name: CUfunction,)+
            /// Those for each form of weights of safetensors' checkpoints.
            forms: [FormKernels; 4],
            /// And of GGUF's: only those that a model has are loaded.
            blocks: [OnceLock<FormKernels>; 7],
            /// Keeps their programs loaded.
            block_modules: Mutex<Vec<Module>>,
            sizes: Sizes,
            /// bf16 terms of an activation (see `numerics.cuh`).
            pub terms: usize,
            /// Whether the GPU's blocks have the shared memory that the largest kernels take: Hopper's and Blackwell's
            /// data-center GPUs do. Others take the plain attention and smaller blocks.
            pub roomy: bool,
            /// Whether the kernels for prompts can be used: bf16 activations, large blocks and the copy engine.
            pub prefill: bool,
            /// Multiprocessors, where the warpgroup kernels for prompts can be used: Hopper. They come instead of the others.
            pub hopper: Option<usize>,
            /// All of the GPU's.
            pub multiprocessors: usize,
            /// Keeps the program loaded.
            #[cfg_attr(not(test), expect(dead_code, reason = "held for its kernels"))]
            pub module: Module,
        }

        impl Kernels {
            /// Loads the program for a model of these sizes.
            ///
            /// # Errors
            /// As [`Module::load`].
            pub fn load(gpu: &Gpu, sizes: Sizes) -> Result<Kernels, Error> {
                let module = Module::load(gpu, sizes, &PARTS)?;
                let roomy = gpu.shared_bytes_of_a_block()? >= ATTENTION_SHARED;
                let prefill = roomy && gpu.capability() >= 90 && sizes.terms == 1;
                let multiprocessors = gpu.multiprocessors()?;
                let hopper = (prefill && gpu.capability() == 90).then_some(multiprocessors);
                let features = Features { roomy, prefill, hopper: hopper.is_some() };
                let form = |name, widths| FormKernels::load(gpu, &module, features, name, widths);
                let kernels = Kernels {
                    $($name: module.kernel(stringify!($name))?,)+
                    forms: [
                        form("nvfp4", Widths { products: 128, experts: &[32, 64, 128, 192] })?,
                        form("int4", Widths { products: 96, experts: &[32, 64, 96] })?,
                        form("f8", Widths { products: 96, experts: &[32, 64, 96] })?,
                        form("bf16", Widths { products: 128, experts: &[64, 128] })?,
                    ],
                    blocks: Default::default(),
                    block_modules: Mutex::default(),
                    sizes,
                    terms: sizes.terms,
                    roomy,
                    prefill,
                    hopper,
                    multiprocessors,
                    module,
                };
                kernels.allow_shared(gpu)?;
                Ok(kernels)
            }
        }
    };
}

kernels!(
    read_all,
    embed,
    tile_nvfp4,
    tile_bf16,
    tile_f32,
    tile_int4,
    tile_f8,
    tile_q8_0,
    tile_q5_0,
    tile_q4_k,
    tile_q5_k,
    tile_q6_k,
    tile_q5_1,
    tile_iq4_xs,
    tile_q4_0,
    tile_q4_1,
    tile_mxfp4,
    tile_iq4_nl,
    tile_q3_k,
    tile_nvfp4_blocks,
    rms_norm,
    split,
    matmul_plain,
    matmul_8,
    matmul_f32_8,
    matmul_f32_32,
    matmul_few,
    matmul_even,
    matmul_24,
    matmul_32,
    matmul_64,
    list_groups,
    pack_vectors,
    pack_visitors,
    expand_inputs_bf16,
    expand_inputs_f8,
    expand_bf16,
    expand_f8,
    attend_expanded,
    attention_inputs_f32,
    attention_inputs_bf16,
    attention_inputs_f8,
    attend_f32,
    attend_bf16,
    attend_f8,
    attend_units_f32,
    attend_units_bf16,
    attend_units_f8,
    attend_rows_16,
    attend_rows_32,
    attend_spans_16,
    attend_spans_32,
    attend_rows_16_f8,
    attend_rows_32_f8,
    attend_spans_16_f8,
    attend_spans_32_f8,
    attend_wide_bf16,
    attend_wide_f8,
    merge_units,
    merge_values,
    index_inputs_f32,
    index_inputs_bf16,
    index_scores_f32,
    index_scores_bf16,
    index_choose,
    route,
    route_few,
    group_visits,
    experts_gate_up_plain,
    experts_down_plain,
    combine,
    combine_norm,
    sum_ranks,
    sum_parts,
    sample_1,
    sample_8,
    score_1,
    score_8,
);

// SAFETY: handles of the driver, usable from any thread.
unsafe impl Send for Kernels {}

/// Shared memory of a block of the products, in bytes: rings of weights on their way.
pub const MATMUL_SHARED: usize = 64 << 10;
/// The same for the kernels with one row tile a block: few of them, and some for each multiprocessor.
pub const MATMUL_FEW_SHARED: usize = 8 * 6 * 4096 + PARTIAL_BYTES;
/// As above.
pub const MATMUL_EVEN_SHARED: usize = 4 * 3 * 4096 + PARTIAL_BYTES;
/// Partial sums of eight slices of a row tile.
const PARTIAL_BYTES: usize = 8 * 16 * 9 * 4;
/// The same for INT4 and FP8 weights.
pub const MATMUL_FORMAT_SHARED: usize = 68 << 10;
/// The same for the experts' gate and up: three blocks a multiprocessor.
pub const GATE_UP_SHARED: usize = 72 << 10;
/// The same for their down: four blocks, each with a KB of the driver's and its flags, have 228 KB.
pub const DOWN_SHARED: usize = 54 << 10;
/// The same for prompts: one block a multiprocessor.
pub const PREFILL_SHARED: usize = 192 << 10;
/// The same for prompts on Hopper: one block a multiprocessor.
pub const HOPPER_SHARED: usize = 226 << 10;
/// Groups of up to eight visits that it can list, `WHOLE_GROUPS` of `experts_whole.cuh`.
pub const WHOLE_GROUPS: usize = 560;
/// Vectors of a block for prompts, `PREFILL_VECTORS` of `prefill.cuh`.
pub const PREFILL_VECTORS: usize = 64;
/// The same for attention on tensor cores: two pages, queries, scores.
pub const ATTENTION_SHARED: usize = 226 << 10;

/// The same for the merge with the product that follows it: a head's weights, and vectors.
pub const VALUES_SHARED: usize = 136 << 10;

impl Kernels {
    /// The kernels for weights of a layout that [`Layout::is_fast`].
    #[must_use]
    pub fn form(&self, layout: Layout) -> &FormKernels {
        match layout {
            Layout::Nvfp4 => &self.forms[0],
            Layout::Int4 => &self.forms[1],
            Layout::F8Blocks => &self.forms[2],
            Layout::Bf16 => &self.forms[3],
            _ => match self.blocks(layout).and_then(|(_, kernels)| kernels.get()) {
                Some(kernels) => kernels,
                None => unreachable!("weights in {layout:?} are on the GPU, so their kernels were loaded"),
            },
        }
    }

    /// Where the kernels of a block type are, and its name.
    fn blocks(&self, layout: Layout) -> Option<(&'static str, &OnceLock<FormKernels>)> {
        let place = match layout {
            Layout::Q8_0 => 0,
            Layout::Q5_0 => 1,
            Layout::Q4K => 2,
            Layout::Q5K => 3,
            Layout::Q6K => 4,
            Layout::Q5_1 => 5,
            Layout::Iq4Xs => 6,
            _ => return None,
        };
        Some((layout.block_kernels()?, &self.blocks[place]))
    }

    /// The programs' variables of that name.
    #[cfg(test)]
    pub fn variables(&self, name: &str) -> Vec<(super::driver::Address, usize)> {
        let more = self.block_modules.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        std::iter::once(&self.module).chain(more.iter()).flat_map(|module| module.variables(name)).collect()
    }

    /// Loads the kernels for weights in these layouts, where they aren't loaded yet.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn prepare(&self, gpu: &Gpu, layouts: impl IntoIterator<Item = Layout>) -> Result<(), Error> {
        // Who else wants them waits.
        let mut modules = self.block_modules.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut missing: Vec<(&'static str, &OnceLock<FormKernels>)> = Vec::new();
        for layout in layouts {
            if let Some(blocks) = self.blocks(layout)
                && blocks.1.get().is_none()
                && missing.iter().all(|(name, _)| *name != blocks.0)
            {
                missing.push(blocks);
            }
        }
        let parts: Vec<Part> = missing.iter().filter_map(|(name, _)| part_of_blocks(name)).collect();
        if parts.is_empty() {
            return Ok(());
        }
        let module = Module::load(gpu, self.sizes, &parts)?;
        let has = Features { roomy: self.roomy, prefill: self.prefill, hopper: self.hopper.is_some() };
        for (name, place) in missing {
            let kernels = FormKernels::load(gpu, &module, has, name, widths_of_blocks(name))?;
            let _ = place.set(kernels);
        }
        modules.push(module);
        Ok(())
    }

    /// More than 48 KB of shared memory must be asked for, kernel by kernel.
    fn allow_shared(&self, gpu: &Gpu) -> Result<(), Error> {
        for kernel in [self.matmul_8, self.matmul_24, self.matmul_32, self.matmul_64] {
            gpu.allow_shared(kernel, MATMUL_SHARED)?;
        }
        for kernel in [self.matmul_f32_8, self.matmul_f32_32] {
            gpu.allow_shared(kernel, MATMUL_FORMAT_SHARED)?;
        }
        if self.roomy {
            gpu.allow_shared(self.matmul_few, MATMUL_FEW_SHARED)?;
            gpu.allow_shared(self.matmul_even, MATMUL_EVEN_SHARED)?;
            gpu.allow_shared(self.merge_values, VALUES_SHARED)?;
            for kernel in [self.expand_bf16, self.expand_f8, self.attend_expanded] {
                gpu.allow_shared(kernel, HOPPER_SHARED)?;
            }
            let attention = [
                self.attend_rows_16,
                self.attend_rows_32,
                self.attend_spans_16,
                self.attend_spans_32,
                self.attend_rows_16_f8,
                self.attend_rows_32_f8,
                self.attend_spans_16_f8,
                self.attend_spans_32_f8,
                self.attend_wide_bf16,
                self.attend_wide_f8,
            ];
            for kernel in attention {
                gpu.allow_shared(kernel, ATTENTION_SHARED)?;
            }
        }
        Ok(())
    }
}
