//! How the visits of prompts are cut into groups, and which tiles take which.

use crate::cuda::arguments::VisitsArgs;
use crate::cuda::driver::Address;
use crate::cuda::form_kernels::{ExpertKernels, GateUpAndDown};
use crate::cuda::packing::Packing;

/// Groups of up to `width` visitors, at the most.
pub(super) fn groups(visits: VisitsArgs, slots: usize, width: usize) -> usize {
    match visits.slots {
        Address::NULL => (visits.count as usize).div_ceil(width),
        // Each expert's last group may be small.
        _ => slots + visits.count as usize / width,
    }
}

/// The width of the tiles for experts' last visitors, where those of `width` are much wider; else 0.
pub(super) fn narrow_width(kernels: &ExpertKernels, width: usize) -> usize {
    kernels.hopper.iter().map(|(narrow, _)| *narrow).filter(|narrow| 2 * narrow <= width).max().unwrap_or(0)
}

/// The two lists of groups, for tiles of `width` and for narrow ones: where each stands, how many groups of how many visits it has
/// at the most, and the kernels for it.
pub(super) fn tilings<'a>(
    kernels: &'a ExpertKernels,
    packing: &'a Packing,
    visits: VisitsArgs,
    slots: usize,
    width: usize,
) -> impl Iterator<Item = (Address, (usize, usize), GateUpAndDown)> + 'a {
    let narrow = narrow_width(kernels, width);
    // Without lists of visitors there is one group after the other, all in the first list.
    let slots_with_last = if visits.slots == Address::NULL { 0 } else { slots };
    let lists = [
        (packing.groups(), (groups(visits, slots, width), width)),
        (packing.narrow_groups(), (slots_with_last, narrow)),
    ];
    lists.into_iter().filter(|(_, (most, _))| *most > 0).filter_map(|(list, room)| {
        kernels.hopper.iter().find(|(wide, _)| *wide == room.1).map(|(_, pair)| (list, room, *pair))
    })
}

/// The narrowest tile in which most experts' visitors find room, where `mean` visit one: two standard deviations more. None where there
/// are no such kernels.
pub(super) fn hopper_width(kernels: &ExpertKernels, mean: usize) -> Option<usize> {
    let wanted = mean + 2 * mean.isqrt();
    let widths = || kernels.hopper.iter().map(|(width, _)| *width);
    widths().find(|&width| width >= wanted).or(widths().next_back())
}
