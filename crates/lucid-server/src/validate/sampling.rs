//! The parameters that both endpoints share: how tokens are drawn and when an answer ends.

use lucid_checkpoint::TokenId;
use lucid_engine::Sampling;
use serde_json::Value;

use super::fields::{Fields, whole, wrong_type};
use super::{MAX_LOGPROBS, ModelFacts};
use crate::protocol::error::ApiError;

/// Stop strings in one request; OpenAI allows 4.
const MAX_STOPS: usize = 16;
/// Bytes of one stop string.
const MAX_STOP_BYTES: usize = 1_024;
/// Stop tokens in one request.
const MAX_STOP_TOKENS: usize = 64;
/// Tokens that one request may bias; OpenAI allows 300 in a vocabulary of 200,000.
const MAX_BIASES: usize = 1_024;

/// What a chat and a completions request have in common.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    /// Answers to each prompt.
    pub(crate) n: usize,
    pub(crate) sampling: Sampling,
    pub(crate) min_tokens: usize,
    /// Strings that end the answer; not part of it unless `include_stop` is set.
    pub(crate) stop: Vec<String>,
    pub(crate) include_stop: bool,
    /// The request's own stop tokens, without the model's.
    pub(crate) stop_token_ids: Vec<TokenId>,
    /// Go on after the model's end-of-sequence tokens.
    pub(crate) ignore_eos: bool,
    pub(crate) skip_special_tokens: bool,
    pub(crate) prompt_logprobs: Option<usize>,
    pub(crate) return_token_ids: bool,
    /// Tokens in log-probabilities are written as `token_id:N`.
    pub(crate) tokens_as_ids: bool,
    /// Say which experts the tokens went to.
    pub(crate) routes: bool,
    /// `None`: one answer at the end.
    pub(crate) stream: Option<StreamOptions>,
}

/// What a stream carries beside the deltas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamOptions {
    /// A last chunk with the usage.
    pub(crate) include_usage: bool,
    /// The usage so far in every chunk.
    pub(crate) continuous_usage: bool,
}

impl Common {
    pub(crate) fn take(fields: &mut Fields, model: &ModelFacts) -> Result<Common, ApiError> {
        let stream = stream(fields)?;
        let prompt_logprobs = fields.count("prompt_logprobs", 0..=MAX_LOGPROBS)?;
        if stream.is_some() && prompt_logprobs.is_some() {
            return Err(ApiError::field(
                "prompt_logprobs",
                "prompt_logprobs cannot be streamed: leave out `stream`",
            ));
        }
        // Without the server's flag nothing is returned, as with SGLang and vLLM.
        let routes = fields.boolean("return_routed_experts")?.unwrap_or(false) && model.tells_routes;
        if stream.is_some() && routes {
            return Err(ApiError::field(
                "return_routed_experts",
                "return_routed_experts cannot be streamed: leave out `stream`",
            ));
        }
        Ok(Common {
            n: fields.count("n", 1..=i64::try_from(model.max_n).unwrap_or(i64::MAX))?.unwrap_or(1),
            sampling: sampling(fields, model)?,
            min_tokens: fields.count("min_tokens", 0..=i64::MAX)?.unwrap_or(0),
            stop: stop(fields)?,
            include_stop: fields.boolean("include_stop_str_in_output")?.unwrap_or(false),
            stop_token_ids: stop_token_ids(fields, model)?,
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            skip_special_tokens: fields.boolean("skip_special_tokens")?.unwrap_or(true),
            prompt_logprobs,
            return_token_ids: fields.boolean("return_token_ids")?.unwrap_or(false),
            tokens_as_ids: fields.boolean("return_tokens_as_token_ids")?.unwrap_or(false),
            routes,
            stream,
        })
    }
}

fn stream(fields: &mut Fields) -> Result<Option<StreamOptions>, ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let Some(options) = fields.object("stream_options")? else {
        return Ok(stream.then(StreamOptions::default));
    };
    if !stream {
        return Err(ApiError::field("stream_options", "stream_options needs `stream`: true"));
    }
    let flag = |name: &str| match options.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(other) => Err(wrong_type(&format!("stream_options.{name}"), "true or false", other)),
    };
    let include_usage = flag("include_usage")?;
    Ok(Some(StreamOptions {
        include_usage,
        continuous_usage: include_usage && flag("continuous_usage_stats")?,
    }))
}

/// What a request leaves out comes from the checkpoint's generation_config.json, else is neutral.
fn sampling(fields: &mut Fields, model: &ModelFacts) -> Result<Sampling, ApiError> {
    let defaults = &model.defaults;
    let penalty = |p: f32| (-2.0..=2.0).contains(&p);
    #[allow(clippy::cast_possible_truncation)] // Sampling computes in f32.
    let narrow = |default: Option<f64>| default.map(|value| value as f32);
    Ok(Sampling {
        temperature: fields
            .number("temperature", |t| t >= 0.0, "at least 0")?
            .or(narrow(defaults.temperature))
            .unwrap_or(1.0),
        top_p: fields
            .number("top_p", |p| p > 0.0 && p <= 1.0, "above 0 and at most 1")?
            .or(narrow(defaults.top_p))
            .unwrap_or(1.0),
        // −1 and 0 both mean "all tokens".
        top_k: match fields.integer("top_k", -1..=i64::MAX)? {
            Some(k) => usize::try_from(k).unwrap_or(0),
            None => defaults.top_k.unwrap_or(0),
        },
        min_p: fields
            .number("min_p", |p| (0.0..=1.0).contains(&p), "between 0 and 1")?
            .or(narrow(defaults.min_p))
            .unwrap_or(0.0),
        repetition_penalty: fields
            .number("repetition_penalty", |p| p > 0.0, "above 0")?
            .or(narrow(defaults.repetition_penalty))
            .unwrap_or(1.0),
        presence_penalty: fields.number("presence_penalty", penalty, "between -2 and 2")?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", penalty, "between -2 and 2")?.unwrap_or(0.0),
        logit_bias: logit_bias(fields, model)?,
        // Any 64-bit number is a seed; a negative one is as good as another.
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(i64::cast_unsigned),
    })
}

fn logit_bias(fields: &mut Fields, model: &ModelFacts) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    if map.len() > MAX_BIASES {
        return Err(ApiError::field("logit_bias", format!("logit_bias has more than {MAX_BIASES} tokens")));
    }
    map.into_iter()
        .map(|(id, bias)| {
            let name = format!("logit_bias.{id}");
            let token = id
                .parse::<u32>()
                .ok()
                .and_then(|id| model.token(id))
                .ok_or_else(|| ApiError::field("logit_bias", model.unknown_token("logit_bias", &id)))?;
            let value = bias.as_f64().ok_or_else(|| wrong_type(&name, "a number", &bias))?;
            if !(-100.0..=100.0).contains(&value) {
                return Err(ApiError::field(
                    name,
                    format!("a bias is {value}, it must be between -100 and 100"),
                ));
            }
            #[allow(clippy::cast_possible_truncation)] // at most 100
            Ok((token, value as f32))
        })
        .collect()
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let list = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(one) => vec![one],
    };
    if list.len() > MAX_STOPS {
        return Err(ApiError::field("stop", format!("stop has more than {MAX_STOPS} strings")));
    }
    list.into_iter()
        .map(|item| match item {
            Value::String(text) if text.is_empty() => {
                Err(ApiError::field("stop", "a stop string is empty: every answer would end at once"))
            }
            Value::String(text) if text.len() > MAX_STOP_BYTES => {
                Err(ApiError::field("stop", format!("a stop string is longer than {MAX_STOP_BYTES} bytes")))
            }
            Value::String(text) => Ok(text),
            other => Err(wrong_type("stop", "a string or a list of strings", &other)),
        })
        .collect()
}

fn stop_token_ids(fields: &mut Fields, model: &ModelFacts) -> Result<Vec<TokenId>, ApiError> {
    let list = fields.list("stop_token_ids")?.unwrap_or_default();
    if list.len() > MAX_STOP_TOKENS {
        let message = format!("stop_token_ids has more than {MAX_STOP_TOKENS} tokens");
        return Err(ApiError::field("stop_token_ids", message));
    }
    list.iter().map(|id| token(id, "stop_token_ids", model)).collect()
}

/// One token id in a list.
pub(crate) fn token(value: &Value, field: &str, model: &ModelFacts) -> Result<TokenId, ApiError> {
    let number = whole(value).ok_or_else(|| wrong_type(field, "token ids", value))?;
    u32::try_from(number)
        .ok()
        .and_then(|id| model.token(id))
        .ok_or_else(|| ApiError::field(field, model.unknown_token(field, &number.to_string())))
}

impl Common {
    /// How the `index`th of several answers is drawn: with a seed of its own, so that they differ and can be repeated.
    pub(crate) fn sampling_of(&self, index: usize) -> Sampling {
        let mut sampling = self.sampling.clone();
        sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(index as u64));
        sampling
    }
}
