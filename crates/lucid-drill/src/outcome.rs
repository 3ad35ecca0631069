//! How one run ended.

use lucid_doctor::{Depth, Finding, Report, Severity, Verdict};
use serde::{Deserialize, Serialize};

use crate::run::surface;
use crate::{Case, Run};

/// How one run ended: one line of a file of outcomes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The version of Lucid that ran.
    pub lucid: String,
    /// The case's name.
    pub case: String,
    /// The planted fault, with its place and strength.
    pub fault: Option<String>,
    /// The seed.
    pub seed: u64,
    /// How much the examination might cost.
    pub depth: Depth,
    /// The cause that should be said; `None` for a healthy run.
    pub expected: Option<String>,
    /// The doctor was not made with this fault in mind.
    pub held_out: bool,
    /// The server whose surface was worn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guise: Option<String>,
    /// Files of a machine were examined, no server.
    pub machine: bool,
    /// The doctor's verdict.
    pub verdict: Verdict,
    /// The causes that it named, best first, with their probabilities.
    pub said: Vec<(String, f64)>,
    /// Tokens that the server read and wrote for it.
    pub tokens: u64,
    /// Requests that the server answered for it.
    pub requests: u64,
    /// Seconds from the first question to the report.
    pub seconds: f64,
    /// What each check cost.
    pub by_check: Vec<CheckCost>,
    /// What the doctor found, without titles and proofs: enough to rank the causes again.
    pub findings: Vec<Finding>,
}

/// What one check cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckCost {
    /// The check.
    pub check: String,
    /// Requests to the server.
    pub requests: u64,
    /// Tokens that the server read and wrote.
    pub tokens: u64,
    /// Seconds.
    pub seconds: f64,
}

impl Outcome {
    /// What a report says of a case.
    #[must_use]
    pub fn of(case: &Case, run: Run, fault: Option<String>, report: &Report) -> Outcome {
        let by_check = report.checks.iter().map(|check| CheckCost {
            check: check.id.clone(),
            requests: check.cost.requests,
            tokens: check.cost.tokens(),
            seconds: check.seconds,
        });
        let findings = report.findings.iter().map(|finding| Finding {
            title: String::new(),
            detail: String::new(),
            evidence: Vec::new(),
            remedy: None,
            ..finding.clone()
        });
        Outcome {
            lucid: report.lucid.clone(),
            case: run.label(case),
            fault,
            seed: run.seed,
            depth: run.depth,
            expected: case.cause.map(str::to_owned),
            held_out: case.held_out || run.forget,
            guise: surface(case, run).map(|guise| guise.name().to_owned()),
            machine: case.machine.is_some(),
            verdict: report.verdict,
            said: report.causes.iter().map(|cause| (cause.id.clone(), cause.probability)).collect(),
            tokens: report.cost.tokens(),
            requests: report.cost.requests,
            seconds: report.seconds,
            by_check: by_check.collect(),
            findings: findings.collect(),
        }
    }

    /// The same findings, with the causes as they would be ranked today.
    #[must_use]
    pub fn ranked_again(mut self) -> Outcome {
        let causes = lucid_doctor::causes::rank(&self.findings, None).causes;
        self.said = causes.into_iter().map(|cause| (cause.id, cause.probability)).collect();
        self
    }

    /// What was said first: a cause, `unknown` for a faulty verdict without one, or the verdict.
    #[must_use]
    pub fn word(&self) -> &str {
        match (self.is_accused(), self.said.first()) {
            (true, Some((cause, _))) => cause,
            (true, None) => "unknown",
            (false, _) => self.verdict.name(),
        }
    }

    /// A fault whose cause is the first named of what was accused, or a healthy run that was called healthy.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.is_among(1)
    }

    /// The right cause is among the first three.
    #[must_use]
    pub fn is_among_three(&self) -> bool {
        self.is_among(3)
    }

    fn is_among(&self, first: usize) -> bool {
        match &self.expected {
            None => self.verdict == Verdict::Healthy && !self.is_accused(),
            Some(cause) => self.is_accused() && self.said.iter().take(first).any(|(said, _)| said == cause),
        }
    }

    /// Whether something was called wrong: a server by its verdict, a machine also by a warning. What is found in files is often
    /// a risk and no proof, and then the doctor warns and names a cause.
    #[must_use]
    pub fn is_accused(&self) -> bool {
        let warned = || self.findings.iter().any(|finding| finding.severity > Severity::Info);
        self.verdict == Verdict::Faulty || (self.machine && warned())
    }

    /// A healthy run of which something was called wrong.
    #[must_use]
    pub fn is_false_alarm(&self) -> bool {
        self.expected.is_none() && self.is_accused()
    }
}
