//! The life of a service as its log tells it.

use std::fmt;

use lucid_findings::Severity;
use serde::{Deserialize, Serialize};

use crate::evidence::Place;
use crate::moment::Moment;

/// What a service is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PhaseKind {
    /// Processes come up, arguments are read.
    Start,
    /// Weights are read.
    Load,
    /// Kernels are compiled or tuned.
    Compile,
    /// CUDA graphs are captured.
    Capture,
    /// Memory is profiled, dummy batches run.
    WarmUp,
    /// Requests are answered.
    Serve,
    /// It died.
    Crash,
    /// It was told to stop.
    Shutdown,
}

impl PhaseKind {
    /// Whether the service is on its way up.
    #[must_use]
    pub fn is_starting(self) -> bool {
        self < PhaseKind::Serve
    }
}

impl fmt::Display for PhaseKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            PhaseKind::Start => "start",
            PhaseKind::Load => "load",
            PhaseKind::Compile => "compile",
            PhaseKind::Capture => "capture",
            PhaseKind::WarmUp => "warm-up",
            PhaseKind::Serve => "serve",
            PhaseKind::Crash => "crash",
            PhaseKind::Shutdown => "shutdown",
        })
    }
}

/// A stretch of one run in which it did one thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// What it did.
    pub kind: PhaseKind,
    /// Which run, from 0.
    pub run: u32,
    /// When it began.
    pub start: Option<Moment>,
    /// When it ended, or the last line of it.
    pub end: Option<Moment>,
    /// The line that began it.
    pub first: Place,
    /// Lines written in it.
    pub lines: u64,
}

impl Phase {
    /// How long it took, where the log has times and they don't run back.
    #[must_use]
    pub fn seconds(&self) -> Option<f64> {
        Some(self.end?.seconds_since(self.start?)).filter(|seconds| *seconds >= 0.0)
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunEnd {
    /// The log ends while it serves.
    Serving,
    /// The log ends while it starts.
    Starting,
    /// It died by itself.
    Crashed,
    /// It was told to stop, after it had served.
    Stopped,
    /// It was told to stop before it had served.
    StoppedStarting,
    /// The next run begins without a word about this one's end.
    Vanished,
}

/// One start of the service, up to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Number, from 0.
    pub number: u32,
    /// First line.
    pub first: Place,
    /// Last line.
    pub last: Place,
    /// When it became ready.
    pub ready: Option<Moment>,
    /// Whether it ever served.
    pub served: bool,
    /// In which phase it was before it ended.
    pub reached: Option<PhaseKind>,
    /// How it ended.
    pub end: RunEnd,
    /// The line that says so.
    pub ended_at: Option<Place>,
}

impl Run {
    /// Seconds from its first line until it was ready.
    #[must_use]
    pub fn start_seconds(&self) -> Option<f64> {
        Some(self.ready?.seconds_since(self.first.time?)).filter(|seconds| *seconds >= 0.0)
    }
}

/// A duration or size that the log itself states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// What was measured: `weights`, `torch-compile`, `graph-capture`.
    pub what: String,
    /// Which run.
    pub run: u32,
    /// Seconds, where stated.
    pub seconds: Option<f64>,
    /// GiB, where stated.
    pub gib: Option<f64>,
    /// Where.
    pub place: Place,
}

/// A time without any line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// Phase in which it lies.
    pub phase: Option<PhaseKind>,
    /// Which run.
    pub run: u32,
    /// The last line before it.
    pub before: Place,
    /// What that line says.
    pub text: String,
    /// How long.
    pub seconds: f64,
    /// Requests that were running when it began, if a statistics line said so.
    pub running: Option<u64>,
}

/// Something to mark on the time line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    /// Where.
    pub place: Place,
    /// Which run.
    pub run: u32,
    /// Phase.
    pub phase: Option<PhaseKind>,
    /// How bad.
    pub severity: Severity,
    /// What.
    pub title: String,
    /// How often.
    pub count: u64,
}

/// The life of a service as its log tells it. Global, not per rank: a phase begins with the first rank that enters it;
/// what each rank stated about itself is in `measures`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timeline {
    /// Phases in order.
    pub phases: Vec<Phase>,
    /// Runs in order.
    pub runs: Vec<Run>,
    /// How often it was started again.
    pub restarts: u32,
    /// Durations and sizes that the log states, at most [`Timeline::MOST`].
    pub measures: Vec<Measure>,
    /// The longest silences, at most [`Timeline::MOST_GAPS`].
    pub gaps: Vec<Gap>,
    /// Known faults and crashes, at most [`Timeline::MOST`].
    pub incidents: Vec<Incident>,
    /// Entries that did not fit.
    pub left_out: u64,
}

impl Timeline {
    /// Most phases, runs, measures or incidents kept, each.
    pub const MOST: usize = 1_000;
    /// Most gaps kept.
    pub const MOST_GAPS: usize = 40;

    /// The phases of a run.
    pub fn phases_of(&self, run: u32) -> impl Iterator<Item = &Phase> {
        self.phases.iter().filter(move |phase| phase.run == run)
    }
}
