//! Log-probabilities in one form, whatever the server called them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How the server named a token.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenName {
    /// By its id: certain.
    Id(u32),
    /// By its bytes: certain unless two tokens have the same bytes (control tokens often have none).
    Bytes(Vec<u8>),
    /// By its text, which may hold replacement characters.
    Text(String),
}

/// One position: the token that stands there and the likeliest candidates, natural logarithms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoredToken {
    /// The token that stands there.
    pub token: TokenName,
    /// Its log-probability as the server says.
    pub logprob: f64,
    /// The candidates as the server says, in its order.
    pub top: Vec<(TokenName, f64)>,
}

impl TokenName {
    /// `token_id:N` is what vLLM writes with `return_tokens_as_token_ids`.
    fn from_text(text: &str) -> TokenName {
        match text.strip_prefix("token_id:").and_then(|id| id.parse().ok()) {
            Some(id) => TokenName::Id(id),
            None => TokenName::Text(text.to_owned()),
        }
    }

    /// `{"id"?, "token", "bytes"?}`, best name first.
    fn from_entry(entry: &Value) -> Option<TokenName> {
        if let Some(id) = entry.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok()) {
            return Some(TokenName::Id(id));
        }
        let text = TokenName::from_text(entry.get("token")?.as_str()?);
        if matches!(text, TokenName::Id(_)) {
            return Some(text);
        }
        let bytes: Option<Vec<u8>> = entry.get("bytes").and_then(Value::as_array).and_then(|bytes| {
            bytes.iter().map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok())).collect()
        });
        Some(match bytes {
            Some(bytes) if !bytes.is_empty() => TokenName::Bytes(bytes),
            _ => text,
        })
    }
}

/// The OpenAI chat form, `{"content": [{"token", "logprob", "bytes", "top_logprobs": […]}]}`; llama.cpp adds `id`
/// and answers `/v1/completions` in the same form.
pub(crate) fn from_content(logprobs: &Value) -> Result<Vec<ScoredToken>, String> {
    let content =
        logprobs.get("content").and_then(Value::as_array).ok_or("`logprobs.content` is not a list")?;
    content
        .iter()
        .map(|entry| {
            let name = TokenName::from_entry(entry).ok_or("an entry of `logprobs.content` names no token")?;
            let logprob = entry
                .get("logprob")
                .and_then(Value::as_f64)
                .ok_or("an entry of `logprobs.content` has no number `logprob`")?;
            let empty = Vec::new();
            let candidates = entry.get("top_logprobs").and_then(Value::as_array).unwrap_or(&empty);
            let top = candidates
                .iter()
                .map(|candidate| {
                    Some((TokenName::from_entry(candidate)?, candidate.get("logprob")?.as_f64()?))
                })
                .collect::<Option<_>>()
                .ok_or("an entry of `top_logprobs` is incomplete")?;
            Ok(ScoredToken { token: name, logprob, top })
        })
        .collect()
}

/// The completions form, `{"tokens": […], "token_logprobs": […], "top_logprobs": [{token: logprob}]}`.
pub(crate) fn from_lists(logprobs: &Value) -> Result<Vec<ScoredToken>, String> {
    let list = |name: &str| {
        logprobs.get(name).and_then(Value::as_array).ok_or(format!("`logprobs.{name}` is not a list"))
    };
    let tokens = list("tokens")?;
    let values = list("token_logprobs")?;
    if tokens.len() != values.len() {
        return Err(format!("{} tokens but {} token_logprobs", tokens.len(), values.len()));
    }
    let tops = logprobs.get("top_logprobs").and_then(Value::as_array);
    tokens
        .iter()
        .zip(values)
        .enumerate()
        .map(|(index, (token, value))| {
            let token = TokenName::from_text(token.as_str().ok_or("a token is not a text")?);
            let logprob = value.as_f64().ok_or("a token_logprob is not a number")?;
            let top = tops.and_then(|tops| tops.get(index)).and_then(Value::as_object).map(|candidates| {
                candidates
                    .iter()
                    .filter_map(|(token, logprob)| Some((TokenName::from_text(token), logprob.as_f64()?)))
                    .collect()
            });
            Ok(ScoredToken { token, logprob, top: top.unwrap_or_default() })
        })
        .collect()
}

/// vLLM's prompt form: a list with one entry a token, the first `null`, the others `{"<id>": {"logprob", "rank"}}`.
/// `tokens` are the prompt's ids; the answer has one entry a position after the first.
pub(crate) fn from_prompt(prompt_logprobs: &Value, tokens: &[u32]) -> Result<Vec<ScoredToken>, String> {
    let list = prompt_logprobs.as_array().ok_or("`prompt_logprobs` is not a list")?;
    if list.len() != tokens.len() {
        return Err(format!(
            "the prompt has {} tokens, `prompt_logprobs` has {} entries",
            tokens.len(),
            list.len()
        ));
    }
    list.iter()
        .zip(tokens)
        .enumerate()
        .skip(1)
        .map(|(position, (entry, &token))| {
            let candidates =
                entry.as_object().ok_or(format!("`prompt_logprobs[{position}]` is not an object"))?;
            let mut top = Vec::with_capacity(candidates.len());
            for (id, value) in candidates {
                let id = id.parse().map_err(|_| {
                    format!("`prompt_logprobs[{position}]` has the key {id:?}, not a token id")
                })?;
                let logprob = value
                    .get("logprob")
                    .and_then(Value::as_f64)
                    .ok_or(format!("`prompt_logprobs[{position}]` has no number `logprob`"))?;
                top.push((TokenName::Id(id), logprob));
            }
            let own = top.iter().find(|(name, _)| *name == TokenName::Id(token)).map(|(_, logprob)| *logprob);
            let logprob =
                own.ok_or(format!("`prompt_logprobs[{position}]` lacks the prompt's own token {token}"))?;
            Ok(ScoredToken { token: TokenName::Id(token), logprob, top })
        })
        .collect()
}
