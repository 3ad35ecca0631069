//! What an answer is to be held to: `response_format`, and the names that vLLM, SGLang and llama.cpp give the same thing.

use lucid_grammar::Grammar;
use serde_json::{Map, Value};

use super::fields::{Fields, wrong_type};
use crate::protocol::error::ApiError;

/// A grammar, and the field that it came from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Structured {
    pub(crate) grammar: Grammar,
    pub(crate) field: String,
}

/// Other dialects' grammars, which are not read.
const FOREIGN: &[(&str, &str)] = &[
    ("structural_tag", "use `tools`, or a Lark grammar in `structured_outputs`"),
    ("ebnf", "EBNF is not read: use a Lark grammar in `structured_outputs`"),
    ("grammar", "GBNF is not read: use a Lark grammar in `structured_outputs`"),
    ("guided_whitespace_pattern", "whitespace in JSON cannot be chosen"),
];

/// The request's grammar, if it has one.
///
/// # Errors
/// A field is malformed, asks for what is not built, or there are two of them.
pub(crate) fn take(fields: &mut Fields) -> Result<Option<Structured>, ApiError> {
    for &(name, why) in FOREIGN {
        if fields.take(name).is_some() {
            return Err(ApiError::unsupported(name, why));
        }
    }
    // Which library holds the answer to it does not change what it is held to.
    fields.take("guided_decoding_backend");
    let mut all: Vec<Structured> = Vec::new();
    all.extend(response_format(fields)?);
    if let Some(wanted) = fields.object("structured_outputs")? {
        all.extend(structured_outputs(wanted)?);
    }
    for (name, kind) in [
        ("guided_json", "json"),
        ("guided_regex", "regex"),
        ("guided_choice", "choice"),
        ("guided_grammar", "grammar"),
        ("json_schema", "json"),
        ("regex", "regex"),
    ] {
        if let Some(value) = fields.take(name) {
            all.push(Structured { grammar: grammar(kind, value, name)?, field: name.to_owned() });
        }
    }
    if let [first, second, ..] = &all[..] {
        let message =
            format!("{} and {} both say what the answer is held to: give one", first.field, second.field);
        return Err(ApiError::field(&second.field, message));
    }
    Ok(all.pop())
}

/// OpenAI's field.
fn response_format(fields: &mut Fields) -> Result<Option<Structured>, ApiError> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let grammar = match format.get("type").and_then(Value::as_str) {
        Some("text") => return Ok(None),
        Some("json_object") => Grammar::JsonObject,
        Some("json_schema") => {
            let at = "response_format.json_schema";
            let Some(mut wanted) = format.shift_remove("json_schema") else {
                return Err(ApiError::field(at, format!("{at} is missing")));
            };
            let Some(schema) = wanted.get_mut("schema").map(Value::take) else {
                return Err(ApiError::field(format!("{at}.schema"), format!("{at}.schema is missing")));
            };
            self::grammar("json", schema, &format!("{at}.schema"))?
        }
        Some("structural_tag") => {
            return Err(ApiError::unsupported("response_format", "structural tags are not built"));
        }
        _ => {
            let message = "response_format.type must be \"text\", \"json_object\" or \"json_schema\"";
            return Err(ApiError::field("response_format.type", message));
        }
    };
    Ok(Some(Structured { grammar, field: "response_format".to_owned() }))
}

/// vLLM's field: one of its keys says what, the others are options.
fn structured_outputs(wanted: Map<String, Value>) -> Result<Vec<Structured>, ApiError> {
    let mut all = Vec::new();
    for (key, value) in wanted {
        let field = format!("structured_outputs.{key}");
        match (key.as_str(), value) {
            (_, Value::Null | Value::Bool(false)) => {}
            ("json_object", Value::Bool(true)) => {
                all.push(Structured { grammar: Grammar::JsonObject, field })
            }
            (kind @ ("json" | "regex" | "choice" | "grammar"), value) => {
                all.push(Structured { grammar: grammar(kind, value, &field)?, field });
            }
            // The others change what whitespace or properties JSON may have.
            (_, _) => {
                return Err(ApiError::unsupported(
                    field,
                    "it is not one of json, json_object, regex, choice and grammar",
                ));
            }
        }
    }
    Ok(all)
}

/// The grammar in a field. A schema may be JSON in a string, as SGLang has it.
fn grammar(kind: &str, value: Value, field: &str) -> Result<Grammar, ApiError> {
    match (kind, value) {
        ("json", schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Grammar::JsonSchema(schema)),
        ("json", Value::String(text)) => match serde_json::from_str(&text) {
            Ok(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Grammar::JsonSchema(schema)),
            Ok(other) => Err(wrong_type(field, "a JSON schema", &other)),
            Err(error) => Err(ApiError::field(field, format!("{field} is not JSON: {error}"))),
        },
        ("json", other) => Err(wrong_type(field, "a JSON schema", &other)),
        ("regex", Value::String(pattern)) => Ok(Grammar::Regex(pattern)),
        ("regex", other) => Err(wrong_type(field, "a regular expression", &other)),
        ("choice", Value::Array(choices)) if !choices.is_empty() => choices
            .into_iter()
            .map(|choice| match choice {
                Value::String(text) if !text.is_empty() => Ok(text),
                other => Err(wrong_type(field, "a list of texts that are not empty", &other)),
            })
            .collect::<Result<_, _>>()
            .map(Grammar::Choice),
        ("choice", other) => Err(wrong_type(field, "a list of texts that is not empty", &other)),
        (_, Value::String(text)) => Ok(Grammar::Lark(text)),
        (_, other) => Err(wrong_type(field, "a Lark grammar", &other)),
    }
}
