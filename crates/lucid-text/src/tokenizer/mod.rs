//! Text to token ids and back.
//!
//! Two implementations stand behind one type: [`tiktoken`] is ours, for the `tiktoken.model` of Kimi checkpoints
//! (and the same ranks in a GGUF file, [`gguf`]);
//! [`json`] is the `tokenizers` crate, for `tokenizer.json` (and GGUF files that were made from one). A checkpoint that has both files lets each witness the other.

mod byte_pairs;
mod gguf;
mod json;
mod pre_tokenizer;
mod tiktoken;
mod vocabulary;

use std::sync::Arc;

use lucid_checkpoint::{Files, TokenId};

use crate::Error;
use vocabulary::Vocabulary;

/// What to do with the name of an added token (`<|im_end|>`, `<think>`) that stands in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// It becomes that token, as Hugging Face and vLLM do it. Right for a rendered prompt; wrong for text from a user
    /// who must not be able to end their own turn.
    Recognize,
    /// It is plain text like any other.
    AsText,
}

/// A model's tokenizer. Cheap to clone; can be used from many threads.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    source: String,
    vocabulary: Vocabulary,
    encoder: Encoder,
}

#[derive(Debug)]
enum Encoder {
    Tiktoken(Box<tiktoken::Encoder>),
    Json(Box<json::Encoder>),
}

impl Tokenizer {
    /// Reads `tokenizer.json` if there is one, else `tiktoken.model`; of a GGUF model, the tokenizer inside. [`Tokenizer::source`] says which it was.
    ///
    /// # Errors
    /// Neither file is there, or the one that is there is malformed.
    pub fn open(files: &Files) -> Result<Self, Error> {
        if let Some(metadata) = lucid_checkpoint::gguf::metadata(files)? {
            let (encoder, vocabulary) = gguf::open(&metadata)?;
            return Ok(Self::new(files.root(), vocabulary, encoder));
        }
        if files.find(json::FILE)?.is_some() {
            return Self::open_json(files);
        }
        if files.find(tiktoken::FILE)?.is_some() {
            return Self::open_tiktoken(files);
        }
        Err(Error::Missing {
            file: files.location(json::FILE),
            why: format!("and there is no {} either; the model has no tokenizer", tiktoken::FILE),
        })
    }

    /// Reads `tiktoken.model` (ranks) and `tokenizer_config.json` (names of the added tokens), with Kimi's pre-tokenizer.
    ///
    /// # Errors
    /// A file is missing or malformed; the error names line or field.
    pub fn open_tiktoken(files: &Files) -> Result<Self, Error> {
        let (encoder, vocabulary) = tiktoken::open(files)?;
        Ok(Self::new(files.location(tiktoken::FILE), vocabulary, Encoder::Tiktoken(Box::new(encoder))))
    }

    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    /// The file is missing, malformed, or not a byte-level tokenizer.
    pub fn open_json(files: &Files) -> Result<Self, Error> {
        let (encoder, vocabulary) = json::open(files)?;
        Ok(Self::new(files.location(json::FILE), vocabulary, Encoder::Json(Box::new(encoder))))
    }

    fn new(source: String, vocabulary: Vocabulary, encoder: Encoder) -> Self {
        Tokenizer { inner: Arc::new(Inner { source, vocabulary, encoder }) }
    }

    /// The file that the tokenizer was read from.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.inner.source
    }

    /// The ids of `text`. No begin or end token is ever added: the chat template writes what the model needs.
    ///
    /// # Errors
    /// Only `tokenizer.json` tokenizers can refuse a text.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<TokenId>, Error> {
        match &self.inner.encoder {
            Encoder::Tiktoken(encoder) => Ok(encoder.encode(text, specials)),
            Encoder::Json(encoder) => encoder.encode(text, specials).map_err(|error| Error::Encode {
                file: self.inner.source.clone(),
                problem: error.to_string(),
            }),
        }
    }

    /// The bytes that a token stands for: of an added token, its name. `None` for an id that no token has.
    ///
    /// The bytes of one token need not be UTF-8: a character may be spread over several tokens.
    #[must_use]
    pub fn bytes(&self, id: TokenId) -> Option<&[u8]> {
        self.inner.vocabulary.bytes(id)
    }

    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD, and so does an id that no token has.
    ///
    /// With `skip_special`, tokens for which [`Tokenizer::is_special`] holds are left out.
    #[must_use]
    pub fn decode(&self, ids: &[TokenId], skip_special: bool) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.visible_bytes(id, skip_special));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What a token adds to a decoded text.
    pub(crate) fn visible_bytes(&self, id: TokenId, skip_special: bool) -> &[u8] {
        if skip_special && self.is_special(id) {
            return &[];
        }
        self.bytes(id).unwrap_or("\u{FFFD}".as_bytes())
    }

    /// Whether the checkpoint marks the token with `special: true`.
    ///
    /// `<think>` and the tool-call tokens of Kimi are not special in this sense: they survive in decoded text, so that
    /// parsers can see them.
    #[must_use]
    pub fn is_special(&self, id: TokenId) -> bool {
        self.inner.vocabulary.is_special(id)
    }

    /// The id of an added token: `"<|im_end|>"`. `None` for a name that no added token has.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<TokenId> {
        self.inner.vocabulary.id(name)
    }

    /// One more than the largest id, added tokens included. The model's logits may have more rows.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.vocabulary.len()
    }
}
