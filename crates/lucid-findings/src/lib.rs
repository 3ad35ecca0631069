//! The words of a diagnosis, shared by everything that finds something and by what reports it.
//!
//! A [`Finding`] is a sentence somebody can act on. Collectors of the machine side (`lucid-environment`, `lucid-code-audit`,
//! `lucid-logs`, `lucid-host`, `lucid-checkpoint-audit`) each have a serializable evidence type and functions that read it
//! and give [`Examined`] or [`Skip`]; nothing here knows where evidence comes from or how findings are ranked.

mod deployment;
mod finding;
mod outcome;
mod redact;

pub use deployment::{Deployment, EngineKind, GpuModel, LoadFormat};
pub use finding::{Finding, Proof, ProofKind, Remedy, Severity, Suggestion};
pub use outcome::{Examined, Skip, Step};
pub use redact::redact;
