//! Warnings and errors that no signature knows, folded.

use std::collections::HashMap;

use crate::evidence::{MOST_UNKNOWN, UnknownLine, excerpt};
use crate::line::Level;
use crate::spot::{Processes, Spot};
use crate::timeline::PhaseKind;

/// Unknown lines by their text without its numbers.
#[derive(Default)]
pub(crate) struct UnknownLines {
    lines: HashMap<String, UnknownLine>,
    pub left_out: u64,
}

impl UnknownLines {
    /// Counts one.
    pub fn add(
        &mut self,
        message: &[u8],
        level: Option<Level>,
        spot: Spot,
        processes: &Processes,
        phase: Option<PhaseKind>,
    ) {
        if message.trim_ascii().is_empty() {
            return;
        }
        let mut key = String::with_capacity(120);
        for byte in message.iter().take(160) {
            let shown = if byte.is_ascii_digit() { '#' } else { char::from(*byte) };
            if shown != '#' || !key.ends_with('#') {
                key.push(shown);
            }
        }
        if let Some(known) = self.lines.get_mut(&key) {
            known.count += 1;
        } else if self.lines.len() >= MOST_UNKNOWN {
            self.left_out += 1;
        } else {
            let level = if level >= Some(Level::Error) { "error" } else { "warning" };
            let first = processes.place(spot);
            let line =
                UnknownLine { level: level.to_owned(), count: 1, first, phase, text: excerpt(message) };
            self.lines.insert(key, line);
        }
    }

    /// All of them, in order.
    pub fn in_order(&self) -> Vec<UnknownLine> {
        let mut lines: Vec<UnknownLine> = self.lines.values().cloned().collect();
        lines.sort_by_key(|line| (line.first.source, line.first.line));
        lines
    }
}
