//! The tokenizer in a GGUF file: `tokenizer.ggml.*`.
//!
//! Of a Kimi model it was converted from `tiktoken.model`: the ids of ordinary tokens are their ranks, and the merges were
//! made up from them. So the ranks are used, as the original does; merges would only bring in the converter's choices.
//! Of a DeepSeek or GLM model it was converted from `tokenizer.json`, and [`merges`] puts that together again.
//! Source: llama.cpp, `gguf-py/gguf/constants.py` (TokenType) and `conversion/base.py: set_vocab`.

mod merges;

use lucid_checkpoint::TokenId;
use lucid_checkpoint::gguf::Metadata;

use super::json::token_bytes;
use super::tiktoken::{self, Ranks};
use super::vocabulary::{AddedToken, Vocabulary};
use super::{Encoder, json};
use crate::Error;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

/// An ordinary token.
const NORMAL: i64 = 1;
/// A token that the converter found marked as special, or that looks so.
const CONTROL: i64 = 3;
/// An added token that stays in decoded text.
const USER_DEFINED: i64 = 4;
/// A row of the embedding that no token has.
const UNUSED: i64 = 5;

/// How the names of tokens begin that converters mark as control tokens because of their looks, though the checkpoints do not call them
/// special: parsers read them. Kimi's tool calls; DeepSeek's turns, tool calls and holes in code (`tokenizer.json` of DeepSeek-V3 and R1).
const NOT_SPECIAL: [&str; 5] = ["<|tool_call", "<｜tool▁", "<｜User｜>", "<｜Assistant｜>", "<｜fim▁"];

/// Reads tokens and types.
pub(crate) fn open(metadata: &Metadata) -> Result<(Encoder, Vocabulary), Error> {
    supported(metadata, MODEL, &["gpt2"])?;
    let pre = supported(metadata, PRE, &["kimi-k2", "kimi-k25", "deepseek-v3", "glm4", "chatglm-bpe"])?;
    let rows = rows(metadata)?;
    match merges::Family::of(pre) {
        Some(family) => {
            let file = merges::tokenizer_json(metadata, family, &rows)?;
            let (encoder, vocabulary) = json::read(file.as_bytes(), metadata.location())?;
            Ok((Encoder::Json(Box::new(encoder)), vocabulary))
        }
        None => by_rank(metadata, rows),
    }
}

/// A row of the table of tokens.
enum Row<'a> {
    /// A token of the byte pairs, in the spelling of bytes.
    Ordinary(&'a str),
    /// A token that stands outside of them.
    Added(AddedToken),
    /// No token, whatever its name is.
    Unused(&'a str),
}

fn rows(metadata: &Metadata) -> Result<Vec<Row<'_>>, Error> {
    let file = metadata.location();
    let missing = |key: &str| Error::malformed(file, key, "missing: the file has no tokenizer");
    let tokens = metadata.strings(TOKENS)?.ok_or_else(|| missing(TOKENS))?;
    let types = metadata.integers(TYPES)?.ok_or_else(|| missing(TYPES))?;
    if tokens.len() != types.len() {
        let problem = format!("{} types for {} tokens", types.len(), tokens.len());
        return Err(Error::malformed(file, TYPES, problem));
    }
    (0u32..).zip(tokens).zip(types).map(|((id, token), kind)| row(file, id, token, kind)).collect()
}

fn row<'a>(file: &str, id: u32, token: &'a [u8], kind: i64) -> Result<Row<'a>, Error> {
    let wrong = |problem: String| Error::malformed(file, format!("{TOKENS}[{id}]"), problem);
    let token = str::from_utf8(token).map_err(|_| wrong("not UTF-8".to_owned()))?;
    match kind {
        NORMAL => Ok(Row::Ordinary(token)),
        CONTROL | USER_DEFINED if !token.is_empty() => {
            let special = kind == CONTROL && !NOT_SPECIAL.iter().any(|start| token.starts_with(start));
            Ok(Row::Added(AddedToken { id: TokenId(id), name: token.to_owned(), special }))
        }
        UNUSED => Ok(Row::Unused(token)),
        other => Err(wrong(format!("{token:?} has type {other}, which is not supported"))),
    }
}

/// Kimi's: an ordinary token's id is its rank.
fn by_rank(metadata: &Metadata, rows: Vec<Row<'_>>) -> Result<(Encoder, Vocabulary), Error> {
    let file = metadata.location();
    let (mut ranks, mut added, mut vocabulary) = (Ranks::new(), Vec::new(), Vocabulary::default());
    for (id, row) in (0u32..).zip(rows) {
        match row {
            Row::Ordinary(token) => {
                let bytes = token_bytes(token);
                vocabulary.insert(TokenId(id), &bytes, file)?;
                if let Some(other) = ranks.insert(bytes.into_boxed_slice(), id) {
                    let problem = format!("token {other} is the same bytes");
                    return Err(Error::malformed(file, format!("{TOKENS}[{id}]"), problem));
                }
            }
            Row::Added(token) => {
                vocabulary.insert_added(&token, file)?;
                added.push(token);
            }
            Row::Unused(_) => {}
        }
    }
    let encoder = tiktoken::Encoder::new(ranks, &added, [file, TOKENS, TOKENS])?;
    Ok((Encoder::Tiktoken(Box::new(encoder)), vocabulary))
}

/// The value of `key`, which must be one of these.
fn supported<'m>(metadata: &'m Metadata, key: &str, values: &[&str]) -> Result<&'m str, Error> {
    match metadata.string(key)? {
        Some(value) if values.contains(&value) => Ok(value),
        found => {
            let problem = format!("{found:?} is not supported; supported are {}", values.join(", "));
            Err(Error::malformed(metadata.location(), key, problem))
        }
    }
}
