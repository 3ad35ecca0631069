//! Joins the lines of tracebacks, process by process.

use std::collections::HashMap;

use crate::evidence::{EXCERPT, excerpt};
use crate::line::Parsed;
use crate::spot::Spot;
use crate::traceback::{Frame, Link, Part};

const START: &[u8] = b"Traceback (most recent call last):";
const CAUSE: &[u8] = b"The above exception was the direct cause";
const CONTEXT: &[u8] = b"During handling of the above exception";
/// Most tracebacks that are open at once, parts of a chain, and lines of a message.
const MOST_OPEN: usize = 256;
const MOST_PARTS: usize = 16;
const MOST_MESSAGE_LINES: usize = 24;
const FIRST_FRAMES: usize = 4;
const LAST_FRAMES: usize = 16;

/// A traceback whose end has been seen.
pub(crate) struct Finished {
    pub first: Spot,
    pub last: Spot,
    pub parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Expects {
    Frames,
    Message,
    Chain(Link),
}

#[derive(Clone)]
struct Open {
    first: Spot,
    last: Spot,
    /// Source file that the logger put in front of the first line.
    place: Option<Vec<u8>>,
    parts: Vec<Part>,
    expects: Expects,
    message_lines: usize,
    blank: bool,
    strange: usize,
}

/// Tracebacks that are being printed.
#[derive(Clone, Default)]
pub(crate) struct Assembler {
    open: HashMap<u32, Open>,
    /// Tracebacks given up because too many were open.
    pub dropped: u64,
}

impl Assembler {
    /// Whether a process is printing one.
    pub fn is_open(&self, process: u32) -> bool {
        self.open.contains_key(&process)
    }

    /// Whether any is being printed.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes a line of a process; gives the traceback that it ends, if it does. `starts`: the line holds a traceback's
    /// first words.
    pub fn feed(&mut self, spot: Spot, parsed: &Parsed<'_>, starts: bool) -> Option<Finished> {
        let process = spot.process;
        let mut finished = None;
        if let Some(open) = self.open.get_mut(&process) {
            if open.takes(spot, parsed, starts) {
                return None;
            }
            finished = self.open.remove(&process).and_then(Open::finish);
        }
        if starts && parsed.message.trim_ascii_end().ends_with(START) {
            if self.open.len() >= MOST_OPEN {
                self.dropped += 1;
                return finished;
            }
            let open = Open {
                first: spot,
                last: spot,
                place: parsed.place.map(<[u8]>::to_vec),
                parts: vec![empty(Link::None)],
                expects: Expects::Frames,
                message_lines: 0,
                blank: false,
                strange: 0,
            };
            self.open.insert(process, open);
        }
        finished
    }

    /// Ends everything that is open, oldest first.
    pub fn finish(&mut self) -> Vec<Finished> {
        let mut all: Vec<Finished> = self.open.drain().filter_map(|(_, open)| open.finish()).collect();
        all.sort_by_key(|finished| (finished.first.source, finished.first.line));
        all
    }
}

fn empty(link: Link) -> Part {
    Part { link, exception: String::new(), message: String::new(), frames: Vec::new(), left_out: 0 }
}

impl Open {
    /// Whether the line belongs to this traceback.
    fn takes(&mut self, spot: Spot, parsed: &Parsed<'_>, starts: bool) -> bool {
        // A line with another logger's mark is another message.
        let marked = parsed.level.is_some() || (parsed.first_line_only && parsed.stamp.is_some());
        if marked && (parsed.place.is_none() || parsed.place != self.place.as_deref()) {
            return false;
        }
        let message = ungrouped(parsed.message);
        let trimmed = message.trim_ascii();
        let taken = match self.expects {
            Expects::Frames => self.frame(message, trimmed, starts),
            Expects::Message => self.message(trimmed, starts),
            Expects::Chain(link) => {
                let remote = trimmed.ends_with(b"RemoteTraceback:") || quotes(trimmed);
                if starts && trimmed.ends_with(START) {
                    self.part(link);
                    true
                } else {
                    trimmed.is_empty() || remote
                }
            }
        };
        if taken {
            self.last = spot;
        }
        taken
    }

    fn frame(&mut self, message: &[u8], trimmed: &[u8], starts: bool) -> bool {
        if starts && trimmed.ends_with(START) {
            // A remote traceback prints itself inside quotes before its own exception's stack.
            let part = self.parts.last();
            if part.is_some_and(|part| !part.frames.is_empty()) {
                self.part(Link::None);
            }
            return true;
        }
        if trimmed.is_empty() || quotes(trimmed) || trimmed.starts_with(b"[Previous line repeated") {
            return true;
        }
        let Some(part) = self.parts.last_mut() else { return false };
        if message.starts_with(b" ") || message.starts_with(b"\t") {
            if let Some(frame) = frame(trimmed) {
                if part.frames.len() >= FIRST_FRAMES + LAST_FRAMES {
                    part.frames.remove(FIRST_FRAMES);
                    part.left_out += 1;
                }
                part.frames.push(frame);
            } else if let Some(frame) = part.frames.last_mut().filter(|frame| frame.code.is_empty())
                && !trimmed.iter().all(|byte| matches!(byte, b'^' | b'~' | b' '))
            {
                frame.code = excerpt(trimmed);
            }
            return true;
        }
        if let Some((exception, text)) = exception(trimmed) {
            part.exception = exception;
            part.message = excerpt(text);
            self.expects = Expects::Message;
            self.message_lines = 0;
            self.blank = false;
            return true;
        }
        // Another process's line in between, in a log without marks.
        self.strange += 1;
        self.strange <= 8
    }

    fn message(&mut self, trimmed: &[u8], starts: bool) -> bool {
        if trimmed.starts_with(CAUSE) || trimmed.starts_with(CONTEXT) {
            let link = if trimmed.starts_with(CAUSE) { Link::DirectCause } else { Link::DuringHandling };
            self.expects = Expects::Chain(link);
            return true;
        }
        if trimmed.ends_with(b"RemoteTraceback:") {
            self.expects = Expects::Chain(Link::None);
            return true;
        }
        if starts && trimmed.ends_with(START) {
            return false;
        }
        if trimmed.is_empty() || quotes(trimmed) {
            self.blank = true;
            return true;
        }
        // Text after an empty line is somebody else's, unless a logger marks it as this message's.
        if (self.blank && self.place.is_none()) || self.message_lines >= MOST_MESSAGE_LINES {
            return false;
        }
        self.message_lines += 1;
        if let Some(part) = self.parts.last_mut().filter(|part| part.message.len() < 2 * EXCERPT) {
            if !part.message.is_empty() {
                part.message.push('\n');
            }
            part.message.push_str(&excerpt(trimmed));
        }
        true
    }

    fn part(&mut self, link: Link) {
        if self.parts.len() >= MOST_PARTS {
            // The first is the oldest reason, the last what the parent saw: the middle goes.
            self.parts.remove(MOST_PARTS / 2);
        }
        self.parts.push(empty(link));
        self.expects = Expects::Frames;
    }

    fn finish(mut self) -> Option<Finished> {
        self.parts.retain(|part| !part.exception.is_empty() || !part.frames.is_empty());
        (!self.parts.is_empty()).then_some(Finished { first: self.first, last: self.last, parts: self.parts })
    }
}

fn quotes(trimmed: &[u8]) -> bool {
    matches!(trimmed, b"\"\"\"" | b"'''" | b"\"\"\"'" | b"'")
}

/// Without the margin of an exception group: `  | `, `  +-+---------------- 1 ----------------`.
fn ungrouped(message: &[u8]) -> &[u8] {
    let trimmed = message.trim_ascii_start();
    match trimmed {
        [b'|', b' ', rest @ ..] => rest,
        [b'|'] => b"",
        [b'+', b'-', ..] if trimmed.ends_with(b"-") => b"",
        _ => message,
    }
}

/// `File "x.py", line 12, in run`
fn frame(trimmed: &[u8]) -> Option<Frame> {
    let rest = trimmed.strip_prefix(b"File \"")?;
    let end = memchr::memchr(b'"', rest)?;
    let after = rest[end..].strip_prefix(b"\", line ")?;
    let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let line = std::str::from_utf8(&after[..digits]).ok()?.parse().ok()?;
    let function = after[digits..].strip_prefix(b", in ").unwrap_or_default();
    Some(Frame { file: excerpt(&rest[..end]), line, function: excerpt(function), code: String::new() })
}

/// `RuntimeError: text`, `torch.OutOfMemoryError: text`, `KeyboardInterrupt`
fn exception(trimmed: &[u8]) -> Option<(String, &[u8])> {
    let length = trimmed
        .iter()
        .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'<' | b'>'))
        .count();
    // Ray: `ray.exceptions.RayTaskError(RuntimeError): ray::…`
    let length = match trimmed.get(length) {
        Some(b'(') => length + memchr::memchr(b')', &trimmed[length..])? + 1,
        _ => length,
    };
    let (name, rest) = trimmed.split_at(length);
    let named = name.first().is_some_and(u8::is_ascii_alphabetic);
    let message = match rest {
        [] => rest,
        [b':', message @ ..] => message.trim_ascii_start(),
        _ => return None,
    };
    named.then(|| (String::from_utf8_lossy(name).into_owned(), message))
}
