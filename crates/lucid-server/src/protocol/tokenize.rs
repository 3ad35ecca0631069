//! `POST /tokenize` and `POST /detokenize`.

use lucid_checkpoint::TokenId;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct Tokenized {
    pub(crate) count: usize,
    pub(crate) max_model_len: usize,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) token_strs: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Detokenized {
    pub(crate) prompt: String,
}
