//! What a diagnosis says. The machine form is [`Report`] as JSON, schema 1.

pub mod html;
pub mod json;
pub mod terminal;
mod timeline;

use lucid_client::{Exchange, ServerInfo};
pub use lucid_findings::{Finding, Proof, ProofKind, Remedy, Severity, Suggestion};
use serde::{Deserialize, Serialize};

use crate::evidence::{Divergence, RungScore};

/// Version of the JSON form. Fields may be added under the same number; none changes its meaning.
pub const SCHEMA: u32 = 1;

/// The whole diagnosis.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this form.
    pub schema: u32,
    /// Version of Lucid.
    pub lucid: String,
    /// When it began, RFC 3339, UTC.
    pub started: String,
    /// How long it took.
    pub seconds: f64,
    /// What was examined.
    pub subject: SubjectSummary,
    /// The verdict.
    pub verdict: Verdict,
    /// Why no verdict could be reached, one sentence each; empty unless something stood in the way.
    pub obstacles: Vec<String>,
    /// Likely causes, best first.
    pub causes: Vec<Cause>,
    /// Probability that none of `causes` is right; 0 when there is nothing to explain.
    pub something_else: f64,
    /// All findings, the severest first.
    pub findings: Vec<Finding>,
    /// All checks, those that were skipped too.
    pub checks: Vec<CheckResult>,
    /// What it cost.
    pub cost: Cost,
    /// The ladder's rungs, if it was climbed.
    pub ladder: Vec<RungScore>,
    /// The comparison with the reference, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub divergence: Option<Divergence>,
    /// What the probes measured, as tables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ProbeTable>,
    /// The life of the service, if there was a log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<lucid_logs::Timeline>,
    /// Every request and answer. API keys never are part of it.
    pub exchanges: Vec<KeptExchange>,
}

/// What a probe measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProbeTable {
    /// The check.
    pub check: String,
    /// What the table shows.
    pub title: String,
    /// Heads of the columns.
    pub columns: Vec<String>,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
}

impl ProbeTable {
    /// An empty table.
    pub(crate) fn new(check: &str, title: &str, columns: &[&str]) -> ProbeTable {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        ProbeTable { check: check.to_owned(), title: title.to_owned(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: &[&dyn std::fmt::Display]) {
        self.rows.push(cells.iter().map(ToString::to_string).collect());
    }
}

/// An exchange, and for which check it was made.
#[derive(Clone, Debug, Serialize)]
pub struct KeptExchange {
    /// The check.
    pub check: String,
    /// What was sent and received.
    #[serde(flatten)]
    pub exchange: Exchange,
}

/// What was examined.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SubjectSummary {
    /// The server's address.
    pub endpoint: Option<String>,
    /// Which server and model answered there.
    pub server: Option<ServerInfo>,
    /// The checkpoint's place.
    pub checkpoint: Option<String>,
    /// The arithmetic of the reference.
    pub reference: Option<String>,
    /// The Python environment.
    pub env: Option<String>,
    /// The logs.
    pub log: Option<String>,
    /// The machine.
    pub host: Option<String>,
}

/// The overall answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// What was examined is right, as far as it was examined.
    Healthy,
    /// Something is wrong.
    Faulty,
    /// It could not be decided.
    Undecided,
}

impl Verdict {
    /// As in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Healthy => "healthy",
            Verdict::Faulty => "faulty",
            Verdict::Undecided => "undecided",
        }
    }
}

/// A hypothesis about why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cause {
    /// As in the design: `rope-scaling`.
    pub id: String,
    /// In words.
    pub title: String,
    /// Of all causes and of "something else" together, 1.
    pub probability: f64,
    /// Explains what was seen without anything being wrong.
    pub benign: bool,
    /// Not the likeliest one, and a fault all the same: an error was found that the likeliest doesn't explain.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub also: bool,
    /// Ids of the findings that speak for it.
    #[serde(rename = "for")]
    pub supported_by: Vec<String>,
    /// Ids of the findings that speak against it.
    pub against: Vec<String>,
    /// What would separate it from the next likely cause.
    pub next_test: String,
    /// What to do.
    pub remedy: Remedy,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckOutcome {
    /// Ran, nothing wrong.
    Passed,
    /// Ran, and found something of severity warning or error.
    Found,
    /// Its evidence is missing, or it can't decide; `reason` says why.
    Skipped,
    /// Broke down; that is a result too.
    Crashed,
}

/// One check's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckResult {
    /// The check.
    pub id: String,
    /// How it ended.
    pub outcome: CheckOutcome,
    /// What it covered; for a skipped check, what therefore was not covered.
    pub covered: String,
    /// Why it was skipped, or how it crashed.
    pub reason: Option<String>,
    /// How long it took.
    pub seconds: f64,
    /// What it cost the server.
    pub cost: Cost,
}

/// What the diagnosis cost the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Requests sent.
    pub requests: u64,
    /// Prompt tokens, as the server counted them.
    pub prompt_tokens: u64,
    /// Generated tokens, as the server counted them.
    pub completion_tokens: u64,
}

impl Cost {
    /// Prompt and generated tokens.
    #[must_use]
    pub fn tokens(self) -> u64 {
        self.prompt_tokens + self.completion_tokens
    }

    /// Both together.
    pub(crate) fn plus(self, other: Cost) -> Cost {
        Cost {
            requests: self.requests + other.requests,
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            completion_tokens: self.completion_tokens + other.completion_tokens,
        }
    }

    /// What was added since.
    pub(crate) fn since(self, before: Cost) -> Cost {
        Cost {
            requests: self.requests - before.requests,
            prompt_tokens: self.prompt_tokens - before.prompt_tokens,
            completion_tokens: self.completion_tokens - before.completion_tokens,
        }
    }
}

/// A probability in percent; never "100 %" or "0 %", which nothing is.
pub(crate) fn percent(probability: f64) -> String {
    match probability * 100.0 {
        percent if percent > 99.0 => "> 99 %".to_owned(),
        percent if percent < 1.0 => "< 1 %".to_owned(),
        percent => format!("{percent:.0} %"),
    }
}

impl Report {
    /// Exit code: 0 healthy, 1 a finding at or above `fail_on`, 2 could not decide. Findings of severity
    /// [`Severity::Info`] are facts; they never count.
    #[must_use]
    pub fn exit_code(&self, fail_on: Severity) -> u8 {
        if self.verdict == Verdict::Undecided {
            return 2;
        }
        u8::from(
            self.findings
                .iter()
                .any(|finding| finding.severity >= fail_on && finding.severity > Severity::Info),
        )
    }

    /// The most likely cause, if one stands out: more likely than not.
    #[must_use]
    pub fn top_cause(&self) -> Option<&Cause> {
        self.causes.first().filter(|cause| cause.probability > 0.5)
    }
}

#[cfg(test)]
mod tests;
