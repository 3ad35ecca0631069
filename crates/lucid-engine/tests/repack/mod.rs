//! The canary in other layouts: each weight is decoded and stored again.

use std::collections::BTreeMap;

use lucid_checkpoint::{Checkpoint, E4M3, Files, Layout, Matrix, Packed};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::goldens::canary;

/// Name to type, shape, bytes.
type Tensors = BTreeMap<String, (&'static str, Vec<usize>, Vec<u8>)>;

/// What becomes of a matrix: tensors beside each other, by the last part of their names.
type Parts = Vec<(&'static str, &'static str, Vec<usize>, Vec<u8>)>;

/// A checkpoint in a folder of its own.
pub struct Repacked {
    pub checkpoint: Checkpoint,
    _folder: TempDir,
}

/// The canary with every NVFP4 matrix stored as compressed-tensors does it.
pub fn nvfp4_compressed_tensors() -> Repacked {
    write(&canary(), None, |matrix| {
        let Packed::Nvfp4 { codes, scales, global_scale, .. } = &matrix.packed else { return None };
        Some(vec![
            ("weight_packed", "U8", vec![matrix.rows, matrix.cols / 2], codes.to_vec()),
            ("weight_scale", "F8_E4M3", vec![matrix.rows, matrix.cols / 16], scales.to_vec()),
            ("weight_global_scale", "F32", vec![1], (1.0 / global_scale).to_le_bytes().to_vec()),
        ])
    })
}

/// The canary with every NVFP4 matrix in INT4, rounded to the nearest, a BF16 scale for 32 columns.
pub fn int4() -> Repacked {
    write(&canary(), None, |matrix| {
        if matrix.layout() != Layout::Nvfp4 {
            return None;
        }
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for group in values(matrix).chunks_exact(32) {
            let most = group.iter().fold(0f32, |most, x| most.max(x.abs()));
            let bits = ((most / 7.0).to_bits() + 0x8000) >> 16;
            let scale = f32::from_bits(bits << 16);
            scales.extend((bits as u16).to_le_bytes());
            let code = |x: f32| match scale {
                0.0 => 8u8,
                _ => ((x / scale).round().clamp(-8.0, 7.0) + 8.0) as u8,
            };
            codes.extend(group.chunks_exact(2).map(|pair| code(pair[0]) | code(pair[1]) << 4));
        }
        let (rows, cols) = (matrix.rows, matrix.cols);
        let shape = [rows as i64, cols as i64].iter().flat_map(|n| n.to_le_bytes()).collect();
        Some(vec![
            ("weight_packed", "I32", vec![rows, cols / 8], codes),
            ("weight_scale", "BF16", vec![rows, cols / 32], scales),
            ("weight_shape", "I64", vec![2], shape),
        ])
    })
}

/// The canary with every linear layer but the router and the head in E4M3 with a scale for 128 × 128 values.
pub fn f8_blocks() -> Repacked {
    f8_blocks_of(128)
}

/// The same with a scale for `size` × `size` values.
pub fn f8_blocks_of(size: usize) -> Repacked {
    let quantization = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [size, size]});
    write(&canary(), Some(quantization), |matrix| {
        if matrix.name.contains("embed_tokens")
            || matrix.name.contains("lm_head")
            || matrix.name.contains(".gate.")
        {
            return None;
        }
        let (rows, cols) = (matrix.rows, matrix.cols);
        let values = values(matrix);
        let (across, down) = (cols.div_ceil(size), rows.div_ceil(size));
        let mut scales = vec![0f32; across * down];
        for (i, x) in values.iter().enumerate() {
            let scale = &mut scales[i / cols / size * across + i % cols / size];
            *scale = scale.max(x.abs() / 448.0);
        }
        let code = |(i, x): (usize, &f32)| {
            let scale = scales[i / cols / size * across + i % cols / size];
            if scale == 0.0 { 0 } else { nearest_e4m3(x / scale) }
        };
        let codes = values.iter().enumerate().map(code).collect();
        let bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        Some(vec![
            ("weight", "F8_E4M3", vec![rows, cols], codes),
            ("weight_scale_inv", "F32", vec![down, across], bytes),
        ])
    })
}

/// Every matrix that is not stored as plain numbers, as F32.
pub fn f32_copy(of: &Checkpoint) -> Repacked {
    write(of, None, |matrix| {
        let plain = matches!(matrix.layout(), Layout::F32 | Layout::F16 | Layout::Bf16);
        let bytes = || values(matrix).iter().flat_map(|x| x.to_le_bytes()).collect();
        (!plain).then(|| vec![("weight", "F32", vec![matrix.rows, matrix.cols], bytes())])
    })
}

fn values(matrix: &Matrix) -> Vec<f32> {
    let mut values = vec![0f32; matrix.rows * matrix.cols];
    for (row, out) in values.chunks_exact_mut(matrix.cols).enumerate() {
        matrix.decode_row(row, out);
    }
    values
}

/// Positive codes are sorted by value; 0x7e is the largest.
fn nearest_e4m3(x: f32) -> u8 {
    let after = E4M3[..0x7f].partition_point(|&value| value < x.abs()).min(0x7e);
    let before = after.saturating_sub(1);
    let code = if x.abs() - E4M3[before] < E4M3[after] - x.abs() { before } else { after };
    code as u8 | if x.is_sign_negative() { 0x80 } else { 0 }
}

/// A checkpoint like `from`, but what `encode` gives for a matrix replaces its tensors.
fn write(
    from: &Checkpoint,
    quantization: Option<Value>,
    encode: impl Fn(&Matrix) -> Option<Parts>,
) -> Repacked {
    let mut tensors = Tensors::new();
    for tensor in from.tensors() {
        let dtype = match tensor.dtype.as_str() {
            "BF16" => "BF16",
            "F32" => "F32",
            // A part of a quantized matrix, which is written with its weight.
            _ => continue,
        };
        tensors.insert(tensor.name.clone(), (dtype, tensor.shape.clone(), tensor.bytes.to_vec()));
    }
    for tensor in from.tensors() {
        let (Some((module, part)), [rows, width]) = (tensor.name.rsplit_once('.'), &tensor.shape[..]) else {
            continue;
        };
        let cols = match (part, tensor.dtype.as_str()) {
            ("weight" | "weight_packed", "U8") => 2 * width,
            ("weight_packed", _) => 8 * width,
            ("weight", _) => *width,
            _ => continue,
        };
        let matrix = from.matrix(module, *rows, cols).unwrap();
        let Some(parts) = encode(&matrix) else { continue };
        tensors.retain(|name, _| name.rsplit_once('.').is_none_or(|(path, _)| path != module));
        for (part, dtype, shape, bytes) in parts {
            tensors.insert(format!("{module}.{part}"), (dtype, shape, bytes));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), file(&tensors)).unwrap();
    let canary = from.files().find("config.json").unwrap().unwrap();
    let mut config: Value = serde_json::from_slice(&canary).unwrap();
    config["quantization_config"] = quantization.unwrap_or(Value::Null);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let checkpoint = Checkpoint::open(Files::open(folder.path()).unwrap()).unwrap();
    Repacked { checkpoint, _folder: folder }
}

fn file(tensors: &Tensors) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (dtype, shape, bytes)) in tensors {
        let begin = data.len();
        data.extend_from_slice(bytes);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}
