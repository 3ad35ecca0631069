//! Calls that must be made, as a grammar in Kimi's markers.
//!
//! ```text
//! <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|>
//! <|tool_calls_section_end|>
//! ```

use std::fmt::Write;

use lucid_text::Tokenizer;
use serde_json::{Value, json};

use crate::Error;
use crate::grammar::bounded;

/// What opens the section of calls. In the reasoning it ends the reasoning too.
pub(crate) const SECTION_BEGIN: &str = "<|tool_calls_section_begin|>";
const SECTION_END: &str = "<|tool_calls_section_end|>";
const CALL_BEGIN: &str = "<|tool_call_begin|>";
const ARGUMENTS_BEGIN: &str = "<|tool_call_argument_begin|>";
const CALL_END: &str = "<|tool_call_end|>";

/// Calls that an answer must consist of.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    /// The functions that may be called; not empty.
    pub functions: Vec<Function>,
    /// Number of the first call: Kimi counts calls over the whole conversation.
    pub first: usize,
    /// Several calls may be made.
    pub several: bool,
    /// JSON of this schema may stand in place of calls; `None`: calls must be made.
    pub instead: Option<Value>,
}

/// A function that can be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments; `None` allows any object.
    pub parameters: Option<Value>,
}

/// Whether the vocabulary has all markers of calls, so that they can be forced.
#[must_use]
pub fn makes_calls(tokenizer: &Tokenizer) -> bool {
    let markers = [SECTION_BEGIN, SECTION_END, CALL_BEGIN, ARGUMENTS_BEGIN, CALL_END];
    markers.iter().all(|marker| tokenizer.id(marker).is_some())
}

/// The calls as a Lark grammar.
///
/// # Errors
/// The vocabulary has not all of the markers.
pub(crate) fn lark(calls: &Calls, tokenizer: &Tokenizer) -> Result<String, Error> {
    let marker = |name| tokenizer.id(name).map(|id| format!("<[{}]>", id.0)).ok_or(Error::NoMarker(name));
    let (section_begin, section_end) = (marker(SECTION_BEGIN)?, marker(SECTION_END)?);
    let (call_begin, call_end) = (marker(CALL_BEGIN)?, marker(CALL_END)?);
    let arguments_begin = marker(ARGUMENTS_BEGIN)?;
    let mut grammar = String::new();
    let rest = if calls.several { " later*" } else { "" };
    let instead = if calls.instead.is_some() { " | instead" } else { "" };
    line(&mut grammar, &format!("start: {section_begin} first{rest} {section_end}{instead}"));
    if let Some(schema) = &calls.instead {
        line(&mut grammar, &format!("instead: %json {}", bounded(schema.clone())));
    }
    // The number of a later call is one more than the last: no grammar of a useful size counts, and the model does.
    for (rule, number) in
        [("first", text(&format!(":{}", calls.first))), ("later", r"/:(0|[1-9][0-9]{0,5})/".to_owned())]
    {
        if rule == "later" && !calls.several {
            continue;
        }
        let choices: Vec<String> =
            (0..calls.functions.len()).map(|index| format!("{rule}_{index}")).collect();
        line(&mut grammar, &format!("{rule}: {}", choices.join(" | ")));
        for (index, function) in calls.functions.iter().enumerate() {
            let header = text(&format!("functions.{}", function.name));
            let call =
                format!("{call_begin} {header} {number} {arguments_begin} arguments_{index} {call_end}");
            line(&mut grammar, &format!("{rule}_{index}: {call}"));
        }
    }
    for (index, function) in calls.functions.iter().enumerate() {
        let any = || json!({"type": "object"});
        let schema = bounded(function.parameters.clone().unwrap_or_else(any));
        line(&mut grammar, &format!("arguments_{index}: %json {schema}"));
    }
    Ok(grammar)
}

/// A literal of Lark, which is one of JSON.
pub(crate) fn text(literal: &str) -> String {
    Value::from(literal).to_string()
}

fn line(grammar: &mut String, text: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(grammar, "{text}");
}
