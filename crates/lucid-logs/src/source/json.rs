//! One JSON object a line: Docker's json-file, the journal, and engines that log JSON.

use serde_json::{Map, Value};

use super::{Format, Record};
use crate::line::{Level, timestamp};
use crate::moment::Moment;

/// Takes the line's text out of the object; false if it is no object that we know, and the line stays as it is.
/// The second value is whether the line goes on in the next object (Docker cuts at 16 KiB).
pub(crate) fn unwrap(raw: &[u8], record: &mut Record) -> Option<bool> {
    let object: Map<String, Value> = match serde_json::from_slice(raw) {
        Ok(Value::Object(object)) => object,
        Ok(_) => return None,
        // Strings that aren't UTF-8: the rest is still worth reading.
        Err(_) if std::str::from_utf8(raw).is_err() => {
            serde_json::from_str(&String::from_utf8_lossy(raw)).ok()?
        }
        Err(_) => return None,
    };
    if object.contains_key("__REALTIME_TIMESTAMP") || object.contains_key("MESSAGE") {
        journal(&object, record);
        return Some(false);
    }
    if let (Some(Value::String(log)), true) =
        (object.get("log"), object.contains_key("stream") || object.contains_key("time"))
    {
        record.format = Format::DockerJson;
        record.time = text(&object, "time").and_then(|time| timestamp(time.as_bytes())).map(|(time, _)| time);
        let whole = log.ends_with('\n');
        record.text.extend_from_slice(log.trim_end_matches(['\n', '\r']).as_bytes());
        return Some(!whole);
    }
    // Only what says both a level and a message is a log line; an answer of the API is left as it is.
    let message = text(&object, "message").or_else(|| text(&object, "msg"))?;
    let level = ["levelname", "level", "severity"].iter().find_map(|key| text(&object, key))?;
    record.format = Format::Json;
    record.level = Level::parse(level.as_bytes());
    record.time = ["asctime", "timestamp", "time", "ts"]
        .iter()
        .find_map(|key| text(&object, key))
        .and_then(|time| timestamp(time.as_bytes()))
        .map(|(time, _)| time);
    record.ident =
        ["processName", "process_name"].iter().find_map(|key| text(&object, key)).map(str::to_owned);
    record.pid = ["process", "pid"]
        .iter()
        .find_map(|key| object.get(*key)?.as_u64())
        .and_then(|pid| u32::try_from(pid).ok());
    record.text.extend_from_slice(message.as_bytes());
    if let Some(exception) = text(&object, "exc_info").or_else(|| text(&object, "exception")) {
        record.text.push(b'\n');
        record.text.extend_from_slice(exception.as_bytes());
    }
    Some(false)
}

/// An entry of the journal, as `journalctl -o json` prints it: every value is a string, an array of bytes (not UTF-8, or
/// not printable), null (too long), or an array of those (the field was given several times).
fn journal(object: &Map<String, Value>, record: &mut Record) {
    record.format = Format::JournalJson;
    if let Some(message) = object.get("MESSAGE") {
        bytes(message, &mut record.text);
    }
    for (name, value) in object {
        let mut field = Vec::new();
        bytes(value, &mut field);
        journal_field(name, &field, record);
    }
}

/// What a field of the journal, except the message, says about its line.
pub(crate) fn journal_field(name: &str, value: &[u8], record: &mut Record) {
    let value = std::str::from_utf8(value).unwrap_or("");
    match name {
        "__REALTIME_TIMESTAMP" => {
            record.time = value.parse::<i64>().ok().map(|micros| Moment::from_millis(micros / 1000));
        }
        "_PID" | "SYSLOG_PID" => record.pid = record.pid.or(value.parse().ok()),
        "SYSLOG_IDENTIFIER" if !value.is_empty() => record.ident = Some(value.to_owned()),
        "_TRANSPORT" if value == "kernel" => record.ident = Some("kernel".to_owned()),
        "PRIORITY" => {
            record.level = match value {
                "0" | "1" | "2" => Some(Level::Critical),
                "3" => Some(Level::Error),
                "4" => Some(Level::Warning),
                // Whatever a service writes without a priority comes as 6: that says nothing.
                _ => None,
            };
        }
        _ => {}
    }
}

/// The bytes of a journal value.
fn bytes(value: &Value, into: &mut Vec<u8>) {
    match value {
        Value::String(text) => into.extend_from_slice(text.as_bytes()),
        Value::Array(items) if items.iter().all(Value::is_number) => {
            into.extend(items.iter().filter_map(|item| u8::try_from(item.as_u64()?).ok()));
        }
        Value::Array(items) => {
            for item in items.iter().filter(|item| !matches!(item, Value::Object(_))) {
                if !into.is_empty() {
                    into.push(b'\n');
                }
                // One level only: the journal nests no deeper.
                match item {
                    Value::Array(inner) if !inner.iter().all(Value::is_number) => {}
                    _ => bytes(item, into),
                }
            }
        }
        _ => {}
    }
}

fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    object.get(key)?.as_str()
}
