//! What engines, servers and systems put in front of what they say: process, level, time, source file.

use std::sync::LazyLock;

use jiff::civil::Date;
use memchr::memmem::Finder;

use crate::moment::Moment;
pub(crate) use crate::stamp::{Stamp, timestamp};
use crate::stamp::{clock, month_day_time, number, two};

// Built once: building a searcher costs more than searching a line.
static PID: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b" pid="));
static NCCL: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"] NCCL "));

/// How bad the writer thought the line was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Debug,
    Info,
    Warning,
    Error,
    Critical,
}

impl Level {
    /// From a level's name.
    pub fn parse(name: &[u8]) -> Option<Level> {
        const NAMES: [(Level, [&[u8]; 4]); 5] = [
            (Level::Info, [b"INFO", b"NOTICE", b"I", b"I"]),
            (Level::Warning, [b"WARNING", b"WARN", b"W", b"W"]),
            (Level::Error, [b"ERROR", b"ERR", b"E", b"E"]),
            (Level::Debug, [b"DEBUG", b"TRACE", b"D", b"D"]),
            (Level::Critical, [b"CRITICAL", b"FATAL", b"F", b"C"]),
        ];
        NAMES
            .iter()
            .find(|(_, names)| names.iter().any(|known| known.eq_ignore_ascii_case(name)))
            .map(|(level, _)| *level)
    }
}

/// A line taken apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Parsed<'a> {
    /// Who wrote it: `Worker_TP3`, `TP3`, `rank3`, `systemd`.
    pub process: Option<&'a [u8]>,
    pub pid: Option<u32>,
    pub level: Option<Level>,
    pub stamp: Option<Stamp>,
    /// Source file and line: `core.py:708`.
    pub place: Option<&'a [u8]>,
    /// Whether the writer puts its mark only in front of the first of several lines (SGLang does, vLLM marks every line).
    pub first_line_only: bool,
    /// What it says.
    pub message: &'a [u8],
}

/// Takes a line apart. What is not recognized stays in `message`.
pub(crate) fn parse(line: &[u8]) -> Parsed<'_> {
    let mut parsed = Parsed { message: line, ..Parsed::default() };
    // Marks stand behind each other: syslog's, then the process's, then the logger's.
    for _ in 0..5 {
        let Some(first) = parsed.message.first() else { break };
        let taken = match first {
            b'(' => process_mark(&mut parsed),
            b'[' => rank_mark(&mut parsed) || bracketed(&mut parsed),
            b'A'..=b'Z' => level_mark(&mut parsed) || syslog(&mut parsed),
            b'0'..=b'9' => numbered(&mut parsed),
            b'a'..=b'z' => identifier(&mut parsed) || nccl(&mut parsed),
            _ => false,
        };
        if !taken {
            break;
        }
    }
    parsed
}

/// `(EngineCore_0 pid=123) `, `(RayWorkerWrapper pid=123, ip=10.0.0.2) `
fn process_mark(parsed: &mut Parsed<'_>) -> bool {
    let text = &parsed.message[1..];
    let head = &text[..text.len().min(120)];
    let Some(end) = memchr::memchr(b')', head) else { return false };
    let inner = &head[..end];
    let Some(at) = PID.find(inner) else { return false };
    let digits = &inner[at + 5..];
    let Some((pid, _)) = number(digits) else { return false };
    parsed.process = Some(&inner[..at]);
    parsed.pid = u32::try_from(pid).ok();
    parsed.message = after_space(&text[end + 1..]);
    true
}

/// `[rank3]:` of torch.
fn rank_mark(parsed: &mut Parsed<'_>) -> bool {
    let text = parsed.message;
    let Some(digits) = text.strip_prefix(b"[rank") else { return false };
    let Some((_, length)) = number(digits) else { return false };
    let Some(rest) = digits[length..].strip_prefix(b"]:") else { return false };
    parsed.process = Some(&text[1..5 + length]);
    parsed.message = after_space(rest);
    true
}

/// SGLang's `[2026-11-29 12:00:00 TP3] `, torch's `[W1129 17:24:43.356461949 utils.cpp:68] `, the kernel's `[ 12.345] `.
fn bracketed<'a>(parsed: &mut Parsed<'a>) -> bool {
    let text: &'a [u8] = &parsed.message[1..];
    let head = &text[..text.len().min(120)];
    let Some(end) = memchr::memchr(b']', head) else { return false };
    let inner = &head[..end];
    let rest = &text[end + 1..];
    if let Some((time, length)) = timestamp(inner) {
        parsed.stamp = parsed.stamp.or(Some(Stamp::Full(time)));
        let ranks = inner[length..].trim_ascii();
        if !ranks.is_empty() {
            parsed.process = Some(ranks);
        }
        parsed.first_line_only = true;
        parsed.message = after_space(rest);
        return true;
    }
    if let [level @ (b'I' | b'W' | b'E' | b'F'), digits @ ..] = inner
        && let (Some(month), Some(day)) = (two(digits), digits.get(2..).and_then(two))
    {
        let Some((time, length)) = digits.get(5..).and_then(clock) else { return false };
        parsed.level = Level::parse(&[*level]);
        parsed.stamp = parsed.stamp.or(Some(Stamp::Yearless { month, day, time }));
        parsed.place = Some(inner[6 + length..].trim_ascii());
        parsed.message = after_space(rest);
        return true;
    }
    let seconds = inner.trim_ascii();
    if let Some((whole, length)) = number(seconds)
        && let Some([b'.', fraction @ ..]) = seconds.get(length..)
        && fraction.len() == 6
        && fraction.iter().all(u8::is_ascii_digit)
    {
        let micros = number(fraction).map_or(0, |(micros, _)| micros);
        parsed.stamp = parsed.stamp.or(Some(Stamp::Relative(whole * 1000 + micros / 1000)));
        parsed.process = parsed.process.or(Some(b"kernel"));
        parsed.message = after_space(rest);
        return true;
    }
    // `dmesg -T`: `[Sat Nov 29 12:00:00 2026] `
    if let Some((month, day, time, length)) = inner.get(4..).and_then(month_day_time) {
        let year = inner.get(4 + length..).map(<[u8]>::trim_ascii).and_then(number);
        let full = year.and_then(|(year, _)| Date::new(i16::try_from(year).ok()?, month, day).ok());
        parsed.stamp = parsed.stamp.or(Some(match full {
            Some(date) => Stamp::Full(Moment::from_civil(date.to_datetime(time))),
            None => Stamp::Yearless { month, day, time },
        }));
        parsed.process = parsed.process.or(Some(b"kernel"));
        parsed.message = after_space(rest);
        return true;
    }
    false
}

/// vLLM's `INFO 11-29 12:00:00 [core.py:708] ` (before 0.7 `INFO 11-29 12:00:00 core.py:708] `), uvicorn's `INFO:     `.
fn level_mark(parsed: &mut Parsed<'_>) -> bool {
    let text = parsed.message;
    let length = text.iter().take(9).take_while(|byte| byte.is_ascii_uppercase()).count();
    if length < 4 {
        return false;
    }
    let Some(level) = Level::parse(&text[..length]) else { return false };
    let rest = &text[length..];
    if let Some(rest) = rest.strip_prefix(b":") {
        if parsed.level.is_some() || !rest.starts_with(b" ") {
            return false;
        }
        parsed.level = Some(level);
        parsed.message = rest.trim_ascii_start();
        return true;
    }
    let Some(rest) = rest.strip_prefix(b" ") else { return false };
    let (stamp, length) =
        if let (Some(month), Some(b'-'), Some(day)) = (two(rest), rest.get(2), rest.get(3..).and_then(two)) {
            let Some((time, length)) = rest.get(6..).and_then(clock) else { return false };
            (Stamp::Yearless { month, day, time }, 6 + length)
        } else if let Some((time, length)) = timestamp(rest) {
            (Stamp::Full(time), length)
        } else {
            return false;
        };
    parsed.level = Some(level);
    parsed.stamp = parsed.stamp.or(Some(stamp));
    parsed.message = after_space(&rest[length..]);
    let text = parsed.message;
    let head = &text[..text.len().min(160)];
    if let Some(end) = memchr::memchr(b']', head) {
        let place = head[..end].strip_prefix(b"[").unwrap_or(&head[..end]);
        if memchr::memchr(b':', place).is_some() && !place.contains(&b' ') {
            parsed.place = Some(place);
            parsed.message = after_space(&text[end + 1..]);
        }
    }
    true
}

/// `Nov 29 12:00:00 host vllm[123]: `
fn syslog(parsed: &mut Parsed<'_>) -> bool {
    let Some((month, day, time, length)) = month_day_time(parsed.message) else { return false };
    let rest = &parsed.message[length..];
    let Some(host) = rest.strip_prefix(b" ").and_then(|rest| memchr::memchr(b' ', rest)) else {
        return false;
    };
    parsed.stamp = parsed.stamp.or(Some(Stamp::Yearless { month, day, time }));
    parsed.message = &rest[host + 2..];
    identifier(parsed);
    true
}

/// `vllm[123]: `, `kernel: `, `systemd[1]: `
fn identifier(parsed: &mut Parsed<'_>) -> bool {
    let text = parsed.message;
    let length = text
        .iter()
        .take(48)
        .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'@'))
        .count();
    let (name, rest) = text.split_at(length);
    if let Some(rest) = rest.strip_prefix(b": ") {
        if name != b"kernel" && name != b"systemd" {
            return false;
        }
        parsed.process = Some(name);
        parsed.message = rest;
        return true;
    }
    let Some(digits) = rest.strip_prefix(b"[") else { return false };
    let Some((pid, length)) = number(digits) else { return false };
    let Some(rest) = digits[length..].strip_prefix(b"]: ") else { return false };
    parsed.process = Some(name);
    parsed.pid = u32::try_from(pid).ok();
    parsed.message = rest;
    true
}

/// `host:123:456 [3] NCCL WARN `
fn nccl(parsed: &mut Parsed<'_>) -> bool {
    let head = &parsed.message[..parsed.message.len().min(120)];
    let Some(at) = NCCL.find(head) else { return false };
    let Some(open) = memchr::memrchr(b'[', &head[..at]) else { return false };
    let host = &head[..open];
    if host.iter().filter(|byte| **byte == b':').count() < 2 || number(&head[open + 1..at]).is_none() {
        return false;
    }
    parsed.process = Some(host.trim_ascii_end());
    // `NCCL` stays: signatures look for it.
    parsed.message = &parsed.message[at + 2..];
    true
}

/// `2026-11-29 12:00:00,123 - name - INFO - `, a short-iso journal line, llama.cpp's `0.01.234.567 I `.
fn numbered(parsed: &mut Parsed<'_>) -> bool {
    let text = parsed.message;
    if let Some((time, length)) = timestamp(text) {
        if parsed.stamp.is_some() {
            return false;
        }
        parsed.stamp = Some(Stamp::Full(time));
        let rest = &text[length..];
        parsed.message = after_space(rest);
        // A journal line names host and program; a Python logger its name and level.
        if let Some(host) = memchr::memchr(b' ', parsed.message).filter(|at| *at < 64) {
            let mut behind = Parsed { message: &parsed.message[host + 1..], ..Parsed::default() };
            if identifier(&mut behind) {
                (parsed.process, parsed.pid, parsed.message) = (behind.process, behind.pid, behind.message);
                return true;
            }
        }
        let head = &parsed.message[..parsed.message.len().min(100)];
        let mut at = 0;
        for word in head.split(|byte| matches!(byte, b' ' | b'|' | b'-' | b'[' | b']' | b':')) {
            if word.len() > 3
                && word.iter().all(u8::is_ascii_uppercase)
                && let Some(level) = Level::parse(word)
            {
                parsed.level = Some(level);
                let rest = &parsed.message[at + word.len()..];
                let marks = rest.iter().take_while(|b| matches!(b, b' ' | b'|' | b'-' | b']' | b':')).count();
                parsed.message = &rest[marks..];
                break;
            }
            at += word.len() + 1;
        }
        return true;
    }
    // Minutes, seconds, milliseconds, microseconds.
    let mut parts = [0i64; 4];
    let mut at = 0;
    for (index, part) in parts.iter_mut().enumerate() {
        let Some((value, length)) = number(&text[at..]) else { return false };
        *part = value;
        at += length;
        let next = if index < 3 { b'.' } else { b' ' };
        if text.get(at) != Some(&next) {
            return false;
        }
        at += 1;
    }
    let Some([level, b' ', rest @ ..]) = text.get(at..) else { return false };
    parsed.level = Level::parse(&[*level]);
    parsed.stamp = Some(Stamp::Relative(parts[0] * 60_000 + parts[1] * 1000 + parts[2]));
    parsed.message = rest;
    true
}

/// Without one leading space: the rest is indentation and belongs to the message.
fn after_space(text: &[u8]) -> &[u8] {
    text.strip_prefix(b" ").unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// process, pid, level, place, message
    type Expected<'a> = (&'a str, Option<u32>, Option<Level>, &'a str, &'a str);

    #[test]
    fn takes_the_field_s_lines_apart() {
        let cases: &[(&str, Expected<'_>)] = &[
            (
                "(EngineCore_0 pid=123) INFO 11-29 12:00:00 [core.py:133] Initializing",
                ("EngineCore_0", Some(123), Some(Level::Info), "core.py:133", "Initializing"),
            ),
            (
                "ERROR 11-29 12:00:00 [core.py:708]   File \"x.py\", line 1",
                ("", None, Some(Level::Error), "core.py:708", "  File \"x.py\", line 1"),
            ),
            (
                "INFO 09-11 02:10:51 api_server.py:459] vLLM API server version 0.6.0",
                ("", None, Some(Level::Info), "api_server.py:459", "vLLM API server version 0.6.0"),
            ),
            (
                "(RayWorkerWrapper pid=77, ip=10.0.0.2) WARNING 11-29 12:00:00.123 [utils.py:1] x",
                ("RayWorkerWrapper", Some(77), Some(Level::Warning), "utils.py:1", "x"),
            ),
            ("[2026-11-29 12:00:00 TP3] Load weight begin.", ("TP3", None, None, "", "Load weight begin.")),
            (
                "[2026-11-29 12:00:00.250 DP0 TP3 EP3] Decode batch",
                ("DP0 TP3 EP3", None, None, "", "Decode batch"),
            ),
            (
                "[2026-11-29 12:00:00] INFO:     Started server process [9]",
                ("", None, Some(Level::Info), "", "Started server process [9]"),
            ),
            (
                "INFO:     127.0.0.1:1 - \"GET /health HTTP/1.1\" 200 OK",
                ("", None, Some(Level::Info), "", "127.0.0.1:1 - \"GET /health HTTP/1.1\" 200 OK"),
            ),
            (
                "[rank3]:[W1129 17:24:43.356461949 utils.cpp:68] Warning: x",
                ("rank3", None, Some(Level::Warning), "utils.cpp:68", "Warning: x"),
            ),
            (
                "[rank3]: Traceback (most recent call last):",
                ("rank3", None, None, "", "Traceback (most recent call last):"),
            ),
            (
                "node7:123:456 [3] NCCL WARN Cuda failure",
                ("node7:123:456", None, None, "", "NCCL WARN Cuda failure"),
            ),
            (
                "Nov 29 12:00:00 gpu1 systemd[1]: vllm.service: Failed",
                ("systemd", Some(1), None, "", "vllm.service: Failed"),
            ),
            (
                "Nov  9 12:00:00 gpu1 kernel: NVRM: Xid (PCI:0000:1a:00): 79",
                ("kernel", None, None, "", "NVRM: Xid (PCI:0000:1a:00): 79"),
            ),
            (
                "2026-11-29T12:00:00+0100 gpu1 vllm[42]: (APIServer pid=42) INFO 11-29 12:00:00 [x.py:1] up",
                ("APIServer", Some(42), Some(Level::Info), "x.py:1", "up"),
            ),
            (
                "[12345.678901] Out of memory: Killed process 1",
                ("kernel", None, None, "", "Out of memory: Killed process 1"),
            ),
            ("[Sun Nov 29 12:00:00 2026] NVRM: Xid", ("kernel", None, None, "", "NVRM: Xid")),
            (
                "0.01.234.567 W srv  update_slots: full",
                ("", None, Some(Level::Warning), "", "srv  update_slots: full"),
            ),
            ("2026-11-29 12:00:00,123 - sglang - ERROR - boom", ("", None, Some(Level::Error), "", "boom")),
            ("llama_model_loader: - kv 0", ("", None, None, "", "llama_model_loader: - kv 0")),
            ("RuntimeError: INFO about it", ("", None, None, "", "RuntimeError: INFO about it")),
            ("(no mark here)", ("", None, None, "", "(no mark here)")),
        ];
        for (line, expected) in cases {
            let parsed = parse(line.as_bytes());
            let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
            let (process, place, message) =
                (text(parsed.process), text(parsed.place), text(Some(parsed.message)));
            assert_eq!(
                (process.as_str(), parsed.pid, parsed.level, place.as_str(), message.as_str()),
                *expected,
                "{line}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_keeps_the_end(line in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let parsed = parse(&line);
            proptest::prop_assert!(line.ends_with(parsed.message));
        }
    }
}
