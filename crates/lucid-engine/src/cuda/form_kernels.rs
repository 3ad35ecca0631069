//! The kernels that take weights of one form: products and experts, for a few vectors and for prompts.

use cudarc::driver::sys::CUfunction;

use super::compile::Module;
use super::driver::Gpu;
use super::kernels::{GATE_UP_SHARED, HOPPER_SHARED, MATMUL_FORMAT_SHARED, PREFILL_SHARED};
use super::layout::Layout;
use crate::Error;

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
    /// Blocks that run at once: they wait for each other.
    pub blocks: usize,
}

/// What a GPU has, as [`Kernels`](super::kernels::Kernels) says.
#[allow(missing_docs)] // As there.
#[derive(Clone, Copy)]
pub struct Features {
    pub roomy: bool,
    pub prefill: bool,
    pub hopper: bool,
}

/// Vectors of a tile of the kernels for prompts on Hopper.
#[derive(Clone, Copy)]
pub struct Widths {
    /// Of products.
    pub products: usize,
    /// Of experts, ascending.
    pub experts: &'static [usize],
}

/// Those for block types of GGUF: where minima or scales for sixteen columns take sums of their own, registers are left for 64.
#[must_use]
pub fn widths_of_blocks(name: &str) -> Widths {
    match name {
        "q8_0" | "q5_0" | "iq4_xs" => Widths { products: 96, experts: &[32, 64, 96] },
        _ => Widths { products: 64, experts: &[32, 64] },
    }
}

/// The kernels for weights of one form.
pub struct FormKernels {
    /// For a few vectors.
    pub products: ProductKernels,
    /// For experts.
    pub experts: ExpertKernels,
}

/// Products with weights of one form.
pub struct ProductKernels {
    /// For up to eight columns and up to 32; bf16 and NVFP4 share the kernels of `matmul.cu`.
    pub few_and_more: Option<(CUfunction, CUfunction)>,
    /// For prompts.
    pub prefill: CUfunction,
    /// For prompts on Hopper, and vectors of a tile.
    pub hopper: Option<(CUfunction, usize)>,
}

/// The experts' kernels for weights of one form; which is for what, says `experts::Pass`.
pub struct ExpertKernels {
    /// Passes of 8 columns.
    pub narrow: GateUpAndDown,
    /// Of up to 24.
    pub many: GateUpAndDown,
    /// Gate, up and down in one kernel, where the GPU has such; bf16 weights have none, their tiles are too large.
    pub whole: Option<WholeKernel>,
    /// The same where gate and up are in another form.
    pub whole_below: Vec<(Layout, WholeKernel)>,
    /// For prompts.
    pub prefill: GateUpAndDown,
    /// For prompts on Hopper, by the most visitors of a tile.
    pub hopper: Vec<(usize, GateUpAndDown)>,
}

/// As `WholeShape` of `experts_whole.cuh` says: warps of a block, and bytes of a warp's ring.
fn whole_shape(form: &str) -> Option<(usize, usize)> {
    Some(match form {
        "nvfp4" => (24, 2 * 4 * 1_152),
        "int4" => (20, 2 * 4 * 1_152),
        "f8" => (16, 3 * 2 * 2_064),
        "q8_0" => (16, 3 * 2 * 2_176),
        "q5_0" => (16, 2 * 4 * 1_408),
        // With tables of scales and minima behind them.
        "q4_k" => (20, 2 * 4 * 1_216 + 2 * 512),
        "q5_k" => (16, 2 * 4 * 1_472 + 2 * 512),
        "q5_1" => (16, 2 * 4 * 1_536 + 2 * 512),
        "iq4_xs" => (16, 3 * 2 * 2_304),
        "q4_k_q6_k" | "q5_k_q6_k" => (16, 3 * 2 * 1_696 + 2 * 512),
        "q6_k" => (16, 2 * 4 * 1_696),
        _ => return None,
    })
}

impl FormKernels {
    /// Those of `module` whose names have `form`.
    ///
    /// # Errors
    /// When one is missing.
    pub fn load(
        gpu: &Gpu,
        module: &Module,
        has: Features,
        form: &str,
        widths: Widths,
    ) -> Result<FormKernels, Error> {
        let one = |name: String, shared: usize| {
            let kernel = module.kernel(&name)?;
            gpu.allow_shared(kernel, shared)?;
            Ok::<CUfunction, Error>(kernel)
        };
        // Kernels that only roomy GPUs start are there on all.
        let large =
            |name: String, shared: usize| if has.roomy { one(name, shared) } else { module.kernel(&name) };
        let pair =
            |variant: String, shared: usize, of: &dyn Fn(String, usize) -> Result<CUfunction, Error>| {
                Ok::<GateUpAndDown, Error>(GateUpAndDown {
                    gate_up: of(format!("experts_gate_up_{form}_{variant}"), shared)?,
                    down: of(format!("experts_down_{form}_{variant}"), shared)?,
                })
            };
        let few_and_more = match form {
            "nvfp4" | "bf16" => None,
            _ => Some((
                one(format!("matmul_{form}_8"), MATMUL_FORMAT_SHARED)?,
                one(format!("matmul_{form}_32"), MATMUL_FORMAT_SHARED)?,
            )),
        };
        let hopper = large(format!("matmul_hopper_{form}_{}", widths.products), HOPPER_SHARED)?;
        let whole = |form: &str| {
            let Some((warps, ring)) = whole_shape(form).filter(|_| has.prefill) else { return Ok(None) };
            let (threads, shared) = (32 * warps, warps * ring);
            let kernel = one(format!("experts_whole_{form}"), shared)?;
            let blocks = gpu.blocks_at_once(kernel, threads, shared)?;
            Ok::<_, Error>((blocks > 0).then_some(WholeKernel { kernel, threads, shared, blocks }))
        };
        let mut whole_below = Vec::new();
        if form == "q6_k" {
            for (above, name) in [(Layout::Q4K, "q4_k_q6_k"), (Layout::Q5K, "q5_k_q6_k")] {
                whole_below.extend(whole(name)?.map(|kernel| (above, kernel)));
            }
        }
        Ok(FormKernels {
            products: ProductKernels {
                few_and_more,
                prefill: large(format!("matmul_prefill_{form}"), PREFILL_SHARED)?,
                hopper: has.hopper.then_some((hopper, widths.products)),
            },
            experts: ExpertKernels {
                // bf16's `down` takes as much as gate and up.
                narrow: pair("8".into(), GATE_UP_SHARED, &one)?,
                many: pair("24".into(), GATE_UP_SHARED, &one)?,
                whole: whole(form)?,
                whole_below,
                prefill: pair("prefill".into(), PREFILL_SHARED, &large)?,
                hopper: widths
                    .experts
                    .iter()
                    .map(|&width| Ok((width, pair(format!("hopper_{width}"), HOPPER_SHARED, &large)?)))
                    .collect::<Result<_, Error>>()?,
            },
        })
    }
}
