//! Faults that act while the model runs: in the mask, in the KV cache, with time and in company.
//!
//! A fault of the cache changes entries at the end of a step, so that the step itself is right and all later ones read what
//! is wrong: that is how scales, pages and hashes fail in the field.

use std::collections::HashMap;

use lucid_checkpoint::TokenId;

use super::{Dose, Plant};
use crate::cpu::{Aligned, LatentCache, Span};
use crate::kv_cache::{PAGE_TOKENS, PageId};

/// Pages that a fault remembers at the most.
const MOST_PAGES: usize = 128;

/// A page's entries, `[layers][PAGE_TOKENS, width]`.
type Content = Vec<Vec<f32>>;

/// A fault at work.
#[derive(Debug)]
pub(crate) struct Running {
    plant: Plant,
    dose: Dose,
    layers: usize,
    steps: usize,
    requests: usize,
    reuses: usize,
    /// Rows of this step that belong to a prompt beside the first one.
    later_prompts: Vec<std::ops::Range<usize>>,
    /// Rows of this step that go on with a prompt.
    later_chunks: Vec<std::ops::Range<usize>>,
    /// Tokens of each page, as far as they are written.
    tokens: HashMap<PageId, Vec<TokenId>>,
    /// What a reused page keeps, or what the first page with these tokens holds.
    stale: HashMap<PageId, Content>,
    /// By the page's number in its sequence and its first tokens.
    first: HashMap<(usize, Vec<TokenId>), (Vec<TokenId>, Content)>,
}

/// Spans that attention sees instead of the right ones.
pub(crate) struct Attended {
    pages: Vec<Vec<PageId>>,
    /// Which pages, position, count, row, prompt.
    parts: Vec<(usize, usize, usize, usize, usize)>,
}

impl Attended {
    pub(crate) fn spans(&self) -> Vec<Span<'_>> {
        let span = |&(pages, position, count, row, prompt): &(usize, usize, usize, usize, usize)| Span {
            pages: &self.pages[pages],
            position,
            count,
            row,
            prompt,
        };
        self.parts.iter().map(span).collect()
    }
}

impl Running {
    pub(super) fn new(plant: Plant, dose: Dose, layers: usize) -> Running {
        Running {
            plant,
            dose,
            layers,
            steps: 0,
            requests: 0,
            reuses: 0,
            later_prompts: Vec::new(),
            later_chunks: Vec::new(),
            tokens: HashMap::new(),
            stale: HashMap::new(),
            first: HashMap::new(),
        }
    }

    /// Before a step: `spans` of `tokens` will be written.
    pub(crate) fn before(&mut self, tokens: &[TokenId], spans: &[Span<'_>], cache: &LatentCache) {
        self.steps += 1;
        let prompts = spans.iter().filter(|span| span.count > 1);
        self.later_prompts = prompts.skip(1).map(|span| span.row..span.row + span.count).collect();
        let later = spans.iter().filter(|span| span.count > 1 && span.position > 0);
        self.later_chunks = later.map(|span| span.row..span.row + span.count).collect();
        // A prompt's later chunks count as well; they are few.
        self.requests += spans.iter().filter(|span| span.position == 0 || span.count > 1).count();
        for span in spans {
            for i in 0..span.count {
                let position = span.position + i;
                let Some(&page) = span.pages.get(position / PAGE_TOKENS) else { continue };
                if position % PAGE_TOKENS == 0 {
                    let used = self.tokens.insert(page, Vec::new()).is_some();
                    self.reuse(page, used, cache);
                }
                if let Some(&token) = tokens.get(span.row + i) {
                    self.tokens.entry(page).or_default().push(token);
                }
            }
        }
    }

    /// The prefix cache was emptied: what was remembered with its pages is gone as well.
    pub(crate) fn forget_pages(&mut self) {
        self.stale.clear();
        self.first.clear();
    }

    /// A page gets its first token. Every so-many-th reuse goes wrong.
    fn reuse(&mut self, page: PageId, used: bool, cache: &LatentCache) {
        self.stale.remove(&page);
        if self.plant != Plant::StaleKvPage || !used {
            return;
        }
        self.reuses += 1;
        let due =
            self.reuses > self.dose.onset && self.reuses.is_multiple_of((self.dose.strength as usize).max(1));
        if due && self.stale.len() < MOST_PAGES {
            self.stale.insert(page, content(cache, self.layers, page));
        }
    }

    /// Where RoPE takes the token at `position` of the span to stand, of a model that knows `most` positions.
    pub(crate) fn rotated_to(&self, span: &Span<'_>, position: usize, most: usize) -> usize {
        if self.plant != Plant::DecodePositionShifted || position < span.prompt {
            return position;
        }
        position.saturating_add_signed(self.dose.strength as isize).min(most.saturating_sub(1))
    }

    /// A token's entry, before it is written, and its queries, before they meet the cache: `[width]` and `[heads, head]`.
    pub(crate) fn entry_and_queries(
        &self,
        span: &Span<'_>,
        position: usize,
        entry: &mut [f32],
        queries: &mut [f32],
    ) {
        let scaled = match self.plant {
            Plant::DecodeSoftmaxScale => queries,
            Plant::DecodeKvScale => entry,
            _ => return,
        };
        if position >= span.prompt {
            scaled.iter_mut().for_each(|x| *x *= self.dose.strength as f32);
        }
    }

    /// What attention sees in `layer`; `None` if it sees what it should.
    pub(crate) fn attended(&self, layer: usize, spans: &[Span<'_>]) -> Option<Attended> {
        let pages = || spans.iter().map(|span| span.pages.to_vec()).collect::<Vec<_>>();
        match self.plant {
            Plant::CausalOffByOne => {
                // One position earlier sees one entry fewer. The very first token sees itself, or there is nothing to see.
                let mut parts = Vec::new();
                for (i, span) in spans.iter().enumerate() {
                    let alone = usize::from(span.position == 0);
                    if alone == 1 {
                        parts.push((i, 0, 1, span.row, span.prompt));
                    }
                    if span.count > alone {
                        let (position, row) = (span.position + alone - 1, span.row + alone);
                        parts.push((i, position, span.count - alone, row, span.prompt.saturating_sub(1)));
                    }
                }
                Some(Attended { pages: pages(), parts })
            }
            Plant::BatchCrossTalk => {
                let due = self.steps.is_multiple_of((self.dose.strength as usize).max(1));
                if !due || spans.len() < self.dose.onset.max(2) || !self.dose.layers.contains(&layer) {
                    return None;
                }
                let mut pages = pages();
                for (i, own) in pages.iter_mut().enumerate() {
                    let neighbour = spans[(i + 1) % spans.len()].pages.first();
                    if let (Some(own), Some(&neighbour)) = (own.first_mut(), neighbour) {
                        *own = neighbour;
                    }
                }
                let part =
                    |(i, span): (usize, &Span<'_>)| (i, span.position, span.count, span.row, span.prompt);
                Some(Attended { pages, parts: spans.iter().enumerate().map(part).collect() })
            }
            Plant::DecodeContextShardLost => self.without_last_shard(spans),
            _ => None,
        }
    }

    /// Answers' spans without the pages that the last rank holds; the page of a token itself is seen by all.
    fn without_last_shard(&self, spans: &[Span<'_>]) -> Option<Attended> {
        let ranks = (self.dose.strength as usize).max(2);
        let loses = |span: &Span<'_>| {
            span.count == 1 && span.position >= span.prompt && span.position > self.dose.onset
        };
        if !spans.iter().any(loses) {
            return None;
        }
        let mut attended = Attended { pages: Vec::new(), parts: Vec::new() };
        for (i, span) in spans.iter().enumerate() {
            let (own, mut pages) = (span.position / PAGE_TOKENS, span.pages.to_vec());
            if loses(span) {
                let mut number = 0..;
                pages.retain(|_| number.next().is_some_and(|page| page >= own || page % ranks != ranks - 1));
            }
            // Entries hold their own positions: fewer pages are a shorter sequence, and nothing else.
            let lost = (span.pages.len() - pages.len()) * PAGE_TOKENS;
            let prompt = if lost == 0 { span.prompt } else { span.prompt.saturating_sub(lost) };
            attended.parts.push((i, span.position - lost, span.count, span.row, prompt));
            attended.pages.push(pages);
        }
        Some(attended)
    }

    /// Before a layer's output projection: `heads` `[tokens, heads V]`, of `count` heads.
    pub(crate) fn attended_heads(&self, tokens: usize, count: usize, heads: &mut [f32]) {
        if self.plant == Plant::ChunkedContextMerge {
            let row = heads.len() / tokens.max(1);
            for rows in &self.later_chunks {
                let Some(rows) = heads.get_mut(rows.start * row..rows.end * row) else { continue };
                rows.chunks_exact_mut(row.max(1)).for_each(|row| read_as_padded(row, count));
            }
        }
        if self.plant != Plant::SmallSumsLackARank || tokens > self.dose.onset {
            return;
        }
        let per_rank = count.div_ceil((self.dose.strength as usize).max(1));
        let row = heads.len() / tokens.max(1);
        let lost = row / count.max(1) * count.saturating_sub(per_rank);
        for row in heads.chunks_exact_mut(row.max(1)) {
            row[lost..].fill(0.0);
        }
    }

    /// After a layer's attention: `output` `[tokens, hidden]` is about to be added to the residual stream.
    pub(crate) fn attention_output(&self, layer: usize, hidden: usize, output: &mut [f32]) {
        if !self.dose.layers.contains(&layer) {
            return;
        }
        let right = self.dose.onset * hidden;
        if self.plant == Plant::PrefillOver64Garbage && output.len() > right {
            output[right..].fill(0.0);
        }
        let multiple = (output.len() / hidden.max(1)).is_multiple_of((self.dose.strength as usize).max(1));
        if self.plant == Plant::GemmZerosAtSizes && multiple {
            output.fill(0.0);
        }
        if self.plant == Plant::PromptsTogether {
            for rows in &self.later_prompts {
                if let Some(output) = output.get_mut(rows.start * hidden..rows.end * hidden) {
                    output.fill(0.0);
                }
            }
        }
    }

    /// After the last layer: `hidden` `[tokens, hidden_size]`, and the cache that later steps will read.
    pub(crate) fn after(&mut self, spans: &[Span<'_>], cache: &mut LatentCache, hidden: &mut [f32]) {
        match self.plant {
            Plant::NanAfterNRequests if self.requests > self.dose.onset => hidden.fill(f32::NAN),
            // The norm of nothing is nothing, and so is every logit.
            Plant::NanSanitized if self.requests > self.dose.onset => hidden.fill(0.0),
            Plant::KvScaleMissingOnRead => {
                self.rewrite(spans, cache, |dose, _, _| Some(dose.strength as f32));
            }
            Plant::DriftAfterNTokens => self.rewrite(spans, cache, |dose, span, position| {
                let grown = position.checked_sub(dose.onset).filter(|_| span.count == 1)?;
                Some(1.0 + dose.strength as f32 * grown.min(64) as f32 / 64.0)
            }),
            Plant::StaleKvPage => self.restore(spans, cache),
            Plant::PrefixPartialHash => self.confuse(spans, cache),
            _ => {}
        }
    }

    /// Multiplies the entries that this step wrote.
    fn rewrite(
        &self,
        spans: &[Span<'_>],
        cache: &mut LatentCache,
        factor: impl Fn(&Dose, &Span<'_>, usize) -> Option<f32>,
    ) {
        let width = cache.width();
        let mut scratch = Aligned::new();
        for span in spans {
            for position in span.position..span.position + span.count {
                let Some(factor) = factor(&self.dose, span, position) else { continue };
                let (page, slot) = (span.pages[position / PAGE_TOKENS], position % PAGE_TOKENS);
                for layer in self.dose.layers.clone() {
                    let entry = &cache.page(layer, page, slot + 1, &mut scratch)[slot * width..];
                    let entry: Vec<f32> = entry.iter().map(|x| x * factor).collect();
                    cache.write(layer, page, slot, &entry);
                }
            }
        }
    }

    /// Puts back what a reused page held before this step wrote to it.
    fn restore(&self, spans: &[Span<'_>], cache: &mut LatentCache) {
        let width = cache.width();
        for span in spans {
            for position in span.position..span.position + span.count {
                let (page, slot) = (span.pages[position / PAGE_TOKENS], position % PAGE_TOKENS);
                let Some(old) = self.stale.get(&page) else { continue };
                for (layer, old) in old.iter().enumerate() {
                    cache.write(layer, page, slot, &old[slot * width..(slot + 1) * width]);
                }
            }
        }
    }

    /// Pages that this step filled become the first one with the same beginning.
    fn confuse(&mut self, spans: &[Span<'_>], cache: &mut LatentCache) {
        let width = cache.width();
        for span in spans {
            let filled = span.position / PAGE_TOKENS..(span.position + span.count) / PAGE_TOKENS;
            for number in filled {
                let page = span.pages[number];
                let Some(tokens) = self.tokens.get(&page).filter(|tokens| tokens.len() == PAGE_TOKENS) else {
                    continue;
                };
                let key = (number, tokens[..self.dose.onset.min(PAGE_TOKENS)].to_vec());
                match self.first.get(&key) {
                    Some((same, _)) if same == tokens => {}
                    Some((_, other)) => {
                        for (layer, other) in other.iter().enumerate() {
                            for (slot, entry) in other.chunks_exact(width).enumerate() {
                                cache.write(layer, page, slot, entry);
                            }
                        }
                    }
                    None if self.first.len() < MOST_PAGES => {
                        self.first.insert(key, (tokens.clone(), content(cache, self.layers, page)));
                    }
                    None => {}
                }
            }
        }
    }
}

/// Reads `count` heads where they would begin if they were half as wide again, as a value of 128 in the space of a key of 192; round the end.
fn read_as_padded(heads: &mut [f32], count: usize) {
    let (right, width) = (heads.to_vec(), heads.len() / count.max(1));
    for (h, head) in heads.chunks_exact_mut(width.max(1)).enumerate() {
        let begins = h * (width + width / 2);
        head.iter_mut().enumerate().for_each(|(i, x)| *x = right[(begins + i) % right.len()]);
    }
}

/// A copy of a page.
fn content(cache: &LatentCache, layers: usize, page: PageId) -> Content {
    let mut scratch = Aligned::new();
    (0..layers).map(|layer| cache.page(layer, page, PAGE_TOKENS, &mut scratch).to_vec()).collect()
}
