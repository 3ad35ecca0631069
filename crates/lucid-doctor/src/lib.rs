//! Evidence, checks, findings, causes, report: what is wrong with a deployment.
//!
//! ```no_run
//! use lucid_doctor::{Depth, Subject, diagnose};
//!
//! let subject = Subject { endpoint: Some("http://127.0.0.1:8000".into()), ..Subject::default() };
//! let report = diagnose(subject, &mut |_| {});
//! println!("{}", report.verdict.name());
//! ```
//!
//! The way of the data: a [`Subject`] is examined by the [`checks`], which gather evidence through a narrow interface
//! and leave [`Finding`]s; the [`causes`] are ranked by the findings for and against them; a [`Report`] holds it all.

pub mod archive;
pub mod causes;
pub mod checks;
mod diagnose;
mod evidence;
mod knowledge;
mod ladder;
pub mod python;
mod recording;
pub mod report;
pub mod statistics;
mod subject;

pub use diagnose::{Progress, diagnose};
pub use evidence::{
    MachineEvidence, Passage, Record, RecordError, Recorded, Sources, container_root, gather,
};
pub use recording::record;
pub use report::{
    Cause, CheckOutcome, CheckResult, Cost, Finding, Proof, Remedy, Report, Severity, SubjectSummary, Verdict,
};
pub use subject::{Depth, Subject, Symptom};
