//! The tokenizer in a GGUF file: `tokenizer.ggml.*`.
//!
//! Of a Kimi model it was converted from `tiktoken.model`: the ids of ordinary tokens are their ranks, and the merges were
//! made up from them. So the ranks are used, as the original does; merges would only bring in the converter's choices.
//! Source: llama.cpp, `gguf-py/gguf/constants.py` (TokenType) and `conversion/base.py: set_vocab`.

use lucid_checkpoint::TokenId;
use lucid_checkpoint::gguf::Metadata;

use super::json::token_bytes;
use super::tiktoken::{Encoder, Ranks};
use super::vocabulary::{AddedToken, Vocabulary};
use crate::Error;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";

/// An ordinary token.
const NORMAL: i64 = 1;
/// A token that the converter found marked as special.
const CONTROL: i64 = 3;
/// An added token that stays in decoded text.
const USER_DEFINED: i64 = 4;
/// A row of the embedding that no token has.
const UNUSED: i64 = 5;

/// Converters mark these as control tokens, but the checkpoint does not call them special: a tool-call parser reads them.
const TOOL_CALLS: &str = "<|tool_call";

/// Reads tokens and types.
pub(crate) fn open(metadata: &Metadata) -> Result<(Encoder, Vocabulary), Error> {
    let file = metadata.location();
    supported(metadata, MODEL, &["gpt2"])?;
    supported(metadata, PRE, &["kimi-k2", "kimi-k25"])?;
    let missing = |key: &str| Error::malformed(file, key, "missing: the file has no tokenizer");
    let tokens = metadata.strings(TOKENS)?.ok_or_else(|| missing(TOKENS))?;
    let types = metadata.integers(TYPES)?.ok_or_else(|| missing(TYPES))?;
    if tokens.len() != types.len() {
        let problem = format!("{} types for {} tokens", types.len(), tokens.len());
        return Err(Error::malformed(file, TYPES, problem));
    }
    let (mut ranks, mut added, mut vocabulary) = (Ranks::new(), Vec::new(), Vocabulary::default());
    for (id, (token, kind)) in (0u32..).zip(tokens.into_iter().zip(types)) {
        let wrong = |problem: String| Error::malformed(file, format!("{TOKENS}[{id}]"), problem);
        let token = str::from_utf8(token).map_err(|_| wrong("not UTF-8".to_owned()))?;
        match kind {
            NORMAL => {
                let bytes = token_bytes(token);
                vocabulary.insert(TokenId(id), &bytes, file)?;
                if let Some(other) = ranks.insert(bytes.into_boxed_slice(), id) {
                    return Err(wrong(format!("token {other} is the same bytes")));
                }
            }
            CONTROL | USER_DEFINED if !token.is_empty() => {
                let special = kind == CONTROL && !token.starts_with(TOOL_CALLS);
                let token = AddedToken { id: TokenId(id), name: token.to_owned(), special };
                vocabulary.insert_added(&token, file)?;
                added.push(token);
            }
            UNUSED => {}
            other => return Err(wrong(format!("{token:?} has type {other}, which is not supported"))),
        }
    }
    Ok((Encoder::new(ranks, &added, [file, TOKENS, TOKENS])?, vocabulary))
}

fn supported(metadata: &Metadata, key: &str, values: &[&str]) -> Result<(), Error> {
    match metadata.string(key)? {
        Some(value) if values.contains(&value) => Ok(()),
        found => {
            let problem = format!("{found:?} is not supported; supported are {}", values.join(", "));
            Err(Error::malformed(metadata.location(), key, problem))
        }
    }
}
