//! Reads a request field by field, so that every error can name the field that is to blame.
//!
//! `null` counts as absent, as the official clients mean it.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::protocol::error::ApiError;

/// A request's JSON object. Fields are taken out; what is left at the end was not understood.
#[derive(Debug)]
pub(crate) struct Fields {
    map: Map<String, Value>,
}

impl Fields {
    /// The object in a request body.
    pub(crate) fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Fields { map }),
            Ok(other) => Err(ApiError::field("body", format!("the body is {}, not an object", kind(&other)))),
            Err(error) => Err(ApiError::field("body", format!("the body is not JSON: {error}"))),
        }
    }

    /// The value of a field; `None` if it is absent or null.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    /// The value of a field, which stays.
    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Names of the fields that nobody took.
    pub(crate) fn left(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(name, "a string", &other)),
        }
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(name, "true or false", &other)),
        }
    }

    /// A whole number in a range.
    pub(crate) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let Some(number) = whole(&value) else { return Err(wrong_type(name, "a whole number", &value)) };
        if range.contains(&number) {
            return Ok(Some(number));
        }
        let expected = match (*range.start(), *range.end()) {
            (low, i64::MAX) => format!("at least {low}"),
            (low, high) => format!("between {low} and {high}"),
        };
        Err(ApiError::field(name, format!("{name} is {number}, it must be {expected}")))
    }

    /// The same as [`Fields::integer`] for a count, whose range must not be negative.
    pub(crate) fn count(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<usize>, ApiError> {
        let number = self.integer(name, range)?;
        Ok(number.and_then(|number| usize::try_from(number).ok()))
    }

    /// A finite number for which `allowed` holds; `expected` says in words what is allowed.
    pub(crate) fn number(
        &mut self,
        name: &str,
        allowed: impl Fn(f32) -> bool,
        expected: &str,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let Some(number) = value.as_f64() else { return Err(wrong_type(name, "a number", &value)) };
        #[allow(clippy::cast_possible_truncation)]
        // Sampling computes in f32; an overflow becomes infinite and is refused.
        let narrow = number as f32;
        if narrow.is_finite() && allowed(narrow) {
            return Ok(Some(narrow));
        }
        Err(ApiError::field(name, format!("{name} is {number}, it must be {expected}")))
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(wrong_type(name, "a list", &other)),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(wrong_type(name, "an object", &other)),
        }
    }
}

/// A whole number; `3.0` is one too, as JSON does not tell them apart.
pub(crate) fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15)?;
        #[allow(clippy::cast_possible_truncation)] // whole, and below 2^53
        Some(number as i64)
    })
}

/// 400: the field has the wrong type.
pub(crate) fn wrong_type(name: &str, expected: &str, found: &Value) -> ApiError {
    ApiError::field(name, format!("{name} must be {expected}, not {}", kind(found)))
}

/// What a JSON value is, in words. Never the value itself: it may be a prompt.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: &str) -> Fields {
        Fields::parse(body.as_bytes()).unwrap()
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        for body in ["", "{", "[1]", "\"x\"", "\u{0}"] {
            assert_eq!(
                Fields::parse(body.as_bytes()).unwrap_err().param.as_deref(),
                Some("body"),
                "{body:?}"
            );
        }
    }

    #[test]
    fn null_is_absent() {
        let mut fields = fields(r#"{"a": null, "b": 1}"#);
        assert_eq!(fields.string("a").unwrap(), None);
        assert_eq!(fields.left().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn whole_numbers_may_have_a_fraction_of_zero() {
        assert_eq!(fields(r#"{"n": 3.0}"#).count("n", 1..=9).unwrap(), Some(3));
        assert!(fields(r#"{"n": 3.5}"#).count("n", 1..=9).is_err());
        assert!(fields(r#"{"n": 1e300}"#).count("n", 1..=9).is_err());
        assert!(fields(r#"{"n": 10}"#).count("n", 1..=9).is_err());
        assert!(fields(r#"{"n": true}"#).count("n", 1..=9).is_err());
    }

    #[test]
    fn numbers_that_overflow_are_refused() {
        assert!(fields(r#"{"t": 1e300}"#).number("t", |t| t >= 0.0, "at least 0").is_err());
        assert_eq!(fields(r#"{"t": 1}"#).number("t", |t| t >= 0.0, "at least 0").unwrap(), Some(1.0));
    }
}
