//! A token's number in the vocabulary.

use serde::{Deserialize, Serialize};

/// A token's number in the model's vocabulary: what `config.json` calls an id (`eos_token_id`).
///
/// Not an index into anything else: prompts, positions and rows are counted in `usize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenId(pub u32);

impl TokenId {
    /// The row of this token in a `[vocab_size, …]` matrix.
    #[must_use]
    pub fn row(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for TokenId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
