//! `tiktoken.model` and the added tokens of `tokenizer_config.json`: the tokenizer of Kimi checkpoints.
//!
//! Source: MoonshotAI's `tokenization_kimi.py` and tiktoken's file format: a line per token, `base64(bytes) SPACE rank`.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use lucid_checkpoint::{Files, TokenId};
use serde::Deserialize;

use super::Specials;
use super::byte_pairs::BytePairs;
use super::pre_tokenizer::{parts, pieces};
use super::vocabulary::{AddedToken, Vocabulary};
use crate::Error;

/// The file with the ranks.
pub(crate) const FILE: &str = "tiktoken.model";

/// The file with the names of the added tokens.
const CONFIG_FILE: &str = "tokenizer_config.json";

/// Ids after the ranks that belong to added tokens, named or not.
const ADDED_TOKENS: u32 = 256;

/// Text to ids.
#[derive(Debug)]
pub(crate) struct Encoder {
    byte_pairs: BytePairs,
    /// Finds the names of added tokens; match `i` is token `added[i]`.
    names: AhoCorasick,
    added: Vec<TokenId>,
}

impl Encoder {
    /// For messages: the file of the ranks, that of the added tokens, and the latter's field.
    pub(super) fn new(
        ranks: Ranks,
        added: &[AddedToken],
        [file, added_file, field]: [&str; 3],
    ) -> Result<Encoder, Error> {
        let byte_pairs = BytePairs::new(ranks).map_err(|byte| {
            let problem = format!("no token for the single byte {byte:#04x}; all 256 are needed");
            Error::malformed(file, "ranks", problem)
        })?;
        let names = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(added.iter().map(|token| &token.name))
            .map_err(|error| Error::malformed(added_file, field, error.to_string()))?;
        Ok(Encoder { byte_pairs, names, added: added.iter().map(|token| token.id).collect() })
    }

    pub(crate) fn encode(&self, text: &str, specials: Specials) -> Vec<TokenId> {
        let mut tokens = Vec::new();
        // A name that lies across a seam is not recognized: so does the original.
        for part in parts(text) {
            let mut plain_from = 0;
            if specials == Specials::Recognize {
                for name in self.names.find_iter(part) {
                    self.encode_plain(&part[plain_from..name.start()], &mut tokens);
                    tokens.push(self.added[name.pattern().as_usize()]);
                    plain_from = name.end();
                }
            }
            self.encode_plain(&part[plain_from..], &mut tokens);
        }
        tokens
    }

    fn encode_plain(&self, text: &str, tokens: &mut Vec<TokenId>) {
        for piece in pieces(text) {
            self.byte_pairs.encode(piece.as_bytes(), tokens);
        }
    }
}

/// Reads both files.
pub(crate) fn open(files: &Files) -> Result<(Encoder, Vocabulary), Error> {
    let file = files.location(FILE);
    let bytes = files.find(FILE)?.ok_or_else(|| Error::Missing {
        file: file.clone(),
        why: "it holds the ranks of the tokens".to_owned(),
    })?;
    let (ranks, mut vocabulary) = read_ranks(&bytes, &file)?;

    let config_file = files.location(CONFIG_FILE);
    let config = files.find(CONFIG_FILE)?.ok_or_else(|| Error::Missing {
        file: config_file.clone(),
        why: format!("{FILE} does not name the added tokens (<|im_end|> and others); this file does"),
    })?;
    let added = read_added_tokens(&config, &config_file, ranks.len())?;
    for token in &added {
        vocabulary.insert_added(token, &config_file)?;
    }

    Ok((Encoder::new(ranks, &added, [&file, &config_file, "added_tokens_decoder"])?, vocabulary))
}

/// Bytes of each token to its rank.
pub(super) type Ranks = HashMap<Box<[u8]>, u32>;

fn read_ranks(bytes: &[u8], file: &str) -> Result<(Ranks, Vocabulary), Error> {
    let mut ranks = Ranks::new();
    let mut vocabulary = Vocabulary::default();
    for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let wrong = |problem: String| Error::malformed(file, format!("line {}", number + 1), problem);
        let (token, rank) = read_line(line).map_err(wrong)?;
        vocabulary.insert(TokenId(rank), &token, file)?;
        if let Some(other) = ranks.insert(token.into_boxed_slice(), rank) {
            return Err(wrong(format!("ranks {other} and {rank} are the same bytes")));
        }
    }
    // Every rank is used once, so they are 0, 1, 2, … without a gap exactly when the largest says so.
    if vocabulary.len() != ranks.len() {
        let missing = (0..ranks.len()).filter_map(|rank| u32::try_from(rank).ok());
        let missing = missing.map(TokenId).find(|&rank| vocabulary.bytes(rank).is_none());
        let missing = missing.map_or_else(String::new, |rank| format!(": {rank} is missing"));
        let problem = format!(
            "{} tokens, but ranks up to {}{missing}",
            ranks.len(),
            vocabulary.len().saturating_sub(1)
        );
        return Err(Error::malformed(file, "ranks", problem));
    }
    Ok((ranks, vocabulary))
}

fn read_line(line: &[u8]) -> Result<(Vec<u8>, u32), String> {
    let space = line.iter().position(|&byte| byte == b' ').ok_or("no space between token and rank")?;
    let (token, rank) = line.split_at(space);
    let token = BASE64.decode(token).map_err(|error| format!("the token is not base64: {error}"))?;
    if token.is_empty() {
        return Err("the token is empty".to_owned());
    }
    let rank = String::from_utf8_lossy(rank.trim_ascii());
    let rank = rank.parse().map_err(|error| format!("the rank {rank:?} is not a number: {error}"))?;
    Ok((token, rank))
}

/// What we read of `tokenizer_config.json`.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    added_tokens_decoder: HashMap<String, ConfigToken>,
}

#[derive(Deserialize)]
struct ConfigToken {
    content: String,
    #[serde(default)]
    special: bool,
}

/// The added tokens in the order of their ids: the 256 ids after the `ranks` ranks.
fn read_added_tokens(bytes: &[u8], file: &str, ranks: usize) -> Result<Vec<AddedToken>, Error> {
    let config: Config = serde_json::from_slice(bytes)
        .map_err(|error| Error::malformed(file, format!("line {}", error.line()), error.to_string()))?;
    let first = u32::try_from(ranks).unwrap_or(u32::MAX);
    let ids = first..first.saturating_add(ADDED_TOKENS);

    let mut named = HashMap::new();
    for (key, token) in config.added_tokens_decoder {
        let place = format!("added_tokens_decoder[{key:?}]");
        let id: u32 = key.parse().map_err(|_| Error::malformed(file, &place, "the key is not a token id"))?;
        if !ids.contains(&id) {
            let problem = format!(
                "{FILE} has {ranks} ranks, so added tokens have ids {} to {}",
                ids.start,
                ids.end - 1
            );
            return Err(Error::malformed(file, place, problem));
        }
        if token.content.is_empty() {
            return Err(Error::malformed(file, format!("{place}.content"), "the name is empty"));
        }
        named.insert(id, token);
    }
    let tokens = ids.map(|id| match named.remove(&id) {
        Some(token) => AddedToken { id: TokenId(id), name: token.content, special: token.special },
        // Nothing in the checkpoint marks these as special, and Hugging Face doesn't skip them either.
        None => AddedToken { id: TokenId(id), name: format!("<|reserved_token_{id}|>"), special: false },
    });
    Ok(tokens.collect())
}
