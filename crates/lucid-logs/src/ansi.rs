//! Takes colours and cursor movements out of lines.

use std::sync::LazyLock;

use memchr::memmem::Finder;

/// Built once: building a searcher costs more than searching a line.
static WRITTEN: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"#033["));

/// Removes escape sequences in place: `ESC [ … letter`, `ESC ] … BEL`, `ESC` and one character, and the `#033[…m` that
/// syslog makes of a colour.
pub(crate) fn strip(line: &mut Vec<u8>) {
    let escape = memchr::memchr(0x1b, line);
    let written = WRITTEN.find(line);
    let Some(first) = [escape, written].into_iter().flatten().min() else { return };
    let mut to = first;
    let mut from = first;
    while from < line.len() {
        let rest = &line[from..];
        let length = match rest {
            [0x1b, b'[', tail @ ..] => 2 + sequence(tail),
            [b'#', b'0', b'3', b'3', b'[', tail @ ..] => 5 + sequence(tail),
            [0x1b, b']', tail @ ..] => {
                2 + tail.iter().position(|b| matches!(b, 0x07 | 0x1b)).map_or(tail.len(), |end| end + 1)
            }
            [0x1b, _, ..] => 2,
            [0x1b] => 1,
            _ => 0,
        };
        if length == 0 {
            line[to] = line[from];
            to += 1;
            from += 1;
        } else {
            from += length;
        }
    }
    line.truncate(to);
}

/// Length of a control sequence's parameters and final byte.
fn sequence(tail: &[u8]) -> usize {
    let parameters = tail.iter().take_while(|byte| (0x20..=0x3f).contains(*byte)).count();
    parameters + usize::from(tail.get(parameters).is_some_and(|byte| (0x40..=0x7e).contains(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_and_text_stays() {
        for (coloured, plain) in [
            ("\x1b[1;36m(EngineCore_0 pid=7)\x1b[0;0m INFO", "(EngineCore_0 pid=7) INFO"),
            ("#033[32mINFO#033[0m: up", "INFO: up"),
            ("\x1b]0;title\x07after", "after"),
            ("[0] keeps [m]", "[0] keeps [m]"),
            ("cut \x1b[3", "cut "),
            ("cut \x1b", "cut "),
            ("\x1b[31m\u{fc}ber\x1b[m", "\u{fc}ber"),
        ] {
            let mut line = coloured.as_bytes().to_vec();
            strip(&mut line);
            assert_eq!(String::from_utf8(line).unwrap(), plain);
        }
    }
}
