//! `POST /tokenize` and `POST /detokenize`.

use lucid_checkpoint::TokenId;
use serde_json::Value;

use super::chat::ChatPrompt;
use super::fields::Fields;
use super::sampling::token;
use super::{ModelFacts, log_unknown, tools};
use crate::protocol::error::ApiError;

/// A request to `/tokenize`.
#[derive(Clone, Debug)]
pub(crate) struct TokenizeRequest {
    pub(crate) source: Source,
    pub(crate) return_token_strs: bool,
}

/// What is to be cut into tokens.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A plain text.
    Prompt(String),
    /// A conversation, rendered by the chat template, with its tools.
    Chat(ChatPrompt, Option<Vec<Value>>),
}

/// Parses and checks a request to `/tokenize`.
pub(crate) fn parse(body: &[u8], model: &ModelFacts) -> Result<TokenizeRequest, ApiError> {
    let mut fields = Fields::parse(body)?;
    model.check_name(&mut fields)?;
    for refused in ["chat_template", "mm_processor_kwargs"] {
        if fields.take(refused).is_some() {
            return Err(ApiError::unsupported(refused, "the checkpoint's own template is used, for text"));
        }
    }
    if fields.boolean("continue_final_message")?.unwrap_or(false) {
        return Err(ApiError::unsupported("continue_final_message", "the template renders whole messages"));
    }
    let source = if fields.peek("messages").is_some() {
        let chat = ChatPrompt::take(&mut fields)?;
        Source::Chat(chat, tools::take(&mut fields)?.declared)
    } else {
        match fields.string("prompt")? {
            Some(text) => Source::Prompt(text),
            None => return Err(ApiError::field("prompt", "prompt is missing (or messages)")),
        }
    };
    let chat = matches!(source, Source::Chat(..));
    // True for a text and false for a conversation is what happens anyway: no tokenizer here adds any.
    if fields.boolean("add_special_tokens")?.is_some_and(|add| add == chat) {
        return Err(ApiError::unsupported("add_special_tokens", "the tokenizer's own default is used"));
    }
    let return_token_strs = fields.boolean("return_token_strs")?.unwrap_or(false);
    log_unknown(&fields);
    Ok(TokenizeRequest { source, return_token_strs })
}

/// Parses and checks a request to `/detokenize`.
pub(crate) fn parse_detokenize(body: &[u8], model: &ModelFacts) -> Result<Vec<TokenId>, ApiError> {
    let mut fields = Fields::parse(body)?;
    model.check_name(&mut fields)?;
    let ids = fields.list("tokens")?.ok_or_else(|| ApiError::field("tokens", "tokens is missing"))?;
    log_unknown(&fields);
    ids.iter().map(|id| token(id, "tokens", model)).collect()
}
