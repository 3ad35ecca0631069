//! From a checked request to the tokens of its prompt.

use lucid_checkpoint::TokenId;
use lucid_text::{Error, Specials};
use serde_json::Value;

use crate::app::Inner;
use crate::protocol::error::ApiError;
use crate::validate::chat::ChatPrompt;

impl Inner {
    /// The text of a conversation, as the checkpoint's own template writes it.
    pub(crate) fn render(&self, chat: &ChatPrompt, tools: Option<&Vec<Value>>) -> Result<String, ApiError> {
        let Some(template) = &self.template else {
            let message = "this model has no chat template: use /v1/completions with the prompt as the model expects it";
            return Err(ApiError::field("messages", message));
        };
        let messages = Value::Array(chat.messages.clone());
        let tools = tools.map(|list| Value::Array(list.clone()));
        template
            .render(&messages, tools.as_ref(), &chat.template_kwargs, chat.add_generation_prompt)
            .map_err(|error| ApiError::field("messages", error.to_string()))
    }

    /// The tokens of a text. Names of special tokens in it become those tokens, as with Hugging Face and vLLM.
    pub(crate) fn encode(&self, text: &str, field: &str) -> Result<Vec<TokenId>, ApiError> {
        self.tokenizer.encode(text, Specials::Recognize).map_err(|error| match error {
            Error::Encode { problem, .. } => {
                ApiError::field(field, format!("the text cannot be encoded: {problem}"))
            }
            other => ApiError::field(field, other.to_string()),
        })
    }

    /// Tokens that end an answer to a request with these settings.
    pub(crate) fn stop_tokens(&self, own: &[TokenId], ignore_eos: bool) -> Vec<TokenId> {
        let model = if ignore_eos || !self.act.ends_at_eos() { &[][..] } else { &self.eos };
        let mut all = model.to_vec();
        all.extend(own.iter().filter(|id| !model.contains(id)));
        all
    }
}
