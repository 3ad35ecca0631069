//! What the files say about quantization: `config.json: quantization_config` and `hf_quant_config.json`.

use serde::Serialize;

use super::fields::{self, Fields};
use crate::Error;

/// A declaration of how weights are stored. Which tensor is really quantized, the tensors themselves say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quantization {
    /// `modelopt`, `compressed-tensors`, `fp8`, …
    pub method: String,
    /// `NVFP4`, `pack-quantized`, `e4m3`, …
    pub algorithm: Option<String>,
    /// How the KV cache was meant to be quantized, as `FP8`.
    pub kv_cache_algorithm: Option<String>,
    /// Weights per scale along a row.
    pub group_size: Option<usize>,
    /// Rows and columns per scale, for block formats.
    pub block_size: Option<[usize; 2]>,
    /// Patterns of modules that are not quantized.
    pub ignore: Vec<String>,
    /// The tool's version.
    pub producer_version: Option<String>,
}

/// From `quantization_config`, in the object that holds it.
pub(super) fn read(holder: &Fields<'_>) -> Result<Option<Quantization>, Error> {
    let Some(q) = holder.object("quantization_config")? else { return Ok(None) };
    let method = match q.optional_string("quant_method")? {
        Some(method) => method,
        None => q.object("producer")?.map_or_else(|| q.string("quant_method"), |p| p.string("name"))?,
    };
    // "quant_algo": ModelOpt; "format": compressed-tensors; "fmt": DeepSeek's FP8.
    let algorithm = first_string(&q, &["quant_algo", "format", "fmt"])?;
    let weights =
        match q.object("config_groups")?.map(|groups| groups.object("group_0")).transpose()?.flatten() {
            Some(group) => group.object("weights")?,
            None => None,
        };
    let group_size = match q.optional_size("group_size")? {
        None => weights.map(|w| w.optional_size("group_size")).transpose()?.flatten(),
        size => size,
    };
    let kv_cache_algorithm = match q.optional_string("kv_cache_quant_algo")? {
        None => q.object("kv_cache_scheme")?.map(|scheme| kv_cache_name(&scheme)).transpose()?,
        algorithm => algorithm,
    };
    Ok(Some(Quantization {
        method,
        algorithm,
        kv_cache_algorithm,
        group_size,
        block_size: q.pair("weight_block_size")?,
        ignore: ignore(&q)?,
        producer_version: q.object("producer")?.map(|p| p.optional_string("version")).transpose()?.flatten(),
    }))
}

impl Quantization {
    /// Parses the text of `hf_quant_config.json`.
    pub(super) fn from_hf_quant_config(location: &str, json: &[u8]) -> Result<Quantization, Error> {
        let json = fields::parse(location, json)?;
        let top = Fields::root(location, &json)?;
        let Some(q) = top.object("quantization")? else {
            return Err(top.error("quantization", "missing".to_owned()));
        };
        let producer = top.object("producer")?;
        let name = producer.as_ref().map(|p| p.optional_string("name")).transpose()?.flatten();
        Ok(Quantization {
            method: name.unwrap_or_else(|| "modelopt".to_owned()),
            algorithm: q.optional_string("quant_algo")?,
            kv_cache_algorithm: q.optional_string("kv_cache_quant_algo")?,
            group_size: q.optional_size("group_size")?,
            block_size: None,
            ignore: ignore(&q)?,
            producer_version: producer.map(|p| p.optional_string("version")).transpose()?.flatten(),
        })
    }

    /// This declaration, with what it leaves out taken from the other file's.
    pub(super) fn filled_from(mut self, other: Quantization, notices: &mut Vec<String>) -> Quantization {
        if self.algorithm.is_some() && other.algorithm.is_some() && self.algorithm != other.algorithm {
            notices.push(format!(
                "config.json declares quantization {}, hf_quant_config.json {}; the tensors decide",
                self.algorithm.as_deref().unwrap_or_default(),
                other.algorithm.as_deref().unwrap_or_default()
            ));
        }
        self.algorithm = self.algorithm.or(other.algorithm);
        self.kv_cache_algorithm = self.kv_cache_algorithm.or(other.kv_cache_algorithm);
        self.group_size = self.group_size.or(other.group_size);
        self.producer_version = self.producer_version.or(other.producer_version);
        if self.ignore.is_empty() {
            self.ignore = other.ignore;
        }
        self
    }
}

fn first_string(fields: &Fields<'_>, names: &[&str]) -> Result<Option<String>, Error> {
    match names.iter().find(|name| fields.has(name)) {
        Some(name) => fields.optional_string(name),
        None => Ok(None),
    }
}

/// `ignore`: ModelOpt's config.json and compressed-tensors; `exclude_modules`: hf_quant_config.json;
/// `modules_to_not_convert`: GLM's FP8.
fn ignore(fields: &Fields<'_>) -> Result<Vec<String>, Error> {
    for name in ["ignore", "exclude_modules", "modules_to_not_convert"] {
        if let Some(patterns) = fields.strings(name)? {
            return Ok(patterns);
        }
    }
    Ok(Vec::new())
}

/// `{num_bits: 8, type: float}` is what ModelOpt elsewhere calls `FP8`.
fn kv_cache_name(scheme: &Fields<'_>) -> Result<String, Error> {
    let bits = scheme.size("num_bits")?;
    Ok(match scheme.optional_string("type")?.as_deref() {
        Some("float") => format!("FP{bits}"),
        Some("int") => format!("INT{bits}"),
        other => format!("{} {bits} bits", other.unwrap_or("unknown type")),
    })
}
