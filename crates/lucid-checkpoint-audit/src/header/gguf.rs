//! The GGUF header, as far as extents need it: counts, `general.alignment`, the split's numbers, tensor descriptions.
//!
//! Values are skipped, never kept, so that a tokenizer of any size costs no memory.
//! Source of the format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::fs::File;

use super::{Header, MAX_HEADER, TensorEntry, read_up_to};
use crate::evidence::ExtentKind;

/// Bytes of the header that are read at a time.
const WINDOW: usize = 1 << 20;

/// The longest key or tensor name in bytes: the format's own limit for keys.
const MAX_NAME: u64 = 65_535;

/// Lists may hold lists; llama.cpp's own files have none.
const MAX_DEPTH: usize = 4;

pub(super) fn read(file: &File, length: u64, header: &mut Header) {
    let mut cursor = Cursor { file, length, at: 0, window: Vec::new(), window_at: 0 };
    match parse(&mut cursor, header) {
        Ok(alignment) => header.check_extents(length, alignment - 1),
        Err(Stop::Read(text)) => header.problem(ExtentKind::Unreadable, text),
        Err(Stop::Damaged(text)) => {
            header.problem(ExtentKind::Header, format!("at byte {}: {text}", cursor.at))
        }
    }
}

enum Stop {
    Read(String),
    Damaged(String),
}

fn damaged<T>(text: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Damaged(text.into()))
}

/// The alignment.
fn parse(cursor: &mut Cursor<'_>, header: &mut Header) -> Result<u64, Stop> {
    if cursor.bytes(4)? != b"GGUF" {
        return damaged("the file does not begin with GGUF");
    }
    match cursor.u32()? {
        2 | 3 => {}
        version if matches!(version.swap_bytes(), 1..=3) => return damaged("the file is big-endian"),
        version => return damaged(format!("version {version}; known are 2 and 3")),
    }
    let tensors = cursor.u64()?;
    let values = cursor.u64()?;
    let mut alignment = 32;
    let (mut number, mut count) = (None, None);
    for _ in 0..values {
        let key = cursor.text()?;
        let kind = cursor.u32()?;
        let value = cursor.value(kind, 0)?;
        match key.as_str() {
            "general.alignment" => match value {
                Some(n) if n.is_power_of_two() && n <= 1 << 20 => alignment = n,
                _ => return damaged("general.alignment is no power of two of at most 1048576"),
            },
            "split.no" => number = value,
            "split.count" => count = value,
            _ => {}
        }
    }
    header.split = number.zip(count);
    let mut raw = Vec::new();
    for _ in 0..tensors {
        raw.push(description(cursor)?);
    }
    header.data_start = cursor.at.next_multiple_of(alignment);
    // A type of unknown size ends where the next tensor begins.
    let mut offsets: Vec<u64> = raw.iter().map(|tensor| tensor.offset).collect();
    offsets.sort_unstable();
    let data = cursor.length.saturating_sub(header.data_start);
    for tensor in raw {
        let Description { name, kind, shape, offset } = tensor;
        let (dtype, size) = (type_name(kind), size(kind, &shape));
        if !offset.is_multiple_of(alignment) {
            let text = format!(
                "{name} begins at byte {offset} of the data, no multiple of the alignment {alignment}"
            );
            header.of_tensor(ExtentKind::Misaligned, &name, offset, 0, text);
        }
        let bytes = match size {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                let after = offsets.partition_point(|&next| next <= offset);
                let next = offsets.get(after).copied().unwrap_or(data);
                next.saturating_sub(offset)
            }
            Err(problem) => {
                header.of_tensor(ExtentKind::WrongSize, &name, offset, 0, format!("{name}: {problem}"));
                continue;
            }
        };
        match header.data_start.checked_add(offset).filter(|start| start.checked_add(bytes).is_some()) {
            Some(start) => {
                let shape = shape.into_iter().rev().collect();
                header.tensors.push(TensorEntry { name, dtype, shape, start, bytes });
            }
            None => header.of_tensor(
                ExtentKind::WrongSize,
                &name,
                offset,
                bytes,
                format!("{name} ends beyond any file"),
            ),
        }
    }
    Ok(alignment)
}

struct Description {
    name: String,
    kind: u32,
    /// Fastest first.
    shape: Vec<u64>,
    offset: u64,
}

fn description(cursor: &mut Cursor<'_>) -> Result<Description, Stop> {
    let name = cursor.text()?;
    let dims = cursor.u32()?;
    if dims > 4 {
        return damaged(format!("tensor {name} has {dims} dimensions"));
    }
    let shape = (0..dims).map(|_| cursor.u64()).collect::<Result<Vec<u64>, Stop>>()?;
    let kind = cursor.u32()?;
    let offset = cursor.u64()?;
    Ok(Description { name, kind, shape, offset })
}

/// Name, elements and bytes of a block. Source: gguf-py, `constants.py: GGML_QUANT_SIZES`.
const TYPES: [(u32, &str, u64, u64); 32] = [
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
];

/// NVFP4 is younger than the table's source; its block was read in llama.cpp.
const NVFP4: (u32, &str, u64, u64) = (40, "NVFP4", 64, 36);

fn known(kind: u32) -> Option<(u32, &'static str, u64, u64)> {
    TYPES.into_iter().chain([NVFP4]).find(|(id, ..)| *id == kind)
}

fn type_name(kind: u32) -> String {
    known(kind).map_or_else(|| format!("GGML type {kind}"), |(_, name, ..)| name.to_owned())
}

fn size(kind: u32, dims: &[u64]) -> Result<Option<u64>, String> {
    let Some((_, name, elements, bytes)) = known(kind) else { return Ok(None) };
    let row = dims.first().copied().unwrap_or(1);
    if !row.is_multiple_of(elements) {
        return Err(format!("rows of {row} values are no whole blocks of {elements} ({name})"));
    }
    let rows = dims.iter().skip(1).try_fold(1u64, |product, &dim| product.checked_mul(dim));
    match rows.and_then(|rows| rows.checked_mul(row / elements)?.checked_mul(bytes)) {
        Some(size) => Ok(Some(size)),
        None => Err(format!("no file can hold shape {dims:?}")),
    }
}

/// A place in the header; the file is read in windows.
struct Cursor<'a> {
    file: &'a File,
    length: u64,
    at: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl Cursor<'_> {
    /// The next `count` bytes, at most [`MAX_NAME`].
    fn bytes(&mut self, count: usize) -> Result<&[u8], Stop> {
        let end = self.at + count as u64;
        if end > self.length {
            return damaged(format!("{count} bytes are needed, the file has {} more", self.length - self.at));
        }
        if self.at > MAX_HEADER {
            return damaged(format!("the header is longer than {MAX_HEADER} bytes"));
        }
        let cached = self.at >= self.window_at && end <= self.window_at + self.window.len() as u64;
        if !cached {
            let wanted = (self.length - self.at).min(WINDOW as u64) as usize;
            self.window.resize(wanted, 0);
            let got =
                read_up_to(self.file, &mut self.window, self.at).map_err(|e| Stop::Read(e.to_string()))?;
            self.window.truncate(got);
            self.window_at = self.at;
        }
        let from = (self.at - self.window_at) as usize;
        self.at = end;
        match self.window.get(from..from + count) {
            Some(bytes) => Ok(bytes),
            None => Err(Stop::Read("the file shrank while it was read".to_owned())),
        }
    }

    fn skip(&mut self, count: u64) -> Result<(), Stop> {
        match self.at.checked_add(count).filter(|&end| end <= self.length) {
            Some(end) => self.at = end,
            None => {
                return damaged(format!(
                    "a value of {count} bytes, the file has {} more",
                    self.length - self.at
                ));
            }
        }
        Ok(())
    }

    fn u32(&mut self) -> Result<u32, Stop> {
        Ok(u32::from_le_bytes(self.bytes(4)?.first_chunk().copied().unwrap_or_default()))
    }

    fn u64(&mut self) -> Result<u64, Stop> {
        Ok(u64::from_le_bytes(self.bytes(8)?.first_chunk().copied().unwrap_or_default()))
    }

    /// A key or a name; bytes that are no UTF-8 are replaced.
    fn text(&mut self) -> Result<String, Stop> {
        let length = self.u64()?;
        if length > MAX_NAME {
            return damaged(format!("a name of {length} bytes"));
        }
        Ok(String::from_utf8_lossy(self.bytes(length as usize)?).into_owned())
    }

    /// Skips a value; of a whole number that is not negative, the number.
    fn value(&mut self, kind: u32, depth: usize) -> Result<Option<u64>, Stop> {
        let little = |bytes: &[u8]| {
            let mut wide = [0u8; 8];
            wide[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(wide)
        };
        Ok(match kind {
            0 => Some(little(self.bytes(1)?)),
            1 | 7 => self.skip(1).map(|()| None)?,
            2 | 3 => Some(little(self.bytes(2)?)),
            4 | 5 => Some(little(self.bytes(4)?)),
            6 => self.skip(4).map(|()| None)?,
            10 | 11 => Some(little(self.bytes(8)?)),
            12 => self.skip(8).map(|()| None)?,
            8 => {
                let length = self.u64()?;
                self.skip(length)?;
                None
            }
            9 if depth < MAX_DEPTH => {
                let element = self.u32()?;
                let count = self.u64()?;
                let width = match element {
                    0 | 1 | 7 => Some(1),
                    2 | 3 => Some(2),
                    4..=6 => Some(4),
                    10..=12 => Some(8),
                    _ => None,
                };
                match width.map(|width| count.checked_mul(width)) {
                    Some(Some(bytes)) => self.skip(bytes)?,
                    Some(None) => return damaged(format!("a list of {count} values")),
                    // Every element takes bytes of the file, so a lie about their number ends at the file's end.
                    None => {
                        for _ in 0..count {
                            self.value(element, depth + 1)?;
                        }
                    }
                }
                None
            }
            other => return damaged(format!("there is no value type {other}, or lists are too deep")),
        })
    }
}
