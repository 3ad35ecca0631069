//! `tools` and `tool_choice`.

use lucid_grammar::Function;
use serde_json::{Map, Value};

use super::fields::{Fields, wrong_type};
use crate::protocol::error::ApiError;

/// The tools of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tools {
    /// What the template declares, as the client wrote it.
    pub(crate) declared: Option<Vec<Value>>,
    /// Calls in the answer become `tool_calls`.
    pub(crate) parse: bool,
    /// The answer must be calls.
    pub(crate) forced: Option<Forced>,
    /// Several calls may be made.
    pub(crate) several: bool,
}

/// Which calls must be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Forced {
    /// One of any tool, or more.
    Any,
    /// One of the tool with this name.
    Named(String),
}

impl Tools {
    /// The functions that may be called.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let declared = self.declared.iter().flatten().filter_map(|tool| tool.get("function"));
        let function = |function: &Value| {
            let name = function.get("name")?.as_str()?;
            let wanted = !matches!(&self.forced, Some(Forced::Named(only)) if only != name);
            let parameters = function.get("parameters").filter(|schema| schema.is_object()).cloned();
            wanted.then(|| Function { name: name.to_owned(), parameters })
        };
        declared.filter_map(function).collect()
    }
}

/// The default is `auto` with tools and `none` without, as in OpenAI's API. With `none` the tools are still declared to
/// the model (as vLLM does), but its calls stay text.
pub(crate) fn take(fields: &mut Fields) -> Result<Tools, ApiError> {
    let declared = fields.list("tools")?;
    if let Some(list) = &declared {
        if list.is_empty() {
            return Err(ApiError::field("tools", "tools is empty: leave the field out"));
        }
        for (i, tool) in list.iter().enumerate() {
            check(tool, &format!("tools[{i}]"))?;
        }
    }
    let (parse, forced) = match fields.take("tool_choice") {
        None => (declared.is_some(), None),
        Some(Value::String(choice)) => match choice.as_str() {
            "none" => (false, None),
            "auto" | "required" if declared.is_none() => {
                let message = format!("tool_choice is {choice:?}, but there are no tools");
                return Err(ApiError::field("tool_choice", message));
            }
            "auto" => (true, None),
            "required" => (true, Some(Forced::Any)),
            _ => {
                let message = "tool_choice must be \"auto\", \"none\", \"required\" or name a function";
                return Err(ApiError::field("tool_choice", message));
            }
        },
        Some(Value::Object(choice)) => (true, Some(named(&choice, declared.as_deref().unwrap_or_default())?)),
        Some(other) => return Err(wrong_type("tool_choice", "a string or an object", &other)),
    };
    let several = match fields.boolean("parallel_tool_calls")? {
        Some(false) if forced.is_none() && parse => {
            let why = "calls that the model makes by itself are not counted; with `tool_choice`: \"required\" they are";
            return Err(ApiError::unsupported("parallel_tool_calls", why));
        }
        parallel => parallel.unwrap_or(true) && !matches!(forced, Some(Forced::Named(_))),
    };
    Ok(Tools { declared, parse, forced, several })
}

/// `{"type": "function", "function": {"name": …}}`, for a tool that was declared.
fn named(choice: &Map<String, Value>, declared: &[Value]) -> Result<Forced, ApiError> {
    if choice.get("type").is_some_and(|kind| kind != "function") {
        return Err(ApiError::field("tool_choice.type", "tool_choice.type must be \"function\""));
    }
    let Some(name) = choice.get("function").and_then(|function| function.get("name")).and_then(Value::as_str)
    else {
        return Err(ApiError::field("tool_choice.function.name", "tool_choice names no function"));
    };
    let known = declared.iter().any(|tool| tool.pointer("/function/name").is_some_and(|known| known == name));
    if !known {
        let message = format!("tool_choice names {name:.100}, which is none of the tools");
        return Err(ApiError::field("tool_choice.function.name", message));
    }
    Ok(Forced::Named(name.to_owned()))
}

fn check(tool: &Value, at: &str) -> Result<(), ApiError> {
    let Some(tool) = tool.as_object() else { return Err(wrong_type(at, "an object", tool)) };
    if tool.get("type").is_some_and(|kind| kind != "function") {
        return Err(ApiError::field(format!("{at}.type"), "a tool's type must be \"function\""));
    }
    let at = format!("{at}.function");
    let Some(function) = tool.get("function").and_then(Value::as_object) else {
        return Err(ApiError::field(at, "a tool has no function"));
    };
    if function.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(ApiError::field(format!("{at}.name"), "a tool's function has no name"));
    }
    match function.get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(other) => Err(wrong_type(&format!("{at}.parameters"), "a JSON schema object", other)),
    }
}
