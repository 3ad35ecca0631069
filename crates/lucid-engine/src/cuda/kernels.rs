//! The kernels by name, and the structures that they take: mirrors of those in `kernels/*.cu`.

use cudarc::driver::sys::CUfunction;

use super::compile::{Module, Sizes};
use super::driver::{Address, Gpu};
use super::weights::Layout;
use crate::Error;

macro_rules! kernels {
    ($($name:ident),+ $(,)?) => {
        /// Every kernel of the program.
        pub struct Kernels {
            $(#[allow(missing_docs, dead_code)] pub $name: CUfunction,)+
            /// The experts' kernels for each form of weights.
            experts: [ExpertKernels; 4],
            /// bf16 terms of an activation (see `numerics.cuh`).
            pub terms: usize,
            /// Whether the GPU's blocks have the shared memory that the largest kernels take: Hopper's and Blackwell's
            /// data-center GPUs do. Others take the plain attention and smaller blocks.
            pub roomy: bool,
            /// Whether the kernels for prompts can be used: bf16 activations, large blocks and the copy engine.
            pub prefill: bool,
            /// Blocks that run at once of the kernels with a step's experts in one, where they can be used: as those for prompts.
            pub whole_blocks: usize,
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
                let module = Module::load(gpu, sizes)?;
                let roomy = gpu.shared_bytes_of_a_block()? >= ATTENTION_SHARED;
                let prefill = roomy && gpu.capability() >= 90 && sizes.terms == 1;
                let multiprocessors = gpu.multiprocessors()?;
                let hopper = (prefill && gpu.capability() == 90).then_some(multiprocessors);
                let mut kernels = Kernels {
                    $($name: module.kernel(stringify!($name))?,)+
                    experts: [
                        ExpertKernels::load(&module, "nvfp4", &[32, 64, 128, 192])?,
                        ExpertKernels::load(&module, "int4", &[32, 64, 96])?,
                        ExpertKernels::load(&module, "f8", &[32, 64, 96])?,
                        ExpertKernels::load(&module, "bf16", &[64, 128])?,
                    ],
                    terms: sizes.terms,
                    roomy,
                    prefill,
                    hopper,
                    multiprocessors,
                    whole_blocks: 0,
                    module,
                };
                kernels.allow_shared(gpu)?;
                if prefill {
                    kernels.whole_blocks = kernels.count_whole_blocks(gpu)?;
                }
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
    tile_int4,
    tile_f8,
    rms_norm,
    split,
    matmul_plain,
    matmul_8,
    matmul_few,
    matmul_even,
    matmul_24,
    matmul_32,
    matmul_64,
    matmul_prefill_bf16,
    matmul_prefill_nvfp4,
    matmul_int4_8,
    matmul_int4_32,
    matmul_prefill_int4,
    matmul_f8_8,
    matmul_f8_32,
    matmul_prefill_f8,
    list_groups,
    pack_vectors,
    pack_visitors,
    matmul_hopper_bf16_128,
    matmul_hopper_nvfp4_128,
    matmul_hopper_int4_96,
    matmul_hopper_f8_96,
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
    sum_ranks,
    sum_parts,
    sample_1,
    sample_8,
    score_1,
    score_8,
);

// SAFETY: handles of the driver, usable from any thread.
unsafe impl Send for Kernels {}

/// A kernel for gate and up, and the one for down.
#[derive(Clone, Copy)]
pub struct GateUpAndDown {
    /// `activated = silu(gate · x) ⊙ (up · x)`
    pub gate_up: CUfunction,
    /// `down · activated`
    pub down: CUfunction,
}

/// A kernel for gate, up and down, and what its blocks take.
#[derive(Clone, Copy)]
pub struct WholeKernel {
    /// The kernel.
    pub kernel: CUfunction,
    /// Threads of a block.
    pub threads: usize,
    /// Shared memory of a block, in bytes: rings of weights on their way.
    pub shared: usize,
}

/// The experts' kernels for weights of one form; which is for what, says `experts::Pass`.
pub struct ExpertKernels {
    /// Passes of 8 columns.
    pub narrow: GateUpAndDown,
    /// Of up to 24.
    pub many: GateUpAndDown,
    /// Gate, up and down in one kernel; bf16 weights have none, their tiles are too large.
    pub whole: Option<WholeKernel>,
    /// For prompts.
    pub prefill: GateUpAndDown,
    /// For prompts on Hopper, by the most visitors of a tile.
    pub hopper: Vec<(usize, GateUpAndDown)>,
}

impl ExpertKernels {
    fn load(module: &Module, form: &str, hopper: &[usize]) -> Result<ExpertKernels, Error> {
        let pair = |variant: &str| {
            Ok::<GateUpAndDown, Error>(GateUpAndDown {
                gate_up: module.kernel(&format!("experts_gate_up_{form}_{variant}"))?,
                down: module.kernel(&format!("experts_down_{form}_{variant}"))?,
            })
        };
        // As `WholeShape` of `experts_whole.cu` says: warps of a block, and bytes of a warp's ring.
        let whole = |name: &str, warps: usize, ring: usize| {
            Ok::<WholeKernel, Error>(WholeKernel {
                kernel: module.kernel(name)?,
                threads: 32 * warps,
                shared: warps * ring,
            })
        };
        Ok(ExpertKernels {
            narrow: pair("8")?,
            many: pair("24")?,
            whole: match form {
                "nvfp4" => Some(whole("experts_whole_nvfp4", 24, 2 * 4 * 1_152)?),
                "int4" => Some(whole("experts_whole_int4", 20, 2 * 4 * 1_152)?),
                "f8" => Some(whole("experts_whole_f8", 16, 3 * 2 * 2_064)?),
                _ => None,
            },
            prefill: pair("prefill")?,
            hopper: hopper
                .iter()
                .map(|&width| Ok((width, pair(&format!("hopper_{width}"))?)))
                .collect::<Result<_, Error>>()?,
        })
    }
}

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
/// Groups of up to eight visits that it can list, `WHOLE_GROUPS` of `experts_whole.cu`.
pub const WHOLE_GROUPS: usize = 560;
/// Vectors of a block for prompts, `PREFILL_VECTORS` of `prefill.cu`.
pub const PREFILL_VECTORS: usize = 64;
/// The same for attention on tensor cores: two pages, queries, scores.
pub const ATTENTION_SHARED: usize = 226 << 10;

impl Kernels {
    /// The experts' kernels for weights of a layout that [`Layout::is_for_experts`].
    #[must_use]
    pub fn experts(&self, layout: Layout) -> &ExpertKernels {
        match layout {
            Layout::Nvfp4 => &self.experts[0],
            Layout::Int4 => &self.experts[1],
            Layout::F8Blocks => &self.experts[2],
            _ => &self.experts[3],
        }
    }

    /// How many blocks of any of the kernels with all of a step's experts run at once: they wait for each other.
    fn count_whole_blocks(&self, gpu: &Gpu) -> Result<usize, Error> {
        let mut least = usize::MAX;
        for whole in self.experts.iter().filter_map(|experts| experts.whole) {
            least = least.min(gpu.blocks_at_once(whole.kernel, whole.threads, whole.shared)?);
        }
        Ok(if least == usize::MAX { 0 } else { least })
    }

    /// More than 48 KB of shared memory must be asked for, kernel by kernel.
    fn allow_shared(&self, gpu: &Gpu) -> Result<(), Error> {
        for kernel in [self.matmul_8, self.matmul_24, self.matmul_32, self.matmul_64] {
            gpu.allow_shared(kernel, MATMUL_SHARED)?;
        }
        for kernel in [self.matmul_int4_8, self.matmul_int4_32, self.matmul_f8_8, self.matmul_f8_32] {
            gpu.allow_shared(kernel, MATMUL_FORMAT_SHARED)?;
        }
        for experts in &self.experts {
            for pair in [experts.narrow, experts.many] {
                gpu.allow_shared(pair.gate_up, GATE_UP_SHARED)?;
                // bf16 takes as much as gate and up.
                gpu.allow_shared(pair.down, GATE_UP_SHARED)?;
            }
        }
        if self.roomy {
            for experts in &self.experts {
                if let Some(whole) = experts.whole {
                    gpu.allow_shared(whole.kernel, whole.shared)?;
                }
                gpu.allow_shared(experts.prefill.gate_up, PREFILL_SHARED)?;
                gpu.allow_shared(experts.prefill.down, PREFILL_SHARED)?;
            }
            gpu.allow_shared(self.matmul_few, MATMUL_FEW_SHARED)?;
            gpu.allow_shared(self.matmul_even, MATMUL_EVEN_SHARED)?;
            let products = [
                self.matmul_prefill_bf16,
                self.matmul_prefill_nvfp4,
                self.matmul_prefill_int4,
                self.matmul_prefill_f8,
            ];
            for kernel in products {
                gpu.allow_shared(kernel, PREFILL_SHARED)?;
            }
            let products = [
                self.matmul_hopper_bf16_128,
                self.matmul_hopper_nvfp4_128,
                self.matmul_hopper_int4_96,
                self.matmul_hopper_f8_96,
                self.expand_bf16,
                self.expand_f8,
                self.attend_expanded,
            ];
            let experts = self.experts.iter().flat_map(|experts| &experts.hopper);
            for kernel in experts.flat_map(|(_, pair)| [pair.gate_up, pair.down]).chain(products) {
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

/// `ExpertsJob` of `experts_whole.cu`.
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

/// `Visits` of `experts.cu`.
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
}
