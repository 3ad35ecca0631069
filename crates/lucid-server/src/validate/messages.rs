//! The conversation: roles, and content that is a string, null, or a list of text parts.

use serde_json::{Map, Value};

use super::fields::wrong_type;
use crate::protocol::error::ApiError;

/// Checks `messages` and brings them into the form that chat templates read: content is one string (or null in an
/// assistant's turn), reasoning stands under both of its names.
pub(crate) fn normalize(list: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    if list.is_empty() {
        return Err(ApiError::field("messages", "messages is empty: send at least one"));
    }
    list.into_iter().enumerate().map(|(i, value)| message(value, &format!("messages[{i}]"))).collect()
}

fn message(value: Value, at: &str) -> Result<Value, ApiError> {
    let Value::Object(mut map) = value else { return Err(wrong_type(at, "an object", &value)) };
    let role_at = format!("{at}.role");
    let role = match map.get("role") {
        None => return Err(ApiError::field(role_at, "a message has no role")),
        Some(Value::String(role)) => role.clone(),
        Some(other) => return Err(wrong_type(&role_at, "a string", other)),
    };
    match role.as_str() {
        "system" | "user" | "assistant" | "tool" => {}
        // OpenAI's newer word for the same turn; templates of open models know only "system".
        "developer" => {
            map.insert("role".into(), "system".into());
        }
        _ => {
            let message =
                format!("role is \"{role:.40}\", it must be system, developer, user, assistant or tool");
            return Err(ApiError::field(role_at, message));
        }
    }
    let assistant = role == "assistant";
    for refused in ["function_call", "audio"] {
        if map.get(refused).is_some_and(|value| !value.is_null()) {
            return Err(ApiError::unsupported(
                format!("{at}.{refused}"),
                "messages hold text and tool_calls",
            ));
        }
    }
    let content = match map.shift_remove("content") {
        None if !assistant => {
            return Err(ApiError::field(format!("{at}.content"), "a message has no content"));
        }
        None | Some(Value::Null) if assistant => Value::Null,
        None | Some(Value::Null) => "".into(),
        Some(Value::String(text)) => text.into(),
        Some(Value::Array(parts)) => joined(parts, &format!("{at}.content"))?.into(),
        Some(other) => {
            return Err(wrong_type(
                &format!("{at}.content"),
                "a string, null or a list of text parts",
                &other,
            ));
        }
    };
    map.insert("content".into(), content);
    both_names_of_reasoning(&mut map, at)?;
    for text in ["name", "tool_call_id"] {
        if let Some(other) = map.get(text).filter(|value| !value.is_null() && !value.is_string()) {
            return Err(wrong_type(&format!("{at}.{text}"), "a string", other));
        }
    }
    tool_calls(&mut map, at)?;
    Ok(Value::Object(map))
}

/// Text parts become one text, a line each, as vLLM does for templates that expect a string.
fn joined(parts: Vec<Value>, at: &str) -> Result<String, ApiError> {
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        let at = format!("{at}[{i}]");
        let piece = match part {
            Value::String(piece) => piece,
            Value::Object(map) => match map.get("type").and_then(Value::as_str) {
                Some("text") => match map.get("text") {
                    Some(Value::String(piece)) => piece,
                    Some(other) => return Err(wrong_type(&format!("{at}.text"), "a string", other)),
                    None => return Err(ApiError::field(format!("{at}.text"), "a text part has no text")),
                },
                Some(kind) => {
                    let message =
                        format!("content of type \"{kind:.40}\" is not supported: Lucid reads text only");
                    return Err(ApiError::field(format!("{at}.type"), message));
                }
                None => return Err(ApiError::field(format!("{at}.type"), "a content part has no type")),
            },
            other => return Err(wrong_type(&at, "a text part", other)),
        };
        if i > 0 {
            text.push('\n');
        }
        text.push_str(piece);
    }
    Ok(text)
}

/// vLLM says `reasoning`, SGLang and DeepSeek say `reasoning_content`; templates read one or the other.
fn both_names_of_reasoning(map: &mut Map<String, Value>, at: &str) -> Result<(), ApiError> {
    let mut found = None;
    for name in ["reasoning", "reasoning_content"] {
        match map.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => found = found.or_else(|| Some(text.clone())),
            Some(other) => return Err(wrong_type(&format!("{at}.{name}"), "a string", other)),
        }
    }
    if let Some(text) = found {
        map.insert("reasoning".into(), text.clone().into());
        map.insert("reasoning_content".into(), text.into());
    }
    Ok(())
}

/// Checks the calls of an earlier turn. Arguments stay as the model wrote them, so that the prompt repeats it exactly.
fn tool_calls(map: &mut Map<String, Value>, at: &str) -> Result<(), ApiError> {
    let at = format!("{at}.tool_calls");
    let calls = match map.get("tool_calls") {
        None => return Ok(()),
        // Templates ask whether the key is defined; both of these mean that there are none.
        Some(Value::Null) => {
            map.shift_remove("tool_calls");
            return Ok(());
        }
        Some(Value::Array(calls)) if calls.is_empty() => {
            map.shift_remove("tool_calls");
            return Ok(());
        }
        Some(Value::Array(calls)) => calls,
        Some(other) => return Err(wrong_type(&at, "a list", other)),
    };
    for (i, call) in calls.iter().enumerate() {
        let at = format!("{at}[{i}].function");
        let Some(function) = call.get("function").and_then(Value::as_object) else {
            return Err(ApiError::field(at, "a tool call has no function"));
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(ApiError::field(format!("{at}.name"), "a tool call's function has no name"));
        }
        match function.get("arguments") {
            None | Some(Value::String(_) | Value::Object(_)) => {}
            Some(other) => return Err(wrong_type(&format!("{at}.arguments"), "JSON in a string", other)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(value: Value) -> Result<Value, ApiError> {
        normalize(vec![value]).map(|mut list| list.remove(0))
    }

    #[test]
    fn content_takes_three_forms() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        assert_eq!(one(json!({"role": "user", "content": parts})).unwrap()["content"], "a\nb");
        assert_eq!(one(json!({"role": "user", "content": null})).unwrap()["content"], "");
        assert_eq!(one(json!({"role": "assistant"})).unwrap()["content"], Value::Null);
    }

    #[test]
    fn reasoning_stands_under_both_names() {
        let message = one(json!({"role": "assistant", "content": "a", "reasoning_content": "r"})).unwrap();
        assert_eq!((&message["reasoning"], &message["reasoning_content"]), (&json!("r"), &json!("r")));
    }

    #[test]
    fn a_developer_is_the_system() {
        assert_eq!(one(json!({"role": "developer", "content": "a"})).unwrap()["role"], "system");
    }

    #[test]
    fn errors_name_the_part() {
        for (message, param) in [
            (json!("hi"), "messages[0]"),
            (json!({"content": "a"}), "messages[0].role"),
            (json!({"role": "narrator", "content": "a"}), "messages[0].role"),
            (json!({"role": "user"}), "messages[0].content"),
            (json!({"role": "user", "content": 3}), "messages[0].content"),
            (json!({"role": "user", "content": [{"type": "image_url"}]}), "messages[0].content[0].type"),
            (json!({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
            (json!({"role": "user", "content": "a", "name": 1}), "messages[0].name"),
            (json!({"role": "assistant", "reasoning": 1}), "messages[0].reasoning"),
            (json!({"role": "assistant", "audio": {"id": "x"}}), "messages[0].audio"),
            (json!({"role": "assistant", "tool_calls": {}}), "messages[0].tool_calls"),
            (json!({"role": "assistant", "tool_calls": [{}]}), "messages[0].tool_calls[0].function"),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}),
                "messages[0].tool_calls[0].function.arguments",
            ),
        ] {
            assert_eq!(one(message.clone()).unwrap_err().param.as_deref(), Some(param), "{message}");
        }
        assert_eq!(normalize(vec![]).unwrap_err().param.as_deref(), Some("messages"));
    }
}
