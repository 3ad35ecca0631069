//! `model.safetensors.index.json`: compared with the headers, never relied on.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::checkpoint::Tensor;
use crate::{Error, Files};

const INDEX: &str = "model.safetensors.index.json";

/// Adds a notice for each way in which the index, if there is one, differs from the shards' headers.
pub(crate) fn compare(
    files: &Files,
    tensors: &BTreeMap<String, Tensor>,
    notices: &mut Vec<String>,
) -> Result<(), Error> {
    let Some(bytes) = files.find(INDEX)? else { return Ok(()) };
    let location = files.location(INDEX);
    let index: Value = match serde_json::from_slice(&bytes) {
        Ok(index) => index,
        Err(cause) => {
            notices.push(format!("{location} is not valid JSON ({cause}); the shards' headers were used"));
            return Ok(());
        }
    };
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        notices.push(format!("{location} has no weight_map; the shards' headers were used"));
        return Ok(());
    };
    let missing: Vec<&str> =
        map.keys().filter(|name| !tensors.contains_key(*name)).map(String::as_str).collect();
    let unlisted: Vec<&str> =
        tensors.keys().filter(|name| !map.contains_key(*name)).map(String::as_str).collect();
    let moved: Vec<&str> = tensors
        .values()
        .filter(|t| map.get(&t.name).is_some_and(|shard| shard.as_str() != Some(&t.shard)))
        .map(|t| t.name.as_str())
        .collect();
    for (names, what) in [
        (missing, "listed there but in no shard"),
        (unlisted, "in a shard but not listed there"),
        (moved, "in another shard than listed there"),
    ] {
        if let Some(first) = names.first() {
            notices.push(format!("{location} is outdated: {} tensors are {what}, as {first}", names.len()));
        }
    }
    Ok(())
}
