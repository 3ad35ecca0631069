//! What is notable about a single tensor or module.

use std::collections::BTreeMap;

use super::scales::{Measured, Module, Storage};
use super::{Notable, NotableKind as Kind, NotableTensor};
use crate::evidence::{Capped, shortened};

/// The most tensors that are kept of a kind.
const MAX_TENSORS: usize = 64;

/// A run of zero bytes as long as a page of a file system is notable.
pub(super) const ZERO_RUN: u64 = 4096;

/// No trained weight is this large; random bytes read as BF16 nearly always have one that is.
const IMPLAUSIBLE: f64 = 1e6;

/// A matrix from this many elements on is no accident when all of them are equal.
const MATRIX: u64 = 1024;

/// ModelOpt's global scale is amax/(6·448): weights would have to reach 26,880 for 10.
const MULTIPLIER_MOST: f64 = 10.0;

/// compressed-tensors' is 448·6/amax: below 0.1, weights would reach 26,880.
const DIVISOR_LEAST: f64 = 0.1;

/// Root mean square of decoded weights; trained ones lie between 1e-4 and 1.
const RMS_LEAST: f64 = 1e-8;
const RMS_MOST: f64 = 100.0;

/// An activation scale is amax/(6·448) for NVFP4: this stands for activations of 10⁷, beyond what BF16 models reach.
const INPUT_MOST: f64 = 3.7e3;

/// Collects notable tensors by kind.
#[derive(Default)]
pub(super) struct Notables {
    kinds: BTreeMap<Kind, Capped<NotableTensor>>,
}

impl Notables {
    pub(super) fn add(&mut self, kind: Kind, name: &str, shard: &str, value: f64, text: String) {
        let value = if value.is_finite() { value } else { f64::MAX };
        let (name, shard, text) = (shortened(name, 200), shard.to_owned(), shortened(&text, 300));
        self.kinds.entry(kind).or_default().push(MAX_TENSORS, NotableTensor { name, shard, text, value });
    }

    fn of(&mut self, kind: Kind, tensor: &Measured<'_>, value: f64, text: String) {
        self.add(kind, &tensor.entry.name, tensor.shard, value, text);
    }

    pub(super) fn finish(self) -> Vec<Notable> {
        self.kinds.into_iter().map(|(kind, tensors)| Notable { kind, tensors }).collect()
    }
}

/// What a tensor is for, by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A matrix of values or codes.
    Matrix,
    /// Scales of blocks or groups.
    BlockScales,
    /// A scale of the whole tensor.
    Global,
    /// A scale of activations.
    Input,
    /// Norms, biases, everything else.
    Other,
}

fn role(tensor: &Measured<'_>) -> Role {
    let part = tensor.entry.name.rsplit_once('.').map_or(tensor.entry.name.as_str(), |(_, part)| part);
    match part {
        "weight_scale_2" | "weight_global_scale" => Role::Global,
        "input_scale" | "input_global_scale" => Role::Input,
        "weight_scale" | "weight_scale_inv" => Role::BlockScales,
        "weight" | "weight_packed" if tensor.entry.shape.len() >= 2 => Role::Matrix,
        _ => Role::Other,
    }
}

/// A tensor by itself.
pub(super) fn tensor(tensor: &Measured<'_>, out: &mut Notables) {
    let m = tensor.moments;
    let role = role(tensor);
    let odd = m.nan + m.infinite;
    let share = |count: u64| count as f64 / m.elements.max(1) as f64;
    if odd > 0 && !matches!(role, Role::Global | Role::Input) {
        let kind = if role == Role::BlockScales { Kind::ScaleNotFinite } else { Kind::NotFinite };
        let text = format!("{} NaN and {} infinities among {} values", m.nan, m.infinite, m.elements);
        out.of(kind, tensor, odd as f64, text);
    }
    match role {
        Role::Matrix => matrix(tensor, out),
        Role::BlockScales => {
            let nonzero = m.elements - m.zero.min(m.elements);
            let of = |count: u64| format!("{count} of {} scales ({:.1} %)", m.elements, 100.0 * share(count));
            if tensor.entry.dtype == "F8_E4M3" && nonzero >= 16 && m.subnormal as f64 > 0.9 * nonzero as f64 {
                out.of(Kind::ScaleSubnormal, tensor, share(m.subnormal), of(m.subnormal));
            }
            if m.negative > 0 {
                out.of(Kind::ScaleNegative, tensor, share(m.negative), of(m.negative));
            }
            // A zero for a whole block of 128 × 128 is never right; for 16 or 32 weights it may be.
            let square = tensor.entry.name.ends_with("weight_scale_inv");
            if m.zero > 0 && (square || share(m.zero) > 0.25 || m.zero_run.is_some_and(|(_, run)| run >= 512))
            {
                out.of(Kind::ScaleZero, tensor, share(m.zero), of(m.zero));
            }
        }
        Role::Global | Role::Input => {
            // A scale of more than one value (a stack's, or per channel) is only looked at as a whole.
            let bad = odd > 0 || m.negative > 0 || (m.zero > 0 && m.elements > 0);
            if bad {
                let kind = if role == Role::Global { Kind::GlobalInvalid } else { Kind::InputInvalid };
                let value = m.scalar.map_or_else(
                    || {
                        format!(
                            "{} of {} values are NaN, infinite, zero or negative",
                            odd + m.negative + m.zero,
                            m.elements
                        )
                    },
                    |value| format!("is {value}"),
                );
                out.of(kind, tensor, m.scalar.unwrap_or(f64::MAX), value);
            } else if role == Role::Input
                && tensor.entry.name.ends_with("input_scale")
                && m.largest > INPUT_MOST
            {
                out.of(Kind::InputSaturated, tensor, m.largest, format!("is {:e}", m.largest));
            }
        }
        Role::Other => {}
    }
}

fn matrix(tensor: &Measured<'_>, out: &mut Notables) {
    let m = tensor.moments;
    // Tables of positions in vision towers may be zero or constant as they were made.
    let table = tensor.entry.name.contains("pos_emb") || tensor.entry.name.contains("inv_freq");
    if table && (m.zero == m.elements || m.constant || m.zero_run_bytes > 0) {
        return;
    }
    let finite = m.elements - (m.nan + m.infinite).min(m.elements);
    if m.elements >= MATRIX && m.zero == m.elements {
        out.of(Kind::AllZero, tensor, m.elements as f64, format!("all {} values are zero", m.elements));
        return;
    }
    if m.elements >= MATRIX && m.constant {
        let text = format!("all {} values are {}", m.elements, m.largest);
        out.of(Kind::Constant, tensor, m.elements as f64, text);
        return;
    }
    if m.largest > IMPLAUSIBLE && matches!(tensor.entry.dtype.as_str(), "BF16" | "F16" | "F32" | "F64") {
        let text = format!("the largest magnitude is {:e}", m.largest);
        out.of(Kind::Implausible, tensor, m.largest, text);
    }
    let nonzero = finite - m.zero.min(finite);
    let halves = matches!(tensor.entry.dtype.as_str(), "BF16" | "F32");
    if halves && nonzero >= MATRIX && m.subnormal as f64 > 0.5 * nonzero as f64 {
        let text = format!(
            "{} of {} values are below the normal range of {}",
            m.subnormal, m.elements, tensor.entry.dtype
        );
        out.of(Kind::Subnormal, tensor, m.subnormal as f64 / nonzero as f64, text);
    }
    if let Some((at, length)) = m.zero_run
        && length >= ZERO_RUN
    {
        let file_at = tensor.entry.start + at;
        // The first dimensions' rows: `[rows, columns]`.
        let row = tensor.entry.bytes / tensor.entry.shape.first().copied().unwrap_or(1).max(1);
        let vocabulary = tensor.entry.name.contains("embed_tokens")
            || tensor.entry.name.contains("lm_head")
            || matches!(tensor.entry.name.as_str(), "token_embd.weight" | "output.weight");
        // A few zeros before or after the rows may belong to their neighbours.
        let near = |place: u64| row > 0 && (place % row).min(row - place % row) < 16;
        let rows = length >= row && near(at) && near(at + length);
        let kind = if rows && vocabulary { Kind::ZeroRows } else { Kind::ZeroRun };
        let (begins, ends) = (file_at.is_multiple_of(4096), (file_at + length).is_multiple_of(4096));
        let aligned = match (begins, ends) {
            (true, true) => ", whole pages of the file",
            (true, false) | (false, true) => ", from or to the boundary of a page of the file",
            (false, false) => "",
        };
        let text = format!(
            "{length} zero bytes from byte {file_at} of the file ({:.2} % of the tensor){aligned}; {} \
                in all runs",
            100.0 * length as f64 / tensor.entry.bytes.max(1) as f64,
            m.zero_run_bytes
        );
        out.of(kind, tensor, length as f64, text);
    }
}

/// A module's tensors together.
pub(super) fn module(path: &str, module: &Module<'_>, out: &mut Notables) {
    let Some(weight) = module.weight() else { return };
    let shard = weight.shard;
    match module.storage() {
        Storage::Nvfp4 { divides } => {
            let name = if divides { "weight_global_scale" } else { "weight_scale_2" };
            let Some(global) = module.scalar(name).filter(|value| *value > 0.0) else { return };
            let reciprocal = if divides { global < DIVISOR_LEAST } else { global > MULTIPLIER_MOST };
            if reciprocal {
                let text = if divides {
                    format!(
                        "{name} is {global:e}; it divides, so that usual values are 10 to 10⁶: this looks like the multiplier"
                    )
                } else {
                    format!(
                        "{name} is {global:e}; it multiplies, so that usual values are 10⁻⁷ to 0.1: this looks like the divisor"
                    )
                };
                out.add(Kind::GlobalReciprocal, &format!("{path}.{name}"), shard, global, text);
            } else if let Some(rms) = module.rms().filter(|rms| *rms > 0.0)
                && !(RMS_LEAST..=RMS_MOST).contains(&rms)
            {
                let text = format!("the decoded weights have a root mean square of {rms:e}");
                out.add(Kind::DecodedMagnitude, path, shard, rms, text);
            }
        }
        Storage::Fp8 | Storage::Int4 => {
            if let Some(rms) = module.rms().filter(|rms| *rms > 0.0)
                && !(RMS_LEAST..=RMS_MOST).contains(&rms)
            {
                let text = format!("the decoded weights have a root mean square of {rms:e}");
                out.add(Kind::DecodedMagnitude, path, shard, rms, text);
            }
        }
        Storage::Other => {
            let packed = weight.entry.dtype == "U8" && weight.entry.shape.len() == 2;
            let missing = ["weight_scale", "weight_scale_2"]
                .into_iter()
                .filter(|part| !module.parts.contains_key(part));
            let missing: Vec<&str> = missing.collect();
            // ModelOpt's spelling only: GGUF and MXFP4 have no such siblings.
            if packed && weight.entry.name.ends_with(".weight") && missing.len() == 1 {
                let text = format!("packed 4-bit codes without {}", missing.join(" and "));
                out.add(Kind::ScaleMissing, path, shard, 0.0, text);
            }
        }
        Storage::Plain => {}
    }
}
