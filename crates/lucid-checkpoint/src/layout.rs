//! Decides from the tensors that are there how a matrix is stored.

use crate::checkpoint::{Checkpoint, Tensor, spellings};
use crate::{Dtype, Error, Matrix, Packed};

mod gguf;
mod scaled;

pub use gguf::join_keys_and_values;
pub(crate) use gguf::keys_and_values;

const SUPPORTED: &str = "BF16, F16, F32 and F8_E4M3 without scales; NVFP4 of ModelOpt and of compressed-tensors; INT4 of compressed-tensors (symmetric groups); F8_E4M3 with weight_scale_inv (blocks); GGUF types Q2_K to Q8_0, IQ4_NL, IQ4_XS, MXFP4 and NVFP4";

/// What follows the module's path in the name of a weight tensor, most usual first.
const WEIGHTS: [&str; 3] = ["weight", "weight_packed", "qweight"];

/// Tensors beside a weight that mean that its values are not the plain numbers that its type suggests.
const SCALES: [&str; 5] =
    ["weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale", "weight_zero_point"];

/// Finds a module's weight under any spelling of its path.
pub(crate) fn matrix(
    checkpoint: &Checkpoint,
    module: &str,
    rows: usize,
    cols: usize,
) -> Result<Matrix, Error> {
    let found =
        spellings(module).find_map(|module| weight(checkpoint, &module).map(|weight| (module, weight)));
    match found {
        Some((module, weight)) => matrix_at(checkpoint, &module, weight, rows, cols),
        None if let Some(kv_b) = gguf::key_value_matrix(checkpoint, module, rows, cols)? => Ok(kv_b),
        None => Err(checkpoint.missing(&format!("{module}.weight"))),
    }
}

/// The main tensor of the module of exactly that path.
pub(crate) fn weight<'a>(checkpoint: &'a Checkpoint, module: &str) -> Option<&'a Tensor> {
    WEIGHTS.iter().find_map(|weight| checkpoint.exact(&format!("{module}.{weight}")))
}

/// Whether the name's last part says that the tensor belongs to the weight beside it.
pub(crate) fn is_part(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let more =
        ["input_scale", "input_global_scale", "weight_shape", "weight_g_idx", "scales", "qzeros", "g_idx"];
    SCALES.contains(&last) || more.contains(&last)
}

/// Rows and columns of a two-dimensional weight as it would be unpacked.
pub(crate) fn stored_size(weight: &Tensor) -> (usize, usize) {
    let (rows, cols) = match weight.shape.as_slice() {
        [rows, cols] => (*rows, *cols),
        other => (other.iter().fold(1, |product: usize, &dim| product.saturating_mul(dim)), 1),
    };
    // All known packings have 4 bits. GPTQ packs rows, not columns; its matrices are only counted.
    let per_element = match weight.dtype {
        Dtype::I32 => 8,
        Dtype::U8 => 2,
        _ => 1,
    };
    (rows, cols.saturating_mul(per_element))
}

/// The matrix of the module of exactly that path.
pub(crate) fn matrix_at(
    checkpoint: &Checkpoint,
    module: &str,
    weight: &Tensor,
    rows: usize,
    cols: usize,
) -> Result<Matrix, Error> {
    let parts = Parts { checkpoint, module, weight };
    let is_packed = weight.name.ends_with(".weight_packed");
    let packed = match &weight.dtype {
        Dtype::Gguf(block) => parts.gguf(*block, rows, cols)?,
        Dtype::U8 if is_packed => parts.nvfp4_compressed_tensors(rows, cols)?,
        Dtype::I32 if is_packed => parts.int4(rows, cols)?,
        _ if !weight.name.ends_with(".weight") => return Err(parts.unsupported_packed()),
        Dtype::U8 => parts.nvfp4_modelopt(rows, cols)?,
        Dtype::F8E4m3 if let Some(scales) = parts.sibling("weight_scale_inv") => {
            parts.f8_blocks(scales, rows, cols)?
        }
        dtype => {
            if let Some(scale) = SCALES.iter().find_map(|scale| parts.sibling(scale)) {
                let kind = if *dtype == Dtype::F8E4m3 { "FP8 with scales" } else { "a scaled type" };
                let layout = format!("{kind} ({dtype} with {} of shape {:?})", scale.name, scale.shape);
                return Err(unsupported(checkpoint, weight, &layout));
            }
            parts.plain(rows, cols)?
        }
    };
    Ok(Matrix { name: weight.name.clone(), rows, cols, packed })
}

fn unsupported(checkpoint: &Checkpoint, tensor: &Tensor, layout: &str) -> Error {
    Error::UnsupportedLayout {
        tensor: tensor.name.clone(),
        shard: checkpoint.files().location(&tensor.shard),
        layout: layout.to_owned(),
        supported: SUPPORTED,
    }
}

/// A module's weight and the tensors beside it.
struct Parts<'a> {
    checkpoint: &'a Checkpoint,
    /// As this checkpoint spells it.
    module: &'a str,
    weight: &'a Tensor,
}

impl<'a> Parts<'a> {
    fn sibling(&self, suffix: &str) -> Option<&'a Tensor> {
        self.checkpoint.exact(&format!("{}.{suffix}", self.module))
    }

    fn plain(&self, rows: usize, cols: usize) -> Result<Packed, Error> {
        let pack = match self.weight.dtype {
            Dtype::F32 => Packed::F32,
            Dtype::F16 => Packed::F16,
            Dtype::Bf16 => Packed::Bf16,
            Dtype::F8E4m3 => Packed::F8E4m3,
            _ => {
                return Err(unsupported(
                    self.checkpoint,
                    self.weight,
                    &format!("type {}", self.weight.dtype),
                ));
            }
        };
        self.check_shape(self.weight, &[rows, cols])?;
        Ok(pack(self.weight.bytes.clone()))
    }

    /// A single F32, stored with shape `[]` or `[1]`.
    fn scalar(&self, tensor: &Tensor) -> Result<f32, Error> {
        self.checkpoint.scalar_of(tensor)
    }

    fn unsupported_packed(&self) -> Error {
        let layout = match (&self.weight.dtype, self.weight.name.ends_with(".qweight")) {
            (dtype, true) => format!("GPTQ or AWQ ({dtype} qweight)"),
            (dtype, _) => format!("compressed-tensors ({dtype} weight_packed)"),
        };
        unsupported(self.checkpoint, self.weight, &layout)
    }

    fn check_shape(&self, tensor: &Tensor, expected: &[usize]) -> Result<(), Error> {
        if tensor.shape == expected {
            return Ok(());
        }
        Err(Error::Shape {
            tensor: tensor.name.clone(),
            shard: self.checkpoint.files().location(&tensor.shard),
            found: tensor.shape.clone(),
            expected: expected.to_vec(),
        })
    }

    fn broken(&self, tensor: &Tensor, problem: String) -> Error {
        Error::Quantized {
            tensor: tensor.name.clone(),
            shard: self.checkpoint.files().location(&tensor.shard),
            problem,
        }
    }
}
