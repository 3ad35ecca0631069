//! The quantized layouts that keep their scales in tensors of their own.

use super::{Parts, unsupported};
use crate::matrix::{ScaleType, Scales};
use crate::{Dtype, Error, Packed, Tensor, nvfp4};

/// Rows and columns of a block when the config does not say: what DeepSeek-V3 was trained with.
const F8_BLOCK: [usize; 2] = [128, 128];

/// INT4 codes in one 32-bit word.
const CODES_PER_WORD: usize = 8;

impl Parts<'_> {
    /// `W[o, i] = E2M1(weight[o, i]) * E4M3(weight_scale[o, i / 16]) * weight_scale_2`.
    pub(super) fn nvfp4_modelopt(&self, rows: usize, cols: usize) -> Result<Packed, Error> {
        let Some(scales) = self.sibling("weight_scale") else {
            return Err(unsupported(self.checkpoint, self.weight, "U8 without weight_scale"));
        };
        self.nvfp4(scales, rows, cols)?;
        let global = self.global("weight_scale_2")?;
        let global_scale = self.positive(global)?;
        let input_scale = self.sibling("input_scale").map(|scale| self.scalar(scale)).transpose()?;
        Ok(self.nvfp4_packed(scales, global_scale, input_scale))
    }

    /// `W[o, i] = E2M1(weight_packed[o, i]) * E4M3(weight_scale[o, i / 16]) / weight_global_scale`: the global scales are
    /// the reciprocals of ModelOpt's.
    pub(super) fn nvfp4_compressed_tensors(&self, rows: usize, cols: usize) -> Result<Packed, Error> {
        let scales = match self.sibling("weight_scale") {
            Some(scales) if scales.dtype == Dtype::F8E4m3 => scales,
            // MXFP4 has E8M0 scales, one for 32 columns, and no global scale.
            _ => {
                let layout = "compressed-tensors 4-bit floats other than NVFP4 (U8 weight_packed without F8_E4M3 scales)";
                return Err(unsupported(self.checkpoint, self.weight, layout));
            }
        };
        self.nvfp4(scales, rows, cols)?;
        let global = self.global("weight_global_scale")?;
        let global_scale = 1.0 / self.positive(global)?;
        if !global_scale.is_normal() {
            return Err(self.broken(global, format!("its reciprocal {global_scale} is no usable scale")));
        }
        let input_scale = self.sibling("input_global_scale").map(|scale| self.scalar(scale)).transpose()?;
        Ok(self.nvfp4_packed(scales, global_scale, input_scale.map(|scale| 1.0 / scale)))
    }

    /// Checks codes and block scales, which both dialects store alike.
    fn nvfp4(&self, scales: &Tensor, rows: usize, cols: usize) -> Result<(), Error> {
        if !cols.is_multiple_of(nvfp4::BLOCK) {
            let problem = format!("NVFP4 needs a multiple of 16 columns, the matrix has {cols}");
            return Err(self.broken(self.weight, problem));
        }
        self.check_shape(self.weight, &[rows, cols / 2])?;
        if scales.dtype != Dtype::F8E4m3 {
            let problem = format!("NVFP4 block scales are F8_E4M3, these are {}", scales.dtype);
            return Err(self.broken(scales, problem));
        }
        self.check_shape(scales, &[rows, cols / nvfp4::BLOCK])
    }

    fn nvfp4_packed(&self, scales: &Tensor, global_scale: f32, input_scale: Option<f32>) -> Packed {
        let (codes, scales) = (self.weight.bytes.clone(), scales.bytes.clone());
        Packed::Nvfp4 { codes, scales, global_scale, input_scale }
    }

    fn global(&self, name: &str) -> Result<&Tensor, Error> {
        self.sibling(name).ok_or_else(|| {
            let problem = format!(
                "NVFP4 without its global scale {}.{name}: the weights would be wrong by orders of magnitude",
                self.module
            );
            self.broken(self.weight, problem)
        })
    }

    pub(super) fn positive(&self, global: &Tensor) -> Result<f32, Error> {
        match self.scalar(global)? {
            scale if scale.is_finite() && scale > 0.0 => Ok(scale),
            scale => {
                let problem = format!("the global scale is {scale}; it must be finite and greater than zero");
                Err(self.broken(global, problem))
            }
        }
    }

    /// `W[o, i] = (nibble(weight_packed[o, i / 8], i mod 8) - 8) * weight_scale[o, i / group]`.
    pub(super) fn int4(&self, rows: usize, cols: usize) -> Result<Packed, Error> {
        for (part, what) in
            [("weight_zero_point", "with zero points"), ("weight_g_idx", "with reordered activations")]
        {
            if self.sibling(part).is_some() {
                let layout = format!("compressed-tensors integers (pack-quantized) {what}");
                return Err(unsupported(self.checkpoint, self.weight, &layout));
            }
        }
        let Some(scales) = self.sibling("weight_scale") else {
            let problem = format!("INT4 without its scales {}.weight_scale", self.module);
            return Err(self.broken(self.weight, problem));
        };
        if let Some(shape) = self.sibling("weight_shape") {
            self.check_weight_shape(shape, rows, cols)?;
        }
        if !cols.is_multiple_of(CODES_PER_WORD) {
            let problem =
                format!("INT4 rows end with a whole word of 8 codes, the matrix has {cols} columns");
            return Err(self.broken(self.weight, problem));
        }
        self.check_shape(self.weight, &[rows, cols / CODES_PER_WORD])?;
        let group_size = match scales.shape.as_slice() {
            [r, groups] if *r == rows && *groups > 0 && cols.is_multiple_of(*groups) => cols / groups,
            other => {
                let problem = format!(
                    "shape {other:?} gives {rows} rows of {cols} columns no whole groups with a scale each"
                );
                return Err(self.broken(scales, problem));
            }
        };
        Ok(Packed::Int4 { codes: self.weight.bytes.clone(), scales: self.scales(scales)?, group_size })
    }

    /// `weight_shape` holds `[rows, cols]`, as I64 or I32.
    fn check_weight_shape(&self, tensor: &Tensor, rows: usize, cols: usize) -> Result<(), Error> {
        let values: Vec<i64> = match tensor.dtype {
            Dtype::I64 => tensor.bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
            Dtype::I32 => {
                tensor.bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect()
            }
            _ => return Err(self.broken(tensor, format!("expected I64 values, found {}", tensor.dtype))),
        };
        match values.as_slice() {
            [r, c] if usize::try_from(*r) == Ok(rows) && usize::try_from(*c) == Ok(cols) => Ok(()),
            _ if values.len() <= 8 => {
                Err(self.broken(tensor, format!("says {values:?}, expected [{rows}, {cols}]")))
            }
            _ => Err(self.broken(tensor, format!("has {} values, expected 2", values.len()))),
        }
    }

    /// `W[o, i] = E4M3(weight[o, i]) * weight_scale_inv[o / 128, i / 128]`; despite its name, that is a multiplier.
    pub(super) fn f8_blocks(&self, scales: &Tensor, rows: usize, cols: usize) -> Result<Packed, Error> {
        let declared = self.checkpoint.config().quantization.as_ref().and_then(|q| q.block_size);
        let block = declared.unwrap_or(F8_BLOCK);
        self.check_shape(self.weight, &[rows, cols])?;
        let expected = [rows.div_ceil(block[0]), cols.div_ceil(block[1])];
        if scales.shape != expected {
            let problem = format!(
                "has shape {:?}, but {rows} rows and {cols} columns in blocks of {}×{} have {expected:?} scales",
                scales.shape, block[0], block[1]
            );
            return Err(self.broken(scales, problem));
        }
        Ok(Packed::F8Blocks { codes: self.weight.bytes.clone(), scales: self.scales(scales)?, block })
    }

    fn scales(&self, tensor: &Tensor) -> Result<Scales, Error> {
        let kind = match tensor.dtype {
            Dtype::F32 => ScaleType::F32,
            Dtype::F16 => ScaleType::F16,
            Dtype::Bf16 => ScaleType::Bf16,
            // Older exports have no name for it.
            Dtype::F8E8m0 | Dtype::U8 => ScaleType::F8E8m0,
            _ => {
                let problem =
                    format!("expected scales of type F32, BF16, F16 or F8_E8M0, found {}", tensor.dtype);
                return Err(self.broken(tensor, problem));
            }
        };
        Ok(Scales { kind, bytes: tensor.bytes.clone() })
    }
}
