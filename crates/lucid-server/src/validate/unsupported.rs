//! Fields that change an answer and that Lucid does not do yet. They are refused by name: ignoring them would
//! give a client something else than it asked for.

use serde_json::Value;

use super::fields::Fields;
use crate::protocol::error::ApiError;

/// Field, the value that asks for nothing (if there is one), and why it is refused.
type Refused = (&'static str, Option<Neutral>, &'static str);

#[derive(Clone, Copy)]
enum Neutral {
    False,
    True,
    One,
    Empty,
}

const IMAGES: &str = "Lucid reads text only";

/// For both endpoints.
const BOTH: &[Refused] = &[
    ("stop_regex", None, "stop strings must be plain"),
    ("best_of", Some(Neutral::One), "answers are not ranked"),
    ("use_beam_search", Some(Neutral::False), "beam search is not built"),
    ("length_penalty", Some(Neutral::One), "it belongs to beam search"),
    ("bad_words", Some(Neutral::Empty), "use `logit_bias` for single tokens"),
    ("allowed_token_ids", Some(Neutral::Empty), "use `logit_bias`"),
    ("logits_processors", Some(Neutral::Empty), "the server runs no foreign code"),
    ("logprob_token_ids", Some(Neutral::Empty), "use `top_logprobs`"),
    ("truncate_prompt_tokens", None, "prompts are never cut"),
    ("spaces_between_special_tokens", Some(Neutral::True), "no spaces are ever added"),
    ("repetition_detection", None, "it is not built"),
    ("thinking_token_budget", None, "use `max_tokens`"),
    ("mm_processor_kwargs", None, IMAGES),
    ("prompt_embeds", None, "prompts are text or token ids"),
    ("cache_salt", None, "the prefix cache has no partitions"),
    ("kv_transfer_params", None, "the cache stays on this server"),
    ("vllm_xargs", None, "it is vLLM's own"),
    ("lora_path", None, "adapters are not built"),
];

const CHAT: &[Refused] = &[
    ("functions", None, "use `tools`"),
    ("function_call", None, "use `tool_choice`"),
    ("audio", None, IMAGES),
    ("prediction", None, "predicted outputs are not built"),
    ("web_search_options", None, "the server looks nothing up"),
    ("echo", Some(Neutral::False), "the template renders whole messages"),
    ("continue_final_message", Some(Neutral::False), "the template renders whole messages"),
    ("chat_template", None, "the checkpoint's own template is used"),
    ("documents", Some(Neutral::Empty), "put them into a message"),
    ("add_special_tokens", Some(Neutral::False), "the template writes them"),
];

const COMPLETIONS: &[Refused] = &[
    ("suffix", Some(Neutral::Empty), "filling in the middle is not built"),
    ("add_special_tokens", Some(Neutral::True), "prompts are encoded as the tokenizer does by default"),
];

/// Refuses what a chat request asks for in vain.
pub(crate) fn refuse_in_chat(fields: &mut Fields) -> Result<(), ApiError> {
    if let Some(modalities) = fields.take("modalities")
        && modalities.as_array().is_none_or(|list| list.iter().any(|item| item != "text"))
    {
        return Err(ApiError::unsupported("modalities", IMAGES));
    }
    refuse(fields, CHAT)?;
    refuse_in_both(fields)
}

/// Refuses what a completions request asks for in vain.
pub(crate) fn refuse_in_completions(fields: &mut Fields) -> Result<(), ApiError> {
    refuse(fields, COMPLETIONS)?;
    refuse_in_both(fields)
}

fn refuse_in_both(fields: &mut Fields) -> Result<(), ApiError> {
    refuse(fields, BOTH)
}

fn refuse(fields: &mut Fields, table: &[Refused]) -> Result<(), ApiError> {
    for &(name, neutral, why) in table {
        if let Some(value) = fields.take(name)
            && !neutral.is_some_and(|neutral| is_neutral(&value, neutral))
        {
            return Err(ApiError::unsupported(name, why));
        }
    }
    Ok(())
}

fn is_neutral(value: &Value, neutral: Neutral) -> bool {
    match neutral {
        Neutral::False => value == &Value::Bool(false),
        Neutral::True => value == &Value::Bool(true),
        Neutral::One => value.as_f64() == Some(1.0),
        Neutral::Empty => value.as_array().is_some_and(Vec::is_empty) || value == "",
    }
}
