//! A finding and its parts.

use serde::{Deserialize, Serialize};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A fact that matters for the causes.
    Info,
    /// Something that should be looked at, but doesn't make the deployment wrong.
    Warning,
    /// Something is wrong.
    Error,
}

/// A sentence somebody can act on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Names the kind of finding: `endpoint.ladder/fact-low`. Causes refer to it.
    pub id: String,
    /// The check that found it.
    pub check: String,
    /// How bad.
    pub severity: Severity,
    /// How sure, 0 to 1.
    pub confidence: f64,
    /// The finding in one sentence.
    pub title: String,
    /// More of it.
    pub detail: String,
    /// Whether it lies on the path that the served model really takes; `None` if unknown.
    pub active: Option<bool>,
    /// What shows it.
    pub evidence: Vec<Proof>,
    /// What to do, where the finding alone says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
    /// Causes that this very finding speaks for or against, beside what `knowledge/causes.toml` says of its id: rules that
    /// are data (log signatures, version sets) carry their cause with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suggests: Vec<Suggestion>,
}

impl Finding {
    /// A finding of `check`; `slug` tells it from the check's other findings.
    #[must_use]
    pub fn new(check: &str, slug: &str, severity: Severity, title: impl Into<String>) -> Finding {
        Finding {
            id: format!("{check}/{slug}"),
            check: check.to_owned(),
            severity,
            confidence: 1.0,
            title: title.into(),
            detail: String::new(),
            active: Some(true),
            evidence: Vec::new(),
            remedy: None,
            suggests: Vec::new(),
        }
    }

    /// Adds the explanation.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Finding {
        self.detail = detail.into();
        self
    }

    /// Says how sure it is.
    #[must_use]
    pub fn confidence(mut self, confidence: f64) -> Finding {
        self.confidence = confidence;
        self
    }

    /// Says whether it lies on the path that the served model takes.
    #[must_use]
    pub fn active(mut self, active: Option<bool>) -> Finding {
        self.active = active;
        self
    }

    /// Adds a piece of evidence.
    #[must_use]
    pub fn proof(mut self, kind: ProofKind, place: impl Into<String>, text: impl Into<String>) -> Finding {
        self.evidence.push(Proof { kind, place: place.into(), text: text.into() });
        self
    }

    /// Adds what to do.
    #[must_use]
    pub fn remedy(mut self, text: impl Into<String>, commands: Vec<String>) -> Finding {
        self.remedy = Some(Remedy { text: text.into(), commands });
        self
    }

    /// Speaks for a cause (`weight` above 0) or against it; see [`Suggestion::weight`].
    #[must_use]
    pub fn suggests(mut self, cause: impl Into<String>, weight: f64) -> Finding {
        self.suggests.push(Suggestion { cause: cause.into(), weight });
        self
    }

    /// The cause that it speaks for the most, if any.
    #[must_use]
    pub fn suggested_cause(&self) -> Option<&str> {
        self.suggests
            .iter()
            .filter(|suggestion| suggestion.weight > 0.0)
            .max_by(|a, b| a.weight.total_cmp(&b.weight))
            .map(|suggestion| suggestion.cause.as_str())
    }
}

/// What a finding says about a cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suggestion {
    /// Id of the cause: `package-version-skew`.
    pub cause: String,
    /// Natural log-odds: 1 is a hint (2.7 times likelier), 3 is strong (20 times), 5 nearly settles it (150 times); below 0
    /// it speaks against.
    pub weight: f64,
}

/// What a piece of evidence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProofKind {
    /// A file, with a line where there is one.
    File,
    /// A log line.
    Log,
    /// A request and its answer; `place` is its number in `exchanges`, from 1.
    Exchange,
    /// A measured number with its interval.
    Number,
}

/// A piece of evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proof {
    /// What it is.
    pub kind: ProofKind,
    /// Where it is.
    #[serde(rename = "where")]
    pub place: String,
    /// What it says.
    pub text: String,
}

/// What to do about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Remedy {
    /// In words.
    pub text: String,
    /// Commands to copy.
    #[serde(default)]
    pub commands: Vec<String>,
}
