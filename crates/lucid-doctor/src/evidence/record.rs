//! A recorded reference: what a right model says of given texts, token by token.
//!
//! `lucid reference` computes one from a checkpoint of any size; `lucid doctor --record` takes one from a deployment that is trusted.
//! Either stands in for the checkpoint when a server is compared.

use std::path::Path;

use lucid_checkpoint::TokenId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Observed, PromptScore};

/// The only version there is.
const SCHEMA: u32 = 1;

/// What a right model says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of this form: 1.
    pub schema: u32,
    /// The version of Lucid that wrote it.
    pub lucid: String,
    /// What was asked: the checkpoint's folder, or the server's address and model.
    pub checkpoint: String,
    /// SHA-256 of names, lengths and ends of the checkpoint's files; empty for a server.
    pub fingerprint: String,
    /// The arithmetic, as `/server_info` reports it; null where nobody says.
    pub semantics: Value,
    /// Seconds that it took.
    pub seconds: f64,
    /// Bytes of the checkpoint that were read for it.
    pub bytes_read: u64,
    /// The texts.
    pub passages: Vec<Passage>,
}

/// A text, and what the model says of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passage {
    /// A name for people.
    pub name: String,
    /// Prompt and answer.
    pub tokens: Vec<TokenId>,
    /// How many of the tokens are the prompt.
    pub prompt: usize,
    /// What is said of some of the tokens, in their order.
    pub observations: Vec<Recorded>,
}

/// What the model says about one token, given those before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// Index of the token.
    pub position: usize,
    /// Its log-probability (natural).
    pub logprob: f64,
    /// Its place among all tokens, from 1; 0 where nobody says.
    pub rank: usize,
    /// The likeliest tokens with theirs.
    pub top: Vec<(TokenId, f64)>,
}

/// Why a record can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file can't be read.
    #[error("cannot read the record {path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is no JSON, or another one.
    #[error(
        "{path} is no record of a reference ({source}): `lucid reference` and `lucid doctor --record` write them"
    )]
    Json {
        /// The file.
        path: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// Another version, or numbers that can't be.
    #[error("the record {path} can't be used: {problem}")]
    Content {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
}

impl Record {
    /// A record of this version, still without texts.
    #[must_use]
    pub fn new(checkpoint: String, fingerprint: String, semantics: Value) -> Record {
        Record {
            schema: SCHEMA,
            lucid: env!("CARGO_PKG_VERSION").to_owned(),
            checkpoint,
            fingerprint,
            semantics,
            seconds: 0.0,
            bytes_read: 0,
            passages: Vec::new(),
        }
    }

    /// Reads a record, and refuses what no model can have said.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn open(path: &Path) -> Result<Record, RecordError> {
        let name = || path.display().to_string();
        let bytes = std::fs::read(path).map_err(|source| RecordError::Io { path: name(), source })?;
        let record: Record =
            serde_json::from_slice(&bytes).map_err(|source| RecordError::Json { path: name(), source })?;
        record.check().map_err(|problem| RecordError::Content { path: name(), problem })?;
        Ok(record)
    }

    fn check(&self) -> Result<(), String> {
        if self.schema != SCHEMA {
            return Err(format!("its schema is {}, this program reads {SCHEMA}", self.schema));
        }
        if self.passages.iter().all(|passage| passage.observations.is_empty()) {
            return Err("it says nothing of any token".to_owned());
        }
        for passage in &self.passages {
            let name = &passage.name;
            if passage.prompt == 0 || passage.prompt > passage.tokens.len() {
                return Err(format!(
                    "text {name:?}: {} of {} tokens are the prompt",
                    passage.prompt,
                    passage.tokens.len()
                ));
            }
            let mut last = 0;
            for observation in &passage.observations {
                let position = observation.position;
                if position <= last || position >= passage.tokens.len() {
                    return Err(format!("text {name:?}: nothing can be said of position {position} there"));
                }
                last = position;
                let listed = observation.top.iter().map(|(_, logprob)| *logprob);
                // A little above 0 is rounding.
                if std::iter::once(observation.logprob)
                    .chain(listed)
                    .any(|value| value.is_nan() || value > 1e-3)
                {
                    return Err(format!(
                        "text {name:?}, position {position}: a log-probability is above 0 or no number"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Passage {
    /// What a server said, as a record keeps it.
    pub(crate) fn of(name: String, observed: &Observed) -> Passage {
        let observations = observed.observations.iter().map(|observation| Recorded {
            position: observation.position,
            logprob: observation.logprob,
            rank: 0,
            top: observation.top.clone(),
        });
        Passage {
            name,
            tokens: observed.tokens.clone(),
            prompt: observed.prompt,
            observations: observations.collect(),
        }
    }

    /// Compares what a server said of this text with the record, where both say something. The server's answer may part from the
    /// recorded one: the token at which it does is still compared, what follows is not.
    pub(crate) fn compare(&self, observed: &Observed) -> PromptScore {
        let same = self.tokens.iter().zip(&observed.tokens).take_while(|(a, b)| a == b).count();
        let mut positions = Vec::new();
        let mut recorded = self.observations.iter().peekable();
        for observation in &observed.observations {
            while recorded.next_if(|recorded| recorded.position < observation.position).is_some() {}
            let Some(recorded) = recorded.next_if(|recorded| recorded.position == observation.position)
            else {
                continue;
            };
            // The distribution at `same` has equal tokens before it.
            if observation.position > same {
                break;
            }
            let Some(&token) = observed.tokens.get(observation.position) else { break };
            let score = super::divergence::compare_listed(observation, token, &self.listed(recorded));
            let decoded = observation.position > observed.prompt;
            positions.push(super::PositionScore { decoded, ..score });
        }
        PromptScore { positions }
    }

    /// Every token that the record says something of at a position.
    fn listed(&self, recorded: &Recorded) -> Vec<(TokenId, f64)> {
        let mut listed = recorded.top.clone();
        if let Some(&standing) = self.tokens.get(recorded.position)
            && !listed.iter().any(|(id, _)| *id == standing)
        {
            listed.push((standing, recorded.logprob));
        }
        listed
    }

    /// The positions of which something is recorded, apart from the prompt's.
    pub(crate) fn is_recorded(&self, position: usize) -> bool {
        self.observations.binary_search_by_key(&position, |recorded| recorded.position).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Observation;

    fn ids(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    fn passage() -> Passage {
        let recorded = |position, top: &[(u32, f64)]| Recorded {
            position,
            logprob: top[0].1.ln(),
            rank: 1,
            top: top.iter().map(|(id, p)| (TokenId(*id), p.ln())).collect(),
        };
        Passage {
            name: "1".to_owned(),
            tokens: ids(&[5, 6, 7, 8]),
            prompt: 2,
            observations: vec![
                recorded(1, &[(6, 0.5), (1, 0.25)]),
                recorded(2, &[(7, 0.9), (1, 0.05)]),
                recorded(3, &[(8, 0.5), (9, 0.4)]),
            ],
        }
    }

    fn server(tokens: &[u32], said: &[(usize, &[(u32, f64)])]) -> Observed {
        let said = said.iter().map(|(position, top)| {
            let top: Vec<_> = top.iter().map(|(id, p)| (TokenId(*id), f64::ln(*p))).collect();
            Observation { position: *position, logprob: top[0].1, top }
        });
        Observed { tokens: ids(tokens), prompt: 2, end: None, observations: said.collect(), exchange: 1 }
    }

    #[test]
    fn the_same_distributions_are_no_divergence_whatever_is_listed() {
        let score = passage().compare(&server(
            &[5, 6, 7, 8],
            // The server lists a token more that the record doesn't know.
            &[(1, &[(6, 0.5), (1, 0.25), (2, 0.125)]), (2, &[(7, 0.9)]), (3, &[(8, 0.5), (9, 0.4)])],
        ));
        assert_eq!(
            score.positions.iter().map(|p| (p.position, p.decoded)).collect::<Vec<_>>(),
            [(1, false), (2, false), (3, true)]
        );
        assert!(score.positions.iter().all(|p| p.kl < 1e-6 && p.gap < 1e-6 && p.top1), "{score:?}");
    }

    /// 0.5 ln(0.5 / 0.9) + 0.5 ln(0.5 / 0.1) = 0.5108 for {7, rest}.
    #[test]
    fn a_divergence_is_that_of_what_both_list() {
        let score = passage().compare(&server(&[5, 6, 7, 8], &[(2, &[(7, 0.5), (3, 0.5)])]));
        assert!((score.positions[0].kl - 0.510_825_6).abs() < 1e-4, "{score:?}");
    }

    #[test]
    fn where_the_answers_part_the_comparison_ends() {
        let said: [(usize, &[(u32, f64)]); 3] =
            [(1, &[(6, 0.5)]), (2, &[(1, 0.5), (7, 0.4)]), (3, &[(4, 1.0)])];
        let score = passage().compare(&server(&[5, 6, 1, 4], &said));
        assert_eq!(score.positions.iter().map(|p| p.position).collect::<Vec<_>>(), [1, 2]);
        assert!(score.positions[1].kl > 0.1 && !score.positions[1].top1);
    }

    #[test]
    fn what_no_model_can_have_said_is_refused() {
        let record = |change: &dyn Fn(&mut Record)| {
            let mut record = Record::new("x".to_owned(), String::new(), Value::Null);
            record.passages = vec![passage()];
            change(&mut record);
            record.check()
        };
        assert_eq!(record(&|_| {}), Ok(()));
        type Change = dyn Fn(&mut Record);
        let wrong: [(&Change, &str); 5] = [
            (&|r| r.schema = 2, "schema"),
            (&|r| r.passages.clear(), "nothing"),
            (&|r| r.passages[0].prompt = 9, "9 of 4"),
            (&|r| r.passages[0].observations[0].position = 7, "position 7"),
            (&|r| r.passages[0].observations[1].top[0].1 = 0.5, "above 0"),
        ];
        for (change, word) in wrong {
            let problem = record(change).unwrap_err();
            assert!(problem.contains(word), "{problem}");
        }
    }
}
