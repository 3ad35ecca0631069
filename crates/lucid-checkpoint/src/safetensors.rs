//! The safetensors container: an 8-byte length, a JSON header, the data.
//!
//! The header is outside data: every number in it is checked against the file before it is used.
//! Source of the format: <https://github.com/huggingface/safetensors#format>.

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};

use crate::{Bytes, Dtype, Error};

/// The largest header that is read, in bytes: the reference implementation's limit.
const MAX_HEADER: u64 = 100_000_000;

/// A tensor in a shard.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Bytes,
}

/// What a shard holds.
pub(crate) struct Shard {
    pub(crate) entries: Vec<Entry>,
    /// Bytes of the data section that belong to no tensor.
    pub(crate) unused: u64,
}

/// Reads a shard's header and finds each tensor's bytes, without reading them.
pub(crate) fn read(location: &str, file: &Bytes) -> Result<Shard, Error> {
    let damaged = |problem: String| Error::Header { location: location.to_owned(), problem };
    let found = file.len() as u64;
    let truncated = |described, tensor: &str| Error::Truncated {
        location: location.to_owned(),
        described,
        found,
        tensor: tensor.to_owned(),
    };

    if file.starts_with(b"version https://git-lfs") {
        return Err(damaged("this is a Git LFS pointer, not the weights: run `git lfs pull`".to_owned()));
    }
    let Some(length) = file.first_chunk::<8>() else { return Err(truncated(8, "the header's length")) };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(damaged(format!(
            "its length is {length} bytes, more than {MAX_HEADER}: this is not a safetensors file"
        )));
    }
    let data_start = 8 + length;
    if data_start > found {
        return Err(truncated(data_start, "the header"));
    }
    let header = file.get(8..data_start as usize).unwrap_or_default();
    let mut raw: RawHeader =
        serde_json::from_slice(header).map_err(|cause| damaged(format!("not the expected JSON: {cause}")))?;

    let mut names: Vec<(&str, u64)> =
        raw.0.iter().map(|(name, tensor)| (name.as_str(), tensor.data_offsets.0)).collect();
    names.sort_unstable();
    if let Some([(name, first), (_, second)]) = names.array_windows().find(|[a, b]| a.0 == b.0) {
        return Err(damaged(format!(
            "tensor {name} is described twice, at bytes {first} and {second} of the data"
        )));
    }
    // In the order of the file, so that overlaps and gaps are between neighbours.
    raw.0
        .sort_unstable_by(|(a_name, a), (b_name, b)| (a.data_offsets, a_name).cmp(&(b.data_offsets, b_name)));
    let data = found - data_start;
    let mut entries = Vec::with_capacity(raw.0.len());
    let mut previous: Option<(String, u64)> = None;
    let mut used = 0;
    let mut cut: Option<(String, u64)> = None;
    for (name, tensor) in raw.0 {
        let RawTensor { dtype, shape, data_offsets: (begin, end) } = tensor;
        let dtype = Dtype::parse(dtype);
        if begin > end {
            return Err(damaged(format!(
                "tensor {name} begins at byte {begin} and ends before it, at {end}"
            )));
        }
        check_size(&dtype, &shape, end - begin)
            .map_err(|problem| damaged(format!("tensor {name} at byte {begin} of the data: {problem}")))?;
        if let Some((before, before_end)) = &previous
            && begin < *before_end
        {
            return Err(damaged(format!("tensors {before} and {name} overlap at byte {begin} of the data")));
        }
        if end > data {
            // Go on, so that the message can say how much is missing in all.
            cut = Some((cut.map_or_else(|| name.clone(), |(first, _)| first), end));
        }
        used += end - begin;
        previous = Some((name.clone(), end));
        if cut.is_none() {
            let range = data_start as usize + begin as usize..data_start as usize + end as usize;
            let bytes =
                file.slice(range).ok_or_else(|| damaged(format!("tensor {name} is not in the file")))?;
            entries.push(Entry { name, dtype, shape, bytes });
        }
    }
    if let Some((tensor, end)) = cut {
        return Err(match end.checked_add(data_start) {
            Some(described) => truncated(described, &tensor),
            None => damaged(format!("tensor {tensor} ends at byte {end} of the data")),
        });
    }
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(Shard { entries, unused: data - used })
}

/// The shape and the type must give exactly the bytes that the tensor claims.
fn check_size(dtype: &Dtype, shape: &[usize], bytes: u64) -> Result<(), String> {
    let elements = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim as u64));
    let Some(size) = dtype.size() else { return Ok(()) };
    match elements.and_then(|elements| elements.checked_mul(size)) {
        Some(expected) if expected == bytes => Ok(()),
        Some(expected) => Err(format!(
            "type {dtype} and shape {shape:?} need {expected} bytes, but its offsets give it {bytes}"
        )),
        None => Err(format!("type {dtype} and a shape that no file can hold: {shape:?}")),
    }
}

/// All `(name, tensor)` pairs, also of a name that is there twice (a map would silently keep one).
struct RawHeader(Vec<(String, RawTensor)>);

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = RawHeader;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object with a description of each tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut pairs = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        pairs.push((name, map.next_value()?));
                    }
                }
                Ok(RawHeader(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}
