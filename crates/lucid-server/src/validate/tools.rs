//! `tools` and `tool_choice`.

use serde_json::Value;

use super::fields::{Fields, wrong_type};
use crate::protocol::error::ApiError;

/// The tools of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tools {
    /// What the template declares, as the client wrote it.
    pub(crate) declared: Option<Vec<Value>>,
    /// Calls in the answer become `tool_calls`.
    pub(crate) parse: bool,
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
    let parse = match fields.take("tool_choice") {
        None => declared.is_some(),
        Some(Value::String(choice)) => match choice.as_str() {
            "none" => false,
            "auto" if declared.is_some() => true,
            "auto" => {
                return Err(ApiError::field(
                    "tool_choice",
                    "tool_choice is \"auto\", but there are no tools",
                ));
            }
            "required" => return Err(forced()),
            _ => return Err(ApiError::field("tool_choice", "tool_choice must be \"auto\" or \"none\"")),
        },
        Some(Value::Object(_)) => return Err(forced()),
        Some(other) => return Err(wrong_type("tool_choice", "a string or an object", &other)),
    };
    Ok(Tools { declared, parse })
}

fn forced() -> ApiError {
    let message = "`tool_choice` is not supported yet for required or named tools: forcing a call needs guided decoding, \
                   which is not built. Use \"auto\" or \"none\".";
    ApiError::field("tool_choice", message)
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
