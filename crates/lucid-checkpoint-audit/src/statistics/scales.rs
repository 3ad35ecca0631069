//! The tensors of a quantized module, put together: codes, block scales, global scale, activation scale.

use std::collections::BTreeMap;

use super::moments::Moments;
use crate::header::TensorEntry;

/// A tensor with its statistics.
#[derive(Clone, Copy)]
pub(super) struct Measured<'a> {
    pub(super) entry: &'a TensorEntry,
    pub(super) shard: &'a str,
    pub(super) moments: &'a Moments,
}

/// A module: the path without `.weight`, and the tensors below it by their last part.
pub(super) struct Module<'a> {
    pub(super) parts: BTreeMap<&'a str, Measured<'a>>,
}

/// Tensors by module.
pub(super) fn modules<'a>(tensors: &[Measured<'a>]) -> BTreeMap<&'a str, Module<'a>> {
    let mut modules: BTreeMap<&str, Module<'a>> = BTreeMap::new();
    for tensor in tensors {
        let (path, part) = tensor.entry.name.rsplit_once('.').unwrap_or(("", &tensor.entry.name));
        modules.entry(path).or_insert_with(|| Module { parts: BTreeMap::new() }).parts.insert(part, *tensor);
    }
    modules
}

/// How a module's weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// Floats.
    Plain,
    /// E2M1 codes in blocks of 16; the global scale multiplies (ModelOpt) or divides (compressed-tensors).
    Nvfp4 { divides: bool },
    /// E4M3 with scales in float.
    Fp8,
    /// 4-bit integers with a scale a group.
    Int4,
    /// Anything else, or scales are missing.
    Other,
}

impl Module<'_> {
    /// The part that holds values or codes.
    pub(super) fn weight(&self) -> Option<&Measured<'_>> {
        self.parts.get("weight").or_else(|| self.parts.get("weight_packed"))
    }

    pub(super) fn storage(&self) -> Storage {
        let Some(weight) = self.weight() else { return Storage::Other };
        let has = |part: &str| self.parts.contains_key(part);
        let block_scales = self.parts.get("weight_scale").is_some_and(|scale| scale.entry.dtype == "F8_E4M3");
        match weight.entry.dtype.as_str() {
            "BF16" | "F16" | "F32" => Storage::Plain,
            "U8" if block_scales && has("weight_scale_2") => Storage::Nvfp4 { divides: false },
            "U8" if block_scales && has("weight_global_scale") => Storage::Nvfp4 { divides: true },
            "F8_E4M3" if has("weight_scale_inv") || has("weight_scale") => Storage::Fp8,
            "I32" if has("weight_scale") => Storage::Int4,
            _ => Storage::Other,
        }
    }

    /// The value of a scalar part.
    pub(super) fn scalar(&self, part: &str) -> Option<f64> {
        self.parts.get(part)?.moments.scalar
    }

    fn mean_square(&self, part: &str) -> Option<f64> {
        Some(self.parts.get(part)?.moments.mean_square)
    }

    /// Root mean square of the decoded values, as if scales and codes were independent: a block's scale is set by its largest
    /// value, so its codes look alike whatever the scale. `None` where the layout is not understood.
    pub(super) fn rms(&self) -> Option<f64> {
        let codes = self.weight()?.moments.mean_square.sqrt();
        let rms = match self.storage() {
            Storage::Plain => codes,
            Storage::Nvfp4 { divides } => {
                let global = if divides {
                    1.0 / self.scalar("weight_global_scale")?
                } else {
                    self.scalar("weight_scale_2")?
                };
                codes * self.mean_square("weight_scale")?.sqrt() * global
            }
            Storage::Fp8 => {
                let scales =
                    self.mean_square("weight_scale_inv").or_else(|| self.mean_square("weight_scale"))?;
                codes * scales.sqrt()
            }
            Storage::Int4 => codes * self.mean_square("weight_scale")?.sqrt(),
            // Of GGUF blocks, the scales' own size stands for the values'.
            Storage::Other if self.parts.len() == 1 => codes,
            Storage::Other => return None,
        };
        rms.is_finite().then_some(rms)
    }
}
