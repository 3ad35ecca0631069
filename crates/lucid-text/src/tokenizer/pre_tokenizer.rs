//! Kimi's pre-tokenizer: cuts text into the pieces that byte pairs are joined within.
//!
//! Source: MoonshotAI's `tokenization_kimi.py`.

use std::sync::LazyLock;

use regex::Regex;

/// The alternatives of the pattern in their order, without the one that looks ahead.
///
/// The published pattern has `\s+(?!\S)` before the last alternative. An engine that can look ahead backtracks and is
/// several times slower, so [`pieces`] does by hand what that alternative does.
const ALTERNATIVES: [&str; 7] = [
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+",
];

static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(&ALTERNATIVES.join("|")).expect("the pattern is a constant, and tests use it")
});

/// The pieces of `text`, in order. Together they are the whole text.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let found = PATTERN.find_at(text, at)?;
        let mut end = found.end();
        // `\s+(?!\S)`: a run of whitespace leaves its last character to the word that follows, if it has more than one.
        // Only the last alternative can end in whitespace that isn't a line break.
        if end < text.len()
            && let Some(last) = found.as_str().chars().next_back()
            && last.is_whitespace()
            && !matches!(last, '\r' | '\n')
            && found.len() > last.len_utf8()
        {
            end -= last.len_utf8();
        }
        at = end;
        Some(&text[found.start()..end])
    })
}

/// Texts longer than this many characters are cut before anything else.
const MAX_CHARACTERS: usize = 400_000;

/// So are runs of more than this many characters that are all whitespace, or all not.
const MAX_RUN: usize = 25_000;

/// Cuts `text` where Kimi's tokenizer does. The parts are encoded independently, so the ids at the seams depend on it.
pub(crate) fn parts(text: &str) -> impl Iterator<Item = &str> {
    parts_with(text, MAX_CHARACTERS, MAX_RUN)
}

fn parts_with(text: &str, max_characters: usize, max_run: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    // Characters since the last cut by length; unlike `run` it goes on over the cuts between.
    let mut characters = 0;
    let mut run = 0;
    let mut run_is_space = false;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        for (at, character) in rest.char_indices() {
            let is_space = is_python_space(character);
            // The counts belong to the part that ends here; the character opens the next one.
            if characters == max_characters {
                (characters, run) = (0, 0);
                if at > 0 {
                    return Some(split_off(&mut rest, at));
                }
            }
            if run > 0 && is_space == run_is_space {
                if run == max_run {
                    run = 0;
                    return Some(split_off(&mut rest, at));
                }
                run += 1;
            } else {
                (run, run_is_space) = (1, is_space);
            }
            characters += 1;
        }
        Some(std::mem::take(&mut rest))
    })
}

/// Takes the first `at` bytes off `rest`.
fn split_off<'t>(rest: &mut &'t str, at: usize) -> &'t str {
    let (part, tail) = rest.split_at(at);
    *rest = tail;
    part
}

/// Python's `str.isspace`: Unicode's White_Space and the four ASCII separators.
fn is_python_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_as_in_python() {
        // Right: Moonshot's rule in Python (`str.isspace`, code points), with limits of 10 and 3 characters.
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            ("a", &["a"]),
            ("abcd", &["abc", "d"]),
            ("abc", &["abc"]),
            ("ab cd ef", &["ab cd ef"]),
            ("aaaaaaaaaaaaaaaaaaaaaaa", &["aaa", "aaa", "aaa", "a", "aaa", "aaa", "aaa", "a", "aaa"]),
            ("ab   \t\n cd", &["ab   ", "\t\n cd"]),
            ("abcdefghi jklm", &["abc", "def", "ghi ", "jkl", "m"]),
            ("你好吗世界 🎉🎉🎉🎉 x", &["你好吗", "世界 🎉🎉🎉", "🎉", " x"]),
            ("\u{1c}\u{1d}\u{1e}\u{1f}\u{85}\u{3000}abc", &["\u{1c}\u{1d}\u{1e}", "\u{1f}\u{85}\u{3000}abc"]),
            ("abc abc abc abc abc", &["abc abc ab", "c abc abc"]),
            ("aaaaaaaaa         ", &["aaa", "aaa", "aaa ", "   ", "   ", "  "]),
            ("aaabbb aaabbb aaabbb aaabbb ", &["aaa", "bbb aaa", "bbb aaa", "bbb", " aaa", "bbb "]),
        ];
        for (text, expected) in cases {
            assert_eq!(parts_with(text, 10, 3).collect::<Vec<_>>(), *expected, "{text:?}");
        }
    }

    #[test]
    fn a_run_of_whitespace_leaves_its_last_character_to_the_word() {
        let cases: &[(&str, &[&str])] = &[
            ("a   b", &["a", "  ", " b"]),
            ("a \u{3000}1", &["a", " ", "\u{3000}", "1"]),
            ("a   ", &["a", "   "]),
            ("a \n  b", &["a", " \n", " ", " b"]),
            (" 1", &[" ", "1"]),
        ];
        for (text, expected) in cases {
            assert_eq!(pieces(text).collect::<Vec<_>>(), *expected, "{text:?}");
        }
    }
}
