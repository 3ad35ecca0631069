//! A small model's weights in memory with large pages.

use lucid_checkpoint::{Bytes, Matrix};

use super::{Layer, Weights};

/// Bytes of weights that are copied to large pages at most: about what a processor's third cache holds. Such a model is read from caches
/// again and again, and looking up 4 KB pages is a tenth of its time; a copy of a larger one would take memory that the file's pages don't.
const MOST_GATHERED: usize = 256 << 20;

impl Weights {
    /// Puts the matrices of a small model side by side in memory with large pages.
    ///
    /// # Errors
    /// When there is no memory.
    pub(crate) fn gather(&mut self) -> std::io::Result<()> {
        let stored = |matrix: &Matrix| {
            let (values, scales) = matrix.stored();
            values.len() + scales.map_or(0, |scales| scales.len())
        };
        if self.matrices().map(stored).sum::<usize>() > MOST_GATHERED {
            return Ok(());
        }
        let layers = self.layers.iter_mut().flat_map(Layer::matrices_mut);
        let matrices = layers.chain([&mut self.embed_tokens, &mut self.lm_head]);
        let mut stored: Vec<&mut Bytes> = matrices
            .flat_map(|matrix| {
                let (values, scales) = matrix.stored_mut();
                std::iter::once(values).chain(scales)
            })
            .collect();
        let copies = Bytes::side_by_side(&stored.iter().map(|bytes| &**bytes).collect::<Vec<_>>())?;
        for (bytes, copy) in stored.iter_mut().zip(copies) {
            **bytes = copy;
        }
        Ok(())
    }
}
