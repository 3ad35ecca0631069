//! The container: magic, counts, metadata, tensor descriptions, data.

use std::collections::BTreeMap;

use super::blocks::TensorType;
use super::metadata::{self, Metadata, Value};
use crate::{Bytes, Error, Files};

/// Lists may hold lists; llama.cpp's own files have none.
pub(super) const MAX_DEPTH: usize = 4;

/// The longest key or tensor name in bytes: the format's own limit for keys.
const MAX_NAME: u64 = 65_535;

/// `GGML_MAX_DIMS`
const MAX_DIMS: u32 = 4;

/// One file.
pub(super) struct Part {
    /// Its name.
    pub(super) file: String,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<Entry>,
}

/// A tensor as the file describes it.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) kind: TensorType,
    /// Slowest first: the reverse of the file's order.
    pub(super) shape: Vec<usize>,
    /// Of a type of unknown size, all up to the next tensor.
    pub(super) bytes: Bytes,
}

/// All parts of a model, in order, each checked against `split.no` and `split.count`.
pub(super) fn read_all(files: &Files) -> Result<Vec<Part>, Error> {
    let names = files.names()?;
    let mut parts = Vec::new();
    for name in &names {
        let location = files.location(name);
        let Some(bytes) = files.find(name)? else {
            return Err(Error::MissingFile { location, hint: "every part of a split GGUF model is needed" });
        };
        let part = read(name, &location, &bytes)?;
        let count = part.metadata.integer("split.count")?.unwrap_or(1).max(1);
        if count != names.len() as u64 {
            let problem = format!("the file belongs to a model of {count} files, found {}", names.len());
            return Err(part.metadata.error("split.count", problem));
        }
        let number = part.metadata.integer("split.no")?.unwrap_or(0);
        if number != parts.len() as u64 {
            let problem = format!("the file says it is part {number}, its name says {}", parts.len());
            return Err(part.metadata.error("split.no", problem));
        }
        parts.push(part);
    }
    Ok(parts)
}

fn read(name: &str, location: &str, file: &Bytes) -> Result<Part, Error> {
    let mut cursor = Cursor { location, file, at: 0 };
    if file.starts_with(b"version https://git-lfs") {
        return Err(cursor.damaged("this is a Git LFS pointer, not the model: run `git lfs pull`"));
    }
    if cursor.array::<4>("the magic number")? != *b"GGUF" {
        return Err(cursor.damaged("the file does not begin with GGUF"));
    }
    match cursor.u32("the version")? {
        2 | 3 => {}
        version if matches!(version.swap_bytes(), 1..=3) => {
            return Err(cursor.damaged("the file is big-endian; supported are little-endian files"));
        }
        version => return Err(cursor.damaged(format!("version {version}; supported are 2 and 3"))),
    }
    let tensor_count = cursor.u64("the number of tensors")?;
    let value_count = cursor.u64("the number of values")?;
    let mut values = BTreeMap::new();
    for _ in 0..value_count {
        let key = cursor.text("a key", MAX_NAME)?;
        let kind = cursor.u32("a value's type")?;
        let value = metadata::read(&mut cursor, kind)?;
        if values.contains_key(&key) {
            return Err(cursor.damaged(format!("the key {key} is there twice")));
        }
        values.insert(key, value);
    }
    let metadata = Metadata { location: location.to_owned(), values };
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(Value::Unsigned(n)) if n.is_power_of_two() && *n <= 1 << 20 => *n,
        Some(_) => {
            return Err(metadata.error("general.alignment", "expected a power of two of at most 1048576"));
        }
    };
    let mut raw = Vec::new();
    for _ in 0..tensor_count {
        raw.push(description(&mut cursor, alignment)?);
    }
    let start = (cursor.at as u64).next_multiple_of(alignment);
    let tensors = locate(&cursor, raw, start)?;
    Ok(Part { file: name.to_owned(), metadata, tensors })
}

struct Description {
    name: String,
    kind: TensorType,
    shape: Vec<usize>,
    /// From the beginning of the data.
    offset: u64,
    /// `None` for a type of unknown size.
    size: Option<u64>,
}

fn description(cursor: &mut Cursor<'_>, alignment: u64) -> Result<Description, Error> {
    let name = cursor.text("a tensor's name", MAX_NAME)?;
    let dims = cursor.u32("a tensor's number of dimensions")?;
    if dims > MAX_DIMS {
        return Err(cursor.damaged(format!("tensor {name} has {dims} dimensions, more than {MAX_DIMS}")));
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        let dim = cursor.u64("a tensor's dimension")?;
        let dim = usize::try_from(dim).map_err(|_| cursor.damaged(format!("tensor {name} is {dim} long")))?;
        shape.push(dim);
    }
    let kind = TensorType::from_id(cursor.u32("a tensor's type")?);
    let offset = cursor.u64("a tensor's offset")?;
    if !offset.is_multiple_of(alignment) {
        return Err(cursor.damaged(format!(
            "tensor {name} begins at byte {offset} of the data, no multiple of the alignment {alignment}"
        )));
    }
    let size = kind.size(&shape).map_err(|problem| cursor.damaged(format!("tensor {name} {problem}")))?;
    shape.reverse();
    Ok(Description { name, kind, shape, offset, size })
}

/// Finds each tensor's bytes; none may overlap or leave the file.
fn locate(cursor: &Cursor<'_>, mut raw: Vec<Description>, start: u64) -> Result<Vec<Entry>, Error> {
    raw.sort_by(|a, b| (a.offset, a.size, &a.name).cmp(&(b.offset, b.size, &b.name)));
    let found = cursor.file.len() as u64;
    let data = found.saturating_sub(start);
    let nexts: Vec<u64> = raw.iter().skip(1).map(|next| next.offset).chain([data]).collect();
    let mut entries = Vec::new();
    let mut truncated: Option<(String, u64)> = None;
    for (tensor, next) in raw.into_iter().zip(nexts) {
        let size = tensor.size.unwrap_or(next.saturating_sub(tensor.offset));
        let Some(end) = tensor.offset.checked_add(size) else {
            return Err(cursor.damaged(format!("tensor {} ends beyond any file", tensor.name)));
        };
        if end > data {
            // Go on, so that the message can say how much is missing in all.
            truncated = Some((truncated.map_or_else(|| tensor.name.clone(), |(first, _)| first), end));
            continue;
        }
        if end > next {
            return Err(cursor.damaged(format!("tensor {} overlaps the one after it", tensor.name)));
        }
        // Within the file, so within usize.
        let range = (start + tensor.offset) as usize..(start + end) as usize;
        let Some(bytes) = cursor.file.slice(range) else {
            return Err(cursor.damaged(format!("tensor {} is not in the file", tensor.name)));
        };
        entries.push(Entry { name: tensor.name, kind: tensor.kind, shape: tensor.shape, bytes });
    }
    match truncated {
        None => Ok(entries),
        Some((tensor, end)) => Err(Error::Truncated {
            location: cursor.location.to_owned(),
            described: end.saturating_add(start),
            found,
            tensor,
        }),
    }
}

/// A place in the file.
pub(super) struct Cursor<'a> {
    location: &'a str,
    file: &'a Bytes,
    at: usize,
}

impl Cursor<'_> {
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn damaged(&self, problem: impl Into<String>) -> Error {
        Error::Gguf { location: self.location.to_owned(), offset: self.at, problem: problem.into() }
    }

    /// What was read since `start`, a place that was visited before.
    pub(super) fn since(&self, start: usize) -> Bytes {
        self.file.slice(start..self.at).unwrap_or_else(|| Bytes::from_static(&[]))
    }

    /// The next `length` bytes.
    pub(super) fn take(&mut self, length: u64, what: &str) -> Result<&[u8], Error> {
        let end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        let Some(range) = end.map(|end| self.at..end).filter(|range| range.end <= self.file.len()) else {
            let left = self.file.len() - self.at;
            return Err(self.damaged(format!("{what} of {length} bytes, but the file has {left} more")));
        };
        self.at = range.end;
        Ok(self.file.get(range).unwrap_or_default())
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        Ok(self.take(N as u64, what)?.first_chunk().copied().unwrap_or([0; N]))
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A length and so many bytes of UTF-8.
    pub(super) fn text(&mut self, what: &str, longest: u64) -> Result<String, Error> {
        let length = self.u64(what)?;
        if length > longest {
            return Err(self.damaged(format!("{what} of {length} bytes, more than {longest}")));
        }
        match str::from_utf8(self.take(length, what)?) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.damaged(format!("{what} is not UTF-8"))),
        }
    }
}
