//! Reads typed fields from a JSON object, with errors that name the file and the field.

use serde_json::{Map, Value};

use super::MAX_DIM;
use crate::{Error, TokenId};

pub(crate) fn parse(location: &str, json: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(json).map_err(|cause| Error::Json { location: location.to_owned(), cause })
}

/// A JSON object in a file. A field that is `null` counts as absent.
pub(crate) struct Fields<'a> {
    location: &'a str,
    /// The objects around it, as `text_config.`; empty at the top.
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(crate) fn root(location: &'a str, json: &'a Value) -> Result<Fields<'a>, Error> {
        match json {
            Value::Object(map) => Ok(Fields { location, path: String::new(), map }),
            other => Err(Error::Field {
                location: location.to_owned(),
                field: "(top level)".to_owned(),
                problem: format!("expected an object, found {}", shown(other)),
            }),
        }
    }

    pub(crate) fn error(&self, name: &str, problem: String) -> Error {
        Error::Field { location: self.location.to_owned(), field: format!("{}{name}", self.path), problem }
    }

    fn wrong(&self, name: &str, value: &Value, expected: &str) -> Error {
        self.error(name, format!("expected {expected}, found {}", shown(value)))
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn required<T>(&self, name: &str, value: Option<T>) -> Result<T, Error> {
        value.ok_or_else(|| self.error(name, "missing".to_owned()))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields<'a>>, Error> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(Fields { location: self.location, path: format!("{}{name}.", self.path), map }))
            }
            Some(other) => Err(self.wrong(name, other, "an object")),
        }
    }

    pub(crate) fn optional_integer(
        &self,
        name: &str,
        min: usize,
        max: usize,
    ) -> Result<Option<usize>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        // Some tools write 4096.0.
        let whole = |x: f64| (x.fract() == 0.0 && (0.0..=MAX_DIM as f64).contains(&x)).then_some(x as u64);
        let number = value.as_u64().or_else(|| value.as_f64().and_then(whole));
        match number.and_then(|n| usize::try_from(n).ok()) {
            Some(n) if (min..=max).contains(&n) => Ok(Some(n)),
            _ => Err(self.wrong(name, value, &format!("a whole number from {min} to {max}"))),
        }
    }

    /// A number of things, of which there may be none.
    pub(crate) fn count_or(&self, name: &str, default: usize) -> Result<usize, Error> {
        Ok(self.optional_count(name)?.unwrap_or(default))
    }

    pub(crate) fn optional_count(&self, name: &str) -> Result<Option<usize>, Error> {
        self.optional_integer(name, 0, MAX_DIM)
    }

    /// A dimension: at least 1.
    pub(crate) fn size(&self, name: &str) -> Result<usize, Error> {
        self.size_up_to(name, MAX_DIM)
    }

    pub(crate) fn size_up_to(&self, name: &str, max: usize) -> Result<usize, Error> {
        self.required(name, self.optional_integer(name, 1, max)?)
    }

    pub(crate) fn size_or(&self, name: &str, default: usize) -> Result<usize, Error> {
        Ok(self.optional_size(name)?.unwrap_or(default))
    }

    pub(crate) fn optional_size(&self, name: &str) -> Result<Option<usize>, Error> {
        self.optional_integer(name, 1, MAX_DIM)
    }

    pub(crate) fn optional_number(&self, name: &str) -> Result<Option<f64>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if x.is_finite() => Ok(Some(x)),
            _ => Err(self.wrong(name, value, "a number")),
        }
    }

    pub(crate) fn optional_number_in(&self, name: &str, min: f64, max: f64) -> Result<Option<f64>, Error> {
        match self.optional_number(name)? {
            Some(x) if !(min..=max).contains(&x) => {
                Err(self.error(name, format!("expected a number from {min} to {max:e}, found {x}")))
            }
            x => Ok(x),
        }
    }

    pub(crate) fn optional_positive(&self, name: &str) -> Result<Option<f64>, Error> {
        match self.optional_number(name)? {
            Some(x) if x <= 0.0 => Err(self.error(name, format!("expected a number above 0, found {x}"))),
            x => Ok(x),
        }
    }

    pub(crate) fn positive(&self, name: &str) -> Result<f64, Error> {
        self.required(name, self.optional_positive(name)?)
    }

    pub(crate) fn flag_or(&self, name: &str, default: bool) -> Result<bool, Error> {
        Ok(self.optional_flag(name)?.unwrap_or(default))
    }

    pub(crate) fn optional_flag(&self, name: &str) -> Result<Option<bool>, Error> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(name, other, "true or false")),
        }
    }

    pub(crate) fn optional_string(&self, name: &str) -> Result<Option<String>, Error> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(self.wrong(name, other, "a string")),
        }
    }

    pub(crate) fn string(&self, name: &str) -> Result<String, Error> {
        self.required(name, self.optional_string(name)?)
    }

    pub(crate) fn strings(&self, name: &str) -> Result<Option<Vec<String>>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let strings = value
            .as_array()
            .and_then(|list| list.iter().map(|v| v.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>());
        strings.map(Some).ok_or_else(|| self.wrong(name, value, "a list of strings"))
    }

    pub(crate) fn pair(&self, name: &str) -> Result<Option<[usize; 2]>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = |v: &Value| {
            v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=MAX_DIM).contains(n))
        };
        match value.as_array().map(Vec::as_slice) {
            Some([a, b]) if let (Some(a), Some(b)) = (number(a), number(b)) => Ok(Some([a, b])),
            _ => Err(self.wrong(name, value, "two whole numbers above 0")),
        }
    }

    pub(crate) fn token(&self, name: &str, vocab_size: usize) -> Result<Option<TokenId>, Error> {
        self.get(name).map(|value| self.token_id(name, value, vocab_size)).transpose()
    }

    /// One token or a list of them; none when the field is absent.
    pub(crate) fn tokens(&self, name: &str, vocab_size: usize) -> Result<Vec<TokenId>, Error> {
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(|v| self.token_id(name, v, vocab_size)).collect(),
            Some(value) => Ok(vec![self.token_id(name, value, vocab_size)?]),
        }
    }

    fn token_id(&self, name: &str, value: &Value, vocab_size: usize) -> Result<TokenId, Error> {
        value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .map(TokenId)
            .filter(|id| id.row() < vocab_size)
            .ok_or_else(|| self.wrong(name, value, &format!("a token id below vocab_size {vocab_size}")))
    }

    /// The field is absent, or has the only value that is supported.
    pub(crate) fn must_be(&self, name: &str, supported: impl Into<Value>) -> Result<(), Error> {
        let supported = supported.into();
        match self.get(name) {
            Some(value) if *value != supported => {
                Err(self.error(name, format!("{} is not supported; supported is {supported}", shown(value))))
            }
            _ => Ok(()),
        }
    }
}

/// A value in a message: the whole of it if it is short.
fn shown(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
