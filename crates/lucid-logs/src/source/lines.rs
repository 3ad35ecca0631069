//! Splits a byte stream into lines in bounded memory.

use std::io::{self, BufRead};

/// Most bytes kept of one raw line; the rest of it is read and forgotten.
pub(crate) const MOST_LINE: usize = 1 << 20;

/// Reads lines. A carriage return ends a line too: a progress bar that repaints itself is as many lines as it has states.
pub(crate) struct Lines<R> {
    reader: R,
    /// Bytes read.
    pub bytes: u64,
    /// Lines whose end was cut off.
    pub cut: u64,
    /// Line feeds so far.
    pub number: u64,
    /// Whether a carriage return ends a line.
    pub repaints: bool,
}

impl<R: BufRead> Lines<R> {
    pub fn new(reader: R) -> Lines<R> {
        Lines { reader, bytes: 0, cut: 0, number: 0, repaints: true }
    }

    /// The bytes that come next, without taking them.
    pub fn peek(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    /// Reads exactly as many bytes, or fewer at the end; keeps at most [`MOST_LINE`] of them.
    pub fn take(&mut self, mut count: u64, into: &mut Vec<u8>) -> io::Result<()> {
        while count > 0 {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let taken = buffer.len().min(usize::try_from(count).unwrap_or(usize::MAX));
            let room = MOST_LINE.saturating_sub(into.len());
            into.extend_from_slice(&buffer[..taken.min(room)]);
            self.reader.consume(taken);
            self.bytes += taken as u64;
            count -= taken as u64;
        }
        Ok(())
    }

    /// Reads the next line into `line`; false at the end. Empty lines count, empty progress bar states don't.
    pub fn next(&mut self, line: &mut Vec<u8>) -> io::Result<bool> {
        line.clear();
        let mut any = false;
        let mut too_long = false;
        loop {
            let buffer = match self.reader.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if buffer.is_empty() {
                self.number += u64::from(any);
                self.cut += u64::from(too_long);
                return Ok(any);
            }
            let end = if self.repaints {
                memchr::memchr2(b'\n', b'\r', buffer)
            } else {
                memchr::memchr(b'\n', buffer)
            };
            let mut part = &buffer[..end.unwrap_or(buffer.len())];
            // A log that was truncated while its writer kept it open begins with as many zeros as it had bytes.
            if line.is_empty() {
                let zeros = part.iter().position(|byte| *byte != 0).unwrap_or(part.len());
                part = &part[zeros..];
            }
            let room = MOST_LINE - line.len();
            too_long |= part.len() > room;
            line.extend_from_slice(&part[..part.len().min(room)]);
            any = true;
            let ended_by = end.map(|end| buffer[end]);
            let used = end.map_or(buffer.len(), |end| end + 1);
            self.reader.consume(used);
            self.bytes += used as u64;
            match ended_by {
                Some(b'\n') => {
                    self.number += 1;
                    self.cut += u64::from(too_long);
                    return Ok(true);
                }
                // The `\r` of `\r\n`, or an empty state of a progress bar: the line goes on.
                Some(_) if line.is_empty() => {}
                Some(_) => {
                    let buffer = self.reader.fill_buf()?;
                    if buffer.first() == Some(&b'\n') {
                        self.reader.consume(1);
                        self.bytes += 1;
                        self.number += 1;
                    }
                    self.cut += u64::from(too_long);
                    return Ok(true);
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &[u8], buffer: usize) -> Vec<(String, u64)> {
        let mut lines = Lines::new(std::io::BufReader::with_capacity(buffer, text));
        let mut line = Vec::new();
        let mut all = Vec::new();
        while lines.next(&mut line).unwrap() {
            all.push((String::from_utf8_lossy(&line).into_owned(), lines.number));
        }
        assert_eq!(lines.bytes, text.len() as u64);
        all
    }

    #[test]
    fn splits_alike_whatever_the_buffer() {
        let text = b"a\r\nbar 0%\rbar 50%\rbar 100%\n\nlast";
        for buffer in 1..12 {
            let lines = split(text, buffer);
            let texts: Vec<&str> = lines.iter().map(|(text, _)| text.as_str()).collect();
            assert_eq!(texts, ["a", "bar 0%", "bar 50%", "bar 100%", "", "last"], "buffer of {buffer}");
            assert_eq!(lines[5].1, 4, "line feeds, not repaints, number the lines");
        }
    }

    #[test]
    fn long_lines_are_cut_and_zeros_skipped() {
        let mut text = vec![0u8; 3 * MOST_LINE];
        text.extend_from_slice(b"after the zeros\n");
        text.extend(std::iter::repeat_n(b'x', 2 * MOST_LINE));
        text.extend_from_slice(b"\nend\n");
        let mut lines = Lines::new(&text[..]);
        let mut line = Vec::new();
        assert!(lines.next(&mut line).unwrap());
        assert_eq!(line, b"after the zeros");
        assert!(lines.next(&mut line).unwrap());
        assert_eq!((line.len(), line.capacity() <= 2 * MOST_LINE, lines.cut), (MOST_LINE, true, 1));
        assert!(lines.next(&mut line).unwrap());
        assert_eq!(line, b"end");
        assert!(!lines.next(&mut line).unwrap());
    }
}
