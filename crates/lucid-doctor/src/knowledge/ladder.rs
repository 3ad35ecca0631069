//! `knowledge/ladder.toml`.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use crate::python::Case;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ladder {
    #[serde(rename = "rung")]
    pub(crate) rungs: Vec<Rung>,
    pub(crate) haystack: Haystack,
}

/// One rung.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rung {
    pub(crate) id: String,
    pub(crate) title: String,
    /// What a pass covers.
    pub(crate) covers: String,
    pub(crate) judge: Judge,
    pub(crate) floor: f64,
    pub(crate) prompts: Vec<LadderPrompt>,
    pub(crate) system: Option<String>,
    #[serde(default)]
    pub(crate) history: Vec<Turn>,
    pub(crate) needle_sentences: Option<usize>,
    /// For dear prompts: the first right answer is enough.
    #[serde(default)]
    pub(crate) stop_when_right: bool,
}

/// A message of the history.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Turn {
    pub(crate) role: String,
    pub(crate) content: String,
}

/// One question.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LadderPrompt {
    pub(crate) user: String,
    /// What the judge looks for; of a needle, the word that names it.
    pub(crate) answer: String,
    /// Test cases of a function: `[[arguments], value]`.
    #[serde(default)]
    cases: Vec<(Vec<Value>, Value)>,
}

impl LadderPrompt {
    pub(crate) fn cases(&self) -> Vec<Case> {
        self.cases
            .iter()
            .map(|(arguments, expected)| Case { arguments: arguments.clone(), expected: expected.clone() })
            .collect()
    }
}

/// How an answer is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Judge {
    /// The word is in the answer, in whatever case.
    Contains,
    /// The number is in the answer; thousands separators don't matter.
    Number,
    /// The word is there, and no letter is in lower case.
    UpperCase,
    /// The first JSON object in the answer has these fields.
    Json,
    /// The code in the answer passes the cases.
    Python,
}

/// Material for needles.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Haystack {
    pub(crate) templates: Vec<String>,
    pub(crate) needle: String,
    pub(crate) animals: Vec<String>,
    pub(crate) adjectives: Vec<String>,
    pub(crate) places: Vec<String>,
    pub(crate) things: Vec<String>,
}

static LADDER: LazyLock<Ladder> = LazyLock::new(|| {
    toml::from_str(include_str!("../../knowledge/ladder.toml"))
        .unwrap_or_else(|error| panic!("knowledge/ladder.toml: {error}"))
});

/// The ladder, parsed once.
pub(crate) fn ladder() -> &'static Ladder {
    &LADDER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_sound() {
        let ladder = ladder();
        assert!(ladder.rungs.len() >= 8);
        for rung in &ladder.rungs {
            assert!((0.0..=1.0).contains(&rung.floor) && !rung.prompts.is_empty(), "{}", rung.id);
            for prompt in &rung.prompts {
                assert_eq!(prompt.cases.is_empty(), rung.judge != Judge::Python, "{}", rung.id);
                if rung.judge == Judge::Json {
                    assert!(
                        serde_json::from_str::<Value>(&prompt.answer).unwrap().is_object(),
                        "{}",
                        rung.id
                    );
                }
            }
        }
        // A needle's key must not stand in the hay.
        for rung in ladder.rungs.iter().filter(|rung| rung.needle_sentences.is_some()) {
            for prompt in &rung.prompts {
                assert!(
                    prompt.user.contains(&prompt.answer) && !ladder.haystack.places.contains(&prompt.answer),
                    "{}",
                    prompt.answer
                );
            }
        }
    }
}
