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

    /// Whether an answer to this prompt begins inside the reasoning; `asked` is what the request's flags say.
    pub(crate) fn thinks(&self, prompt_text: &str, asked: bool) -> bool {
        self.tokenizer.id("</think>").is_some() && begins_in_reasoning(prompt_text, asked)
    }
}

/// The end of the prompt says it (DeepSeek-V3.1's and GLM's templates close the reasoning where none is wanted, Kimi-K2.5's opens it), and
/// where it says nothing (Kimi-K2-Thinking), the request does.
fn begins_in_reasoning(prompt_text: &str, asked: bool) -> bool {
    let end = prompt_text.trim_end();
    end.ends_with("<think>") || asked && !end.ends_with("</think>")
}

fn refused(field: &str, error: &Error) -> ApiError {
    let field = if matches!(error, Error::NoMarker(_)) { "tool_choice" } else { field };
    ApiError::field(field, format!("{field}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends of prompts as the templates write them.
    #[test]
    fn the_end_of_a_prompt_says_whether_reasoning_follows() {
        for (end, asked, begins) in [
            ("<|im_assistant|>assistant<|im_middle|><think>", true, true),
            // Kimi-K2.5 told `enable_thinking`, which its template doesn't know.
            ("<|im_assistant|>assistant<|im_middle|><think>", false, true),
            ("<|im_assistant|>assistant<|im_middle|><think></think>", true, false),
            ("<|im_assistant|>assistant<|im_middle|>", true, true),
            ("<|im_assistant|>assistant<|im_middle|>", false, false),
            ("<\u{ff5c}Assistant\u{ff5c}><think>\n", true, true),
            ("<\u{ff5c}Assistant\u{ff5c}></think>", true, false),
            ("<|assistant|></think>", true, false),
        ] {
            assert_eq!(begins_in_reasoning(end, asked), begins, "{end:?}, {asked}");
        }
    }
}
