//! The sparse-attention indexer in GGUF's metadata.
//!
//! Source: llama.cpp, `conversion/glm.py`, `src/models/glm-dsa.cpp` and `src/models/deepseek32.cpp`.

use serde_json::{Map, Value as Json, json};

use super::Keys;
use crate::Error;

/// No config is read that has more.
const MOST_LAYERS: u64 = 10_000;
/// From this context length on, a `glm-dsa` file without a list of its layers is taken for GLM-5.2.
const GLM_5_2_CONTEXT: u64 = 1 << 20;

/// The fields of config.json; none for models without an indexer.
pub(super) fn read(
    keys: &Keys<'_>,
    layers: u64,
    notices: &mut Vec<String>,
) -> Result<Map<String, Json>, Error> {
    let glm = match keys.architecture.gguf {
        "glm-dsa" => true,
        "deepseek32" => false,
        _ => return Ok(Map::new()),
    };
    let pairs = [
        ("index_n_heads", json!(keys.size("attention.indexer.head_count")?)),
        ("index_head_dim", json!(keys.size("attention.indexer.key_length")?)),
        ("index_topk", json!(keys.size("attention.indexer.top_k")?)),
        // The converter leaves the rows of the indexer as they are, and llama.cpp turns them so.
        ("indexer_rope_interleave", json!(glm)),
        ("indexer_types", json!(types(keys, glm, layers, notices)?)),
    ];
    Ok(pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Which layers choose for themselves; `None`: all of them.
fn types(
    keys: &Keys<'_>,
    glm: bool,
    layers: u64,
    notices: &mut Vec<String>,
) -> Result<Option<Vec<&'static str>>, Error> {
    const TYPES: &str = "attention.indexer.types";
    // The number is checked with the other fields; until then it may be any.
    let layers = layers.min(MOST_LAYERS);
    let key = keys.key(TYPES);
    let kind = |full: bool| if full { "full" } else { "shared" };
    if let Some(types) = keys.metadata.flags(&key)? {
        // Some lists go on for the layers of multi-token prediction.
        if (types.len() as u64) < layers {
            let problem = format!("{} flags for {layers} layers", types.len());
            return Err(keys.metadata.error(&key, problem));
        }
        return Ok(Some(types.into_iter().zip(0..layers).map(|(full, _)| kind(full)).collect()));
    }
    if !glm || keys.size("context_length")? < GLM_5_2_CONTEXT {
        return Ok(None);
    }
    notices.push(format!(
        "{}: no {key}, so the layers of GLM-5.2 are taken: 0, 1, 2 and every fourth after that choose, the others share",
        keys.metadata.location()
    ));
    Ok(Some((0..layers).map(|i| kind(i < 2 || i % 4 == 2)).collect()))
}
