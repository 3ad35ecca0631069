//! Headers of shards, read leniently: tensor by tensor, also where a strict reader refuses the file.

mod gguf;
mod safetensors;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use crate::evidence::{Capped, ExtentKind, ExtentProblem, shortened};

/// The largest header that is read, in bytes: the reference implementation's limit, and far above any GGUF tokenizer.
const MAX_HEADER: u64 = 100_000_000;

/// The most problems that are kept of a shard.
pub(crate) const MAX_PROBLEMS: usize = 64;

/// A tensor as a header describes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    /// As safetensors or llama.cpp spell it.
    pub(crate) dtype: String,
    /// Slowest first.
    pub(crate) shape: Vec<u64>,
    /// From the beginning of the file.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl TensorEntry {
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

/// What could be read of a header.
#[derive(Debug, Default)]
pub(crate) struct Header {
    /// Sorted by place in the file; only those whose extents are numbers.
    pub(crate) tensors: Vec<TensorEntry>,
    pub(crate) data_start: u64,
    /// `split.no` and `split.count` of a GGUF file.
    pub(crate) split: Option<(u64, u64)>,
    pub(crate) problems: Capped<ExtentProblem>,
}

impl Header {
    fn problem(&mut self, kind: ExtentKind, text: impl Into<String>) {
        let text = shortened(&text.into(), 400);
        self.problems.push(MAX_PROBLEMS, ExtentProblem { kind, tensor: None, at: None, bytes: None, text });
    }

    fn of_tensor(&mut self, kind: ExtentKind, tensor: &str, at: u64, bytes: u64, text: String) {
        let tensor = Some(shortened(tensor, 200));
        let text = shortened(&text, 400);
        self.problems
            .push(MAX_PROBLEMS, ExtentProblem { kind, tensor, at: Some(at), bytes: Some(bytes), text });
    }

    /// Checks the tensors' extents against each other and against the file's length. Between neighbours up to `padding`
    /// bytes are no gap.
    fn check_extents(&mut self, length: u64, padding: u64) {
        self.tensors.sort_by(|a, b| (a.start, a.bytes, &a.name).cmp(&(b.start, b.bytes, &b.name)));
        let tensors = std::mem::take(&mut self.tensors);
        let mut end = self.data_start;
        let mut before = "the header";
        for tensor in &tensors {
            if tensor.start < end && tensor.bytes > 0 {
                let shared = end.min(tensor.end()) - tensor.start;
                let text = format!("{} and {before} share {shared} bytes", tensor.name);
                self.of_tensor(ExtentKind::Overlap, &tensor.name, tensor.start, shared, text);
            } else if tensor.start - end.min(tensor.start) > padding {
                let gap = tensor.start - end;
                let text = format!("{gap} bytes between {before} and {} belong to no tensor", tensor.name);
                self.of_tensor(ExtentKind::Gap, &tensor.name, end, gap, text);
            }
            if tensor.end() >= end {
                end = tensor.end();
                before = &tensor.name;
            }
        }
        if end > length {
            let cut: Vec<&TensorEntry> = tensors.iter().filter(|t| t.end() > length).collect();
            if let Some(first) = cut.first() {
                let missing = end - length;
                let text = format!(
                    "the header describes {end} bytes, the file has {length}: {missing} are missing, in {} of {} tensors, \
                     the first is {}",
                    cut.len(),
                    tensors.len(),
                    first.name
                );
                self.of_tensor(ExtentKind::Short, &first.name, length, missing, text);
            }
        } else if length - end > padding && !tensors.is_empty() {
            let text = format!("{} bytes after the last tensor belong to none", length - end);
            self.problem(ExtentKind::Long, text);
            if let Some(last) = self.problems.kept.last_mut() {
                (last.at, last.bytes) = (Some(end), Some(length - end));
            }
        }
        self.tensors = tensors;
    }
}

/// Reads the header of an open shard of `length` bytes; `name` tells the container.
pub(crate) fn read(file: &File, length: u64, name: &str) -> Header {
    let mut header = Header::default();
    if length == 0 {
        header.problem(ExtentKind::Empty, "the file has no bytes");
        return header;
    }
    let mut beginning = [0u8; 1024];
    let got = match read_up_to(file, &mut beginning, 0) {
        Ok(got) => &beginning[..got],
        Err(error) => {
            header.problem(ExtentKind::Unreadable, error.to_string());
            return header;
        }
    };
    if let Some(pointer) = LfsPointer::parse(got) {
        let text = format!("this is a Git LFS pointer to {} bytes, sha256 {}", pointer.bytes, pointer.sha256);
        header.problem(ExtentKind::LfsPointer, text);
        return header;
    }
    if let Some(text) = error_page(got) {
        header.problem(ExtentKind::WebPage, text);
        return header;
    }
    if name.ends_with(".gguf") {
        gguf::read(file, length, &mut header);
    } else {
        safetensors::read(file, length, &mut header);
    }
    header
}

/// What a Git LFS pointer says.
pub(crate) struct LfsPointer {
    pub(crate) sha256: String,
    pub(crate) bytes: u64,
}

impl LfsPointer {
    /// `None` when the text is no pointer.
    pub(crate) fn parse(text: &[u8]) -> Option<LfsPointer> {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        if !text.starts_with(b"version https://git-lfs") && !text.starts_with(b"version https://hawser") {
            return None;
        }
        let text = String::from_utf8_lossy(text);
        let field = |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name));
        Some(LfsPointer {
            sha256: field("oid sha256:").unwrap_or("unknown").trim().to_owned(),
            bytes: field("size ").and_then(|size| size.trim().parse().ok()).unwrap_or(0),
        })
    }
}

/// A web page, or the JSON or XML of a refused download, in words. A safetensors file begins with its header's length,
/// which no header of a sane length spells as these letters.
fn error_page(beginning: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(beginning);
    let text = text.trim_start_matches(['\u{feff}', ' ', '\n', '\r', '\t']);
    let lower = text.get(..text.len().min(200)).unwrap_or(text).to_ascii_lowercase();
    let page = ["<!doctype", "<html", "<?xml", "<head", "<error"].iter().any(|tag| lower.starts_with(tag));
    let refusal =
        ["invalid username", "access to model", "entry not found", "repository not found", "unauthorized"]
            .iter()
            .any(|words| lower.starts_with(words));
    let json = lower.starts_with("{\"error") || lower.starts_with("{\"message");
    (page || refusal || json).then(|| {
        let line = text.lines().next().unwrap_or_default();
        format!("the file is a web page or an error message, it begins with {:?}", shortened(line, 80))
    })
}

/// Fills the buffer from `at` as far as the file goes.
pub(crate) fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], at + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

/// A whole small file; `None` when it is longer than `most`.
pub(crate) fn read_small(path: &std::path::Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    // Opening a pipe would wait for a writer for ever.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// Bits of an element of a safetensors type; `None` for a type that is not known.
pub(crate) fn element_bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" | "C64" => 64,
        _ => return None,
    })
}
