//! `knowledge/causes.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::report::Remedy;
use crate::subject::Symptom;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Causes {
    pub(crate) something_else: f64,
    /// Findings of answers that stand still.
    pub(crate) hangs: Vec<String>,
    #[serde(rename = "cause")]
    pub(crate) causes: Vec<CauseEntry>,
}

/// One cause.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CauseEntry {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) prior: f64,
    /// Symptoms that it can produce.
    pub(crate) explains: Vec<Symptom>,
    /// Explains what was seen without anything being wrong.
    #[serde(default)]
    pub(crate) benign: bool,
    pub(crate) next_test: String,
    /// The check that is that test, when it may spend more: `--deep` runs it.
    pub(crate) deeper: Option<String>,
    pub(crate) remedy: Remedy,
    pub(crate) evidence: Vec<Weight>,
}

/// What one finding says about a cause.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Weight {
    finding: String,
    pub(crate) weight: f64,
}

impl Weight {
    /// Whether this is about that finding; `*` stands for any characters.
    pub(crate) fn is_about(&self, id: &str) -> bool {
        match self.finding.split_once('*') {
            Some((start, end)) => {
                id.len() >= start.len() + end.len() && id.starts_with(start) && id.ends_with(end)
            }
            None => self.finding == id,
        }
    }
}

static CAUSES: LazyLock<Causes> = LazyLock::new(|| {
    toml::from_str(include_str!("../../knowledge/causes.toml"))
        .unwrap_or_else(|error| panic!("knowledge/causes.toml: {error}"))
});

/// `knowledge/learned.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Learned {
    weights: Vec<LearnedWeight>,
}

/// What drills taught that a class of findings adds for a cause.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LearnedWeight {
    /// A class of findings, as `causes::class_of` names it.
    pub(crate) finding: String,
    pub(crate) cause: String,
    pub(crate) weight: f64,
}

static LEARNED: LazyLock<Learned> = LazyLock::new(|| {
    toml::from_str(include_str!("../../knowledge/learned.toml"))
        .unwrap_or_else(|error| panic!("knowledge/learned.toml: {error}"))
});

/// What drills taught, parsed once.
pub(crate) fn learned() -> &'static [LearnedWeight] {
    &LEARNED.weights
}

/// The causes, parsed once.
pub(crate) fn causes() -> &'static Causes {
    &CAUSES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_is_about_known_causes() {
        for weight in learned() {
            assert!(causes().causes.iter().any(|cause| cause.id == weight.cause), "{weight:?}");
            let check = weight.finding.split('/').next().unwrap();
            assert!(crate::checks::registry().iter().any(|known| known.id() == check), "{weight:?}");
            assert!(weight.weight.abs() < 6.0, "{weight:?}: more than a drill can teach");
        }
    }

    #[test]
    fn the_file_is_sound() {
        let causes = causes();
        let mut ids: Vec<&str> = causes.causes.iter().map(|cause| cause.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), causes.causes.len(), "ids are unique");
        for hang in &causes.hangs {
            let check = hang.split('/').next().unwrap();
            assert!(crate::checks::registry().iter().any(|known| known.id() == check), "no check {check}");
        }
        for cause in &causes.causes {
            assert!(!cause.explains.is_empty(), "{}: what does it look like?", cause.id);
            assert!(
                !cause.title.is_empty() && !cause.next_test.is_empty() && !cause.remedy.text.is_empty(),
                "{}",
                cause.id
            );
            if let Some(deeper) = &cause.deeper {
                assert!(crate::checks::registry().iter().any(|known| known.id() == deeper), "{deeper}");
            }
            for weight in &cause.evidence {
                let check = weight.finding.split('/').next().unwrap();
                assert!(
                    crate::checks::registry().iter().any(|known| known.id() == check),
                    "{}: no check {check}",
                    cause.id
                );
            }
        }
    }
}
