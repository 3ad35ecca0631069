//! What an answer is held to, compiled for this model.

use lucid_engine::Guide;
use lucid_grammar::{Beginning, Calls, Error, Grammar, Grammars};
use serde_json::json;

use crate::app::Inner;
use crate::protocol::error::ApiError;
use crate::validate::chat::ChatRequest;

/// What an answer is held to, if to anything. It is no part of a request's shape: the shape is shared, and this is used up.
pub(crate) type Guidance = Option<Box<dyn Guide>>;

impl Inner {
    /// The guide of a chat answer; `None` if it is free.
    pub(crate) fn chat_guide(&self, request: &ChatRequest, thinking: bool) -> Result<Guidance, ApiError> {
        let beginning = if thinking { Beginning::Reasoning } else { Beginning::Answer };
        let calls = |instead| Calls {
            functions: request.tools.functions(),
            first: request.prompt.calls(),
            several: request.tools.several,
            instead,
        };
        if request.tools.forced.is_some() {
            return self.guide(&Grammar::Calls(calls(None)), "tools", beginning).map(Some);
        }
        let Some(structured) = &request.structured else { return Ok(None) };
        // A model that may call tools still may.
        let schema = match &structured.grammar {
            Grammar::JsonObject if request.tools.parse => Some(json!({"type": "object"})),
            Grammar::JsonSchema(schema) if request.tools.parse => Some(schema.clone()),
            _ => None,
        };
        if let Some(schema) = schema
            && lucid_grammar::makes_calls(&self.tokenizer)
        {
            return self.guide(&Grammar::Calls(calls(Some(schema))), &structured.field, beginning).map(Some);
        }
        self.guide(&structured.grammar, &structured.field, beginning).map(Some)
    }

    /// Compiles a grammar. Errors name `field`.
    pub(crate) fn guide(
        &self,
        grammar: &Grammar,
        field: &str,
        beginning: Beginning,
    ) -> Result<Box<dyn Guide>, ApiError> {
        let grammars = self
            .grammars
            .get_or_init(|| Grammars::new(&self.tokenizer, self.facts.vocab_size, &self.eos))
            .as_ref()
            .map_err(|error| refused(field, error))?;
        grammars.compile(grammar, beginning).map_err(|error| refused(field, &error))
    }

    /// Whether an answer begins inside the reasoning: the end of the prompt says it, and where it says nothing, the request does. A
    /// vocabulary without `</think>` has no reasoning.
    pub(crate) fn thinks(&self, prompt_text: &str, asked: bool) -> bool {
        let end = prompt_text.trim_end();
        if self.tokenizer.id("</think>").is_none() || end.ends_with("</think>") {
            return false;
        }
        end.ends_with("<think>") || asked
    }
}

fn refused(field: &str, error: &Error) -> ApiError {
    let field = if matches!(error, Error::NoMarker(_)) { "tool_choice" } else { field };
    ApiError::field(field, format!("{field}: {error}"))
}
