//! Log-probabilities on the GPU: some 300 bytes a row come to the host instead of a row of logits.

use lucid_checkpoint::TokenId;

use super::driver::{Address, Buffer, Gpu, Pinned, launch};
use super::kernels::Kernels;
use super::sampling::{CLUSTERED_ROWS, PARTS, THREADS};
use crate::Error;
use crate::logprobs::{logprob, shift};
use crate::request::{Candidate, TokenLogprobs};

/// The longest list of likeliest tokens that the kernel makes: `LISTED` of `score.cu`.
pub const MOST_LISTED: usize = 32;

/// Whose log-probabilities are wanted. `Wish` of `score.cu`.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Row of the logits.
    pub row: usize,
    /// `None` is the token that was drawn there.
    pub token: Option<TokenId>,
    /// How many of the likeliest tokens, up to [`MOST_LISTED`].
    pub top: usize,
}

/// `Scored` of `score.cu`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Scored {
    total: u64,
    highest: f32,
    token: u32,
    logit: f32,
    rank: u32,
    tokens: [u32; MOST_LISTED],
    logits: [f32; MOST_LISTED],
}

impl Scored {
    /// `None` where a logit is not finite.
    fn entry(&self, top: usize) -> Option<TokenLogprobs> {
        let shift = shift(self.highest, self.total);
        let candidate =
            |token, logit, rank| Candidate { id: TokenId(token), logprob: logprob(logit, shift), rank };
        let best = self.tokens.iter().zip(&self.logits).zip(1..).take(top);
        (self.rank > 0).then(|| TokenLogprobs {
            token: candidate(self.token, self.logit, self.rank as usize),
            // Small vocabularies have fewer.
            top: best
                .take_while(|((token, _), _)| **token != u32::MAX)
                .map(|((&token, &logit), rank)| candidate(token, logit, rank))
                .collect(),
        })
    }
}

/// The scores of up to so many rows at a time.
pub struct Scores {
    host: Pinned,
    wishes: Buffer,
    scored: Buffer,
}

impl Scores {
    /// For `rows` rows at a time.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn new(gpu: &Gpu, rows: usize) -> Result<Scores, Error> {
        let (wishes, scored) = (gpu.allocate(8 * rows)?, gpu.allocate(size_of::<Scored>() * rows)?);
        Ok(Scores { host: Pinned::new(gpu, 2 * rows)?, wishes, scored })
    }

    /// Queues the scores of rows of `logits` `[rows, vocab]`; `drawn` `[rows]` are tokens that were drawn there. Nothing of an earlier
    /// call may be under way.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn queue(
        &mut self,
        gpu: &Gpu,
        kernels: &Kernels,
        (logits, vocab): (Address, usize),
        wishes: &[Wish],
        drawn: Address,
    ) -> Result<(), Error> {
        if wishes.is_empty() {
            return Ok(());
        }
        for (words, wish) in self.host.words().chunks_exact_mut(2).zip(wishes) {
            words.copy_from_slice(&[wish.row as u32, wish.token.map_or(u32::MAX, |token| token.0)]);
        }
        self.host.copy_to(self.wishes.address(), 2 * wishes.len())?;
        let (wishes_at, scored, width) = (self.wishes.address(), self.scored.address(), vocab as u32);
        let clustered = gpu.capability() >= 90 && wishes.len() <= CLUSTERED_ROWS;
        let (kernel, parts) = if clustered { (kernels.score_8, PARTS) } else { (kernels.score_1, 1) };
        let grid = (parts * wishes.len(), 1, 1);
        launch!(gpu, kernel, grid, THREADS, 0; logits, width, wishes_at, drawn, scored)
    }

    /// Waits for the entries of `wishes`, which were queued; `None` where a logit of the row is not finite.
    ///
    /// # Errors
    /// When the GPU fails, or any work so far did.
    pub fn take(
        &self,
        gpu: &Gpu,
        wishes: &[Wish],
    ) -> Result<impl Iterator<Item = Option<TokenLogprobs>> + use<>, Error> {
        let mut scored = vec![Scored::default(); wishes.len()];
        gpu.read(&mut scored, self.scored.address())?;
        let tops: Vec<usize> = wishes.iter().map(|wish| wish.top).collect();
        Ok(scored.into_iter().zip(tops).map(|(scored, top)| scored.entry(top)))
    }
}
