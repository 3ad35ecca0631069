//! Where Python's values behave unlike minijinja's, and templates rely on it.

use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Error, Output, State, escape_formatter};

/// Methods of Python's `str`, `dict` and `list`: minijinja's own set, and those that it lacks.
pub(crate) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match name {
            "rsplit" => {
                let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
                // As in Python, a negative limit is none.
                let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
                return Ok(Value::from(rsplit(text, separator, limit)));
            }
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            "partition" => {
                let (separator,): (&str,) = from_args(args)?;
                let (before, after) = text.split_once(separator).unwrap_or((text, ""));
                let found = if text.contains(separator) { separator } else { "" };
                return Ok([before, found, after].into_iter().collect());
            }
            "rpartition" => {
                let (separator,): (&str,) = from_args(args)?;
                let (before, after) = text.rsplit_once(separator).unwrap_or(("", text));
                let found = if text.contains(separator) { separator } else { "" };
                return Ok([before, found, after].into_iter().collect());
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// `str.rsplit`: at most `limit` splits, counted from the right; without a separator at runs of whitespace.
fn rsplit(text: &str, separator: Option<&str>, limit: usize) -> Vec<String> {
    let mut parts: Vec<&str> = match separator {
        Some(separator) => text.rsplitn(limit.saturating_add(1), separator).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end();
            while parts.len() < limit
                && let Some(space) = rest.rfind(char::is_whitespace)
            {
                let word = rest[space..].trim_start();
                parts.push(word);
                rest = rest[..rest.len() - word.len()].trim_end();
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
            parts
        }
    };
    parts.reverse();
    parts.into_iter().map(ToOwned::to_owned).collect()
}

/// Jinja2's test `sequence`: what has a length and can be indexed. That includes strings and mappings.
pub(crate) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
}

/// Jinja2's test `iterable`. For minijinja none is an empty list; in Python it is not, and GLM's template depends on it.
pub(crate) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && (value.is_undefined() || value.try_iter().is_ok())
}

/// Writes a value into the prompt as Python's `str` does. minijinja does so too, but for very large and small floats.
pub(crate) fn print(output: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if value.kind() == ValueKind::Number && !value.is_integer() {
        let number = f64::try_from(value.clone())?;
        if number.is_finite() {
            return output.write_str(&float(number)).map_err(Error::from);
        }
    }
    escape_formatter(output, state, value)
}

/// `float.__repr__` of a finite number: the shortest digits that give the number back, with an exponent outside 1e-4 … 1e16.
pub(crate) fn float(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        // `{:?}` writes `1.0` for a whole number, as Python does, and no exponent in this range.
        return format!("{value:?}");
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    #[allow(clippy::approx_constant)]
    fn floats_are_written_as_python_writes_them() {
        // Left: Python 3.11 `repr`.
        for (python, value) in [
            ("0.0", 0.0),
            ("-0.0", -0.0),
            ("1.0", 1.0),
            ("3.14", 3.14),
            ("0.0001", 1e-4),
            ("1e-05", 1e-5),
            ("1.5e-07", 1.5e-7),
            ("9999999999999998.0", 9_999_999_999_999_998.0),
            ("1e+16", 1e16),
            ("-1.25e+300", -1.25e300),
            ("5e-324", 5e-324),
            ("1.7976931348623157e+308", f64::MAX),
        ] {
            assert_eq!(float(value), python);
        }
    }
}
