//! `tokenizer.json`, read and run by Hugging Face's `tokenizers` crate.

use std::collections::HashMap;
use std::sync::LazyLock;

use lucid_checkpoint::{Files, TokenId};
use tokenizers::{
    Model as _, NormalizedString, Normalizer as _, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer as _,
};

use super::Specials;
use super::vocabulary::{AddedToken, Vocabulary};
use crate::Error;

/// The file's name in a checkpoint.
pub(crate) const FILE: &str = "tokenizer.json";

/// Text to ids.
#[derive(Debug)]
pub(crate) struct Encoder {
    tokenizer: tokenizers::Tokenizer,
}

impl Encoder {
    pub(crate) fn encode(&self, text: &str, specials: Specials) -> Result<Vec<TokenId>, tokenizers::Error> {
        match specials {
            Specials::Recognize => {
                let encoding = self.tokenizer.encode_fast(text, false)?;
                Ok(encoding.get_ids().iter().copied().map(TokenId).collect())
            }
            Specials::AsText => self.encode_plain(text),
        }
    }

    /// The stages of `tokenizers` without the first, which finds added tokens. Its own switch for that
    /// (`set_encode_special_tokens`) still recognizes those that are not `special`.
    fn encode_plain(&self, text: &str) -> Result<Vec<TokenId>, tokenizers::Error> {
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = self.tokenizer.get_normalizer() {
            normalizer.normalize(&mut normalized)?;
        }
        let mut pieces = PreTokenizedString::from(normalized);
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| self.tokenizer.get_model().tokenize(piece.get()))?;
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
        let tokens = splits.into_iter().filter_map(|(_, _, tokens)| tokens.as_ref()).flatten();
        Ok(tokens.map(|token| TokenId(token.id)).collect())
    }
}

/// Reads the file.
pub(crate) fn open(files: &Files) -> Result<(Encoder, Vocabulary), Error> {
    let file = files.location(FILE);
    let bytes = files
        .find(FILE)?
        .ok_or_else(|| Error::Missing { file: file.clone(), why: "it holds the tokenizer".to_owned() })?;
    read(&bytes, &file)
}

/// Reads the text of such a file; `file` is its name in messages.
pub(super) fn read(bytes: &[u8], file: &str) -> Result<(Encoder, Vocabulary), Error> {
    let outline: Outline = serde_json::from_slice(bytes)
        .map_err(|error| Error::malformed(file, format!("line {}", error.line()), error.to_string()))?;
    check_byte_level(&outline, file)?;
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes)
        .map_err(|error| Error::malformed(file, "tokenizer", error.to_string()))?;
    // Both are a matter of the request, never of the file.
    tokenizer.with_padding(None);
    tokenizer
        .with_truncation(None)
        .map_err(|error| Error::malformed(file, "truncation", error.to_string()))?;

    let mut vocabulary = Vocabulary::default();
    for (token, id) in tokenizer.get_vocab(false) {
        vocabulary.insert(TokenId(id), &token_bytes(&token), file)?;
    }
    for (&id, token) in &tokenizer.get_added_tokens_decoder() {
        let token = AddedToken { id: TokenId(id), name: token.content.clone(), special: token.special };
        vocabulary.insert_added(&token, file)?;
    }
    check_added_ids(&outline, &vocabulary, file)?;
    Ok((Encoder { tokenizer }, vocabulary))
}

/// The parts of the file that we look into ourselves.
#[derive(serde::Deserialize)]
struct Outline {
    #[serde(default)]
    decoder: Option<serde_json::Value>,
    #[serde(default)]
    added_tokens: Vec<OutlineToken>,
}

#[derive(serde::Deserialize)]
struct OutlineToken {
    id: u32,
    content: String,
}

/// Other decoders (SentencePiece's) map tokens to bytes in other ways, and no model that Lucid serves has one.
fn check_byte_level(outline: &Outline, file: &str) -> Result<(), Error> {
    let kind =
        outline.decoder.as_ref().and_then(|decoder| decoder.get("type")).and_then(|kind| kind.as_str());
    if kind == Some("ByteLevel") {
        return Ok(());
    }
    let problem = format!("found {}, but only ByteLevel is supported", kind.unwrap_or("none"));
    Err(Error::malformed(file, "decoder.type", problem))
}

/// `tokenizers` numbers added tokens by itself and only logs when the file says otherwise.
fn check_added_ids(outline: &Outline, vocabulary: &Vocabulary, file: &str) -> Result<(), Error> {
    for token in &outline.added_tokens {
        let id = vocabulary.id(&token.content);
        if id != Some(TokenId(token.id)) {
            let place = format!("added_tokens, {:?}", token.content);
            let got = id.map_or_else(|| "none".to_owned(), |id| id.to_string());
            let problem = format!("its id is {}, but counting the tokens gives {got}", token.id);
            return Err(Error::malformed(file, place, problem));
        }
    }
    Ok(())
}

/// The bytes that a token's spelling stands for. A spelling outside the byte-level alphabet stands for itself, as in
/// Hugging Face's decoder: `<｜User｜>` in DeepSeek's vocabulary.
pub(super) fn token_bytes(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(|character| BYTES.get(&character).copied()).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100, U+0101, … in their order.
static BYTES: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let mut alphabet = HashMap::new();
    let mut next = 0x100_u32;
    for byte in 0..=255_u8 {
        let character = match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => Some(char::from(byte)),
            _ => {
                next += 1;
                char::from_u32(next - 1)
            }
        };
        alphabet.extend(character.map(|character| (character, byte)));
    }
    alphabet
});
