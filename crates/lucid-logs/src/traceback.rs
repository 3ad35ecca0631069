//! Python tracebacks as they were printed.

use serde::{Deserialize, Serialize};

use crate::evidence::Place;
use crate::timeline::PhaseKind;

/// A traceback: one exception, or a chain of them. Parts stand as Python prints them, the oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Traceback {
    /// Its first line.
    pub first: Place,
    /// Its last line.
    pub last: Place,
    /// Which run.
    pub run: u32,
    /// In which phase.
    pub phase: Option<PhaseKind>,
    /// How often an equal one came (every rank prints its own).
    pub count: u64,
    /// The processes that printed it, at most 32.
    pub processes: Vec<String>,
    /// The chain.
    pub parts: Vec<Part>,
    /// The part that the others follow from.
    pub root: usize,
    /// What its root is to the run.
    pub role: Role,
}

/// Whether an exception tells the reason or only that there is one elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It tells the reason.
    #[default]
    Original,
    /// A parent says that a child failed: never the reason.
    Wrapper,
    /// A peer lost its partner: the reason only if nothing else is there.
    Echo,
}

/// How an exception belongs to the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// The first of its chain.
    None,
    /// "The above exception was the direct cause of the following exception"
    DirectCause,
    /// "During handling of the above exception, another exception occurred"
    DuringHandling,
}

/// One exception of a chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// How it belongs to the one before.
    pub link: Link,
    /// Its type: `RuntimeError`, `torch.OutOfMemoryError`; empty if the log was cut before it.
    pub exception: String,
    /// Its message, cut and redacted.
    pub message: String,
    /// Frames, outermost first; of long stacks the first 4 and the last 16.
    pub frames: Vec<Frame>,
    /// Frames left out in the middle.
    pub left_out: u64,
}

/// One frame of a stack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// File as printed.
    pub file: String,
    /// Line.
    pub line: u64,
    /// Function.
    pub function: String,
    /// The line of code, if printed.
    pub code: String,
}

impl Part {
    /// `RuntimeError: message`
    #[must_use]
    pub fn text(&self) -> String {
        match (self.exception.as_str(), self.message.as_str()) {
            ("", _) => "an exception that the log cuts off".to_owned(),
            (exception, "") => exception.to_owned(),
            (exception, message) => format!("{exception}: {message}"),
        }
    }
}

impl Traceback {
    /// The exception that the others follow from.
    #[must_use]
    pub fn root(&self) -> Option<&Part> {
        self.parts.get(self.root)
    }
}

impl Frame {
    /// The file from its package on: `flashinfer/jit/env.py`.
    #[must_use]
    pub fn short_file(&self) -> &str {
        let cut = self.file.rfind("-packages/").map_or(0, |at| at + "-packages/".len());
        &self.file[cut..]
    }
}
