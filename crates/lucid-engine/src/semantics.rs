//! Which arithmetic runs. The engine states it, the server prints it, the doctor compares under it.

use std::fmt;

use lucid_checkpoint::Config;
use serde::Serialize;

use crate::plant::Dose;
use crate::{Plant, Planted};

/// How exact the arithmetic is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Plain f32 everywhere, in the order of the formulas: the witness.
    Reference,
    /// A bf16 KV cache; on a GPU, activations enter products as bf16 too, and sums stay f32: the server.
    #[default]
    Serving,
}

impl Mode {
    /// bf16 terms of an activation in the GPU's products: three hold an f32 exactly.
    pub(crate) fn terms(self) -> usize {
        match self {
            Mode::Reference => 3,
            Mode::Serving => 1,
        }
    }
}

/// What is asked of the engine; `None` means "as the checkpoint says".
#[derive(Clone, Debug, Default)]
pub struct SemanticsOptions {
    /// Reference or serving arithmetic.
    pub mode: Mode,
    /// Epsilon of the two latent norms (`q_a_layernorm`, `kv_a_layernorm`). vLLM, SGLang and llama.cpp use
    /// `rms_norm_eps`; transformers uses 1e-6 whatever the config says.
    pub latent_norm_eps: Option<f64>,
    /// A mistake to make on purpose.
    pub plant: Option<Planted>,
}

/// What the engine computes with, in full. Reported by the server and by every comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Semantics {
    /// Reference or serving arithmetic.
    pub mode: Mode,
    /// Quantized weights are decoded, activations are not quantized: `W4A16` in the field's words.
    pub activations: &'static str,
    /// How products of weights and activations are summed: in f32, or on a processor's tile unit, as exactly.
    pub products: &'static str,
    /// Element type of the KV cache: `f32` or `bf16`.
    pub kv_cache: &'static str,
    /// Epsilon of the latent norms.
    pub latent_norm_eps: f64,
    /// RoPE pairing of the main attention: `interleaved` or `half-split`.
    pub rope_pairing: &'static str,
    /// The planted fault, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plant: Option<String>,
}

impl Semantics {
    pub(crate) fn new(config: &Config, options: &SemanticsOptions) -> Semantics {
        let plants = |plant| options.plant.is_some_and(|planted| planted.plant == plant);
        let interleaved = config.rope_interleave != plants(Plant::RopeHalfSplit);
        let planted_eps = options.plant.filter(|_| plants(Plant::LatentNormEps));
        let planted_eps = planted_eps.map(|planted| Dose::new(planted, config).strength);
        Semantics {
            mode: options.mode,
            activations: "f32 (weight-only quantization)",
            products: "f32",
            kv_cache: match options.mode {
                Mode::Reference => "f32",
                Mode::Serving => "bf16",
            },
            latent_norm_eps: planted_eps.or(options.latent_norm_eps).unwrap_or(config.rms_norm_eps),
            rope_pairing: if interleaved { "interleaved" } else { "half-split" },
            plant: options.plant.map(|planted| planted.describe(config)),
        }
    }
}

impl Semantics {
    /// The same on a GPU.
    pub(crate) fn on_gpu(mut self) -> Semantics {
        if self.mode.terms() == 1 {
            self.activations = "bf16 (weight-only quantization)";
        }
        self
    }
}

impl fmt::Display for Semantics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Reference => "reference",
            Mode::Serving => "serving",
        };
        write!(
            f,
            "{mode} mode, activations {}, products {}, KV cache {}, latent-norm epsilon {:e}, RoPE {}",
            self.activations, self.products, self.kv_cache, self.latent_norm_eps, self.rope_pairing
        )?;
        match &self.plant {
            Some(plant) => write!(f, ", PLANTED FAULT {plant}"),
            None => Ok(()),
        }
    }
}
