//! The witness: what the model says about given tokens, without scheduler or server.

use lucid_checkpoint::{Checkpoint, TokenId};

use crate::backend::{Backend, Device, Load, LoadFormat};
use crate::cpu::{Observer, Span};
use crate::kv_cache::{PAGE_TOKENS, PageId, PagePool};
use crate::logprobs::log_softmax;
use crate::parallel::ExpertSharing;
use crate::{Error, Semantics, SemanticsOptions};

/// Tokens that are computed together.
const CHUNK: usize = 256;
/// Rows of logits that are in memory at a time: 16 of Kimi's are 10 MB.
const LOGIT_ROWS: usize = 16;

/// Scores token sequences, teacher-forced.
pub struct Scorer {
    model: Backend,
    pool: PagePool,
    pages: Vec<PageId>,
}

impl Scorer {
    /// Loads a model for scoring, on the processor.
    ///
    /// # Errors
    /// When the checkpoint is incomplete or unsupported, or threads can't be started.
    pub fn new(
        checkpoint: &Checkpoint,
        semantics: &SemanticsOptions,
        threads: Option<usize>,
    ) -> Result<Scorer, Error> {
        Scorer::on(Device::Cpu, checkpoint, semantics, threads)
    }

    /// Loads a model for scoring, on a device of choice; `threads` are the processor's.
    ///
    /// # Errors
    /// When the checkpoint is incomplete or unsupported, threads can't be started, or the device can't be used.
    pub fn on(
        device: Device,
        checkpoint: &Checkpoint,
        semantics: &SemanticsOptions,
        threads: Option<usize>,
    ) -> Result<Scorer, Error> {
        Scorer::on_ranks(device, 1, ExpertSharing::Widths, checkpoint, semantics, threads)
    }

    /// The same on `ranks` threads or GPUs that share the model, and its routed experts as `experts` says.
    ///
    /// # Errors
    /// As [`Scorer::on`], and when the model can't be dealt out.
    pub fn on_ranks(
        device: Device,
        ranks: usize,
        experts: ExpertSharing,
        checkpoint: &Checkpoint,
        semantics: &SemanticsOptions,
        threads: Option<usize>,
    ) -> Result<Scorer, Error> {
        let positions = checkpoint.config().max_position_embeddings;
        let load = Load {
            checkpoint,
            format: LoadFormat::Checkpoint,
            semantics,
            threads,
            positions,
            max_step_tokens: CHUNK,
            ranks,
            experts,
            progress: None,
        };
        let model = Backend::load(device, &load)?;
        Ok(Scorer { pool: PagePool::new(0), pages: Vec::new(), model })
    }

    /// What is computed, and how.
    #[must_use]
    pub fn semantics(&self) -> &Semantics {
        self.model.semantics()
    }

    /// Calls `visit(position, logprobs)` for each position in order: `logprobs` `[vocab_size]` (natural logarithms) is the
    /// distribution of the token that follows `tokens[..=position]`.
    ///
    /// # Errors
    /// Unknown tokens, more tokens than positions, logits that are not finite.
    pub fn score(&mut self, tokens: &[TokenId], visit: impl FnMut(usize, &[f32])) -> Result<(), Error> {
        self.run(tokens, tokens.len(), visit, None::<&mut ()>)
    }

    /// The same for a prompt of `prompt` tokens and its answer. A processor computes the two by different forms of attention, so this
    /// has the bits that an engine has that wrote the answer.
    ///
    /// # Errors
    /// As [`Scorer::score`].
    pub fn score_answer(
        &mut self,
        tokens: &[TokenId],
        prompt: usize,
        visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.run(tokens, prompt, visit, None::<&mut ()>)
    }

    /// The same, and `observer` sees hidden states and routes, in chunks of 256 tokens.
    ///
    /// # Errors
    /// As [`Scorer::score`].
    pub fn score_answer_observed(
        &mut self,
        tokens: &[TokenId],
        prompt: usize,
        visit: impl FnMut(usize, &[f32]),
        observer: &mut impl Observer,
    ) -> Result<(), Error> {
        self.run(tokens, prompt, visit, Some(observer))
    }

    /// The same for a prompt alone.
    ///
    /// # Errors
    /// As [`Scorer::score`].
    pub fn score_observed(
        &mut self,
        tokens: &[TokenId],
        visit: impl FnMut(usize, &[f32]),
        observer: &mut impl Observer,
    ) -> Result<(), Error> {
        self.run(tokens, tokens.len(), visit, Some(observer))
    }

    fn run(
        &mut self,
        tokens: &[TokenId],
        prompt: usize,
        mut visit: impl FnMut(usize, &[f32]),
        mut observer: Option<&mut impl Observer>,
    ) -> Result<(), Error> {
        self.make_room(tokens)?;
        let vocab = self.model.config().vocab_size;
        let mut logits = Vec::new();
        for (number, chunk) in tokens.chunks(CHUNK).enumerate() {
            let first = number * CHUNK;
            let (pages, count) = (&self.pages, chunk.len());
            let span = Span { pages, position: first, count, row: 0, prompt };
            self.model.forward(chunk, &[span], observer.as_deref_mut())?;
            let rows: Vec<usize> = (0..chunk.len()).collect();
            for rows in rows.chunks(LOGIT_ROWS) {
                self.model.logits(rows, &mut logits)?;
                for (&row, logits) in rows.iter().zip(logits.chunks_exact_mut(vocab)) {
                    let position = first + row;
                    log_softmax(logits).map_err(|_| Error::NotFinite { position })?;
                    visit(position, logits);
                }
            }
        }
        Ok(())
    }

    fn make_room(&mut self, tokens: &[TokenId]) -> Result<(), Error> {
        let config = self.model.config();
        let (vocab_size, max) = (config.vocab_size, config.max_position_embeddings);
        if let Some(&TokenId(token)) = tokens.iter().find(|token| token.row() >= vocab_size) {
            return Err(Error::UnknownToken { token, vocab_size });
        }
        if tokens.len() > max {
            return Err(Error::TooLong { tokens: tokens.len(), max });
        }
        if tokens.len() > self.pool.total() * PAGE_TOKENS {
            self.pages.clear();
            self.pool = PagePool::new(tokens.len());
            self.model.set_cache(self.pool.total())?;
        }
        let room = self.pool.extend(&mut self.pages, tokens.len());
        debug_assert!(room, "the pool was made for these tokens");
        Ok(())
    }
}
