//! One line on standard error that says what the doctor is doing; nothing where nobody looks.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use lucid_doctor::Progress;
use lucid_findings::Step;

/// The line.
pub struct ProgressLine {
    visible: bool,
    shown: bool,
}

impl ProgressLine {
    /// A line that appears if standard error is a terminal.
    pub fn new() -> ProgressLine {
        ProgressLine { visible: std::io::stderr().is_terminal(), shown: false }
    }

    /// Shows what happens.
    pub fn show(&mut self, progress: &Progress) {
        if let Some(text) = words(progress) {
            self.say(&text);
        }
    }

    /// Shows what happens in one of several examinations.
    pub fn show_of(&mut self, which: &str, progress: &Progress) {
        if let Some(text) = words(progress) {
            self.say(&format!("{which}: {text}"));
        }
    }

    /// Shows how far a long reading is, with the time that is left where it can be told.
    pub fn step(&mut self, what: &str, step: &Step, since: Instant) {
        let elapsed = since.elapsed().as_secs_f64();
        let left = match step.done {
            done if done > 0 && step.of > done && elapsed > 1.0 => {
                format!(", {:.0} s left", elapsed * (step.of - done) as f64 / done as f64)
            }
            _ => String::new(),
        };
        let amount = match step.unit {
            "bytes" => format!("{:.2}/{:.2} GB", step.done as f64 / 1e9, step.of as f64 / 1e9),
            unit => format!("{}/{} {unit}", step.done, step.of),
        };
        self.say(&format!("{what}: {amount}{left}  {}", step.text));
    }

    /// Shows a text.
    pub fn say(&mut self, text: &str) {
        if self.visible {
            // Standard error may be closed; then nobody misses the line.
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", shorten(text));
            self.shown = true;
        }
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn words(progress: &Progress) -> Option<String> {
    match progress {
        Progress::Started { check } => Some((*check).to_owned()),
        Progress::Step { check, done, of, text } => Some(format!("{check} {done}/{of} {text}")),
        Progress::Finished { .. } => None,
    }
}

/// A line that wraps can't be removed; 78 characters fit every terminal.
fn shorten(text: &str) -> String {
    let mut line: String = text.chars().filter(|c| !c.is_control()).take(78).collect();
    if text.chars().count() > 78 {
        line.pop();
        line.push('…');
    }
    line
}
