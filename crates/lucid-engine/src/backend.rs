//! Where the model runs: one type over the processor and the GPU, so that engine and scorer don't care.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::str::FromStr;

use lucid_checkpoint::{Checkpoint, Config, TokenId};

use crate::cpu::{CpuModel, LatentCache, Observer, Span};
use crate::cuda::CudaModel;
use crate::parallel::{Collective, Meeting, Rank};
use crate::{Error, Semantics, SemanticsOptions};

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

/// A model and its cache on a device.
pub enum Backend {
    /// On the processor: all ranks, in order.
    Cpu(Vec<CpuRank>),
    /// On a GPU.
    Cuda(Box<CudaModel>),
}

/// A rank on the processor.
pub struct CpuRank {
    model: CpuModel,
    cache: LatentCache,
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
    /// Loads a model for sequences of up to `positions` tokens and steps of up to `max_step_tokens`, on `ranks` threads or GPUs
    /// that share it. It has no cache yet.
    ///
    /// # Errors
    /// When the checkpoint is incomplete or unsupported, threads can't be started, or the device can't be used.
    pub fn load(
        device: Device,
        checkpoint: &Checkpoint,
        semantics: &SemanticsOptions,
        threads: Option<usize>,
        positions: usize,
        max_step_tokens: usize,
        ranks: usize,
    ) -> Result<Backend, Error> {
        if ranks == 0 {
            return Err(Error::Option { option: "ranks", value: "0".into(), expected: "at least 1" });
        }
        Ok(match device {
            Device::Cpu => {
                let seats: Vec<Box<dyn Collective>> = match ranks {
                    1 => vec![Box::new(())],
                    _ => Meeting::seats(ranks).into_iter().map(|seat| Box::new(seat) as _).collect(),
                };
                let load = |(rank, seat)| {
                    let model = CpuModel::load(checkpoint, semantics, threads, positions, rank, seat)?;
                    Ok(CpuRank { cache: model.new_cache(0), model })
                };
                Backend::Cpu(Rank::all(ranks).zip(seats).map(load).collect::<Result<_, Error>>()?)
            }
            Device::Cuda(ordinal) => Backend::Cuda(Box::new(CudaModel::load(
                checkpoint,
                semantics,
                ordinal,
                positions,
                max_step_tokens,
            )?)),
        })
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
            Backend::Cuda(model) => model.set_cache(pages)?,
        }
        Ok(())
    }

    /// The checkpoint's config.
    #[must_use]
    pub fn config(&self) -> &Config {
        match self {
            Backend::Cpu(ranks) => ranks[0].model.config(),
            Backend::Cuda(model) => model.config(),
        }
    }

    /// What is computed, and how.
    #[must_use]
    pub fn semantics(&self) -> &Semantics {
        match self {
            Backend::Cpu(ranks) => ranks[0].model.semantics(),
            Backend::Cuda(model) => model.semantics(),
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
                std::thread::scope(|scope| {
                    for rank in others {
                        scope.spawn(|| rank.forward(tokens, spans, &mut ()));
                    }
                    match observer {
                        Some(observer) => first.forward(tokens, spans, observer),
                        None => first.forward(tokens, spans, &mut ()),
                    }
                });
            }
            Backend::Cuda(model) => model.forward(tokens, spans, observer)?,
        }
        Ok(())
    }

    /// Logits `[rows, vocab_size]` of some rows of the last step.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn logits(&mut self, rows: &[usize], out: &mut Vec<f32>) -> Result<(), Error> {
        match self {
            Backend::Cpu(ranks) => match ranks.as_mut_slice() {
                [only] => only.model.logits(rows, out),
                ranks => {
                    let vocab = ranks[0].model.config().vocab_size;
                    out.resize(rows.len() * vocab, 0.0);
                    let mut part = Vec::new();
                    for rank in ranks {
                        let columns = rank.model.vocabulary();
                        rank.model.logits(rows, &mut part);
                        for (out, part) in out.chunks_exact_mut(vocab).zip(part.chunks_exact(columns.len())) {
                            out[columns.clone()].copy_from_slice(part);
                        }
                    }
                }
            },
            Backend::Cuda(model) => model.logits(rows, out)?,
        }
        Ok(())
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
