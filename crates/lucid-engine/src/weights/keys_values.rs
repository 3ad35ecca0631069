//! The projection from a latent to keys and values: one matrix, or a GGUF file's two.

use std::ops::Range;

use lucid_checkpoint::{Bytes, Matrix, Packed, ScaleType, Scales, join_keys_and_values};

use super::{narrow, pack_exactly};

/// A = heads, N = qk_nope, V = v_head, L = kv_lora.
pub enum KeysAndValues {
    /// As most checkpoints have it.
    Joined {
        /// `[A (N + V), L]`: per head N key rows, then V value rows.
        kv_b: Matrix,
        /// `[A L, N]`: its key rows, transposed per head, for the absorbed form. Exact: values are only moved.
        keys: Matrix,
    },
    /// Quantized halves, as they are stored: joined they would be f32, four to eight times as large.
    Split {
        /// `[A L, N]`, transposed per head already.
        keys: Matrix,
        /// `[A V, L]`
        values: Matrix,
    },
}

impl KeysAndValues {
    /// One matrix `[A (N + V), L]`, and its keys transposed.
    #[must_use]
    pub fn joined(kv_b: Matrix, heads: usize, nope: usize, value: usize) -> KeysAndValues {
        let keys = transpose_keys(&kv_b, heads, nope, value);
        KeysAndValues::Joined { kv_b, keys }
    }

    /// `[A L, N]`: from a head's query to the latent.
    #[must_use]
    pub fn keys(&self) -> &Matrix {
        match self {
            KeysAndValues::Joined { keys, .. } | KeysAndValues::Split { keys, .. } => keys,
        }
    }

    /// The matrix that value rows `[_, L]` stand in, and which of its rows are a head's `value` ones.
    pub fn values(&self, nope: usize, value: usize) -> (&Matrix, impl Fn(usize) -> Range<usize> + use<>) {
        let (matrix, before) = match self {
            KeysAndValues::Joined { kv_b, .. } => (kv_b, nope),
            KeysAndValues::Split { values, .. } => (values, 0),
        };
        let of_head = before + value;
        (matrix, move |head: usize| head * of_head + before..(head + 1) * of_head)
    }

    /// Both matrices, in the order in which an answer's step reads them.
    #[must_use]
    pub fn matrices(&self) -> [&Matrix; 2] {
        match self {
            KeysAndValues::Joined { kv_b, keys } => [keys, kv_b],
            KeysAndValues::Split { keys, values } => [keys, values],
        }
    }

    /// The same.
    pub fn matrices_mut(&mut self) -> [&mut Matrix; 2] {
        match self {
            KeysAndValues::Joined { kv_b, keys } => [keys, kv_b],
            KeysAndValues::Split { keys, values } => [keys, values],
        }
    }

    /// `kv_b` as one matrix, halves joined without losing a bit.
    #[must_use]
    pub fn to_joined(&self) -> Matrix {
        match self {
            KeysAndValues::Joined { kv_b, .. } => kv_b.clone(),
            KeysAndValues::Split { keys, values } => narrow(join_keys_and_values(keys, values)),
        }
    }

    /// The same beside its transposed keys, for those who multiply no halves as they are stored.
    #[must_use]
    pub fn to_joined_with_keys(&self) -> (Matrix, Matrix) {
        match self {
            KeysAndValues::Joined { kv_b, keys } => (kv_b.clone(), keys.clone()),
            KeysAndValues::Split { keys, values } => {
                let (heads, nope, value) = sizes(keys, values);
                let kv_b = narrow(join_keys_and_values(keys, values));
                let keys = transpose_keys(&kv_b, heads, nope, value);
                (kv_b, keys)
            }
        }
    }

    /// `kv_b`, halves joined for good; whoever changes it makes `keys` anew.
    pub fn join(&mut self) -> &mut Matrix {
        let (kv_b, keys) = self.to_joined_with_keys();
        *self = KeysAndValues::Joined { kv_b, keys };
        let [_, kv_b] = self.matrices_mut();
        kv_b
    }
}

/// A, N and V of halves `[A L, N]` and `[A V, L]`.
fn sizes(keys: &Matrix, values: &Matrix) -> (usize, usize, usize) {
    let heads = keys.rows / values.cols.max(1);
    (heads, keys.cols, values.rows / heads.max(1))
}

/// `[A (N + V), L]` to `[A L, N]`: per head the N key rows, transposed. FP8 in blocks stays so where blocks and heads begin together;
/// else bf16 where that is exact, else f32.
fn transpose_keys(kv_b: &Matrix, heads: usize, nope: usize, value: usize) -> Matrix {
    if let Some(transposed) = transpose_f8_keys(kv_b, heads, nope, value) {
        return transposed;
    }
    let latent = kv_b.cols;
    let mut row = vec![0f32; latent];
    let mut transposed = vec![0f32; heads * latent * nope];
    for head in 0..heads {
        for n in 0..nope {
            kv_b.decode_row(head * (nope + value) + n, &mut row);
            for (l, &x) in row.iter().enumerate() {
                transposed[(head * latent + l) * nope + n] = x;
            }
        }
    }
    let packed = pack_exactly(&transposed);
    Matrix { name: format!("{} (keys, transposed)", kv_b.name), rows: heads * latent, cols: nope, packed }
}

/// The same for square blocks of E4M3 that no head shares with another: codes move, and scales with them.
fn transpose_f8_keys(kv_b: &Matrix, heads: usize, nope: usize, value: usize) -> Option<Matrix> {
    let Packed::F8Blocks { codes, scales, block: [size, across] } = &kv_b.packed else { return None };
    let latent = kv_b.cols;
    let whole = [nope, value, latent].iter().all(|n| n.is_multiple_of(*size));
    if size != across || !whole {
        return None;
    }
    let mut transposed = vec![0u8; heads * latent * nope];
    for head in 0..heads {
        let keys = &codes[head * (nope + value) * latent..][..nope * latent];
        for (n, row) in keys.chunks_exact(latent).enumerate() {
            for (l, &code) in row.iter().enumerate() {
                transposed[(head * latent + l) * nope + n] = code;
            }
        }
    }
    let (down, across) = (latent / size, nope / size);
    let block = |head: usize, l: usize, n: usize| (head * (nope + value) / size + n) * down + l;
    let places =
        (0..heads).flat_map(|head| (0..down).flat_map(move |l| (0..across).map(move |n| block(head, l, n))));
    let bytes: Vec<u8> = places.flat_map(|at| scales.get(at).to_le_bytes()).collect();
    let scales = Scales { kind: ScaleType::F32, bytes: Bytes::from(bytes) };
    Some(Matrix {
        name: format!("{} (keys, transposed)", kv_b.name),
        rows: heads * latent,
        cols: nope,
        packed: Packed::F8Blocks { codes: Bytes::from(transposed), scales, block: [*size; 2] },
    })
}

#[cfg(test)]
mod tests {
    use lucid_checkpoint::{Checkpoint, Files, Layout};

    use super::*;
    use crate::weights::Weights;

    /// What llama.cpp's converter and quantizer wrote: keys of a type that rows of 128 allow, values of another.
    #[test]
    fn quantized_halves_of_a_file_stay_as_stored() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary-gguf");
        let checkpoint = Checkpoint::open(Files::open(&folder).unwrap()).unwrap();
        let config = checkpoint.config().clone();
        let (heads, latent) = (config.num_attention_heads, config.kv_lora_rank);
        for layer in Weights::load(&checkpoint, None).unwrap().layers {
            let KeysAndValues::Split { keys, values } = &layer.attention.keys_values else {
                panic!("joined")
            };
            assert!(matches!((&keys.packed, &values.packed), (Packed::Gguf { .. }, Packed::Gguf { .. })));
            assert_eq!([keys.rows, keys.cols], [heads * latent, config.qk_nope_head_dim]);
            assert_eq!([values.rows, values.cols], [heads * config.v_head_dim, latent]);
        }
    }

    /// Against the decoded values, head by head.
    #[test]
    fn keys_in_blocks_of_f8_are_transposed_as_they_are() {
        let (heads, nope, value, latent) = (3, 4, 2, 6);
        let rows = heads * (nope + value);
        let codes: Vec<u8> = (0..rows * latent).map(|i| (i * 37 % 120) as u8).collect();
        let bytes: Vec<u8> =
            (0..rows / 2 * latent / 2).flat_map(|i| (0.5 + i as f32).to_le_bytes()).collect();
        let scales = Scales { kind: ScaleType::F32, bytes: Bytes::from(bytes) };
        let packed =
            |block| Packed::F8Blocks { codes: Bytes::from(codes.clone()), scales: scales.clone(), block };
        let kv_b = Matrix { name: "kv_b".into(), rows, cols: latent, packed: packed([2, 2]) };
        let transposed = transpose_keys(&kv_b, heads, nope, value);
        assert_eq!(transposed.layout(), Layout::F8Blocks);
        let (mut row, mut column) = (vec![0f32; latent], vec![0f32; nope]);
        for head in 0..heads {
            for n in 0..nope {
                kv_b.decode_row(head * (nope + value) + n, &mut row);
                for (l, &x) in row.iter().enumerate() {
                    transposed.decode_row(head * latent + l, &mut column);
                    assert_eq!(column[n].to_bits(), x.to_bits(), "head {head}, {n}, {l}");
                }
            }
        }
        // A block that two heads share is decoded.
        let odd = Matrix { name: "odd".into(), rows: 3 * 3, cols: latent, packed: packed([2, 2]) };
        assert_ne!(transpose_keys(&odd, 3, 2, 1).layout(), Layout::F8Blocks);
    }
}
