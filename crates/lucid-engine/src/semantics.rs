//! Which arithmetic runs. The engine states it, the server prints it, the doctor compares under it.

use std::fmt;

use lucid_checkpoint::{Config, Indexer};
use serde::Serialize;

use crate::plant::Dose;
use crate::{Error, Plant, Planted};

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

    /// The element type of the KV cache, when nobody chooses another one.
    pub(crate) fn kv_cache(self) -> KvCacheDtype {
        match self {
            Mode::Reference => KvCacheDtype::F32,
            Mode::Serving => KvCacheDtype::Bf16,
        }
    }
}

/// What the KV cache holds for each value of a latent and of a rotated key part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum KvCacheDtype {
    /// The value as it was computed.
    #[serde(rename = "f32")]
    F32,
    /// Rounded to the nearest bf16, ties to even.
    #[serde(rename = "bf16")]
    Bf16,
    /// Divided by the layer's scale and rounded to the nearest E4M3; beyond 448 it becomes 448. A reader multiplies by the
    /// scale. This is how vLLM stores MLA's latent and key part (`concat_and_cache_mla`): one scale for both.
    #[serde(rename = "fp8_e4m3")]
    Fp8E4m3,
}

impl KvCacheDtype {
    /// vLLM's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            KvCacheDtype::F32 => "f32",
            KvCacheDtype::Bf16 => "bf16",
            KvCacheDtype::Fp8E4m3 => "fp8_e4m3",
        }
    }
}

impl fmt::Display for KvCacheDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What an fp8 KV cache divides by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvScales {
    /// By the checkpoint's `k_scale`; by 1 in a layer without one, as vLLM.
    #[default]
    Checkpoint,
    /// By 1, although the checkpoint has scales: what an engine does that has lost them. Refused where none can be lost.
    Lost,
}

/// What NVFP4 weights are multiplied with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// `W4A16`: weights are decoded, activations are not quantized.
    #[default]
    W4A16,
    /// `W4A4`: activations are rounded to NVFP4 too, with the checkpoint's `input_scale`, as Blackwell's kernels do.
    W4A4,
}

/// What is asked of the engine; `None` means "as the checkpoint says".
#[derive(Clone, Debug, Default)]
pub struct SemanticsOptions {
    /// Reference or serving arithmetic.
    pub mode: Mode,
    /// Element type of the KV cache; `None` takes the mode's: f32 in reference mode, bf16 in serving mode.
    pub kv_cache: Option<KvCacheDtype>,
    /// `None` takes what the checkpoint declares in serving mode, as vLLM's `auto` does; the mode's where it declares nothing or what isn't
    /// computed here.
    pub follows_declared_cache: bool,
    /// What an fp8 KV cache divides by.
    pub kv_scales: KvScales,
    /// What NVFP4 weights are multiplied with.
    pub activations: Activations,
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
    /// What products read: quantized weights are decoded, activations are not quantized (`W4A16` in the field's words), or
    /// they are where the weights are NVFP4 (`W4A4`).
    pub activations: &'static str,
    /// How products of weights and activations are summed: in f32, or on a processor's tile unit, as exactly.
    pub products: &'static str,
    /// Element type of the KV cache.
    pub kv_cache: KvCacheDtype,
    /// Why that one, where the checkpoint has a say in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_reason: Option<String>,
    /// Where an fp8 KV cache has its scales from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_scales: Option<String>,
    /// Epsilon of the latent norms.
    pub latent_norm_eps: f64,
    /// RoPE pairing of the main attention: `interleaved` or `half-split`.
    pub rope_pairing: &'static str,
    /// How a sparse-attention indexer's choice is computed, if the model has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparse_attention: Option<String>,
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
        let (kv_cache, kv_cache_reason) = kv_cache(config, options);
        Semantics {
            mode: options.mode,
            activations: match options.activations {
                Activations::W4A16 => "f32 (weight-only quantization)",
                Activations::W4A4 => "NVFP4 where the weights are, else f32 (W4A4)",
            },
            products: "f32",
            kv_cache,
            kv_cache_reason,
            kv_scales: None,
            latent_norm_eps: planted_eps.or(options.latent_norm_eps).unwrap_or(config.rms_norm_eps),
            rope_pairing: if interleaved { "interleaved" } else { "half-split" },
            sparse_attention: config.indexer.as_ref().map(|indexer| sparse_attention(indexer, options.mode)),
            plant: options.plant.map(|planted| planted.describe(config)),
        }
    }

    /// The same on a GPU, which has each mode's own KV cache or an fp8 one, and no W4A4.
    ///
    /// # Errors
    /// When something else is asked for.
    pub(crate) fn on_gpu(mut self, options: &SemanticsOptions) -> Result<Semantics, Error> {
        if options.activations == Activations::W4A4 {
            return Err(Error::Unsupported {
                what: "W4A4 (NVFP4 activations) on a GPU".to_owned(),
                hint: "compute it on the CPU, or W4A16 on the GPU",
            });
        }
        if ![self.mode.kv_cache(), KvCacheDtype::Fp8E4m3].contains(&self.kv_cache) {
            return Err(Error::Unsupported {
                what: format!("a KV cache of type {} in this mode on a GPU", self.kv_cache),
                hint: "serving mode has a bf16 or fp8_e4m3 cache there, reference mode an f32 or fp8_e4m3 one; compute others on the CPU",
            });
        }
        if self.mode.terms() == 1 {
            self.activations = "bf16 (weight-only quantization)";
        }
        Ok(self)
    }
}

/// The type of the cache, and why where the checkpoint declares one: `kv_cache_quant_algo` of ModelOpt, or a `kv_cache_scheme`. Lists of
/// published configs have `FP8` there, or nothing.
fn kv_cache(config: &Config, options: &SemanticsOptions) -> (KvCacheDtype, Option<String>) {
    let of_mode = options.mode.kv_cache();
    let declared = config.quantization.as_ref().and_then(|q| q.kv_cache_algorithm.as_deref());
    match (options.kv_cache, declared) {
        (Some(chosen), _) => (chosen, None),
        (None, Some(declared)) if options.follows_declared_cache && options.mode == Mode::Serving => {
            match declared.to_ascii_uppercase().as_str() {
                "FP8" | "FP8_E4M3" => {
                    (KvCacheDtype::Fp8E4m3, Some(format!("the checkpoint declares {declared}")))
                }
                _ => (of_mode, Some(format!("the checkpoint declares {declared}, which isn't computed"))),
            }
        }
        (None, _) => (of_mode, None),
    }
}

/// Serving stacks round index keys and queries to FP8, which moves the last few choices.
fn sparse_attention(indexer: &Indexer, mode: Mode) -> String {
    let keys = mode.kv_cache();
    let pairing = if indexer.rope_interleave { "interleaved" } else { "half-split" };
    format!("best {} tokens, {keys} index keys (not FP8), index RoPE {pairing}", indexer.index_topk)
}

impl fmt::Display for Semantics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Reference => "reference",
            Mode::Serving => "serving",
        };
        write!(
            f,
            "{mode} mode, activations {}, products {}, KV cache {}",
            self.activations, self.products, self.kv_cache
        )?;
        let of_cache: Vec<&str> =
            self.kv_cache_reason.iter().chain(&self.kv_scales).map(String::as_str).collect();
        if !of_cache.is_empty() {
            write!(f, " ({})", of_cache.join("; "))?;
        }
        write!(f, ", latent-norm epsilon {:e}, RoPE {}", self.latent_norm_eps, self.rope_pairing)?;
        if let Some(sparse) = &self.sparse_attention {
            write!(f, ", sparse attention: {sparse}")?;
        }
        match &self.plant {
            Some(plant) => write!(f, ", PLANTED FAULT {plant}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn published(name: &str) -> Config {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lucid-checkpoint/tests/configs");
        let json = std::fs::read(folder.join(format!("{name}_config.json"))).unwrap();
        Config::from_json(name, &json).unwrap()
    }

    #[test]
    fn the_cache_is_what_the_checkpoint_declares_unless_somebody_says_otherwise() {
        use KvCacheDtype::{Bf16, F32, Fp8E4m3};
        let auto = SemanticsOptions { follows_declared_cache: true, ..SemanticsOptions::default() };
        let chosen = |config: &Config, options: &SemanticsOptions| Semantics::new(config, options).kv_cache;
        let mut fp8 = published("nvidia--Kimi-K2.5-NVFP4");
        let silent = published("moonshotai--Kimi-K2.5");
        assert_eq!((chosen(&fp8, &auto), chosen(&silent, &auto)), (Fp8E4m3, Bf16));
        assert!(Semantics::new(&silent, &auto).kv_cache_reason.is_none());
        let says = Semantics::new(&fp8, &auto).to_string();
        assert!(says.contains("KV cache fp8_e4m3 (the checkpoint declares FP8)"), "{says}");
        // Who compares arithmetics names one, or none.
        assert_eq!(chosen(&fp8, &SemanticsOptions::default()), Bf16);
        let reference = SemanticsOptions { mode: Mode::Reference, ..auto.clone() };
        assert_eq!(chosen(&fp8, &reference), F32);
        let given = SemanticsOptions { kv_cache: Some(Bf16), ..auto.clone() };
        assert_eq!(chosen(&fp8, &given), Bf16);
        // compressed-tensors may declare others.
        if let Some(quantization) = &mut fp8.quantization {
            quantization.kv_cache_algorithm = Some("INT8".to_owned());
        }
        let says = Semantics::new(&fp8, &auto).to_string();
        assert!(
            says.contains("KV cache bf16 (the checkpoint declares INT8, which isn't computed)"),
            "{says}"
        );
    }
}
