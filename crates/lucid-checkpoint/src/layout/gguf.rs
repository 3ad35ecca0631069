//! Matrices of GGUF files.

use super::Parts;
use crate::gguf::BlockType;
use crate::{Bytes, Checkpoint, Error, Matrix, Packed};

impl Parts<'_> {
    pub(super) fn gguf(&self, block: BlockType, rows: usize, cols: usize) -> Result<Packed, Error> {
        self.check_shape(self.weight, &[rows, cols])?;
        // `<name>.scale`, renamed. A file whose blocks hold the whole scale has none.
        let scale = match self.sibling("weight_scale_2") {
            Some(scale) if block == BlockType::NVFP4 => self.positive(scale)?,
            _ => 1.0,
        };
        Ok(Packed::Gguf { block, bytes: self.weight.bytes.clone(), scale })
    }
}

/// `kv_b_proj` `[A (N + V), L]` of a file that holds its two halves: `attn_k_b` `[A, L, N]`, transposed per head, and
/// `attn_v_b` `[A, V, L]`. Decoded to F32, as the two need not be of the same type; `None` when they are not there.
///
/// `kv_b[h (N + V) + d][c] = k_b[h][c][d]` and `kv_b[h (N + V) + N + j][c] = v_b[h][j][c]`.
/// Source: llama.cpp, `conversion/deepseek.py: modify_tensors`.
pub(super) fn key_value_matrix(
    checkpoint: &Checkpoint,
    module: &str,
    rows: usize,
    cols: usize,
) -> Result<Option<Matrix>, Error> {
    let Some(attention) = module.strip_suffix(".kv_b_proj") else { return Ok(None) };
    let Some([k, v]) = keys_and_values(checkpoint, attention)? else { return Ok(None) };
    let config = checkpoint.config();
    let (heads, nope, value) = (config.num_attention_heads, config.qk_nope_head_dim, config.v_head_dim);
    let latent = config.kv_lora_rank;
    if (rows, cols) != (heads * (nope + value), latent) {
        return Err(checkpoint.missing(&format!("{module}.weight")));
    }
    Ok(Some(join_keys_and_values(&k, &v)))
}

/// `kv_b` `[A (N + V), L]` in F32 from its halves: keys `[A L, N]`, transposed per head, and values `[A V, L]`.
#[must_use]
pub fn join_keys_and_values(keys: &Matrix, values: &Matrix) -> Matrix {
    let (latent, nope) = (values.cols, keys.cols);
    let heads = keys.rows / latent.max(1);
    let value = values.rows / heads.max(1);
    let rows = heads * (nope + value);
    let mut joined = vec![0f32; rows * latent];
    let mut row = vec![0f32; nope];
    for (head, out) in joined.chunks_exact_mut(((nope + value) * latent).max(1)).enumerate() {
        let (of_keys, of_values) = out.split_at_mut(nope * latent);
        for c in 0..latent {
            keys.decode_row(head * latent + c, &mut row);
            for (d, &x) in row.iter().enumerate() {
                of_keys[d * latent + c] = x;
            }
        }
        for (j, out) in of_values.chunks_exact_mut(latent).enumerate() {
            values.decode_row(head * value + j, out);
        }
    }
    let bytes: Vec<u8> = joined.iter().flat_map(|x| x.to_le_bytes()).collect();
    let name = format!("{} and {}", keys.name, values.name);
    Matrix { name, rows, cols: latent, packed: Packed::F32(Bytes::from(bytes)) }
}

/// `attn_k_b` `[A L, N]` and `attn_v_b` `[A V, L]` of an attention, if a file holds them.
pub(crate) fn keys_and_values(
    checkpoint: &Checkpoint,
    attention: &str,
) -> Result<Option<[Matrix; 2]>, Error> {
    let (keys, values) = (format!("{attention}.k_b_proj"), format!("{attention}.v_b_proj"));
    if checkpoint.exact(&format!("{keys}.weight")).is_none() {
        return Ok(None);
    }
    let config = checkpoint.config();
    let (heads, nope, value) = (config.num_attention_heads, config.qk_nope_head_dim, config.v_head_dim);
    let latent = config.kv_lora_rank;
    let keys = stacked(checkpoint, &keys, [heads, latent, nope])?;
    Ok(Some([keys, stacked(checkpoint, &values, [heads, value, latent])?]))
}

/// A stack of matrices `[count, rows, cols]` as one of `[count rows, cols]`.
fn stacked(checkpoint: &Checkpoint, module: &str, shape: [usize; 3]) -> Result<Matrix, Error> {
    let tensor = checkpoint.tensor(&format!("{module}.weight"))?;
    if tensor.shape != shape {
        return Err(Error::Shape {
            tensor: tensor.name.clone(),
            shard: checkpoint.files().location(&tensor.shard),
            found: tensor.shape.clone(),
            expected: shape.to_vec(),
        });
    }
    let mut flat = tensor.clone();
    flat.shape = vec![shape[0] * shape[1], shape[2]];
    super::matrix_at(checkpoint, module, &flat, flat.shape[0], flat.shape[1])
}
