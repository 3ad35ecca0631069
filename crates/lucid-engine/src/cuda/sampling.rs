//! Draws on the GPU: a few bytes a row come to the host instead of a row of logits.

use lucid_checkpoint::TokenId;

use super::driver::{Address, Buffer, Gpu, Pinned, launch};
use super::kernels::Kernels;
use crate::Error;
use crate::choice::Choice;

/// The largest vocabulary that the kernel's sums have room for.
pub const MOST_TOKENS: usize = 1 << 18;
/// Threads of a block.
pub const THREADS: usize = 1_024;
/// Blocks of a row that are a cluster.
pub const PARTS: usize = 8;
/// Rows whose clusters are on a large GPU at once; more take a block each.
pub const CLUSTERED_ROWS: usize = 16;
/// u32 words of a `Choice`.
const WORDS: usize = size_of::<Choice>() / 4;
/// What the kernel says of a row that has a NaN or an infinity.
const NOT_FINITE: u32 = u32::MAX;

/// The draws of up to so many rows at a time.
pub struct Draws {
    host: Pinned,
    choices: Buffer,
    drawn: Buffer,
}

impl Draws {
    /// For `rows` rows at a time.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn new(gpu: &Gpu, rows: usize) -> Result<Draws, Error> {
        let (choices, drawn) = (gpu.allocate(4 * WORDS * rows)?, gpu.allocate(4 * rows)?);
        Ok(Draws { host: Pinned::new(gpu, WORDS * rows)?, choices, drawn })
    }

    /// Queues the draw of a token from each row of `logits` `[choices.len(), vocab]`. Nothing of an earlier call may be under way.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn queue(
        &mut self,
        gpu: &Gpu,
        kernels: &Kernels,
        (logits, vocab): (Address, usize),
        choices: &[Choice],
    ) -> Result<(), Error> {
        for (words, choice) in self.host.words().chunks_exact_mut(WORDS).zip(choices) {
            let [low, high] = [choice.point as u32, (choice.point >> 32) as u32];
            let [t, min_p, top_p] =
                [choice.inverse_temperature, choice.min_p, choice.top_p].map(f32::to_bits);
            words.copy_from_slice(&[low, high, t, min_p, top_p, choice.top_k]);
        }
        self.host.copy_to(self.choices.address(), WORDS * choices.len())?;
        let (choices_at, drawn, width) = (self.choices.address(), self.drawn.address(), vocab as u32);
        let clustered = gpu.capability() >= 90 && choices.len() <= CLUSTERED_ROWS;
        let (kernel, parts) = if clustered { (kernels.sample_8, PARTS) } else { (kernels.sample_1, 1) };
        launch!(gpu, kernel, (parts * choices.len(), 1, 1), THREADS, 0; logits, width, choices_at, drawn)
    }

    /// Where the tokens of the last call stand, u32 each.
    #[must_use]
    pub fn drawn(&self) -> Address {
        self.drawn.address()
    }

    /// Waits for the tokens of the first `count` rows; `None` where a logit is not finite.
    ///
    /// # Errors
    /// When the GPU fails, or any work so far did.
    pub fn take(&self, gpu: &Gpu, count: usize) -> Result<Vec<Option<TokenId>>, Error> {
        let mut answers = vec![0u32; count];
        gpu.read(&mut answers, self.drawn.address())?;
        Ok(answers.iter().map(|&token| (token != NOT_FINITE).then_some(TokenId(token))).collect())
    }
}
