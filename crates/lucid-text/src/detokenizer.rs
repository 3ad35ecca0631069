//! Tokens into text while they come.

use lucid_checkpoint::TokenId;

use crate::Tokenizer;

/// Turns tokens into text one by one, and never emits half a character.
///
/// The pieces joined are what [`Tokenizer::decode`] gives for all tokens at once.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// The beginning of a character whose other bytes are yet to come: at most three bytes between calls.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// Starts a text. `skip_special` as in [`Tokenizer::decode`].
    #[must_use]
    pub fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        Detokenizer { tokenizer, skip_special, pending: Vec::new() }
    }

    /// The characters that the token completes: often one word, at times nothing.
    ///
    /// Bytes that can no longer become a character turn into U+FFFD at once.
    pub fn push(&mut self, id: TokenId) -> String {
        self.pending.extend_from_slice(self.tokenizer.visible_bytes(id, self.skip_special));
        let complete = self.pending.len() - unfinished(&self.pending);
        let rest = self.pending.split_off(complete);
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending = rest;
        text
    }

    /// Ends the text: what was held back becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// How many bytes at the end begin a character that more bytes could complete.
fn unfinished(bytes: &[u8]) -> usize {
    // `from_utf8` stops at the first fault. Faults before the last three bytes cannot be cured by more bytes.
    (1..=bytes.len().min(3))
        .find(|&length| {
            let end = &bytes[bytes.len() - length..];
            matches!(std::str::from_utf8(end), Err(fault) if fault.valid_up_to() == 0 && fault.error_len().is_none())
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::unfinished;

    #[test]
    fn a_begun_character_is_held_back() {
        assert_eq!(unfinished(b"abc"), 0);
        assert_eq!(unfinished(b""), 0);
        assert_eq!(unfinished(&[b'a', 0xF0, 0x9F, 0x8E]), 3);
        assert_eq!(unfinished(&[0xE4, 0xBD]), 2);
        assert_eq!(unfinished("é".as_bytes()), 0);
        // 0xC0 begins nothing; a lone continuation byte ends nothing.
        assert_eq!(unfinished(&[0xC0]), 0);
        assert_eq!(unfinished(&[0x9F]), 0);
        // 0xE0 0x80 is an overlong form: no third byte can cure it.
        assert_eq!(unfinished(&[0xE0, 0x80]), 0);
    }
}
