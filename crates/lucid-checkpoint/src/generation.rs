//! `generation_config.json`: how the model's makers want it sampled.

use serde::Serialize;

use crate::config::fields::{self, Fields};
use crate::{Error, Files, TokenId};

/// `generation_config.json`. What the file does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Generation {
    /// Tokens that end a generation, in addition to those of `config.json`.
    pub eos_token_ids: Vec<TokenId>,
    /// Sample; `false`: greedy.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f64>,
    /// Keeps the likeliest tokens with this sum of probabilities.
    pub top_p: Option<f64>,
    /// Keeps that many tokens; 0: all.
    pub top_k: Option<usize>,
    /// Drops tokens less likely than this share of the likeliest.
    pub min_p: Option<f64>,
    /// Divides the logits of tokens that were seen.
    pub repetition_penalty: Option<f64>,
}

impl Generation {
    /// Reads `generation_config.json`; all `None` when there is no such file.
    pub(crate) fn read(files: &Files, vocab_size: usize) -> Result<Generation, Error> {
        const NAME: &str = "generation_config.json";
        let Some(bytes) = files.find(NAME)? else { return Ok(Generation::default()) };
        Generation::from_json(&files.location(NAME), &bytes, vocab_size)
    }

    /// Parses the text of a `generation_config.json`; `location` is its name in messages.
    ///
    /// # Errors
    /// When it is not a JSON object or a field has the wrong type or an impossible value.
    pub fn from_json(location: &str, json: &[u8], vocab_size: usize) -> Result<Generation, Error> {
        let json = fields::parse(location, json)?;
        let fields = Fields::root(location, &json)?;
        Ok(Generation {
            eos_token_ids: fields.tokens("eos_token_id", vocab_size)?,
            do_sample: fields.optional_flag("do_sample")?,
            temperature: fields.optional_number_in("temperature", 0.0, f64::MAX)?,
            top_p: fields.optional_number_in("top_p", 0.0, 1.0)?,
            top_k: fields.optional_count("top_k")?,
            min_p: fields.optional_number_in("min_p", 0.0, 1.0)?,
            repetition_penalty: fields.optional_positive("repetition_penalty")?,
        })
    }
}
