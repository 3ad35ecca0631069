//! GPUs that share a model: where the parts of a sum stand, and the sum (see `kernels/ranks.cu`).

use super::driver::{Address, Buffer, Gpu, launch};
use super::experts::Output;
use super::kernels::{Kernels, MOST_RANKS, RanksArgs};
use crate::Error;
use crate::parallel::Rank;

/// Blocks of a sum at the most: they wait for those of the other ranks, so all must be on the GPU at once.
const BLOCKS: usize = 64;
const THREADS: usize = 256;
/// Cycles that a rank waits for another: some ten seconds. The first step of a rank records its kernels.
const PATIENCE: u64 = 20_000_000_000;

/// Which sum of a step: neighbouring ones have different memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// The embedding, which each rank has for some tokens.
    Embedding = 0,
    /// What attention adds.
    Attention = 1,
    /// What the MLP or the experts add.
    FeedForward = 2,
}

/// A rank's own memory that the others read and write.
pub struct Seat {
    parts: [Buffer; 3],
    arrived: Buffer,
    turns: Buffer,
}

impl Seat {
    /// For steps whose sums have up to `values` values.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn new(gpu: &Gpu, values: usize) -> Result<Seat, Error> {
        let part = || gpu.allocate(4 * values);
        Ok(Seat {
            parts: [part()?, part()?, part()?],
            arrived: gpu.upload(&vec![0u32; BLOCKS * MOST_RANKS])?,
            turns: gpu.upload(&[0u32; BLOCKS])?,
        })
    }

    /// Where it is, for the other ranks.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { parts: [0, 1, 2].map(|i| self.parts[i].address()), arrived: self.arrived.address() }
    }
}

/// Where a rank's seat is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    parts: [Address; 3],
    arrived: Address,
}

/// The meeting of all ranks, as one of them sees it.
pub struct Ranks {
    rank: Rank,
    /// Empty when there is no other rank.
    places: Vec<Place>,
    seat: Option<Seat>,
}

impl Ranks {
    /// A GPU alone.
    pub const ALONE: Ranks = Ranks { rank: Rank::ALONE, places: Vec::new(), seat: None };

    /// With the seats of all ranks, in their order. All GPUs reach each other.
    ///
    /// # Errors
    /// When there are more than the kernel takes.
    pub fn new(rank: Rank, seat: Seat, places: Vec<Place>) -> Result<Ranks, Error> {
        if places.len() > MOST_RANKS {
            return Err(Error::Option {
                option: "ranks",
                value: places.len().to_string(),
                expected: "up to 8 GPUs share a model",
            });
        }
        Ok(Ranks { rank, places, seat: Some(seat) })
    }

    /// Where a block's result goes: to the residual stream, or to this rank's part of the sum.
    #[must_use]
    pub fn output(&self, sum: Sum, hidden: Address) -> Output {
        match &self.seat {
            None => Output { at: hidden, add: sum != Sum::Embedding },
            Some(seat) => Output { at: seat.parts[sum as usize].address(), add: false },
        }
    }

    /// Queues the sum of all parts into the residual stream, `values` long. Nothing when there is one rank.
    ///
    /// # Errors
    /// When the kernel can't be queued.
    pub fn sum(
        &self,
        gpu: &Gpu,
        kernels: &Kernels,
        sum: Sum,
        values: usize,
        hidden: Address,
    ) -> Result<(), Error> {
        let Some(seat) = &self.seat else { return Ok(()) };
        let mut args = RanksArgs {
            parts: [Address::NULL; MOST_RANKS],
            arrived: [Address::NULL; MOST_RANKS],
            turns: seat.turns.address(),
            count: self.rank.count() as u32,
            number: self.rank.number() as u32,
            patience: PATIENCE,
        };
        for (i, place) in self.places.iter().enumerate() {
            (args.parts[i], args.arrived[i]) = (place.parts[sum as usize], place.arrived);
        }
        let blocks = values.div_ceil(4 * THREADS).clamp(1, BLOCKS);
        let (values, accumulate) = (values as u32, i32::from(sum != Sum::Embedding));
        launch!(gpu, kernels.sum_ranks, (blocks, 1, 1), THREADS, 0; args, values, accumulate, hidden)
    }
}
