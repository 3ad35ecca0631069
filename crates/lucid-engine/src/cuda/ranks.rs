//! GPUs that share a model: where the parts of a sum stand, and the sum (see `kernels/ranks.cu`). GPUs of one process read each other's
//! memory; those of several send their parts with NCCL. The bits are the same.

use std::ops::Range;
use std::sync::Arc;

use super::arguments::{MOST_RANKS, RanksArgs};
use super::driver::{Address, Buffer, Gpu, launch};
use super::experts::Output;
use super::kernels::Kernels;
use super::nccl::Communicator;
use crate::Error;
use crate::parallel::Rank;

/// Blocks of a sum at the most: they wait for those of the other ranks, so all must be on the GPU at once.
const BLOCKS: usize = 64;
const THREADS: usize = 256;
/// Cycles that a rank waits for another: some ten seconds. The first step of a rank records its kernels.
const PATIENCE: u64 = 20_000_000_000;

/// Values of a part up to which every rank gets all parts whole: two megabytes. Larger ones are summed in pieces, one a rank, which
/// all then get: less is sent, but twice.
const WHOLE_VALUES: usize = 1 << 19;

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
pub enum Ranks {
    /// There is no other.
    Alone,
    /// GPUs of this process.
    Here {
        /// This one.
        rank: Rank,
        /// All ranks' places, in their order.
        places: Vec<Place>,
        /// This one's.
        seat: Seat,
    },
    /// GPUs of several processes.
    Apart(Apart),
}

/// A rank whose others are in other processes.
pub struct Apart {
    communicator: Arc<Communicator>,
    /// What this rank adds.
    part: Buffer,
    /// What comes from the others.
    gathered: Buffer,
}

impl Apart {
    /// For steps whose sums have up to `values` values, and logits of up to `logits` values.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn new(
        gpu: &Gpu,
        communicator: Arc<Communicator>,
        values: usize,
        logits: usize,
    ) -> Result<Apart, Error> {
        let count = communicator.rank().count();
        let room = (count * WHOLE_VALUES.min(values)).max(count * piece_of(values, count)).max(logits);
        Ok(Apart { communicator, part: gpu.allocate(4 * values)?, gathered: gpu.allocate(4 * room)? })
    }

    /// Queues the sum of all parts into `hidden`, `values` long, a multiple of 4.
    fn sum(
        &self,
        gpu: &Gpu,
        kernels: &Kernels,
        accumulate: bool,
        values: usize,
        hidden: Address,
    ) -> Result<(), Error> {
        let (rank, part, gathered) = (self.communicator.rank(), self.part.address(), self.gathered.address());
        let count = rank.count();
        let add = |stride: usize, values: usize, hidden: Address| {
            let blocks = values.div_ceil(4 * THREADS).clamp(1, 8 * BLOCKS);
            let (parts, stride, values) = (gathered, stride as u64, values as u32);
            let (count, accumulate) = (count as u32, i32::from(accumulate));
            launch!(gpu, kernels.sum_parts, (blocks, 1, 1), THREADS, 0; parts, stride, count, values, accumulate, hidden)
        };
        if values <= WHOLE_VALUES {
            self.communicator.all_gather(gpu, part, gathered, values)?;
            return add(values, values, hidden);
        }
        let length = piece_of(values, count);
        let piece = |rank: usize| (rank * length).min(values)..((rank + 1) * length).min(values);
        let own = piece(rank.number());
        let others = || (0..count).filter(|&other| other != rank.number());
        let sent: Vec<_> = others().map(|other| part_of(other, part, piece(other))).collect();
        let place = |other: usize| gathered.offset(4 * other * length);
        let received: Vec<_> = others().map(|other| (other, place(other), own.len())).collect();
        self.communicator.exchange(gpu, &sent, &received)?;
        gpu.copy(part.offset(4 * own.start), place(rank.number()), 4 * own.len())?;
        if !own.is_empty() {
            add(length, own.len(), hidden.offset(4 * own.start))?;
        }
        let sent: Vec<_> = others().map(|other| part_of(other, hidden, own.clone())).collect();
        let received: Vec<_> = others().map(|other| part_of(other, hidden, piece(other))).collect();
        self.communicator.exchange(gpu, &sent, &received)
    }

    /// Queues the way of this rank's logits `[rows, vocabulary]` to rank 0.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn send_logits(&self, gpu: &Gpu, logits: Address, values: usize) -> Result<(), Error> {
        self.communicator.exchange(gpu, &[(0, logits, values)], &[])
    }

    /// Queues the way of the other ranks' logits into their columns of `logits` `[rows, vocab]`; rank 0's stand there.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn receive_logits(
        &self,
        gpu: &Gpu,
        (logits, vocab): (Address, usize),
        rows: usize,
        vocabularies: &[Range<usize>],
    ) -> Result<(), Error> {
        let gathered = self.gathered.address();
        let others = || vocabularies.iter().enumerate().skip(1);
        let place = |columns: &Range<usize>| gathered.offset(4 * rows * columns.start);
        let received: Vec<_> =
            others().map(|(rank, columns)| (rank, place(columns), rows * columns.len())).collect();
        self.communicator.exchange(gpu, &[], &received)?;
        others().try_for_each(|(_, columns)| {
            let (bytes, to) = (4 * columns.len(), logits.offset(4 * columns.start));
            gpu.copy_rows((place(columns), bytes), (to, 4 * vocab), bytes, rows)
        })
    }
}

/// Values of each rank's piece of a sum, a multiple of 4; the last pieces may be shorter or empty.
fn piece_of(values: usize, ranks: usize) -> usize {
    values.div_ceil(ranks).next_multiple_of(4)
}

/// For [`Communicator::exchange`].
fn part_of(rank: usize, values: Address, range: Range<usize>) -> (usize, Address, usize) {
    (rank, values.offset(4 * range.start), range.len())
}

impl Ranks {
    /// With the seats of all ranks of this process, in their order. All GPUs reach each other.
    ///
    /// # Errors
    /// When there are more than the kernel takes.
    pub fn here(rank: Rank, seat: Seat, places: Vec<Place>) -> Result<Ranks, Error> {
        if places.len() > MOST_RANKS {
            return Err(Error::Option {
                option: "ranks",
                value: places.len().to_string(),
                expected: "up to 8 GPUs of one process share a model",
            });
        }
        Ok(Ranks::Here { rank, places, seat })
    }

    /// Whether steps may be recorded. What NCCL queues is not.
    #[must_use]
    pub fn recordable(&self) -> bool {
        !matches!(self, Ranks::Apart(_))
    }

    /// Whether a block's result is the residual stream, with nothing to be added.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        matches!(self, Ranks::Alone)
    }

    /// Where a block's result goes: to the residual stream, or to this rank's part of the sum.
    #[must_use]
    pub fn output(&self, sum: Sum, hidden: Address) -> Output {
        let at = match self {
            Ranks::Alone => return Output { at: hidden, add: sum != Sum::Embedding, then: None },
            Ranks::Here { seat, .. } => seat.parts[sum as usize].address(),
            Ranks::Apart(apart) => apart.part.address(),
        };
        Output { at, add: false, then: None }
    }

    /// Queues the sum of all parts into the residual stream, `values` long. Nothing when there is one rank.
    ///
    /// # Errors
    /// When the kernel can't be queued, or a rank is lost.
    pub fn sum(
        &self,
        gpu: &Gpu,
        kernels: &Kernels,
        sum: Sum,
        values: usize,
        hidden: Address,
    ) -> Result<(), Error> {
        let accumulate = sum != Sum::Embedding;
        let (rank, places, seat) = match self {
            Ranks::Alone => return Ok(()),
            Ranks::Apart(apart) => return apart.sum(gpu, kernels, accumulate, values, hidden),
            Ranks::Here { rank, places, seat } => (rank, places, seat),
        };
        let mut args = RanksArgs {
            parts: [Address::NULL; MOST_RANKS],
            arrived: [Address::NULL; MOST_RANKS],
            turns: seat.turns.address(),
            count: rank.count() as u32,
            number: rank.number() as u32,
            patience: PATIENCE,
        };
        for (i, place) in places.iter().enumerate() {
            (args.parts[i], args.arrived[i]) = (place.parts[sum as usize], place.arrived);
        }
        let blocks = values.div_ceil(4 * THREADS).clamp(1, BLOCKS);
        let (values, accumulate) = (values as u32, i32::from(accumulate));
        launch!(gpu, kernels.sum_ranks, (blocks, 1, 1), THREADS, 0; args, values, accumulate, hidden)
    }
}
