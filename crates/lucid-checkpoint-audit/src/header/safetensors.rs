//! The safetensors header: an 8-byte length, then JSON.
//!
//! Source of the format: <https://github.com/huggingface/safetensors#format>.

use std::collections::HashSet;
use std::fs::File;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::{Header, MAX_HEADER, TensorEntry, element_bits, read_up_to};
use crate::evidence::ExtentKind;

pub(super) fn read(file: &File, length: u64, header: &mut Header) {
    let mut prefix = [0u8; 8];
    if !matches!(read_up_to(file, &mut prefix, 0), Ok(8)) {
        header.problem(
            ExtentKind::Header,
            format!("the file has {length} bytes, a header's length alone takes 8"),
        );
        return;
    }
    let json_length = u64::from_le_bytes(prefix);
    if json_length > MAX_HEADER {
        let text = format!(
            "the header's length is {json_length} bytes, more than {MAX_HEADER}: this is no safetensors file"
        );
        header.problem(ExtentKind::Header, text);
        return;
    }
    header.data_start = 8 + json_length;
    if header.data_start > length {
        let text = format!("the header alone takes {} bytes, the file has {length}", header.data_start);
        header.problem(ExtentKind::Header, text);
        return;
    }
    let mut json = vec![0u8; json_length as usize];
    match read_up_to(file, &mut json, 8) {
        Ok(got) if got == json.len() => {}
        Ok(_) => return header.problem(ExtentKind::Unreadable, "the file shrank while it was read"),
        Err(error) => return header.problem(ExtentKind::Unreadable, error.to_string()),
    }
    let text = String::from_utf8_lossy(&json);
    if matches!(text, std::borrow::Cow::Owned(_)) {
        header.problem(ExtentKind::Header, "the header is not UTF-8; odd bytes were replaced");
    }
    let mut pairs = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    let read = serde::Deserializer::deserialize_map(&mut deserializer, Pairs { pairs: &mut pairs });
    if let Err(error) = read.and_then(|()| deserializer.end()) {
        let problem =
            format!("the header is not the expected JSON ({error}); {} tensors could be read", pairs.len());
        header.problem(ExtentKind::Header, problem);
    }
    let mut names = HashSet::new();
    for (name, value) in pairs {
        if !names.insert(name.clone()) {
            let text = format!("{name} is described twice");
            header.of_tensor(ExtentKind::DuplicateName, &name, 0, 0, text);
        }
        match entry(&name, &value, header.data_start) {
            Ok(tensor) => header.tensors.push(tensor),
            Err((tensor, problem)) => {
                header.of_tensor(ExtentKind::WrongSize, &name, 0, 0, format!("{name}: {problem}"));
                header.tensors.extend(tensor);
            }
        }
    }
    header.check_extents(length, 0);
}

/// The tensor, or what is wrong with it and, where its extents are numbers, the tensor nevertheless.
fn entry(name: &str, value: &Value, data_start: u64) -> Result<TensorEntry, (Option<TensorEntry>, String)> {
    let dtype = value.get("dtype").and_then(Value::as_str).unwrap_or_default().to_owned();
    let numbers = |field: &str| -> Option<Vec<u64>> {
        value.get(field)?.as_array()?.iter().map(Value::as_u64).collect()
    };
    let shape = numbers("shape");
    let Some(&[begin, end]) = numbers("data_offsets").as_deref() else {
        return Err((None, "its data_offsets are no two numbers".to_owned()));
    };
    let start = data_start.checked_add(begin).filter(|_| begin <= end && end <= u64::MAX / 4);
    let Some(start) = start else {
        return Err((None, format!("its bytes begin at {begin} and end at {end}")));
    };
    let tensor = TensorEntry {
        name: name.to_owned(),
        dtype,
        shape: shape.clone().unwrap_or_default(),
        start,
        bytes: end - begin,
    };
    let Some(shape) = shape else { return Err((Some(tensor), "its shape is no list of numbers".to_owned())) };
    let Some(bits) = element_bits(&tensor.dtype) else { return Ok(tensor) };
    let elements = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
    match elements.and_then(|elements| elements.checked_mul(bits)) {
        Some(needed) if needed.div_ceil(8) == tensor.bytes => Ok(tensor),
        Some(needed) => {
            let text = format!(
                "type {} and shape {shape:?} need {} bytes, its offsets give {}",
                tensor.dtype,
                needed.div_ceil(8),
                tensor.bytes
            );
            Err((Some(tensor), text))
        }
        None => Err((Some(tensor), format!("no file can hold shape {shape:?}"))),
    }
}

/// Collects what can be read, also when the text breaks off.
struct Pairs<'a> {
    pairs: &'a mut Vec<(String, Value)>,
}

impl<'de> Visitor<'de> for Pairs<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object with a description of each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                self.pairs.push((name, map.next_value()?));
            }
        }
        Ok(())
    }
}
