//! The typed key-value pairs of a GGUF file.

use std::collections::BTreeMap;

use super::container::{Cursor, MAX_DEPTH};
use crate::{Bytes, Error};

/// The key-value pairs of a GGUF file.
#[derive(Clone, Debug)]
pub struct Metadata {
    pub(super) location: String,
    pub(super) values: BTreeMap<String, Value>,
}

/// A value.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // The types of the format; all whole numbers are widened.
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// A list of values of one type, still as the file holds it: a vocabulary has 160,000 of them.
#[derive(Clone, Debug)]
pub struct Array {
    /// Number of the format: 8 is string.
    pub(super) kind: u32,
    pub(super) count: u64,
    /// The elements, walked over once, so known to be whole.
    pub(super) bytes: Bytes,
}

impl Metadata {
    /// The file, for messages.
    #[must_use]
    pub fn location(&self) -> &str {
        &self.location
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// An error about the value of `key`.
    #[must_use]
    pub fn error(&self, key: &str, problem: impl Into<String>) -> Error {
        Error::Field { location: self.location.clone(), field: key.to_owned(), problem: problem.into() }
    }

    fn wrong(&self, key: &str, value: &Value, expected: &str) -> Error {
        self.error(key, format!("expected {expected}, found {}", value.shown()))
    }

    /// The text of `key`; `None` when there is no such key.
    ///
    /// # Errors
    /// When it is no string.
    pub fn string(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, other, "a string")),
        }
    }

    /// The whole number of `key`, not negative; `None` when there is no such key.
    ///
    /// # Errors
    /// When it is something else.
    pub fn integer(&self, key: &str) -> Result<Option<u64>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(n)) => Ok(Some(*n)),
            Some(Value::Signed(n)) if *n >= 0 => Ok(Some(n.unsigned_abs())),
            Some(other) => Err(self.wrong(key, other, "a whole number that is not negative")),
        }
    }

    /// The number of `key`; `None` when there is no such key.
    ///
    /// An F32 is taken for the shortest decimal number that it stands for: 1e-5, not 9.99999974e-6. The converter was
    /// given that number.
    ///
    /// # Errors
    /// When it is something else, or not finite.
    pub fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        let number = match self.get(key) {
            None => return Ok(None),
            Some(Value::F32(x)) => x.to_string().parse().unwrap_or(f64::NAN),
            Some(Value::F64(x)) => *x,
            Some(Value::Unsigned(n)) => *n as f64,
            Some(Value::Signed(n)) => *n as f64,
            Some(other) => return Err(self.wrong(key, other, "a number")),
        };
        if number.is_finite() { Ok(Some(number)) } else { Err(self.error(key, format!("is {number}"))) }
    }

    /// The flag of `key`; `None` when there is no such key.
    ///
    /// # Errors
    /// When it is something else.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    /// The list of strings of `key`; `None` when there is no such key. They need not be UTF-8.
    ///
    /// # Errors
    /// When it is something else.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&[u8]>>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) if array.kind == 8 => Ok(Some(array.strings())),
            Some(other) => Err(self.wrong(key, other, "a list of strings")),
        }
    }

    /// The list of whole numbers of `key`; `None` when there is no such key.
    ///
    /// # Errors
    /// When it is something else.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::Array(array)) => {
                array.integers().map(Some).ok_or_else(|| self.wrong(key, value, "a list of whole numbers"))
            }
            Some(other) => Err(self.wrong(key, other, "a list of whole numbers")),
        }
    }

    /// The list of flags of `key`, as flags or as whole numbers 0 and 1; `None` when there is no such key.
    ///
    /// # Errors
    /// When it is something else.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let numbers = match value {
            Value::Array(array) if array.kind == 7 => {
                Some(array.bytes.iter().map(|b| i64::from(*b)).collect())
            }
            Value::Array(array) => array.integers(),
            _ => None,
        };
        let flag = |number: &i64| match number {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        let flags =
            numbers.and_then(|numbers: Vec<i64>| numbers.iter().map(flag).collect::<Option<Vec<_>>>());
        flags.map(Some).ok_or_else(|| self.wrong(key, value, "a list of flags"))
    }
}

impl Value {
    fn shown(&self) -> String {
        match self {
            Value::Unsigned(n) => n.to_string(),
            Value::Signed(n) => n.to_string(),
            Value::F32(x) => x.to_string(),
            Value::F64(x) => x.to_string(),
            Value::Bool(flag) => flag.to_string(),
            Value::String(text) => format!("{:?}", text.chars().take(60).collect::<String>()),
            Value::Array(array) => format!("a list of {} values of type {}", array.count, array.kind),
        }
    }
}

impl Array {
    /// Empty for elements of another type. One pass found every string whole, so nothing is left out.
    fn strings(&self) -> Vec<&[u8]> {
        let (mut strings, mut rest) = (Vec::new(), &self.bytes[..]);
        while let Some((length, after)) = rest.split_first_chunk::<8>() {
            let Some((text, after)) =
                usize::try_from(u64::from_le_bytes(*length)).ok().and_then(|n| after.split_at_checked(n))
            else {
                break;
            };
            strings.push(text);
            rest = after;
        }
        strings
    }

    fn integers(&self) -> Option<Vec<i64>> {
        let bytes = &self.bytes[..];
        Some(match self.kind {
            0 => bytes.iter().map(|b| i64::from(*b)).collect(),
            1 => bytes.iter().map(|b| i64::from(b.cast_signed())).collect(),
            2 => bytes.as_chunks().0.iter().map(|b| i64::from(u16::from_le_bytes(*b))).collect(),
            3 => bytes.as_chunks().0.iter().map(|b| i64::from(i16::from_le_bytes(*b))).collect(),
            4 => bytes.as_chunks().0.iter().map(|b| i64::from(u32::from_le_bytes(*b))).collect(),
            5 => bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
            10 => {
                let number = |b: &[u8; 8]| i64::try_from(u64::from_le_bytes(*b)).ok();
                bytes.as_chunks().0.iter().map(number).collect::<Option<_>>()?
            }
            11 => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
            _ => return None,
        })
    }
}

/// Reads a value of type `kind`.
pub(super) fn read(cursor: &mut Cursor<'_>, kind: u32) -> Result<Value, Error> {
    Ok(match kind {
        0 => Value::Unsigned(u64::from(cursor.array::<1>("a value")?[0])),
        1 => Value::Signed(i64::from(cursor.array::<1>("a value")?[0].cast_signed())),
        2 => Value::Unsigned(u64::from(u16::from_le_bytes(cursor.array("a value")?))),
        3 => Value::Signed(i64::from(i16::from_le_bytes(cursor.array("a value")?))),
        4 => Value::Unsigned(u64::from(cursor.u32("a value")?)),
        5 => Value::Signed(i64::from(i32::from_le_bytes(cursor.array("a value")?))),
        6 => Value::F32(f32::from_le_bytes(cursor.array("a value")?)),
        7 => match cursor.array::<1>("a value")? {
            [0] => Value::Bool(false),
            [1] => Value::Bool(true),
            [other] => return Err(cursor.damaged(format!("a flag is {other}, neither 0 nor 1"))),
        },
        8 => Value::String(cursor.text("a string", u64::MAX)?),
        9 => Value::Array(array(cursor, 0)?),
        10 => Value::Unsigned(cursor.u64("a value")?),
        11 => Value::Signed(i64::from_le_bytes(cursor.array("a value")?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array("a value")?)),
        other => return Err(cursor.damaged(format!("there is no value type {other}"))),
    })
}

fn array(cursor: &mut Cursor<'_>, depth: usize) -> Result<Array, Error> {
    if depth > MAX_DEPTH {
        return Err(cursor.damaged(format!("lists in lists in lists, more than {MAX_DEPTH} deep")));
    }
    let kind = cursor.u32("a list's type")?;
    let count = cursor.u64("a list's length")?;
    let start = cursor.at();
    let width = match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        8 | 9 => None,
        other => return Err(cursor.damaged(format!("there is no value type {other}"))),
    };
    match width {
        Some(width) => {
            let Some(bytes) = count.checked_mul(width) else {
                return Err(cursor.damaged(format!("a list of {count} values")));
            };
            cursor.take(bytes, "a list")?;
        }
        // Every element takes bytes of the file, so a lie about their number ends at the file's end.
        None => {
            for _ in 0..count {
                if kind == 8 {
                    let length = cursor.u64("a string's length")?;
                    cursor.take(length, "a string in a list")?;
                } else {
                    array(cursor, depth + 1)?;
                }
            }
        }
    }
    Ok(Array { kind, count, bytes: cursor.since(start) })
}
