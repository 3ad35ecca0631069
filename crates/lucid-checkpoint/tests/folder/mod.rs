//! Small checkpoint folders, right or wrong on purpose.

#![allow(dead_code)] // Each test file uses a part.

pub(crate) mod gguf;

use std::path::{Path, PathBuf};

use lucid_checkpoint::{Checkpoint, Error, Files};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) fn canary() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary")
}

/// The canary's own config.
pub(crate) fn config() -> Value {
    serde_json::from_slice(&std::fs::read(canary().join("config.json")).unwrap()).unwrap()
}

/// A tensor for [`shard`]: name, type, shape, bytes.
pub(crate) type Spec<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);

/// A safetensors file with these tensors, one after the other.
pub(crate) fn shard(tensors: &[Spec<'_>]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let begin = data.len();
        data.extend_from_slice(bytes);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert((*name).to_owned(), entry);
    }
    file(&Value::Object(header).to_string(), &data)
}

/// A safetensors file with any header text.
pub(crate) fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

/// A folder with the canary's config and these files.
pub(crate) fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("config.json"), config().to_string()).unwrap();
    for (name, bytes) in files {
        std::fs::write(place.path().join(name), bytes).unwrap();
    }
    place
}

pub(crate) fn open(path: &Path) -> Result<Checkpoint, Error> {
    Checkpoint::open(Files::open(path)?)
}

/// A checkpoint with these tensors in one shard.
pub(crate) fn checkpoint(tensors: &[Spec<'_>]) -> Checkpoint {
    // The map outlives the folder's name.
    open(folder(&[("model.safetensors", &shard(tensors))]).path()).unwrap()
}

/// The message has all these parts.
#[track_caller]
pub(crate) fn assert_says<T>(result: Result<T, Error>, parts: &[&str]) {
    let Err(error) = result else { panic!("expected an error with {parts:?}") };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}
