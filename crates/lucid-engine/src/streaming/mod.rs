//! The witness for checkpoints larger than memory: every layer comes from the disk once for a batch of passages, and goes.
//!
//! A batch has as many whole passages as memory allows. Their hidden states stay; of a layer, attention and router are in memory,
//! and its experts pass one after the other, each for all tokens that visit it. A thread reads ahead. After every layer the hidden
//! states can be stored, and an interrupted run goes on from there.
//!
//! The results have the bits of [`Scorer`](crate::Scorer): no sum of the engine depends on what is computed together.

mod plan;
mod reader;
mod resident;
mod state;

use std::path::PathBuf;
use std::time::Instant;

use lucid_checkpoint::{Checkpoint, Indexer, TokenId};
use sha2::{Digest, Sha256};

use crate::backend::{Load, LoadFormat};
use crate::cpu::{CpuModel, Span};
use crate::kv_cache::{PAGE_TOKENS, PageId, PagePool};
use crate::logprobs::score;
use crate::parallel::{ExpertSharing, Rank, cut};
use crate::weights::{FeedForward, Layer, Weights, nothing_for_w4a4};
use crate::{Activations, Error, Semantics, SemanticsOptions, TokenLogprobs};
use plan::{CHUNK, CHUNK_PASSAGES, Plan, Sizes, plan};
use reader::{Job, Loaded, Reader};
pub use resident::resident;
use state::State;

/// What is asked of a run.
#[derive(Clone, Debug)]
pub struct StreamingOptions {
    /// Arithmetic; a planted fault is refused.
    pub semantics: SemanticsOptions,
    /// Worker threads; `None` takes the machine's cores.
    pub threads: Option<usize>,
    /// Bytes that the process may have in memory.
    pub memory_limit: u64,
    /// Tokens that are computed together, at the most; `None`: as many as the memory allows. A passage is never cut.
    pub batch_tokens: Option<usize>,
    /// Likeliest tokens that are listed at each position.
    pub top: usize,
    /// Where an interrupted run is to be continued from, and stored after every layer.
    pub state: Option<PathBuf>,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Batch, from 1, and how many there are.
    pub batch: (usize, usize),
    /// Layer, from 1, and how many there are; 0 after a batch's output matrix.
    pub layer: (usize, usize),
    /// Bytes of weights that were read, in all runs together.
    pub bytes_read: u64,
    /// Bytes that will have been read in the end, at the most.
    pub bytes: u64,
    /// Seconds spent, in all runs together.
    pub seconds: f64,
    /// Whether everything so far is in the state file.
    pub saved: bool,
}

/// Scores passages with a model that need not fit in memory.
pub struct Streaming<'a> {
    checkpoint: &'a Checkpoint,
    options: StreamingOptions,
    model: CpuModel,
    sizes: Sizes,
}

/// Whether to go on.
type Watch<'w> = dyn FnMut(&Progress) -> bool + 'w;

impl<'a> Streaming<'a> {
    /// Opens the model; no layer is read.
    ///
    /// # Errors
    /// When the checkpoint is incomplete or unsupported, or threads can't be started.
    pub fn new(checkpoint: &'a Checkpoint, options: &StreamingOptions) -> Result<Streaming<'a>, Error> {
        if options.semantics.plant.is_some() {
            return Err(Error::Unsupported {
                what: "a planted fault in a streamed model".to_owned(),
                hint: "plant it in a model that fits in memory",
            });
        }
        let load = Load {
            checkpoint,
            format: LoadFormat::Checkpoint,
            semantics: &options.semantics,
            threads: options.threads,
            positions: checkpoint.config().max_position_embeddings,
            max_step_tokens: CHUNK,
            ranks: 1,
            experts: ExpertSharing::Widths,
            progress: None,
        };
        let scaled = |name: &str| name.ends_with(".input_scale") || name.ends_with(".input_global_scale");
        let w4a4 = options.semantics.activations == Activations::W4A4;
        if w4a4 && !checkpoint.tensors().any(|tensor| scaled(&tensor.name)) {
            return Err(nothing_for_w4a4());
        }
        let weights = Weights::without_layers(checkpoint)?;
        let model = CpuModel::with_weights(&load, weights, Rank::ALONE, Box::new(()))?;
        Ok(Streaming { checkpoint, options: options.clone(), model, sizes: Sizes::of(checkpoint) })
    }

    /// What is computed, and how.
    #[must_use]
    pub fn semantics(&self) -> &Semantics {
        self.model.semantics()
    }

    /// Scores every token of each passage but its first, given those before it. `watch` is told after every part; when it
    /// returns false, the run ends and gives `None`.
    ///
    /// # Errors
    /// Unknown tokens, more tokens than positions, too little memory, files that can't be read or written, logits that are not finite.
    pub fn score(
        &mut self,
        passages: &[Vec<TokenId>],
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vec<Vec<TokenLogprobs>>>, Error> {
        self.check(passages)?;
        let began = Instant::now();
        let identity = self.identity(passages)?;
        let saved = match &self.options.state {
            Some(path) => state::load(path, &identity)?,
            None => None,
        };
        let start = resident().map_or(0, |(now, _)| now);
        let tokens = |passages: &[Vec<TokenId>]| passages.iter().map(Vec::len).sum::<usize>();
        let (mut state, mut hidden, plan) = match saved {
            Some((state, hidden)) => {
                let mut rest = passages;
                let largest = state.batches.iter().map(|&count| {
                    let (batch, others) = rest.split_at(count.min(rest.len()));
                    rest = others;
                    tokens(batch)
                });
                let largest = largest.max().unwrap_or(0);
                let plan = self.plan(start, largest)?;
                (state, hidden, plan)
            }
            None => {
                let plan = self.plan(start, passages.iter().map(Vec::len).max().unwrap_or(0))?;
                let state = State {
                    identity,
                    batches: batches(passages, plan.batch),
                    batch: 0,
                    layers: 0,
                    results: Vec::new(),
                    bytes_read: 0,
                    seconds: 0.0,
                    checksum: 0,
                };
                (state, Vec::new(), plan)
            }
        };
        let before = (state.bytes_read, state.seconds);
        let checkpoint = self.checkpoint;
        while state.batch < state.batches.len() {
            let first: usize = state.batches[..state.batch].iter().sum();
            let batch = &passages[first..first + state.batches[state.batch]];
            if state.layers == 0 {
                hidden = self.embed(batch)?;
            }
            let go_on = std::thread::scope(|scope| -> Result<bool, Error> {
                let mut run = Run {
                    reader: Reader::start(scope, checkpoint, plan.read_ahead)?,
                    plan,
                    began,
                    before,
                    watch,
                };
                self.batch(&mut run, batch, &mut state, &mut hidden)
            })?;
            if !go_on {
                return Ok(None);
            }
        }
        if let Some(path) = &self.options.state {
            state::remove(path)?;
        }
        Ok(Some(state.results))
    }

    fn check(&self, passages: &[Vec<TokenId>]) -> Result<(), Error> {
        let (vocab_size, max, unchosen) = {
            let config = self.model.config();
            let shares = |indexer: &&Indexer| (0..config.num_hidden_layers).any(|i| !indexer.is_full(i));
            let unchosen = config.indexer.as_ref().filter(shares).map(|indexer| indexer.index_topk);
            (config.vocab_size, config.max_position_embeddings, unchosen)
        };
        for passage in passages {
            if let Some(&TokenId(token)) = passage.iter().find(|token| token.row() >= vocab_size) {
                return Err(Error::UnknownToken { token, vocab_size });
            }
            if passage.len() > max {
                return Err(Error::TooLong { tokens: passage.len(), max });
            }
            // The choice of a layer would have to be kept for those that share it, and it isn't.
            if let Some(most) = unchosen.filter(|most| passage.len() > *most) {
                return Err(Error::Unsupported {
                    what: format!(
                        "a streamed passage of {} tokens, when layers share their choice of {most},",
                        passage.len()
                    ),
                    hint: "shorter passages are: with no more tokens than that there is nothing to choose",
                });
            }
        }
        Ok(())
    }

    fn plan(&self, start: u64, longest: usize) -> Result<Plan, Error> {
        plan(
            self.model.config(),
            &self.sizes,
            start,
            self.options.memory_limit,
            longest,
            self.options.batch_tokens,
        )
    }

    /// Names checkpoint, arithmetic and passages.
    fn identity(&self, passages: &[Vec<TokenId>]) -> Result<String, Error> {
        let mut hash = Sha256::new();
        hash.update(self.checkpoint.fingerprint()?);
        hash.update(format!("{} {}", self.semantics(), self.options.top));
        for passage in passages {
            hash.update((passage.len() as u64).to_le_bytes());
            passage.iter().for_each(|token| hash.update(token.0.to_le_bytes()));
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// `[tokens, hidden_size]`: rows of the embedding, read one by one.
    fn embed(&self, batch: &[Vec<TokenId>]) -> Result<Vec<f32>, Error> {
        let embedding = self.model.ends().0;
        let mut hidden = vec![0.0; batch.iter().map(Vec::len).sum::<usize>() * embedding.cols];
        for (token, out) in batch.iter().flatten().zip(hidden.chunks_exact_mut(embedding.cols)) {
            match cut::rows(embedding, token.row()..token.row() + 1) {
                Ok(row) => row.read()?.decode_row(0, out),
                // A block of scales spans several rows: then through the map.
                Err(_) => embedding.decode_row(token.row(), out),
            }
        }
        Ok(hidden)
    }

    /// All layers and the output of one batch. False: it was told to stop.
    fn batch(
        &mut self,
        run: &mut Run<'_, '_>,
        batch: &[Vec<TokenId>],
        state: &mut State,
        hidden: &mut [f32],
    ) -> Result<bool, Error> {
        let layers = self.sizes.layers.len();
        if state.layers < layers {
            run.reader.push(Job::Layer(state.layers, self.sizes.layers[state.layers]));
        }
        while state.layers < layers {
            let held = run.reader.next()?;
            let Loaded::Layer(layer) = &held.loaded else { return Err(out_of_order()) };
            self.layer(run, state.layers, layer, batch, hidden)?;
            drop(held);
            state.layers += 1;
            run.account(state);
            if let Some(path) = &self.options.state {
                state::save(path, state, hidden)?;
            }
            let progress = self.progress(state, self.options.state.is_some());
            if !(run.watch)(&progress) {
                return Ok(false);
            }
        }
        self.model.forget_scratch();
        self.model.final_norm(hidden);
        let results = self.output(run, batch, hidden)?;
        state.results.extend(results);
        (state.batch, state.layers) = (state.batch + 1, 0);
        run.account(state);
        if let Some(path) = &self.options.state {
            state::save(path, state, &[])?;
        }
        let progress = self.progress(state, self.options.state.is_some());
        Ok((run.watch)(&progress) || state.batch == state.batches.len())
    }

    fn progress(&self, state: &State, saved: bool) -> Progress {
        let sum = |sizes: &[u64]| sizes.iter().sum::<u64>();
        let head = self.sizes.head_row * self.model.config().vocab_size as u64;
        let of_batch = sum(&self.sizes.layers) + sum(&self.sizes.experts) + head;
        Progress {
            batch: ((state.batch + 1).min(state.batches.len()), state.batches.len()),
            layer: (state.layers, self.sizes.layers.len()),
            bytes_read: state.bytes_read,
            bytes: of_batch * state.batches.len() as u64,
            seconds: state.seconds,
            saved,
        }
    }

    /// One layer of a batch.
    fn layer(
        &mut self,
        run: &mut Run<'_, '_>,
        number: usize,
        layer: &Layer,
        batch: &[Vec<TokenId>],
        hidden: &mut [f32],
    ) -> Result<(), Error> {
        if self.options.semantics.activations == Activations::W4A4 {
            layer.check_w4a4()?;
        }
        let width = self.model.config().hidden_size;
        let (pool, pages) = pages_of(batch);
        let mut cache = self.model.new_layer_cache(number, pool.total());
        let mut first = 0;
        for pieces in chunks(batch) {
            let count: usize = pieces.iter().map(|piece| piece.count).sum();
            let mut row = 0;
            let span = |piece: &Piece| {
                let Piece { passage, position, count } = *piece;
                row += count;
                Span {
                    pages: &pages[passage],
                    position,
                    count,
                    row: row - count,
                    prompt: batch[passage].len(),
                }
            };
            let spans: Vec<Span<'_>> = pieces.iter().map(span).collect();
            let hidden = &mut hidden[first * width..(first + count) * width];
            self.model.attend_layer(layer, &spans, &mut cache, hidden);
            first += count;
        }
        drop(cache);
        let blocks = hidden.len().div_ceil(run.plan.block * width);
        for (i, hidden) in hidden.chunks_mut(run.plan.block * width).enumerate() {
            let next = (i + 1 == blocks && number + 1 < self.sizes.layers.len()).then_some(number + 1);
            match &layer.feed_forward {
                FeedForward::Dense(mlp) => {
                    if let Some(next) = next {
                        run.reader.push(Job::Layer(next, self.sizes.layers[next]));
                    }
                    self.model.feed_dense(layer, mlp, hidden);
                }
                FeedForward::Experts(experts) => {
                    let visited = self.model.begin_experts(layer, experts, hidden);
                    for &expert in &visited {
                        run.reader.push(Job::Expert(Box::new(experts.routed[expert].clone())));
                    }
                    if let Some(next) = next {
                        run.reader.push(Job::Layer(next, self.sizes.layers[next]));
                    }
                    for expert in visited {
                        let held = run.reader.next()?;
                        let Loaded::Expert(mlp) = &held.loaded else { return Err(out_of_order()) };
                        self.model.visit_expert(expert, mlp);
                    }
                    self.model.end_experts(hidden);
                }
            }
        }
        Ok(())
    }

    /// The distributions after all positions but each passage's last; `hidden` is normalized.
    fn output(
        &mut self,
        run: &mut Run<'_, '_>,
        batch: &[Vec<TokenId>],
        hidden: &[f32],
    ) -> Result<Vec<Vec<TokenLogprobs>>, Error> {
        let (width, vocab) = (self.model.config().hidden_size, self.model.config().vocab_size);
        // Row of the batch, position in the passage, the token that follows.
        let mut wanted = Vec::new();
        let mut results = Vec::new();
        let mut row = 0;
        for (i, passage) in batch.iter().enumerate() {
            wanted.extend(passage.iter().skip(1).enumerate().map(|(at, token)| (i, row + at, at, *token)));
            row += passage.len();
            results.push(Vec::with_capacity(passage.len().saturating_sub(1)));
        }
        let panels: Vec<usize> = (0..vocab).step_by(run.plan.panel_rows).collect();
        let mut logits = Vec::new();
        for wanted in wanted.chunks(run.plan.head_rows) {
            for &first in &panels {
                let rows = first..vocab.min(first + run.plan.panel_rows);
                run.reader.push(Job::Panel(cut::rows(self.model.ends().1, rows)?));
            }
            let normed: Vec<f32> = wanted
                .iter()
                .flat_map(|(_, row, ..)| &hidden[row * width..(row + 1) * width])
                .copied()
                .collect();
            logits.resize(wanted.len() * vocab, 0.0);
            for &first in &panels {
                let held = run.reader.next()?;
                let Loaded::Panel(panel) = &held.loaded else { return Err(out_of_order()) };
                self.model.logits_panel(panel, first, &normed, &mut logits);
            }
            for (&(passage, _, position, next), logits) in wanted.iter().zip(logits.chunks_exact(vocab)) {
                let entry = score(logits, next, self.options.top);
                results[passage].push(entry.map_err(|_| Error::NotFinite { position })?);
            }
        }
        Ok(results)
    }
}

/// Consecutive tokens of one passage.
struct Piece {
    /// Its number in the batch.
    passage: usize,
    /// The first token.
    position: usize,
    /// How many.
    count: usize,
}

/// The batch's tokens in order, as many together as attention computes.
fn chunks(batch: &[Vec<TokenId>]) -> Vec<Vec<Piece>> {
    let mut chunks: Vec<Vec<Piece>> = Vec::new();
    let mut room = 0;
    for (passage, tokens) in batch.iter().enumerate() {
        let mut position = 0;
        while position < tokens.len() {
            if room == 0 || chunks.last().is_some_and(|chunk| chunk.len() == CHUNK_PASSAGES) {
                chunks.push(Vec::new());
                room = CHUNK;
            }
            let count = room.min(tokens.len() - position);
            if let Some(chunk) = chunks.last_mut() {
                chunk.push(Piece { passage, position, count });
            }
            (position, room) = (position + count, room - count);
        }
    }
    chunks
}

/// Pages of a cache that holds a whole batch, for each of its passages.
fn pages_of(batch: &[Vec<TokenId>]) -> (PagePool, Vec<Vec<PageId>>) {
    let whole = |passage: &Vec<TokenId>| passage.len().next_multiple_of(PAGE_TOKENS);
    let mut pool = PagePool::new(batch.iter().map(whole).sum());
    let pages = batch.iter().map(|passage| {
        let mut pages = Vec::new();
        let room = pool.extend(&mut pages, passage.len());
        debug_assert!(room, "the pool was made for these passages");
        pages
    });
    let pages = pages.collect();
    (pool, pages)
}

/// What a batch needs beside the model.
struct Run<'scope, 'w> {
    reader: Reader<'scope>,
    plan: Plan,
    began: Instant,
    /// Bytes and seconds of the runs before.
    before: (u64, f64),
    watch: &'w mut Watch<'w>,
}

impl Run<'_, '_> {
    fn account(&mut self, state: &mut State) {
        state.bytes_read += std::mem::take(&mut self.reader.bytes);
        state.seconds = self.before.1 + self.began.elapsed().as_secs_f64();
    }
}

/// Jobs and results have the same order; anything else is a mistake of this module.
fn out_of_order() -> Error {
    Error::Threads(std::io::Error::other("weights came in another order than they were asked for"))
}

/// How many passages go together: as many as have `most` tokens, at least one.
fn batches(passages: &[Vec<TokenId>], most: usize) -> Vec<usize> {
    let mut batches: Vec<usize> = Vec::new();
    let mut tokens = usize::MAX;
    for passage in passages {
        match batches.last_mut() {
            Some(count) if tokens.saturating_add(passage.len()) <= most => {
                *count += 1;
                tokens += passage.len();
            }
            _ => {
                batches.push(1);
                tokens = passage.len();
            }
        }
    }
    batches
}
