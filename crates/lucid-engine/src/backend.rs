//! Where the model runs: one type over the processor and the GPU, so that engine and scorer don't care.

use std::fmt;
use std::str::FromStr;

use lucid_checkpoint::{Checkpoint, Config, TokenId};

use crate::cpu::{CpuModel, LatentCache, Observer, Span};
use crate::cuda::CudaModel;
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
    /// On the processor.
    Cpu {
        /// The model.
        model: Box<CpuModel>,
        /// Its cache.
        cache: LatentCache,
    },
    /// On a GPU.
    Cuda(Box<CudaModel>),
}

impl Backend {
    /// Loads a model for sequences of up to `positions` tokens and steps of up to `max_step_tokens`. It has no cache yet.
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
    ) -> Result<Backend, Error> {
        Ok(match device {
            Device::Cpu => {
                let model = Box::new(CpuModel::load(checkpoint, semantics, threads, positions)?);
                Backend::Cpu { cache: model.new_cache(0), model }
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
            Backend::Cpu { model, cache } => *cache = model.new_cache(pages),
            Backend::Cuda(model) => model.set_cache(pages)?,
        }
        Ok(())
    }

    /// The checkpoint's config.
    #[must_use]
    pub fn config(&self) -> &Config {
        match self {
            Backend::Cpu { model, .. } => model.config(),
            Backend::Cuda(model) => model.config(),
        }
    }

    /// What is computed, and how.
    #[must_use]
    pub fn semantics(&self) -> &Semantics {
        match self {
            Backend::Cpu { model, .. } => model.semantics(),
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
        match (self, observer) {
            (Backend::Cpu { model, cache }, Some(observer)) => model.forward(tokens, spans, cache, observer),
            (Backend::Cpu { model, cache }, None) => model.forward(tokens, spans, cache, &mut ()),
            (Backend::Cuda(model), observer) => model.forward(tokens, spans, observer)?,
        }
        Ok(())
    }

    /// Logits `[rows, vocab_size]` of some rows of the last step.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn logits(&mut self, rows: &[usize], out: &mut Vec<f32>) -> Result<(), Error> {
        match self {
            Backend::Cpu { model, .. } => model.logits(rows, out),
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
