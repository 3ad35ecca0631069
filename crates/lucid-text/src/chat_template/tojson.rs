//! The `tojson` filter as Hugging Face defines it: Python's `json.dumps` with `ensure_ascii=False`.
//!
//! The filter of Jinja2 (and of minijinja) escapes `<`, `>`, `&` and `'` for HTML, which would change the prompt.

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind};

use super::python::float;

/// Values nested deeper than this are refused, long before the stack ends.
const MAX_DEPTH: usize = 200;

/// The filter's arguments; they may also be given without names, in this order.
const ARGUMENTS: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(crate) fn tojson(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    let (positional, kwargs) = from_args::<(&[Value], Kwargs)>(&arguments)?;
    if positional.len() > ARGUMENTS.len() {
        return Err(invalid(format!("at most {} arguments: {}", ARGUMENTS.len(), ARGUMENTS.join(", "))));
    }
    let argument = |name: &str| -> Result<Value, Error> {
        let place = ARGUMENTS.iter().position(|argument| *argument == name);
        let positional = place.and_then(|place| positional.get(place)).cloned();
        Ok(kwargs.get::<Option<Value>>(name)?.or(positional).unwrap_or(Value::from(())))
    };
    let ensure_ascii = argument("ensure_ascii")?.is_true();
    let indent = read_indent(&argument("indent")?)?;
    let sort_keys = argument("sort_keys")?.is_true();
    let separators = argument("separators")?;
    kwargs.assert_all_used()?;

    let (item_separator, key_separator) = if separators.is_none() {
        let item = if indent.is_some() { "," } else { ", " };
        (item.to_owned(), ": ".to_owned())
    } else {
        read_separators(&separators)?
    };
    let mut writer =
        Writer { json: String::new(), ensure_ascii, indent, sort_keys, item_separator, key_separator };
    writer.value(value, 0)?;
    Ok(Value::from(writer.json))
}

fn invalid(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {}", problem.into()))
}

/// A number of spaces, or the text itself.
fn read_indent(indent: &Value) -> Result<Option<String>, Error> {
    if indent.is_none() {
        return Ok(None);
    }
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let spaces = i64::try_from(indent.clone()).map_err(|_| invalid("indent must be a number or a string"))?;
    // Python takes a negative number as 0. More than 64 is not meant to be read.
    let spaces = usize::try_from(spaces.max(0)).unwrap_or(usize::MAX);
    if spaces > 64 {
        return Err(invalid(format!("indent={spaces} is more than 64")));
    }
    Ok(Some(" ".repeat(spaces)))
}

fn read_separators(separators: &Value) -> Result<(String, String), Error> {
    let wrong = || invalid("separators must be two strings: (item, key)");
    let pair: Vec<Value> = separators.try_iter()?.take(3).collect();
    let [item, key] = pair.as_slice() else { return Err(wrong()) };
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned).ok_or_else(wrong);
    Ok((text(item)?, text(key)?))
}

struct Writer {
    json: String,
    ensure_ascii: bool,
    /// One level of indentation; `None` for everything on one line.
    indent: Option<String>,
    sort_keys: bool,
    item_separator: String,
    key_separator: String,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!("values are nested deeper than {MAX_DEPTH}")));
        }
        match value.kind() {
            ValueKind::None => self.json.push_str("null"),
            ValueKind::Bool => self.json.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.json.push_str(&number(value)?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.container('[', ']', depth, &items, |writer, item| writer.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.container('{', '}', depth, &keys, |writer, key| {
                    writer.string(&key_text(key)?);
                    let separator = writer.key_separator.clone();
                    writer.json.push_str(&separator);
                    writer.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            ValueKind::Undefined => return Err(invalid("the value is undefined")),
            kind => return Err(invalid(format!("a {kind} cannot be written as JSON"))),
        }
        Ok(())
    }

    fn container(
        &mut self,
        open: char,
        close: char,
        depth: usize,
        items: &[Value],
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.json.push(open);
        for (number, item) in items.iter().enumerate() {
            if number > 0 {
                let separator = self.item_separator.clone();
                self.json.push_str(&separator);
            }
            self.line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.json.push(close);
        Ok(())
    }

    /// Begins a line, if there are lines.
    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.json.push('\n');
            self.json.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.json.push('"');
        for character in text.chars() {
            match character {
                '"' => self.json.push_str("\\\""),
                '\\' => self.json.push_str("\\\\"),
                '\n' => self.json.push_str("\\n"),
                '\r' => self.json.push_str("\\r"),
                '\t' => self.json.push_str("\\t"),
                '\u{8}' => self.json.push_str("\\b"),
                '\u{c}' => self.json.push_str("\\f"),
                '\0'..='\u{1f}' => self.escape(character),
                '\u{7f}'.. if self.ensure_ascii => self.escape(character),
                _ => self.json.push(character),
            }
        }
        self.json.push('"');
    }

    /// `\uXXXX`, twice for a character outside the basic plane.
    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            self.json.push_str(&format!("\\u{unit:04x}"));
        }
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => number(key),
        kind => Err(invalid(format!("a {kind} cannot be a key"))),
    }
}

fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let number = f64::try_from(value.clone())?;
    Ok(match number {
        // Not JSON, but what Python writes.
        _ if number.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        _ => float(number),
    })
}
