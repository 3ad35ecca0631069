//! What a reading of logs leaves: bounded, redacted, and enough for every check.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::moment::Moment;
use crate::timeline::{PhaseKind, Timeline};
use crate::traceback::Traceback;

/// Most characters kept of one line.
pub const EXCERPT: usize = 600;
/// Most kinds of hits kept.
pub const MOST_HITS: usize = 2_000;
/// Most different tracebacks kept.
pub const MOST_TRACEBACKS: usize = 200;
/// Most kinds of unknown warnings and errors kept.
pub const MOST_UNKNOWN: usize = 200;

/// What was read from logs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogEvidence {
    /// What was read.
    pub sources: Vec<SourceSummary>,
    /// Known lines, folded by signature, run and phase.
    pub hits: Vec<Hit>,
    /// Python tracebacks, joined across interleaved processes; equal ones folded.
    pub tracebacks: Vec<Traceback>,
    /// Warnings and errors that no signature knows, folded by text without its numbers.
    pub unknown: Vec<UnknownLine>,
    /// Phases, runs, incidents, gaps, measured durations.
    pub timeline: Timeline,
    /// Series of numbers that the log prints: memory, acceptance.
    pub series: BTreeMap<String, Series>,
    /// What the log says about the deployment: `engine`, `model`, `attention-backend` and so on, with where it says so.
    pub facts: BTreeMap<String, Fact>,
    /// The engine's arguments, where it prints them.
    pub arguments: BTreeMap<String, String>,
    /// What was odd, unreadable or left out.
    pub notes: Vec<String>,
}

/// Whose clock a source's times come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// The container runtime's or the journal's: UTC.
    Utc,
    /// The engine's own lines: local time, zone unknown.
    Local,
    /// Counted from the start of the process or the kernel.
    Relative,
    /// No times.
    #[default]
    None,
}

/// One source and how much of it was read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceSummary {
    /// Path, unit or container.
    pub name: String,
    /// In which wrappings its lines came: `docker json`, `journal json`, `kubernetes cri`, `plain`.
    pub format: String,
    /// Bytes read, unpacked.
    pub bytes: u64,
    /// Lines read.
    pub lines: u64,
    /// Lines whose end was cut off because they were too long.
    pub cut_lines: u64,
    /// First time in it.
    pub first: Option<Moment>,
    /// Last time in it.
    pub last: Option<Moment>,
    /// Whose clock it is.
    pub clock: Clock,
    /// Why it could not be read to its end, if so.
    pub error: Option<String>,
}

/// Where a line is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Number of the source in [`LogEvidence::sources`].
    pub source: u32,
    /// Line in it, from 1.
    pub line: u64,
    /// When.
    pub time: Option<Moment>,
    /// Which process wrote it: `Worker_TP3`, `kernel`; empty if it doesn't say.
    pub process: String,
}

/// A known line and how often it came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    /// The signature's id.
    pub signature: String,
    /// Start of the service that it belongs to, from 0.
    pub run: u32,
    /// In which phase; `None` if the log doesn't tell.
    pub phase: Option<PhaseKind>,
    /// How often.
    pub count: u64,
    /// First time.
    pub first: Place,
    /// Last time.
    pub last: Place,
    /// Processes that wrote it, at most 32.
    pub processes: Vec<String>,
    /// The first such line, cut and redacted.
    pub text: String,
}

/// A warning or error that no signature knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnknownLine {
    /// `warning` or `error`.
    pub level: String,
    /// How often.
    pub count: u64,
    /// First time.
    pub first: Place,
    /// Phase of the first.
    pub phase: Option<PhaseKind>,
    /// The first such line, cut and redacted.
    pub text: String,
}

/// Something the log says about the deployment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// What it says; the last word counts when a service restarts.
    pub value: String,
    /// Where.
    pub place: Place,
}

/// Numbers over time. At most [`Series::MOST`] samples: when full, every second one goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Samples in order.
    pub samples: Vec<Sample>,
    /// How many there were.
    pub seen: u64,
    /// Every how many samples one is kept.
    pub stride: u64,
}

/// One number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When.
    pub time: Option<Moment>,
    /// In which run.
    pub run: u32,
    /// In which phase.
    pub phase: Option<PhaseKind>,
    /// The number, in the unit that the series' name ends with.
    pub value: f64,
}

impl Series {
    /// Most samples kept.
    pub const MOST: usize = 512;

    /// Adds a sample.
    pub fn push(&mut self, sample: Sample) {
        self.stride = self.stride.max(1);
        if self.seen.is_multiple_of(self.stride) {
            self.samples.push(sample);
            if self.samples.len() >= Series::MOST {
                let mut keep = false;
                self.samples.retain(|_| {
                    keep = !keep;
                    keep
                });
                self.stride *= 2;
            }
        }
        self.seen += 1;
    }
}

impl LogEvidence {
    /// Where a place is, for people: `vllm.log:123 (Worker_TP3, 2026-11-29 12:00:00)`.
    #[must_use]
    pub fn describe(&self, place: &Place) -> String {
        let name = self.sources.get(place.source as usize).map_or("log", |source| source.name.as_str());
        let mut text = format!("{name}:{}", place.line);
        let time = place.time.map(|time| time.to_string());
        let more: Vec<&str> = [place.process.as_str(), time.as_deref().unwrap_or("")]
            .into_iter()
            .filter(|s| !s.is_empty())
            .collect();
        if !more.is_empty() {
            text.push_str(&format!(" ({})", more.join(", ")));
        }
        text
    }

    /// Lines read from all sources.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.sources.iter().map(|source| source.lines).sum()
    }

    /// Bytes read from all sources.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sources.iter().map(|source| source.bytes).sum()
    }
}

/// A line for keeping: valid UTF-8, without control characters, redacted, cut to [`EXCERPT`] characters.
pub(crate) fn excerpt(line: &[u8]) -> String {
    // Redaction looks at more than what is kept, so that a secret at the cut is still whole when it is looked for.
    let head = &line[..line.len().min(EXCERPT * 8)];
    let text: String = String::from_utf8_lossy(head)
        .chars()
        .map(|c| if c.is_control() && c != '\t' && c != '\n' { ' ' } else { c })
        .collect();
    let text = lucid_findings::redact(text.trim_end());
    match text.char_indices().nth(EXCERPT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}
