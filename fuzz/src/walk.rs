//! Opens files in memory, and looks at everything that opened.

use std::collections::BTreeMap;

use lucid_checkpoint::{Bytes, Checkpoint, Error, Files, inspect};

/// The model's name in messages: every error has to say it.
pub const MODEL: &str = "fuzzed-model";

/// Opens these files.
///
/// # Errors
/// As [`Checkpoint::open`].
///
/// # Panics
/// When an error does not name the model's files.
pub fn open<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Checkpoint, Error> {
    let files: BTreeMap<String, Bytes> =
        files.into_iter().map(|(name, bytes)| (name.to_owned(), Bytes::from(bytes.to_vec()))).collect();
    Checkpoint::open(Files::Memory { name: MODEL.to_owned(), files }).inspect_err(names_the_file)
}

fn names_the_file(error: &Error) {
    let text = error.to_string();
    assert!(text.contains(MODEL), "no file is named: {text}");
}

/// Inspects all tensors, and decodes the first and the last row of every matrix.
///
/// # Panics
/// When a tensor is not what its shape says, a value is missing, or an error does not name the model's files.
pub fn walk(checkpoint: &Checkpoint) {
    drop(inspect(checkpoint).render(true));
    let mut row = Vec::new();
    for tensor in checkpoint.tensors() {
        if let Some(size) = tensor.dtype.size() {
            let elements: u64 = tensor.shape.iter().map(|&dim| dim as u64).product();
            assert_eq!(elements * size, tensor.bytes.len() as u64, "{}", tensor.name);
        }
        if let [len] = tensor.shape[..]
            && let Err(error) = checkpoint.vector(&tensor.name, len)
        {
            names_the_file(&error);
        }
        let Some((module, _)) = tensor.name.rsplit_once('.') else { continue };
        let [rows, stored] = tensor.shape[..] else { continue };
        // A stored column is a value, two codes of four bits or eight.
        for cols in [1, 2, 8].map(|codes| stored.saturating_mul(codes)) {
            match checkpoint.matrix(module, rows, cols) {
                // Rows of any length can be none at all.
                Ok(_) if rows == 0 => {}
                Ok(matrix) => {
                    row.resize(cols, 0f32);
                    for r in [0, rows - 1] {
                        matrix.decode_row(r, &mut row);
                    }
                }
                Err(error) => names_the_file(&error),
            }
        }
    }
    // Halves of the key-value matrix are put together when they are asked for.
    let config = checkpoint.config();
    let rows = config.num_attention_heads.saturating_mul(config.qk_nope_head_dim + config.v_head_dim);
    if let Err(error) = checkpoint.matrix("model.layers.0.self_attn.kv_b_proj", rows, config.kv_lora_rank) {
        names_the_file(&error);
    }
}
