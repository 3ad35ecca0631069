//! From the last step's rows to logits and tokens.

use lucid_checkpoint::TokenId;

use super::{CudaModel, LOGIT_ROWS, vectors};
use crate::Error;
use crate::backend::{Drawing, Drawn};
use crate::choice::Choice;
use crate::cuda::driver::Address;
use crate::cuda::matmul::{Product, multiply};
use crate::cuda::ranks::Ranks;
use crate::cuda::sampling::MOST_TOKENS;
use crate::cuda::scoring::Wish;
use crate::parallel::Rank;
use crate::request::TokenLogprobs;
use crate::world::{Leader, orders};

impl CudaModel {
    /// Queues the logits of up to `LOGIT_ROWS` rows, for the part's tokens, to rows of `width` f32. Nothing of an earlier call may be
    /// under way.
    fn queue_logits(&mut self, rows: &[usize], (to, width): (Address, usize)) -> Result<(), Error> {
        self.gpu.make_current()?;
        for (word, &row) in self.logit_rows.words().iter_mut().zip(rows) {
            *word = row as u32;
        }
        let s = &self.scratch;
        self.logit_rows.copy_to(s.logit_rows.address(), rows.len())?;
        let weight = self.weights.lm_head();
        let x = vectors(weight, s.normed.address(), s.normed_nvfp4.address());
        let product = Product::new(weight, x).gather(s.logit_rows.address()).into(to).of_width(width);
        multiply(&self.gpu, &self.kernels, product, None, rows.len())
    }

    /// Whether [`All::draw`] and [`All::score`] can be used.
    #[must_use]
    pub fn can_draw(&self) -> bool {
        self.config.vocab_size <= MOST_TOKENS
    }

    /// Sends the logits of up to `LOGIT_ROWS` rows of the last step to rank 0, which is in another process.
    ///
    /// # Errors
    /// When the GPU fails, any work of the step did, or a rank is lost.
    pub fn send_logits(&mut self, rows: &[usize]) -> Result<(), Error> {
        let (logits, vocab) = (self.scratch.logits.address(), self.vocabulary.len());
        if rows.len() > LOGIT_ROWS {
            return Err(Error::Gpu {
                doing: "sending logits",
                problem: format!("{} rows at once", rows.len()),
            });
        }
        self.queue_logits(rows, (logits, vocab))?;
        if let Ranks::Apart(apart) = &self.ranks {
            apart.send_logits(&self.gpu, logits, rows.len() * vocab)?;
        }
        // The rows' numbers must not change before they were read.
        self.gpu.synchronize()
    }
}

/// All ranks of a model, as whoever asks for logits sees them.
pub enum All<'a> {
    /// In this process, in order.
    Here(&'a mut [CudaModel]),
    /// Rank 0, and the way to the others in their processes.
    Apart(&'a mut CudaModel, &'a Leader),
}

impl All<'_> {
    /// Draws a token from each of some rows of the last step, on the first rank, with log-probabilities where they are wanted; `None`
    /// where a logit is not finite.
    ///
    /// # Errors
    /// When a GPU fails, any work of the step did, or a rank is lost.
    pub fn draw(&mut self, rows: &[Drawing]) -> Result<Vec<Option<Drawn>>, Error> {
        let mut all = Vec::with_capacity(rows.len());
        for rows in rows.chunks(LOGIT_ROWS) {
            let places: Vec<usize> = rows.iter().map(|row| row.row).collect();
            let choices: Vec<Choice> = rows.iter().map(|row| row.choice).collect();
            let wishes: Vec<Wish> = rows
                .iter()
                .enumerate()
                .filter_map(|(row, wanted)| Some(Wish { row, token: None, top: wanted.top? }))
                .collect();
            let (logits, first) = self.gathered_logits(&places)?;
            first.draws.queue(&first.gpu, &first.kernels, logits, &choices)?;
            first.scores.queue(&first.gpu, &first.kernels, logits, &wishes, first.draws.drawn())?;
            let tokens = first.draws.take(&first.gpu, rows.len())?;
            let mut entries = first.scores.take(&first.gpu, &wishes)?;
            for (row, token) in rows.iter().zip(tokens) {
                let logprobs = row.top.and_then(|_| entries.next().flatten());
                all.push(token.map(|token| (token, logprobs)));
            }
        }
        Ok(all)
    }

    /// The entries of a token at each of some rows of the last step, on the first rank, with up to [`MOST_LISTED`] likeliest ones; `None`
    /// where a logit is not finite.
    ///
    /// [`MOST_LISTED`]: crate::cuda::MOST_LISTED
    ///
    /// # Errors
    /// As [`All::draw`].
    pub fn score(
        &mut self,
        rows: &[(usize, TokenId)],
        top: usize,
    ) -> Result<Vec<Option<TokenLogprobs>>, Error> {
        let mut all = Vec::with_capacity(rows.len());
        for rows in rows.chunks(LOGIT_ROWS) {
            let places: Vec<usize> = rows.iter().map(|&(row, _)| row).collect();
            let wish = |(row, &(_, token)): (usize, &(usize, TokenId))| Wish { row, token: Some(token), top };
            let wishes: Vec<Wish> = rows.iter().enumerate().map(wish).collect();
            let (logits, first) = self.gathered_logits(&places)?;
            first.scores.queue(&first.gpu, &first.kernels, logits, &wishes, first.draws.drawn())?;
            all.extend(first.scores.take(&first.gpu, &wishes)?);
        }
        Ok(all)
    }

    /// The whole logits `[rows, vocab]` of some rows of the last step.
    ///
    /// # Errors
    /// As [`All::draw`].
    pub fn logits(&mut self, rows: &[usize], out: &mut Vec<f32>) -> Result<(), Error> {
        let vocab = match self {
            All::Here(ranks) => ranks.first().map_or(0, |first| first.config.vocab_size),
            All::Apart(first, _) => first.config.vocab_size,
        };
        out.resize(rows.len() * vocab, 0.0);
        for (rows, out) in rows.chunks(LOGIT_ROWS).zip(out.chunks_mut(LOGIT_ROWS * vocab)) {
            let ((logits, _), first) = self.gathered_logits(rows)?;
            first.gpu.read(out, logits)?;
        }
        Ok(())
    }

    /// Queues the whole logits of up to `LOGIT_ROWS` rows; they stand, and so wide, in the memory of the first rank, which comes along.
    fn gathered_logits(&mut self, rows: &[usize]) -> Result<((Address, usize), &mut CudaModel), Error> {
        let (first, others) = match self {
            All::Apart(first, leader) => {
                leader.order(&orders::logits(rows))?;
                let (logits, vocab) = (first.scratch.logits.address(), first.config.vocab_size);
                first.queue_logits(rows, (logits.offset(4 * first.vocabulary.start), vocab))?;
                if let Ranks::Apart(apart) = &first.ranks {
                    // As `Shard::vocabulary` has it.
                    let vocabularies: Vec<_> =
                        Rank::all(leader.size()).map(|rank| rank.part(vocab)).collect();
                    apart.receive_logits(&first.gpu, (logits, vocab), rows.len(), &vocabularies)?;
                }
                return Ok(((logits, vocab), first));
            }
            All::Here(ranks) => ranks
                .split_first_mut()
                .ok_or(Error::Gpu { doing: "gathering logits", problem: "the model has no ranks".into() })?,
        };
        let (logits, vocab) = (first.scratch.logits.address(), first.config.vocab_size);
        // All ranks write to the first one's memory, each its columns.
        for rank in std::iter::once(&mut *first).chain(&mut *others) {
            let columns = logits.offset(4 * rank.vocabulary.start);
            rank.queue_logits(rows, (columns, vocab))?;
        }
        for other in others {
            first.gpu.follow(&other.gpu)?;
        }
        first.gpu.make_current()?;
        Ok(((logits, vocab), first))
    }
}
