//! From the last step's rows to logits and tokens.

use lucid_checkpoint::TokenId;

use super::{CudaModel, LOGIT_ROWS, vectors};
use crate::Error;
use crate::backend::{Drawing, Drawn};
use crate::choice::Choice;
use crate::cuda::driver::Address;
use crate::cuda::matmul::{Product, multiply};
use crate::cuda::sampling::MOST_TOKENS;
use crate::cuda::scoring::Wish;
use crate::request::TokenLogprobs;

impl CudaModel {
    /// Logits `[rows, vocabulary]` of some rows of the last step, for the part's tokens.
    ///
    /// # Errors
    /// When the GPU fails, or any work of the step did.
    pub fn logits(&mut self, rows: &[usize], out: &mut Vec<f32>) -> Result<(), Error> {
        let vocab = self.vocabulary.len();
        out.resize(rows.len() * vocab, 0.0);
        for (rows, out) in rows.chunks(LOGIT_ROWS).zip(out.chunks_mut(LOGIT_ROWS * vocab)) {
            let logits = self.scratch.logits.address();
            self.queue_logits(rows, (logits, vocab))?;
            self.gpu.read(out, logits)?;
        }
        Ok(())
    }

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

    /// Whether [`CudaModel::draw`] and [`CudaModel::score`] can be used.
    #[must_use]
    pub fn can_draw(&self) -> bool {
        self.config.vocab_size <= MOST_TOKENS
    }

    /// Draws a token from each of some rows of the last step, on the first of all `ranks`, with log-probabilities where they are
    /// wanted; `None` where a logit is not finite.
    ///
    /// # Errors
    /// When a GPU fails, or any work of the step did.
    pub fn draw(ranks: &mut [CudaModel], rows: &[Drawing]) -> Result<Vec<Option<Drawn>>, Error> {
        let mut all = Vec::with_capacity(rows.len());
        for rows in rows.chunks(LOGIT_ROWS) {
            let places: Vec<usize> = rows.iter().map(|row| row.row).collect();
            let choices: Vec<Choice> = rows.iter().map(|row| row.choice).collect();
            let wishes: Vec<Wish> = rows
                .iter()
                .enumerate()
                .filter_map(|(row, wanted)| Some(Wish { row, token: None, top: wanted.top? }))
                .collect();
            let (logits, first) = CudaModel::gathered_logits(ranks, &places)?;
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

    /// The entries of a token at each of some rows of the last step, on the first of all `ranks`, with up to [`MOST_LISTED`] likeliest
    /// ones; `None` where a logit is not finite.
    ///
    /// [`MOST_LISTED`]: crate::cuda::MOST_LISTED
    ///
    /// # Errors
    /// When a GPU fails, or any work of the step did.
    pub fn score(
        ranks: &mut [CudaModel],
        rows: &[(usize, TokenId)],
        top: usize,
    ) -> Result<Vec<Option<TokenLogprobs>>, Error> {
        let mut all = Vec::with_capacity(rows.len());
        for rows in rows.chunks(LOGIT_ROWS) {
            let places: Vec<usize> = rows.iter().map(|&(row, _)| row).collect();
            let wish = |(row, &(_, token)): (usize, &(usize, TokenId))| Wish { row, token: Some(token), top };
            let wishes: Vec<Wish> = rows.iter().enumerate().map(wish).collect();
            let (logits, first) = CudaModel::gathered_logits(ranks, &places)?;
            first.scores.queue(&first.gpu, &first.kernels, logits, &wishes, first.draws.drawn())?;
            all.extend(first.scores.take(&first.gpu, &wishes)?);
        }
        Ok(all)
    }

    /// Queues the whole logits of up to `LOGIT_ROWS` rows; they stand, and so wide, in the memory of the first rank, which comes along.
    fn gathered_logits<'a>(
        ranks: &'a mut [CudaModel],
        rows: &[usize],
    ) -> Result<((Address, usize), &'a mut CudaModel), Error> {
        let Some((first, others)) = ranks.split_first_mut() else {
            return Err(Error::Gpu { doing: "gathering logits", problem: "the model has no ranks".into() });
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
