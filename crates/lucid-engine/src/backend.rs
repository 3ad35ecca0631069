//! Where the model runs: one type over the processor and the GPU, so that engine and scorer don't care.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::str::FromStr;

use lucid_checkpoint::{Checkpoint, Config, TokenId};

use crate::choice::Choice;
use crate::cpu::{Cache, CpuModel, Observer, Span, Unit};
use crate::cuda::{All, CudaModel, MOST_LISTED, nccl_meeting};
use crate::logprobs;
use crate::parallel::{Collective, ExpertSharing, Meeting, Rank};
use crate::request::TokenLogprobs;
use crate::weights::Weights;
use crate::world::{Leader, World, orders};
use crate::{Error, Semantics, SemanticsOptions};

/// Where weights come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadFormat {
    /// The checkpoint.
    #[default]
    Checkpoint,
    /// Nowhere: random ones of the shapes that the config implies, for benchmarks.
    Dummy,
}

/// What a model is loaded from, and for.
pub struct Load<'a> {
    /// The checkpoint.
    pub checkpoint: &'a Checkpoint,
    /// Or where else weights come from.
    pub format: LoadFormat,
    /// Arithmetic.
    pub semantics: &'a SemanticsOptions,
    /// Of the processor; `None` takes the machine's.
    pub threads: Option<usize>,
    /// Longest sequence.
    pub positions: usize,
    /// Tokens of a step at the most.
    pub max_step_tokens: usize,
    /// Threads or GPUs that share the model.
    pub ranks: usize,
    /// How they share its routed experts.
    pub experts: ExpertSharing,
    /// Told after each layer that has come to a GPU: how many, of how many.
    pub progress: Option<fn(usize, usize)>,
}

impl Load<'_> {
    /// The model's sizes and rules, with a planted fault's change.
    ///
    /// # Errors
    /// When the model has nothing that the fault could change.
    pub fn config(&self) -> Result<Config, Error> {
        let mut config = self.checkpoint.config().clone();
        if let Some(planted) = self.semantics.plant {
            planted.change_config(&mut config)?;
        }
        Ok(config)
    }

    /// Stands for what all ranks of a model must have alike.
    ///
    /// # Errors
    /// As [`Load::config`].
    pub fn fingerprint(&self) -> Result<u64, Error> {
        let mut hash = DefaultHasher::new();
        let (config, version) = (self.config()?, env!("CARGO_PKG_VERSION"));
        let semantics = format!("{:?}", Semantics::new(&config, self.semantics));
        let dummy = self.format == LoadFormat::Dummy;
        let sizes = (self.positions, self.max_step_tokens, self.ranks, self.experts);
        (version, format!("{config:?}"), semantics, dummy, sizes).hash(&mut hash);
        Ok(hash.finish())
    }

    /// The weights on the host, mapped or invented.
    ///
    /// # Errors
    /// When the checkpoint is incomplete or unsupported.
    pub fn weights(&self) -> Result<Weights, Error> {
        match self.format {
            LoadFormat::Checkpoint => Weights::load(self.checkpoint, self.semantics.plant),
            LoadFormat::Dummy => Weights::dummy(self.checkpoint.config()),
        }
    }
}

/// Where the model runs. In text: `cpu`, `cuda`, `cuda:1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Device {
    /// The processor.
    #[default]
    Cpu,
    /// An NVIDIA GPU, by its number (as `CUDA_VISIBLE_DEVICES` leaves them).
    Cuda(usize),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Device, Error> {
        match text.split_once(':') {
            None if text == "cpu" => return Ok(Device::Cpu),
            None if text == "cuda" => return Ok(Device::Cuda(0)),
            Some(("cuda", ordinal)) => {
                if let Ok(ordinal) = ordinal.parse() {
                    return Ok(Device::Cuda(ordinal));
                }
            }
            _ => {}
        }
        Err(Error::Option {
            option: "device",
            value: text.to_owned(),
            expected: "it must be cpu, cuda or cuda:N",
        })
    }
}

/// Rows of logits that are in the host's memory at a time: 16 of Kimi's are 10 MB.
const LOGIT_ROWS: usize = 16;

/// A draw from a row of the last step.
#[derive(Clone, Copy, Debug)]
pub struct Drawing {
    /// The row.
    pub row: usize,
    /// How to draw.
    pub choice: Choice,
    /// So many likeliest tokens beside the drawn one's log-probability; `None` wants neither.
    pub top: Option<usize>,
}

/// A token, and its log-probabilities if they were wanted.
pub type Drawn = (TokenId, Option<TokenLogprobs>);

/// A model and its cache on a device.
pub enum Backend {
    /// On the processor: all ranks, in order.
    Cpu(Vec<CpuRank>),
    /// On GPUs: all ranks, in order.
    Cuda(Vec<CudaModel>),
    /// On GPUs of several processes, of which this one has rank 0.
    Apart(Box<Apart>),
}

/// Rank 0 on a GPU, and the others in their processes.
pub struct Apart {
    model: CudaModel,
    // Goes last: the others end when it does.
    leader: Leader,
}

impl Apart {
    /// Runs what waits for the others. If one is lost, that is the error, whatever else it led to.
    fn run<T>(&mut self, run: impl FnOnce(&mut CudaModel, &Leader) -> Result<T, Error>) -> Result<T, Error> {
        let Apart { model, leader } = self;
        let waiting = leader.wait();
        let result = run(model, leader);
        drop(waiting);
        leader.watch().check()?;
        result
    }
}

/// A rank on the processor.
pub struct CpuRank {
    model: CpuModel,
    cache: Cache,
}

impl CpuRank {
    /// Runs a step. A panic is told to the other ranks, which wait for this one's sums.
    fn forward(&mut self, tokens: &[TokenId], spans: &[Span<'_>], observer: &mut impl Observer) {
        let CpuRank { model, cache } = self;
        let run = AssertUnwindSafe(|| model.forward(tokens, spans, cache, observer));
        if let Err(panic) = catch_unwind(run) {
            model.leave();
            resume_unwind(panic);
        }
    }
}

impl Backend {
    /// Loads a model; on GPUs, from the device's number on. It has no cache yet.
    ///
    /// # Errors
    /// When the checkpoint is incomplete or unsupported, can't be dealt out to so many ranks, threads can't be started, or the
    /// device can't be used.
    pub fn load(device: Device, load: &Load<'_>) -> Result<Backend, Error> {
        if load.ranks == 0 {
            return Err(Error::Option {
                option: "ranks",
                value: "0".into(),
                expected: "it must be at least 1",
            });
        }
        // A name that isn't one is said here; the kernels would go on with the best unit.
        Unit::limit()?;
        Ok(match device {
            Device::Cpu => {
                let seats: Vec<Box<dyn Collective>> = match load.ranks {
                    1 => vec![Box::new(())],
                    count => Meeting::seats(count).into_iter().map(|seat| Box::new(seat) as _).collect(),
                };
                let part = |(rank, seat)| {
                    let model = CpuModel::load(load, rank, seat)?;
                    Ok(CpuRank { cache: model.new_cache(0), model })
                };
                Backend::Cpu(Rank::all(load.ranks).zip(seats).map(part).collect::<Result<_, Error>>()?)
            }
            Device::Cuda(ordinal) => Backend::Cuda(CudaModel::load(load, ordinal)?),
        })
    }

    /// Loads rank 0 of a model whose other ranks are in other processes, and waits for them.
    ///
    /// # Errors
    /// As [`Backend::load`], and when the others don't come, come with other options or can't load their parts.
    pub fn lead(device: Device, load: &Load<'_>, world: &World) -> Result<Backend, Error> {
        let Device::Cuda(first) = device else {
            return Err(Error::Option {
                option: "device",
                value: device.to_string(),
                expected: "ranks in processes of their own are GPUs: it must be cuda",
            });
        };
        // What is missing here is said before anybody is waited for.
        let (fingerprint, meeting) = (load.fingerprint()?, nccl_meeting()?);
        let leader = Leader::meet(world, fingerprint)?;
        leader.send_meeting(&meeting)?;
        let model = CudaModel::join(load, first, world, &meeting, leader.watch());
        // If another one is lost, that says more.
        leader.watch().check()?;
        let model = model?;
        leader.wait_until_ready()?;
        Ok(Backend::Apart(Box::new(Apart { model, leader })))
    }

    /// Makes a new, empty cache of `pages` pages.
    ///
    /// # Errors
    /// When the device has no room for it.
    pub fn set_cache(&mut self, pages: usize) -> Result<(), Error> {
        match self {
            Backend::Cpu(ranks) => {
                ranks.iter_mut().for_each(|rank| rank.cache = rank.model.new_cache(pages));
            }
            Backend::Cuda(ranks) => ranks.iter_mut().try_for_each(|rank| rank.set_cache(pages))?,
            Backend::Apart(apart) => apart.run(|model, leader| {
                leader.order(&orders::cache(pages))?;
                model.set_cache(pages)
            })?,
        }
        Ok(())
    }

    /// The checkpoint's config.
    #[must_use]
    pub fn config(&self) -> &Config {
        match self {
            Backend::Cpu(ranks) => ranks[0].model.config(),
            Backend::Cuda(ranks) => ranks[0].config(),
            Backend::Apart(apart) => apart.model.config(),
        }
    }

    /// What is computed, and how.
    #[must_use]
    pub fn semantics(&self) -> &Semantics {
        match self {
            Backend::Cpu(ranks) => ranks[0].model.semantics(),
            Backend::Cuda(ranks) => ranks[0].semantics(),
            Backend::Apart(apart) => apart.model.semantics(),
        }
    }

    /// Runs `tokens` through all layers. `spans` cover them, row by row in order; their pages have room for them.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn forward(
        &mut self,
        tokens: &[TokenId],
        spans: &[Span<'_>],
        observer: Option<&mut impl Observer>,
    ) -> Result<(), Error> {
        match self {
            Backend::Cpu(ranks) => {
                // There is always one; all have the same hidden states and routes.
                let Some((first, others)) = ranks.split_first_mut() else { return Ok(()) };
                let here = || match observer {
                    Some(observer) => first.forward(tokens, spans, observer),
                    None => first.forward(tokens, spans, &mut ()),
                };
                if others.is_empty() {
                    // A scope takes memory.
                    here();
                    return Ok(());
                }
                std::thread::scope(|scope| {
                    for rank in others {
                        scope.spawn(|| rank.forward(tokens, spans, &mut ()));
                    }
                    here();
                });
            }
            Backend::Cuda(ranks) => {
                let Some((first, others)) = ranks.split_first_mut() else { return Ok(()) };
                if observer.is_none() {
                    // Queued one after the other, they run side by side.
                    first.forward(tokens, spans, None::<&mut ()>)?;
                    return others
                        .iter_mut()
                        .try_for_each(|rank| rank.forward(tokens, spans, None::<&mut ()>));
                }
                // An observer waits within the step, for sums that need all ranks.
                std::thread::scope(|scope| {
                    let running: Vec<_> = others
                        .iter_mut()
                        .map(|rank| scope.spawn(|| rank.forward(tokens, spans, Some(&mut ()))))
                        .collect();
                    first.forward(tokens, spans, observer)?;
                    running
                        .into_iter()
                        .try_for_each(|rank| rank.join().unwrap_or_else(|panic| resume_unwind(panic)))
                })?;
            }
            Backend::Apart(apart) => apart.run(|model, leader| {
                leader.order(&orders::forward(tokens, spans))?;
                model.forward(tokens, spans, observer)
            })?,
        }
        Ok(())
    }

    /// The prefix cache was emptied: planted faults that remember pages forget them.
    pub fn forget_pages(&mut self) {
        if let Backend::Cpu(ranks) = self {
            ranks.iter_mut().for_each(|rank| rank.model.forget_pages());
        }
    }

    /// Bytes taken and in all, of each GPU of this process; none for the processor.
    #[must_use]
    pub fn memory(&self) -> Vec<(usize, usize)> {
        match self {
            Backend::Cpu(_) => Vec::new(),
            Backend::Cuda(ranks) => ranks.iter().filter_map(|rank| rank.memory().ok()).collect(),
            Backend::Apart(apart) => apart.model.memory().into_iter().collect(),
        }
    }

    /// Whether a step goes on after [`Backend::forward`] has returned.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        matches!(self, Backend::Cuda(_) | Backend::Apart(_))
    }

    /// Whether [`Backend::draw`] can be used, for tokens with so many likeliest ones beside them.
    #[must_use]
    pub fn can_draw(&self, top: Option<usize>) -> bool {
        let fits = match self {
            Backend::Cpu(_) => false,
            Backend::Cuda(ranks) => ranks.iter().all(CudaModel::can_draw),
            Backend::Apart(apart) => apart.model.can_draw(),
        };
        fits && top.is_none_or(|top| top <= MOST_LISTED)
    }

    /// Draws a token from each of some rows of the last step where the logits are, so that they needn't come to the host; `None` where
    /// one of them is not finite.
    ///
    /// # Errors
    /// When the GPU fails, or this is a processor.
    pub fn draw(&mut self, rows: &[Drawing]) -> Result<Vec<Option<Drawn>>, Error> {
        match self {
            Backend::Cuda(ranks) => All::Here(ranks).draw(rows),
            Backend::Apart(apart) => apart.run(|model, leader| All::Apart(model, leader).draw(rows)),
            Backend::Cpu(_) => Err(Error::Unsupported {
                what: "drawing from logits elsewhere than on the processor".into(),
                hint: "ask for the logits",
            }),
        }
    }

    /// The entries of a token at each of some rows of the last step, with the `top` likeliest ones; `None` where a logit is not finite.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn score(
        &mut self,
        rows: &[(usize, TokenId)],
        top: usize,
    ) -> Result<Vec<Option<TokenLogprobs>>, Error> {
        if self.can_draw(Some(top)) {
            match self {
                Backend::Cuda(ranks) => return All::Here(ranks).score(rows, top),
                Backend::Apart(apart) => {
                    return apart.run(|model, leader| All::Apart(model, leader).score(rows, top));
                }
                Backend::Cpu(_) => {}
            }
        }
        let vocab = self.config().vocab_size;
        let (mut all, mut logits) = (Vec::with_capacity(rows.len()), Vec::new());
        for rows in rows.chunks(LOGIT_ROWS) {
            let (places, tokens): (Vec<usize>, Vec<TokenId>) = rows.iter().copied().unzip();
            self.logits(&places, &mut logits)?;
            let entries = logits.chunks_exact(vocab).zip(tokens);
            all.extend(entries.map(|(logits, token)| logprobs::score(logits, token, top).ok()));
        }
        Ok(all)
    }

    /// Logits `[rows, vocab_size]` of some rows of the last step.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn logits(&mut self, rows: &[usize], out: &mut Vec<f32>) -> Result<(), Error> {
        let vocab = self.config().vocab_size;
        let mut part = Vec::new();
        match self {
            Backend::Cpu(ranks) => match ranks.as_mut_slice() {
                [only] => only.model.logits(rows, out),
                ranks => {
                    for rank in ranks {
                        rank.model.logits(rows, &mut part);
                        gather(&part, rank.model.vocabulary(), out, rows.len(), vocab);
                    }
                }
            },
            Backend::Cuda(ranks) => All::Here(ranks).logits(rows, out)?,
            Backend::Apart(apart) => {
                apart.run(|model, leader| All::Apart(model, leader).logits(rows, out))?
            }
        }
        Ok(())
    }
}

/// Puts a rank's logits `[rows, columns]` into their columns of all `[rows, vocab]`.
fn gather(part: &[f32], columns: Range<usize>, out: &mut Vec<f32>, rows: usize, vocab: usize) {
    out.resize(rows * vocab, 0.0);
    for (out, part) in out.chunks_exact_mut(vocab).zip(part.chunks_exact(columns.len())) {
        out[columns.clone()].copy_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(7)] {
            assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
        }
        assert_eq!("cuda".parse::<Device>().unwrap(), Device::Cuda(0));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cpu:0", "CUDA"] {
            assert!(wrong.parse::<Device>().unwrap_err().to_string().contains("cuda:N"), "{wrong}");
        }
    }
}
