//! What container runtimes put in front of a line.

use super::{Format, MOST_LINE, Record, json};
use crate::line::timestamp;

/// Takes wrappings off lines, and joins lines that the runtime cut.
#[derive(Default)]
pub(crate) struct Unwrapper {
    /// The beginning of a line that was cut, one for each stream.
    pending: [Vec<u8>; 2],
    time: [Option<crate::Moment>; 2],
}

impl Unwrapper {
    /// Unwraps a raw line into `record`; false while the line isn't complete. `raw` may be taken.
    pub fn unwrap(&mut self, raw: &mut Vec<u8>, record: &mut Record) -> bool {
        if raw.first() == Some(&b'{')
            && raw.last() == Some(&b'}')
            && let Some(goes_on) = json::unwrap(raw, record)
        {
            return self.join(0, goes_on, record);
        }
        let after_prefix = prefix(raw);
        let rest = &raw[after_prefix..];
        let Some((time, length)) = timestamp(rest).filter(|(_, length)| zoned(&rest[..*length])) else {
            if after_prefix == 0 {
                std::mem::swap(raw, &mut record.text);
            } else {
                record.text.extend_from_slice(rest);
            }
            return true;
        };
        let rest = &rest[length..];
        record.time = Some(time);
        record.format = Format::Timestamps;
        let mut text = rest.strip_prefix(b" ").unwrap_or(rest);
        for (stream, word) in [b"stdout ".as_slice(), b"stderr "].into_iter().enumerate() {
            let Some([tag, b' ', line @ ..]) = text.strip_prefix(word) else { continue };
            if matches!(tag, b'F' | b'P') {
                record.format = Format::Cri;
                text = line;
                record.text.extend_from_slice(text);
                return self.join(stream, *tag == b'P', record);
            }
        }
        record.text.extend_from_slice(text);
        true
    }

    /// What is left at the end of the file.
    pub fn finish(&mut self, record: &mut Record) -> bool {
        for (pending, time) in self.pending.iter_mut().zip(&self.time) {
            if !pending.is_empty() {
                std::mem::swap(pending, &mut record.text);
                pending.clear();
                record.time = *time;
                return true;
            }
        }
        false
    }

    fn join(&mut self, stream: usize, goes_on: bool, record: &mut Record) -> bool {
        let pending = &mut self.pending[stream];
        if pending.is_empty() && !goes_on {
            return true;
        }
        let room = MOST_LINE.saturating_sub(pending.len());
        pending.extend_from_slice(&record.text[..record.text.len().min(room)]);
        if goes_on {
            self.time[stream] = record.time;
            return false;
        }
        std::mem::swap(pending, &mut record.text);
        pending.clear();
        true
    }
}

/// Whether a timestamp names its zone: only container runtimes' do, engines write local time.
fn zoned(time: &[u8]) -> bool {
    time.len() > 19 && (time.ends_with(b"Z") || time[19..].iter().any(|byte| matches!(byte, b'+' | b'-')))
}

/// Length of `[pod/NAME/CONTAINER] ` (kubectl --prefix) or `service-1  | ` (compose).
fn prefix(raw: &[u8]) -> usize {
    let head = &raw[..raw.len().min(160)];
    if head.starts_with(b"[pod/") {
        return head.windows(2).position(|pair| pair == b"] ").map_or(0, |end| end + 2);
    }
    let name =
        head.iter().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')).count();
    // Names of compose services end in their number; llama.cpp's `srv  | ` ones don't.
    if name == 0 || !head[name - 1].is_ascii_digit() {
        return 0;
    }
    let spaces = head[name..].iter().take_while(|byte| **byte == b' ').count();
    if spaces > 0 && head[name + spaces..].starts_with(b"| ") { name + spaces + 2 } else { 0 }
}
