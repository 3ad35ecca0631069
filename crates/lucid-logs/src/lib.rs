//! Reads the logs of a serving engine: lines, tracebacks, phases, and what known lines mean.
//!
//! [`gather`] reads files, journals and containers in one pass and bounded memory and leaves [`LogEvidence`], which can be
//! stored; [`checks`] turn it into findings anywhere. Nothing here runs or imports what is diagnosed.

mod analysis;
mod ansi;
mod assembler;
pub mod checks;
mod deployment;
mod evidence;
mod findings;
mod first_cause;
mod gather;
mod hits;
mod incidents;
mod kept_tracebacks;
mod knowledge;
mod line;
mod machine;
mod moment;
mod python_pairs;
mod scanner;
mod source;
mod spot;
mod stamp;
mod timeline;
mod traceback;
mod unknown_lines;
mod watch;

pub use deployment::deployment_from;
pub use evidence::{Clock, Fact, Hit, LogEvidence, Place, Sample, Series, SourceSummary, UnknownLine};
pub use findings::{FINDINGS, findings};
pub use gather::{Follower, Options, gather};
pub use knowledge::{Meaning, Signature, signatures};
pub use moment::{Moment, spoken};
pub use source::{ContainerTool, Source, SourceError};
pub use timeline::{Gap, Incident, Measure, Phase, PhaseKind, Run, RunEnd, Timeline};
pub use traceback::{Frame, Link, Part, Role, Traceback};
pub use watch::{News, NewsKind, Tail, Watch};
