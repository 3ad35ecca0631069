//! What the host tells the GPU about a step: tokens, positions and pages, in one copy.

use lucid_checkpoint::TokenId;

use super::attention::{Choices, StepRows};
use super::driver::{Address, Buffer, Gpu, Pinned};
use crate::Error;
use crate::cpu::Span;
use crate::kv_cache::PAGE_TOKENS;

/// Host and GPU copies: tokens `[max_tokens]`, rows `[max_tokens][position, table]`, pages.
///
/// The places don't depend on the step, so a captured graph finds the next step's values where the last one's were.
pub struct StepInputs {
    host: Pinned,
    device: Buffer,
    max_tokens: usize,
}

impl StepInputs {
    /// For steps of up to `max_tokens` tokens whose sequences list `pages` pages in all.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn new(gpu: &Gpu, max_tokens: usize, pages: usize) -> Result<StepInputs, Error> {
        let words = 3 * max_tokens + pages;
        Ok(StepInputs { host: Pinned::new(gpu, words)?, device: gpu.allocate(4 * words)?, max_tokens })
    }

    /// Makes room for a step that lists more pages than any before: sequences can share theirs, so there may be more places than
    /// pages. Whether the buffers are others now.
    ///
    /// # Errors
    /// When the memory is missing.
    pub fn grow(&mut self, gpu: &Gpu, spans: &[Span<'_>]) -> Result<bool, Error> {
        let pages: usize = spans.iter().map(pages_of).sum();
        if 3 * self.max_tokens + pages <= self.host.words().len() {
            return Ok(false);
        }
        self.host.wait()?;
        *self = StepInputs::new(gpu, self.max_tokens, pages.next_power_of_two())?;
        Ok(true)
    }

    /// Where the tokens stand.
    #[must_use]
    pub fn tokens(&self) -> Address {
        self.device.address()
    }

    /// Queues the copy of a step's inputs.
    ///
    /// # Errors
    /// When the step is larger than promised, or the copy can't be queued.
    pub fn send(&mut self, tokens: &[TokenId], spans: &[Span<'_>]) -> Result<StepRows, Error> {
        // The last step's copy must be over before its words change. A step without logits has not waited for it.
        self.host.wait()?;
        let pages: usize = spans.iter().map(|span| pages_of(span)).sum();
        let words = 3 * self.max_tokens + pages;
        let host = self.host.words();
        if tokens.len() > self.max_tokens || words > host.len() {
            return Err(Error::Gpu {
                doing: "sending a step",
                problem: format!(
                    "{} tokens and {pages} pages are more than the engine was made for",
                    tokens.len()
                ),
            });
        }
        for (word, token) in host.iter_mut().zip(tokens) {
            *word = token.0;
        }
        let (rows, tables) = host[self.max_tokens..].split_at_mut(2 * self.max_tokens);
        let (mut table, mut most_pages) = (0, 1);
        for span in spans {
            let seen = pages_of(span);
            for (word, page) in tables[table..table + seen].iter_mut().zip(span.pages) {
                *word = page.index() as u32;
            }
            for i in 0..span.count {
                rows[2 * (span.row + i)] = (span.position + i) as u32;
                rows[2 * (span.row + i) + 1] = table as u32;
            }
            table += seen;
            most_pages = most_pages.max(seen);
        }
        self.host.copy_to(self.device.address(), words)?;
        let rows = self.device.address().offset(4 * self.max_tokens);
        Ok(StepRows {
            count: tokens.len(),
            rows,
            pages: rows.offset(8 * self.max_tokens),
            most_pages,
            choices: Choices::EVERYTHING,
        })
    }
}

/// Pages that a span's last token sees.
fn pages_of(span: &Span<'_>) -> usize {
    (span.position + span.count).div_ceil(PAGE_TOKENS)
}
