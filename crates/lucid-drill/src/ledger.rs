//! A file of outcomes, one a line: what an interrupted drill has, and goes on from.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::{Case, Outcome, Run};

/// Outcomes that lie in a file, and grow there.
#[derive(Debug)]
pub struct Ledger {
    file: File,
    outcomes: Vec<Outcome>,
}

/// How a line of outcomes begins.
const BEGINNING: &str = "{\"lucid\":\"";

/// Why a file holds no outcomes.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// It can't be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A line, counted from 1, is none.
    #[error("line {0} is no outcome of this version's drill ({1}): give another file")]
    Line(usize, serde_json::Error),
}

impl Ledger {
    /// Opens a file, or begins it. Half a last line, of a drill that was killed while it wrote, is cut off.
    ///
    /// # Errors
    /// When the file can't be read, or holds something else.
    pub fn open(path: &Path) -> Result<Ledger, LedgerError> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut outcomes = parse(&text[..whole])?;
        let last = &text[whole..];
        match serde_json::from_str(last) {
            Ok(outcome) => {
                file.write_all(b"\n")?;
                outcomes.push(outcome);
            }
            // Nothing but this program's own unfinished line may be thrown away.
            Err(_) if last.starts_with(BEGINNING) || last.is_empty() => file.set_len(whole as u64)?,
            Err(error) => return Err(LedgerError::Line(text.lines().count(), error)),
        }
        file.seek(SeekFrom::End(0))?;
        Ok(Ledger { file, outcomes })
    }

    /// Reads a file's outcomes and leaves it as it is.
    ///
    /// # Errors
    /// When the file can't be read, or holds something else.
    pub fn read(path: &Path) -> Result<Vec<Outcome>, LedgerError> {
        let text = std::fs::read_to_string(path)?;
        parse(&text[..text.rfind('\n').map_or(0, |end| end + 1)])
    }

    /// What a case came to, if it has run like this.
    #[must_use]
    pub fn find(&self, case: &Case, run: Run) -> Option<&Outcome> {
        let label = run.label(case);
        self.outcomes
            .iter()
            .find(|outcome| outcome.case == label && (outcome.seed, outcome.depth) == (run.seed, run.depth))
    }

    /// Adds an outcome; it lies in the file when this returns.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn add(&mut self, outcome: &Outcome) -> Result<(), LedgerError> {
        let mut line = serde_json::to_string(outcome).map_err(std::io::Error::from)?;
        line.push('\n');
        // One write: another reader sees whole lines.
        self.file.write_all(line.as_bytes())?;
        self.file.flush()?;
        self.outcomes.push(outcome.clone());
        Ok(())
    }

    /// What the file holds.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }
}

fn parse(text: &str) -> Result<Vec<Outcome>, LedgerError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| serde_json::from_str(line).map_err(|error| LedgerError::Line(i + 1, error)))
        .collect()
}

#[cfg(test)]
mod tests {
    use lucid_doctor::{Depth, Verdict};

    use super::*;
    use crate::find;
    use crate::score::tests::outcome;

    fn file(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("lucid-ledger-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn a_killed_drill_goes_on_where_it_was() {
        let path = file("killed");
        let healthy = find("healthy").unwrap();
        let first = Outcome { case: "healthy".to_owned(), ..outcome(None, Verdict::Healthy, &[]) };
        let mut ledger = Ledger::open(&path).unwrap();
        ledger.add(&first).unwrap();
        let run = Run { seed: 1, depth: Depth::Standard, forget: false, deep: false, guise: None };
        assert!(ledger.find(healthy, run).is_some());
        for other in [
            Run { seed: 2, ..run },
            Run { depth: Depth::Quick, ..run },
            Run { forget: true, ..run },
            Run { deep: true, ..run },
            Run { guise: Some(lucid_server::Guise::Vllm), ..run },
        ] {
            assert!(ledger.find(healthy, other).is_none());
        }
        drop(ledger);
        // Killed in the middle of the second line.
        let mut bytes = std::fs::read(&path).unwrap();
        let half = bytes[..bytes.len() / 2].to_vec();
        assert!(half.starts_with(BEGINNING.as_bytes()));
        bytes.extend(half);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(Ledger::read(&path).unwrap(), std::slice::from_ref(&first));
        let mut ledger = Ledger::open(&path).unwrap();
        assert_eq!(ledger.outcomes(), std::slice::from_ref(&first));
        let second = Outcome { seed: 2, ..first.clone() };
        ledger.add(&second).unwrap();
        assert_eq!(Ledger::read(&path).unwrap(), [first, second]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_of_something_else_is_left_alone() {
        for text in ["shopping list\n", "eggs", "{\"case\": \"healthy\"}\n", "{\"case\": \"healthy\"}"] {
            let path = file("other");
            std::fs::write(&path, text).unwrap();
            let error = Ledger::open(&path).unwrap_err().to_string();
            assert!(error.contains("line 1"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            std::fs::remove_file(path).unwrap();
        }
    }
}
