//! Which kernels take a step's visits.

use super::tilings::{hopper_width, narrow_width};
use crate::cuda::form_kernels::{ExpertKernels, GateUpAndDown, WholeKernel};
use crate::cuda::kernels::{Kernels, PREFILL_VECTORS, WHOLE_GROUPS};
use crate::cuda::layout::Layout;
use crate::cuda::weights::Mlps;

/// Which kernels take the visits. All but the plain ones give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The ones for any layout, for tests: layouts without others get them by themselves.
    Plain,
    /// Eight columns (terms of visitors) share a pass over the weights.
    Narrow,
    /// Up to 24 do.
    Many,
    /// Gate, up and down in one kernel that keeps the whole GPU busy, for listed visits with bf16 activations on GPUs with large blocks
    /// and a copy engine.
    Whole,
    /// Up to 64 share what is unpacked, and vectors come to shared memory: for prompts.
    Prefill,
    /// So many share it, on warpgroup instructions: for prompts on Hopper. One of the widths that [`ExpertKernels::hopper`] has.
    Hopper(usize),
}

/// A step's visits to listed experts, as far as they are known before anybody has chosen.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Experts that can be visited, the shared one included.
    pub slots: usize,
    /// Visits to routed experts, if all of the model's are visited alike.
    pub usual: usize,
    /// All visits at the most.
    pub most: usize,
}

impl Pass {
    /// The fastest for a step of `count` tokens: all of them visit one block, or there are lists.
    #[must_use]
    pub fn best(kernels: &Kernels, mlps: &Mlps, lists: Option<Expected>, count: usize) -> Pass {
        if kernels.prefill && count > PREFILL_VECTORS {
            let fast = is_fast(mlps.gate_layout, mlps.hidden, Pass::Prefill)
                && is_fast(mlps.down_layout, mlps.width, Pass::Prefill);
            if kernels.hopper.is_some() && fast {
                let experts = |layout| &kernels.form(layout).experts;
                let (up, down) = (experts(mlps.gate_layout), experts(mlps.down_layout));
                let mean = lists.map_or(count, |lists| lists.usual / lists.slots);
                // Down's groups are gate's and up's.
                if let Some(width) = hopper_width(up, mean)
                    && down.hopper.iter().any(|(wide, _)| *wide == width)
                    && narrow_width(up, width) == narrow_width(down, width)
                {
                    return Pass::Hopper(width);
                }
            }
            return Pass::Prefill;
        }
        let whole = |lists: Expected| {
            let groups_of_eight_do = lists.usual + count <= WHOLE_VISITS * lists.slots;
            groups_of_eight_do && whole_kernel(kernels, mlps, lists.slots, lists.most).is_some()
        };
        if count > FEWEST_TOKENS && lists.is_some_and(whole) {
            Pass::Whole
        } else if kernels.terms * count <= 8 {
            Pass::Narrow
        } else {
            Pass::Many
        }
    }

    /// The kernels for it, and what it becomes where the layout has none.
    pub(super) fn kernels(self, of: &ExpertKernels) -> (Pass, GateUpAndDown) {
        match self {
            Pass::Many | Pass::Whole => (Pass::Many, of.many),
            Pass::Hopper(width) => match of.hopper.iter().find(|(wide, _)| *wide == width) {
                Some((_, pair)) => (Pass::Hopper(width), *pair),
                None => (Pass::Prefill, of.prefill),
            },
            Pass::Prefill => (Pass::Prefill, of.prefill),
            Pass::Plain | Pass::Narrow => (Pass::Narrow, of.narrow),
        }
    }

    /// Blocks for so many rows, where `tiles` tiles belong to each sixteen, and `slices` warps share columns.
    pub(super) fn row_blocks(self, rows: usize, tiles: usize, slices: usize) -> usize {
        match self {
            Pass::Prefill => (rows.div_ceil(TILE_ROWS) * tiles).div_ceil(2 * WARPS),
            _ => (rows.div_ceil(TILE_ROWS) * tiles).div_ceil(WARPS / slices),
        }
    }
}

/// The kernel that computes all of such experts' visits at once, up to `visits` of them, if there is one. It lists them in groups of eight.
pub(super) fn whole_kernel(
    kernels: &Kernels,
    mlps: &Mlps,
    slots: usize,
    visits: usize,
) -> Option<WholeKernel> {
    if !mlps.gate_layout.is_for_experts(mlps.hidden) || !mlps.down_layout.is_for_experts(mlps.width) {
        return None;
    }
    let down = &kernels.form(mlps.down_layout).experts;
    let kernel = match mlps.gate_layout == mlps.down_layout {
        true => down.whole,
        false => {
            down.whole_below.iter().find(|(above, _)| *above == mlps.gate_layout).map(|(_, kernel)| *kernel)
        }
    };
    kernel.filter(|kernel| can_list(slots, visits, kernel.threads))
}

/// Whether a block of so many threads, one a slot, can list so many visits.
fn can_list(slots: usize, visits: usize, threads: usize) -> bool {
    slots <= threads && slots + visits / WHOLE_VISITS <= WHOLE_GROUPS
}

/// Whether the tensor-core kernels take such blocks.
pub(super) fn is_fast(layout: Layout, cols: usize, pass: Pass) -> bool {
    layout.is_for_experts(cols) && pass != Pass::Plain
}

/// How many warps share a row: by shape alone.
pub(super) fn slices(layout: Layout, cols: usize, warps: usize) -> usize {
    // bf16's own count is for tiles of 32 columns.
    if layout == Layout::Bf16 { Layout::F8Blocks.slices(cols, warps) } else { layout.slices(cols, warps) }
}

/// Warps of a block (see `mma.cuh`).
pub(super) const WARPS: usize = 8;
pub(super) const THREADS: usize = 32 * WARPS;
pub(super) const TILE_ROWS: usize = 16;
/// Up to so many tokens the kernels that take gate and up, then down, are faster: there are too few items for one that takes all.
pub(super) const FEWEST_TOKENS: usize = 2;
/// Visits of a group, `WHOLE_VISITS` of `experts_whole.cuh`.
pub(super) const WHOLE_VISITS: usize = 8;

#[cfg(test)]
mod tests {
    use super::can_list;

    #[test]
    fn nothing_is_listed_that_a_block_would_miss() {
        // Kimi's 384 experts and a shared one, 64 tokens, by each kernel's block.
        assert!([512, 640, 768].iter().all(|&threads| can_list(385, 64 * 9, threads)));
        // A slot without a thread would be left out, a group behind the last would be too.
        assert!(!can_list(513, 600, 512) && can_list(512, 300, 512));
        assert!(!can_list(550, 100, 768));
        assert!(!can_list(7, 8 * 554, 768) && can_list(7, 8 * 553, 768));
    }
}
