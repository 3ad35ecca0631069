//! The table of a tokenizer: the bytes of every token, and which tokens are special.

use std::collections::HashMap;
use std::ops::Range;

use lucid_checkpoint::TokenId;

use crate::Error;

/// Ids at or above this are refused: no model has ten million tokens, and a table of that size would be a trap.
const MAX_VOCABULARY: usize = 10_000_000;

/// A token that stands outside the merges: `<|im_end|>`, `<think>`, `[EOS]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddedToken {
    pub(crate) id: TokenId,
    pub(crate) name: String,
    /// The file's `special: true`. Such a token disappears from decoded text when `skip_special` is asked for.
    pub(crate) special: bool,
}

/// Bytes, names and flags of all tokens of a tokenizer.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    /// The bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// Where token `id` lies in `bytes`; `None` for an id that no token has.
    ranges: Vec<Option<Range<usize>>>,
    /// `special[id]`, same length as `ranges`.
    special: Vec<bool>,
    /// Added tokens by name.
    names: HashMap<String, TokenId>,
}

impl Vocabulary {
    /// Adds an ordinary token. `file` is named in the error when the id is taken or absurd.
    pub(crate) fn insert(&mut self, id: TokenId, bytes: &[u8], file: &str) -> Result<(), Error> {
        let row = id.row();
        if row >= MAX_VOCABULARY {
            return Err(Error::malformed(
                file,
                format!("token id {id}"),
                format!("ids must be below {MAX_VOCABULARY}"),
            ));
        }
        if row >= self.ranges.len() {
            self.ranges.resize(row + 1, None);
            self.special.resize(row + 1, false);
        }
        if let Some(taken) = self.bytes(id) {
            let (taken, new) = (String::from_utf8_lossy(taken), String::from_utf8_lossy(bytes));
            let problem = format!("two tokens have this id: {taken:?} and {new:?}");
            return Err(Error::malformed(file, format!("token id {id}"), problem));
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.ranges[row] = Some(start..self.bytes.len());
        Ok(())
    }

    /// Adds a token that has a name. An ordinary token with the same id and the same bytes is turned into it.
    pub(crate) fn insert_added(&mut self, token: &AddedToken, file: &str) -> Result<(), Error> {
        if self.bytes(token.id) != Some(token.name.as_bytes()) {
            self.insert(token.id, token.name.as_bytes(), file)?;
        }
        if let Some(other) = self.names.insert(token.name.clone(), token.id)
            && other != token.id
        {
            let problem = format!("the name {:?} is also that of token {other}", token.name);
            return Err(Error::malformed(file, format!("added token {}", token.id), problem));
        }
        self.special[token.id.row()] = token.special;
        Ok(())
    }

    /// The bytes that the token stands for.
    pub(crate) fn bytes(&self, id: TokenId) -> Option<&[u8]> {
        let range = self.ranges.get(id.row())?.clone()?;
        self.bytes.get(range)
    }

    pub(crate) fn is_special(&self, id: TokenId) -> bool {
        self.special.get(id.row()).copied().unwrap_or(false)
    }

    pub(crate) fn id(&self, name: &str) -> Option<TokenId> {
        self.names.get(name).copied()
    }

    /// One more than the largest id.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }
}
