//! Which digest each file should have, as far as anything near it says so.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::header::{LfsPointer, read_small};

/// The largest manifest that is read.
const MAX_MANIFEST: u64 = 32 << 20;

/// What a file should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) sha256: Option<String>,
    pub(crate) bytes: Option<u64>,
    pub(crate) source: String,
}

/// Lower-case hexadecimal.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text is a SHA-256 in hexadecimal.
pub(crate) fn sha256(text: &str) -> Option<String> {
    (text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())).then(|| text.to_ascii_lowercase())
}

/// Reads a manifest: what `sha256sum` writes (also its BSD form), the JSON of the Hugging Face API (`/api/models/NAME?blobs=true`
/// or `/tree/main`), a JSON object of names and digests, or a folder with Git LFS pointers.
pub(crate) fn manifest(path: &Path) -> Result<BTreeMap<String, Expected>, String> {
    let source = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let io = |error: std::io::Error| format!("{}: {error}", path.display());
    if path.is_dir() {
        return pointers(path, &source).map_err(io);
    }
    let bytes = read_small(path, MAX_MANIFEST).map_err(io)?;
    let bytes = bytes.ok_or_else(|| format!("{}: longer than {MAX_MANIFEST} bytes", path.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let entries = match serde_json::from_str::<Value>(&text) {
        Ok(json) => of_json(&json),
        Err(_) => text.lines().filter_map(of_line).collect(),
    };
    if entries.is_empty() {
        return Err(format!(
            "{}: no digests in it; expected lines as sha256sum writes them, or the JSON of the Hugging \
                Face API with lfs.sha256",
            path.display()
        ));
    }
    let mut manifest: BTreeMap<String, (usize, Expected)> = BTreeMap::new();
    for (name, sha256, bytes) in entries {
        // The files were perhaps elsewhere when the manifest was made; of two of a name, the one less deep.
        let depth = name.matches('/').count();
        let base = name.rsplit('/').next().unwrap_or(&name).to_owned();
        let expected = Expected { sha256, bytes, source: source.clone() };
        match manifest.get(&base) {
            Some((other, _)) if *other <= depth => {}
            _ => drop(manifest.insert(base, (depth, expected))),
        }
    }
    Ok(manifest.into_iter().map(|(name, (_, expected))| (name, expected)).collect())
}

type Entry = (String, Option<String>, Option<u64>);

/// `DIGEST  NAME`, `DIGEST *NAME`, or `SHA256 (NAME) = DIGEST`.
fn of_line(line: &str) -> Option<Entry> {
    let line = line.trim_end();
    if let Some(rest) = line.strip_prefix("SHA256 (") {
        let (name, digest) = rest.rsplit_once(") = ")?;
        return Some((name.to_owned(), Some(sha256(digest.trim())?), None));
    }
    let (digest, name) = line.trim_start_matches('\\').split_once(char::is_whitespace)?;
    let name = name.trim_start().trim_start_matches('*').trim_start_matches("./");
    Some((name.to_owned(), Some(sha256(digest)?), None))
}

fn of_json(json: &Value) -> Vec<Entry> {
    let list = json
        .as_array()
        .or_else(|| json.get("siblings")?.as_array())
        .or_else(|| json.get("files")?.as_array());
    if let Some(list) = list {
        return list.iter().filter_map(of_object).collect();
    }
    let Some(object) = json.as_object() else { return Vec::new() };
    let pair = |(name, value): (&String, &Value)| {
        let digest = value.as_str().or_else(|| value.get("sha256")?.as_str())?;
        let digest = sha256(digest.strip_prefix("sha256:").unwrap_or(digest))?;
        Some((name.clone(), Some(digest), value.get("size").and_then(Value::as_u64)))
    };
    object.iter().filter_map(pair).collect()
}

fn of_object(entry: &Value) -> Option<Entry> {
    let text = |names: &[&str]| names.iter().find_map(|name| entry.get(*name)?.as_str());
    let name = text(&["rfilename", "path", "name", "filename"])?;
    let lfs = entry.get("lfs").filter(|lfs| lfs.is_object());
    let digest = lfs
        .and_then(|lfs| lfs.get("sha256").or_else(|| lfs.get("oid"))?.as_str())
        .or_else(|| entry.get("sha256")?.as_str());
    let bytes = lfs.and_then(|lfs| lfs.get("size")).or_else(|| entry.get("size")).and_then(Value::as_u64);
    let digest = digest.and_then(|digest| sha256(digest.strip_prefix("sha256:").unwrap_or(digest)));
    (digest.is_some() || bytes.is_some()).then(|| (name.to_owned(), digest, bytes))
}

/// The pointers of a clone that was made with `GIT_LFS_SKIP_SMUDGE=1`.
fn pointers(folder: &Path, source: &str) -> std::io::Result<BTreeMap<String, Expected>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder)?.flatten().take(10_000) {
        let Ok(Some(text)) = read_small(&entry.path(), 1024) else { continue };
        if let Some(pointer) = LfsPointer::parse(&text) {
            let expected = Expected {
                sha256: sha256(&pointer.sha256),
                bytes: (pointer.bytes > 0).then_some(pointer.bytes),
                source: format!("Git LFS pointer in {source}"),
            };
            found.insert(entry.file_name().to_string_lossy().into_owned(), expected);
        }
    }
    Ok(found)
}

/// `hf download --local-dir` keeps what it saw: commit, etag and time, a line each. The etag of a large file is its SHA-256.
pub(crate) fn download_record(folder: &Path, name: &str) -> Option<Expected> {
    let path = folder.join(".cache/huggingface/download").join(format!("{name}.metadata"));
    let text = read_small(&path, 4096).ok()??;
    let text = String::from_utf8_lossy(&text);
    let digest = sha256(text.lines().nth(1)?.trim())?;
    Some(Expected { sha256: Some(digest), bytes: None, source: "Hugging Face download record".to_owned() })
}

/// In the Hugging Face cache a file is a link to `blobs/DIGEST`.
pub(crate) fn cache_blob(target: &Path) -> Option<Expected> {
    let folder = target.parent()?.file_name()?;
    let digest = sha256(target.file_name()?.to_str()?)?;
    (folder == "blobs").then(|| Expected {
        sha256: Some(digest),
        bytes: None,
        source: "name of the Hugging Face cache blob".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn every_form_of_manifest_is_read() {
        let place = tempfile::tempdir().unwrap();
        for (form, text) in [
            ("sha256sum", format!("{A}  ./w.safetensors\n{A} *other\n")),
            ("binary", format!("{} *w.safetensors\r\n", A.to_uppercase())),
            ("bsd", format!("SHA256 (w.safetensors) = {A}\n")),
            (
                "api",
                format!(
                    r#"{{"siblings":[{{"rfilename":"w.safetensors","lfs":{{"sha256":"{A}","size":9}}}},{{"rfilename":"original/w.safetensors","lfs":{{"sha256":"{}","size":9}}}}]}}"#,
                    A.replace('a', "b")
                ),
            ),
            (
                "tree",
                format!(
                    r#"[{{"path":"w.safetensors","size":9,"lfs":{{"oid":"sha256:{A}","size":9}}}},{{"path":"README.md","size":3}}]"#
                ),
            ),
            ("object", format!(r#"{{"w.safetensors":"{A}"}}"#)),
        ] {
            let path = place.path().join(form);
            std::fs::write(&path, text).unwrap();
            assert_eq!(manifest(&path).unwrap()["w.safetensors"].sha256.as_deref(), Some(A), "{form}");
        }
        let clone = place.path().join("clone");
        std::fs::create_dir(&clone).unwrap();
        let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{A}\nsize 9\n");
        std::fs::write(clone.join("w.safetensors"), pointer).unwrap();
        let expected = &manifest(&clone).unwrap()["w.safetensors"];
        assert_eq!((expected.sha256.as_deref(), expected.bytes), (Some(A), Some(9)));
    }

    #[test]
    fn a_text_without_digests_is_refused() {
        let place = tempfile::tempdir().unwrap();
        for text in ["", "hello world\n", "{}", "[1,2]", "abc  name\n"] {
            std::fs::write(place.path().join("m"), text).unwrap();
            assert!(manifest(&place.path().join("m")).is_err(), "{text:?}");
        }
    }
}
