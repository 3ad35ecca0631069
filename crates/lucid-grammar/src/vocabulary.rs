//! A tokenizer's vocabulary as `llguidance` wants it: a trie of the tokens' bytes.

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use lucid_checkpoint::TokenId;
use lucid_text::{Specials, Tokenizer};

use crate::Error;

/// The trie asserts bounds of its own (1,024 bytes a token, four million nodes); a vocabulary from a file must not reach them.
const MAX_TOKEN_BYTES: usize = 1_000;
const MAX_BYTES: usize = 4_000_000;

/// The trie, and the tokenizer for texts that a grammar forces.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Tokenizer,
}

/// Builds the trie. Ids from the tokenizer's end to `vocab_size` (the rows of the model's logits) have no bytes, and are never allowed;
/// `eos` are the tokens that end an answer.
///
/// # Errors
/// No token ends an answer.
pub(crate) fn environment(
    tokenizer: &Tokenizer,
    vocab_size: usize,
    eos: &[TokenId],
) -> Result<TokEnv, Error> {
    let eos: Vec<u32> = eos.iter().filter(|id| id.row() < vocab_size).map(|id| id.0).collect();
    let Some(&first) = eos.first() else {
        return Err(Error::Vocabulary("no token ends an answer".to_owned()));
    };
    let size = u32::try_from(vocab_size)
        .map_err(|_| Error::Vocabulary(format!("{vocab_size} tokens are too many")))?;
    let words: Vec<Vec<u8>> = (0..size).map(|id| word(tokenizer, TokenId(id))).collect();
    if words.iter().map(Vec::len).sum::<usize>() > MAX_BYTES {
        return Err(Error::Vocabulary(format!("its tokens have more than {MAX_BYTES} bytes")));
    }
    let trie = TokTrie::from(&TokRxInfo::new(size, first), &words).with_eos_tokens(&eos);
    Ok(std::sync::Arc::new(Vocabulary { trie, tokenizer: tokenizer.clone() }))
}

/// A token's bytes; none, so that it is never allowed, for one that is too long. An added token (`<|im_end|>`) stands behind a byte that no text has, so that its name in a text is not the token.
fn word(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let Some(bytes) = tokenizer.bytes(id).filter(|bytes| bytes.len() < MAX_TOKEN_BYTES) else {
        return Vec::new();
    };
    let added = std::str::from_utf8(bytes).is_ok_and(|name| tokenizer.id(name) == Some(id));
    if !added {
        return bytes.to_vec();
    }
    let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    word.extend_from_slice(bytes);
    word
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            match self.tokenizer.encode(text, Specials::AsText) {
                Ok(ids) => ids.into_iter().map(|id| id.0).collect(),
                // Any split into tokens is right, if not the one that the model knows best.
                Err(_) => self.trie.greedy_tokenize(text.as_bytes()),
            }
        })
    }
}
