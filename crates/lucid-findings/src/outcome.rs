//! How a check ends, and what it tells on its way.

use crate::Finding;

/// What a check found; no finding above [`Severity::Info`](crate::Severity::Info) is a pass. Findings of severity `Info` are
/// facts for the causes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Examined {
    /// What was found.
    pub findings: Vec<Finding>,
    /// What this run covered, with its numbers.
    pub covered: String,
}

/// Why a check could not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip(pub String);

impl From<String> for Skip {
    fn from(reason: String) -> Skip {
        Skip(reason)
    }
}

/// How far a long collection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Done so far, in `unit`.
    pub done: u64,
    /// In all, at the most.
    pub of: u64,
    /// What is counted: `files`, `bytes`.
    pub unit: &'static str,
    /// What is being done.
    pub text: String,
}
