//! From the last step's rows to logits and tokens.

use lucid_checkpoint::TokenId;

use super::{CudaModel, LOGIT_ROWS, vectors};
use crate::Error;
use crate::choice::Choice;
use crate::cuda::driver::Address;
use crate::cuda::matmul::{Product, multiply};
use crate::cuda::sampling::MOST_TOKENS;

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

    /// Whether [`CudaModel::draw`] can be used.
    #[must_use]
    pub fn can_draw(&self) -> bool {
        self.config.vocab_size <= MOST_TOKENS
    }

    /// Draws a token from each of some rows of the last step, on the first of all `ranks`; `None` where a logit is not finite.
    ///
    /// # Errors
    /// When a GPU fails, or any work of the step did.
    pub fn draw(ranks: &mut [CudaModel], rows: &[(usize, Choice)]) -> Result<Vec<Option<TokenId>>, Error> {
        let mut tokens = Vec::with_capacity(rows.len());
        for rows in rows.chunks(LOGIT_ROWS) {
            let (rows, choices): (Vec<usize>, Vec<Choice>) = rows.iter().copied().unzip();
            let Some((logits, vocab)) =
                ranks.first().map(|first| (first.scratch.logits.address(), first.config.vocab_size))
            else {
                break;
            };
            // All ranks write to the first one's memory, each its columns.
            for rank in &mut *ranks {
                let columns = logits.offset(4 * rank.vocabulary.start);
                rank.queue_logits(&rows, (columns, vocab))?;
            }
            let Some((first, others)) = ranks.split_first_mut() else { break };
            for other in others {
                first.gpu.follow(&other.gpu)?;
            }
            first.gpu.make_current()?;
            first.draws.draw(&first.gpu, &first.kernels, (logits, vocab), &choices, &mut tokens)?;
        }
        Ok(tokens)
    }
}
