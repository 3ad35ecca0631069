//! A Python source file as CPython would take it: encoding, byte order mark, and limits of nesting.

use std::io::Read;
use std::path::Path;

/// Files above this are noted, not parsed; the largest real one in a vLLM environment has 2.4 MB.
pub(crate) const LARGEST: u64 = 8 << 20;
/// CPython says "too many nested parentheses" above 200.
const BRACKETS: usize = 200;
/// Operators, calls and subscripts that follow each other within one expression, over all open brackets. CPython's own parser
/// gives up before (its stack holds 6,000 frames), and a tree of this depth fits the 64 MiB stacks of the parse threads.
const OPERATORS: usize = 10_000;

/// Why a file was not parsed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("could not be read: {0}")]
    Io(String),
    #[error("{0} bytes long: above the limit of {LARGEST} bytes, not parsed")]
    TooLarge(u64),
    #[error("holds NUL bytes, which CPython refuses; not parsed")]
    Nul,
    #[error("UTF-16 or UTF-32 text, which CPython refuses; not parsed")]
    Wide,
    #[error("line {0}: brackets nested deeper than {BRACKETS}, which CPython refuses; not parsed")]
    TooDeep(usize),
    #[error("line {0}: an expression of more than {OPERATORS} operators, which CPython refuses; not parsed")]
    TooLong(usize),
}

/// Decoded text, and what was odd about its encoding.
#[derive(Debug)]
pub(crate) struct Source {
    pub text: String,
    pub note: Option<String>,
    /// Whether a statement may assign to an attribute of anything but `self`.
    pub assigns_attributes: bool,
}

/// Reads and decodes a file. `room` is memory of an earlier file: the system's allocator tidies up whenever a large piece is freed.
pub(crate) fn read(path: &Path, room: Vec<u8>) -> Result<Source, Unreadable> {
    let io = |error: std::io::Error| Unreadable::Io(error.to_string());
    let file = std::fs::File::open(path).map_err(io)?;
    let mut bytes = room;
    bytes.clear();
    // The length is asked of the bytes, not of the folder entry: a file may grow while it is read.
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > LARGEST {
        let length = path.metadata().map_or(LARGEST + 1, |metadata| metadata.len());
        return Err(Unreadable::TooLarge(length));
    }
    let mut source = decode(bytes)?;
    source.assigns_attributes = check_nesting(source.text.as_bytes())?;
    Ok(source)
}

/// PEP 263: a byte order mark, else a `coding` comment in the first two lines, else UTF-8.
pub(crate) fn decode(mut bytes: Vec<u8>) -> Result<Source, Unreadable> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(Unreadable::Wide);
    }
    if bytes.contains(&0) {
        return Err(Unreadable::Nul);
    }
    if bytes.starts_with(&[0xef, 0xbb, 0xbf]) {
        bytes.drain(..3);
    }
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => return Ok(Source { text, note: None, assigns_attributes: true }),
        Err(error) => error.into_bytes(),
    };
    match declared_encoding(&bytes) {
        // Windows' code page differs from latin-1 in 27 punctuation marks, which no name of a call holds.
        Some(
            "latin-1" | "latin1" | "iso-8859-1" | "iso8859-1" | "iso-8859-15" | "l1" | "cp1252"
            | "windows-1252",
        ) => {
            let text = bytes.iter().map(|&byte| char::from(byte)).collect();
            Ok(Source { text, note: None, assigns_attributes: true })
        }
        Some(other) => {
            let note = format!("declares the encoding {other}; bytes beyond ASCII were read as marks");
            let text = String::from_utf8_lossy(&bytes).into_owned();
            Ok(Source { text, note: Some(note), assigns_attributes: true })
        }
        None => Ok(Source {
            text: String::from_utf8_lossy(&bytes).into_owned(),
            note: Some("not valid UTF-8 and no encoding declared: CPython refuses it".to_owned()),
            assigns_attributes: true,
        }),
    }
}

/// The encoding that a comment in the first two lines names.
fn declared_encoding(bytes: &[u8]) -> Option<&str> {
    bytes.split(|&byte| byte == b'\n').take(2).find_map(|line| {
        let hash = line.iter().position(|&byte| byte == b'#')?;
        if !line[..hash].iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        let ascii = &line[hash..];
        let end = ascii.iter().position(|byte| !byte.is_ascii()).unwrap_or(ascii.len());
        let comment = std::str::from_utf8(&ascii[..end]).ok()?;
        let after = &comment[comment.find("coding")? + "coding".len()..];
        let name = after.strip_prefix([':', '='])?.trim_start();
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).unwrap_or(name.len());
        (end > 0).then(|| &name[..end])
    })
}

/// Refuses what would overflow the stack of whoever walks or drops the tree: one pass over the bytes that knows comments and
/// string literals, counts open brackets, and within each the operators since the last comma.
///
/// On the way it sees whether a statement may assign to an attribute of anything but `self`: it may say so where none does, and
/// never the other way round for a file that Python can read.
pub(crate) fn check_nesting(text: &[u8]) -> Result<bool, Unreadable> {
    let mut runs: Vec<usize> = vec![0];
    // Where the statement begins that is read, and what was seen.
    let mut statement = 0;
    let mut assigns = false;
    let mut total = 0usize;
    let mut line = 1;
    let mut at = 0;
    while at < text.len() {
        if ORDINARY[usize::from(text[at])] {
            at += 1;
            continue;
        }
        match text[at] {
            b'\n' => {
                line += 1;
                let before = text[..at].strip_suffix(b"\r").unwrap_or(&text[..at]);
                if runs.len() == 1 && !before.ends_with(b"\\") {
                    total -= runs[0];
                    runs[0] = 0;
                    statement = at + 1;
                }
            }
            b'#' => at = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |newline| at + newline) - 1,
            quote @ (b'"' | b'\'') => {
                let (end, lines) = string_end(text, at, quote);
                assigns |= may_hold_quotes(text, at, end);
                at = end;
                line += lines;
            }
            b'(' | b'[' | b'{' => {
                if let Some(last) = runs.last_mut() {
                    *last += 1;
                    total += 1;
                }
                runs.push(0);
                if runs.len() > BRACKETS + 1 {
                    return Err(Unreadable::TooDeep(line));
                }
            }
            b')' | b']' | b'}' if runs.len() > 1 => total -= runs.pop().unwrap_or(0),
            b',' | b';' => {
                if let Some(last) = runs.last_mut() {
                    total -= *last;
                    *last = 0;
                }
                if text[at] == b';' {
                    statement = at + 1;
                }
            }
            b'=' if runs.len() == 1 => assigns |= assigns_attribute(text, statement, at),
            // A line that ends so is a line to Python, and none to this pass.
            b'\r' => assigns |= text.get(at + 1) != Some(&b'\n'),
            b'+' | b'-' | b'*' | b'/' | b'%' | b'@' | b'&' | b'|' | b'^' | b'~' | b'.' | b':' => {
                if let Some(last) = runs.last_mut() {
                    *last += 1;
                    total += 1;
                }
            }
            // `not not not …`, `x if a else y if b else …`, `await await …`: words end at spaces.
            b' ' if at > 0 && matches!(text[at - 1], b't' | b'e' | b'd' | b'a') => {
                let word = &text[..at];
                if [&b"not"[..], b"else", b"await", b"yield", b"lambda"].iter().any(|end| word.ends_with(end))
                    && let Some(last) = runs.last_mut()
                {
                    *last += 1;
                    total += 1;
                }
            }
            _ => {}
        }
        if total > OPERATORS {
            return Err(Unreadable::TooLong(line));
        }
        at += 1;
    }
    Ok(assigns || runs.len() > 1)
}

/// Whether the `=` at `at`, outside of brackets, assigns, and what stands before it in its statement has a dot that is not the first
/// one behind `self`.
fn assigns_attribute(text: &[u8], statement: usize, at: usize) -> bool {
    let before = &text[statement..at];
    let part_of_operator =
        text.get(at + 1) == Some(&b'=') || before.last().is_some_and(|last| b"=!<>+-*/%&|^@:".contains(last));
    let is_name = |byte: &u8| *byte == b'_' || byte.is_ascii_alphanumeric() || *byte >= 0x80 || *byte == b'.';
    !part_of_operator
        && memchr::memchr_iter(b'.', before).any(|dot| {
            before[..dot].strip_suffix(b"self").is_none_or(|before| before.last().is_some_and(is_name))
        })
}

/// Whether the string literal from `start` to `end` may be a part of a longer one: since Python 3.12 the expressions of an f-string
/// hold quotes and newlines of their own, and what ends at the first of them has a brace that is not closed.
fn may_hold_quotes(text: &[u8], start: usize, end: usize) -> bool {
    let prefix = text[start.saturating_sub(2)..start].iter().any(|byte| b"fFtT".contains(byte));
    if !prefix {
        return false;
    }
    let literal = &text[start..=end.min(text.len() - 1)];
    let (mut at, mut open) = (0, 0usize);
    while let Some(brace) = memchr::memchr2(b'{', b'}', &literal[at..]) {
        at += brace;
        match (literal[at], open) {
            // `{{` and `}}` are letters.
            (b'{', 0) if literal.get(at + 1) == Some(&b'{') => at += 1,
            (b'{', _) => open += 1,
            (_, 0) => {}
            _ => open -= 1,
        }
        at += 1;
    }
    open > 0
}

/// Bytes that neither open, close nor count anything: most of a file.
const ORDINARY: [bool; 256] = {
    let mut ordinary = [true; 256];
    let special = b"\n\r#\"'([{)]},;=+-*/%@&|^~.: ";
    let mut at = 0;
    while at < special.len() {
        ordinary[special[at] as usize] = false;
        at += 1;
    }
    ordinary
};

/// Where the string literal that begins at `start` ends (its last byte), and how many lines it spans.
fn string_end(text: &[u8], start: usize, quote: u8) -> (usize, usize) {
    let triple = text[start..].starts_with(&[quote, quote, quote]);
    let mut at = if triple { start + 3 } else { start + 1 };
    let mut lines = 0;
    // Long documentation is passed over at the speed of memory.
    while let Some(next) = memchr::memchr3(b'\\', b'\n', quote, text.get(at..).unwrap_or(&[])) {
        at += next;
        match text[at] {
            b'\\' => {
                if text.get(at + 1) == Some(&b'\n') {
                    lines += 1;
                }
                at += 1;
            }
            // An unterminated string ends with its line; the newline itself is left for the caller.
            b'\n' if !triple => return (at - 1, lines),
            b'\n' => lines += 1,
            byte if byte == quote => {
                if !triple {
                    return (at, lines);
                }
                if text[at..].starts_with(&[quote, quote, quote]) {
                    return (at + 2, lines);
                }
            }
            _ => {}
        }
        at += 1;
    }
    (text.len().saturating_sub(1).max(start), lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings() {
        assert_eq!(decode(b"\xef\xbb\xbfx = 1".to_vec()).unwrap().text, "x = 1");
        let latin = decode(b"# -*- coding: latin-1 -*-\nname = '\xe9'".to_vec()).unwrap();
        assert!(latin.text.ends_with("'\u{e9}'") && latin.note.is_none());
        let second_line =
            decode(b"#!/usr/bin/python\n# vim: set fileencoding=iso-8859-1 :\n'\xe9'".to_vec()).unwrap();
        assert!(second_line.text.ends_with("'\u{e9}'"));
        assert!(decode(b"# coding: koi8-r\n'\xe9'".to_vec()).unwrap().note.unwrap().contains("koi8-r"));
        assert!(decode(b"'\xe9'".to_vec()).unwrap().note.unwrap().contains("UTF-8"));
        assert_eq!(decode(b"x\0y".to_vec()).unwrap_err(), Unreadable::Nul);
        assert_eq!(decode(b"\xff\xfex\0".to_vec()).unwrap_err(), Unreadable::Wide);
    }

    #[test]
    fn nesting_is_counted_outside_of_strings_and_comments() {
        assert!(check_nesting("(".repeat(200).as_bytes()).is_ok());
        assert_eq!(check_nesting("(".repeat(201).as_bytes()), Err(Unreadable::TooDeep(1)));
        assert!(check_nesting(format!("x = '{}'", "(".repeat(5000)).as_bytes()).is_ok());
        assert!(check_nesting(format!("# {}\nx = 1", "(".repeat(5000)).as_bytes()).is_ok());
        assert!(check_nesting(format!("'''\n{}\n'''\n", "[\\'".repeat(5000)).as_bytes()).is_ok());
        assert!(matches!(check_nesting("1+".repeat(50_000).as_bytes()), Err(Unreadable::TooLong(1))));
        assert!(matches!(check_nesting("not ".repeat(50_000).as_bytes()), Err(Unreadable::TooLong(1))));
        assert!(matches!(
            check_nesting(format!("x{}", ".f(1, 2)".repeat(50_000)).as_bytes()),
            Err(Unreadable::TooLong(1))
        ));
        // A long table is no deep expression.
        assert!(check_nesting(format!("x = [{}]", "-1.5, ".repeat(100_000)).as_bytes()).is_ok());
        assert!(check_nesting("x = a + b\n".repeat(100_000).as_bytes()).is_ok());
        assert!(check_nesting(b"'never closed\nx = ((1))").is_ok());
    }
}
