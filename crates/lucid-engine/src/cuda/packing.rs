//! Vectors on their way to Hopper's warpgroup products: packed as `kernels/pack.cu` says.

use super::arguments::VisitsArgs;
use super::driver::{Address, Buffer, Gpu, launch};
use super::kernels::Kernels;
use super::layout::Layout;
use crate::Error;

/// Vectors of a block in packed form.
const BLOCK: usize = 8;
/// Threads of the kernel that lists groups.
const LISTING_THREADS: usize = 512;
/// The narrowest tile of an expert's kernel: no list of groups is longer than with it.
const NARROWEST: usize = 32;

/// Room for the packed vectors of one product, and for the list of their groups; made for the largest step.
pub struct Packing {
    vectors: Buffer,
    groups: Buffer,
    narrow_groups: Buffer,
}

/// What a [`Packing`] must have room for.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Vectors of a step.
    pub tokens: usize,
    /// Columns of the widest one.
    pub columns: usize,
    /// Visits to experts.
    pub visits: usize,
    /// Columns of the wider one of an expert's vectors.
    pub visit_columns: usize,
    /// Experts that can be visited.
    pub slots: usize,
}

impl Packing {
    /// For steps of that size, or nothing where no kernel takes packed vectors.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn new(gpu: &Gpu, kernels: &Kernels, room: Room) -> Result<Packing, Error> {
        if kernels.hopper.is_none() {
            let nothing = || gpu.allocate(0);
            return Ok(Packing { vectors: nothing()?, groups: nothing()?, narrow_groups: nothing()? });
        }
        // Every expert's visitors begin with a block (see `list_groups`).
        let visits = (room.visits / BLOCK + room.slots + 2) * BLOCK * room.visit_columns;
        let vectors = room.tokens.next_multiple_of(BLOCK) * room.columns;
        let groups = room.slots + room.visits.div_ceil(NARROWEST) + 2;
        Ok(Packing {
            vectors: gpu.allocate(2 * visits.max(vectors))?,
            groups: gpu.allocate(16 * groups)?,
            narrow_groups: gpu.allocate(16 * (room.slots + 2))?,
        })
    }

    /// The packed vectors.
    #[must_use]
    pub fn vectors(&self) -> Address {
        self.vectors.address()
    }

    /// Bytes of room for them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.vectors.bytes()
    }

    /// The list of groups.
    #[must_use]
    pub fn groups(&self) -> Address {
        self.groups.address()
    }

    /// The list of narrow groups.
    #[must_use]
    pub fn narrow_groups(&self) -> Address {
        self.narrow_groups.address()
    }

    /// Lists the groups of up to `width` visits, and apart from them experts' last ones of up to `narrow`.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn list(
        &self,
        gpu: &Gpu,
        kernels: &Kernels,
        visits: VisitsArgs,
        slots: usize,
        (width, narrow): (usize, usize),
    ) -> Result<(), Error> {
        let (slots, width, narrow) = (slots as u32, width as u32, narrow as u32);
        let (groups, narrow_groups) = (self.groups(), self.narrow_groups());
        launch!(gpu, kernels.list_groups, (1, 1, 1), LISTING_THREADS, 0;
            visits, slots, width, narrow, groups, narrow_groups)
    }

    /// Packs the vectors of `groups` of up to `width`, `most_groups` at the most, of `columns` columns, for weights in `layout`: rows
    /// `tokens[v]` of `x`, or rows v.
    ///
    /// # Errors
    /// When the GPU fails.
    #[allow(clippy::too_many_arguments)] // The kernel's.
    pub fn pack_visitors(
        &self,
        gpu: &Gpu,
        kernels: &Kernels,
        groups: Address,
        (most_groups, width): (usize, usize),
        tokens: Address,
        x: Address,
        columns: usize,
        layout: Layout,
    ) -> Result<(), Error> {
        let (columns, vectors, sixteens) =
            (columns as u32, self.vectors(), i32::from(layout.scales_sixteens()));
        launch!(gpu, kernels.pack_visitors, (most_groups, width / BLOCK, 1), 256, 0;
            groups, tokens, x, columns, sixteens, vectors)
    }
}

/// Packs `count` vectors of `columns` columns in groups of `width`, to `packed`, for weights with scales for `sixteens` or not.
///
/// # Errors
/// When the GPU fails.
#[allow(clippy::too_many_arguments)] // The kernel's.
pub fn pack(
    gpu: &Gpu,
    kernels: &Kernels,
    x: Address,
    count: usize,
    width: usize,
    columns: usize,
    sixteens: bool,
    packed: Address,
) -> Result<(), Error> {
    let blocks = count.div_ceil(BLOCK);
    let (count, width, columns, sixteens) = (count as u32, width as u32, columns as u32, i32::from(sixteens));
    launch!(gpu, kernels.pack_vectors, (blocks, 1, 1), 256, 0; x, count, width, columns, sixteens, packed)
}
