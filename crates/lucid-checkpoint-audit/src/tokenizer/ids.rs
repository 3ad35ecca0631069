//! Special tokens: their ids in the configs, their names in the tokenizer.

use std::collections::BTreeMap;

use lucid_checkpoint::TokenId;
use lucid_text::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Documents;
use crate::evidence::{Capped, shortened};

/// An id that a file gives to a special token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpecialId {
    /// The file: `config.json`, `generation_config.json`, `tokenizer_config.json`, or a key of GGUF.
    pub file: String,
    /// `bos`, `eos` or `pad`.
    pub role: String,
    /// The id; `None` where a name is given that no token has.
    pub id: Option<u64>,
    /// The text of that token; `None` when no token has the id.
    pub name: Option<String>,
}

/// A token that parsers and templates rely on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Marker {
    /// `</think>`
    pub name: String,
    /// Its id.
    pub id: u64,
    /// Marked `special`: it disappears from decoded text where special tokens are skipped.
    pub special: bool,
    /// What the id decodes to.
    pub decoded: String,
}

/// `added_tokens_decoder` of `tokenizer_config.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AddedTokens {
    /// Entries.
    pub named: u64,
    /// Ids between the first and the last entry that have none.
    pub unnamed: u64,
    /// Entries that the tokenizer has another token for; at most 16.
    pub differing: Capped<String>,
}

/// Of Kimi, DeepSeek and GLM.
const MARKERS: [&str; 22] = [
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "[EOS]",
    "[EOT]",
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<tool_call>",
    "</tool_call>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|endoftext|>",
    "<｜end▁of▁sentence｜>",
    "<｜Assistant｜>",
];

pub(super) fn markers(tokenizer: &Tokenizer) -> Vec<Marker> {
    let marker = |name: &&str| {
        let id = tokenizer.id(name)?;
        Some(Marker {
            name: (*name).to_owned(),
            id: u64::from(id.0),
            special: tokenizer.is_special(id),
            decoded: shortened(&tokenizer.decode(&[id], false), 100),
        })
    };
    MARKERS.iter().filter_map(marker).collect()
}

/// Ids of `bos`, `eos`, `pad` in every file that gives one.
pub(super) fn special_ids(documents: &Documents, tokenizer: Option<&Tokenizer>) -> Vec<SpecialId> {
    let name_of = |id: u64| {
        let id = TokenId(u32::try_from(id).ok()?);
        Some(shortened(&String::from_utf8_lossy(tokenizer?.bytes(id)?), 100))
    };
    let mut found: Vec<SpecialId> = Vec::new();
    let mut add = |file: &str, role: &str, id: u64| {
        let entry =
            SpecialId { file: file.to_owned(), role: role.to_owned(), id: Some(id), name: name_of(id) };
        if found.len() < 64 && !found.contains(&entry) {
            found.push(entry);
        }
    };
    let config = documents.config.iter().map(|config| ("config.json", config));
    let generation = documents.generation.iter().map(|config| ("generation_config.json", config));
    for (file, json) in config.chain(generation) {
        for role in ["bos", "eos", "pad"] {
            match json.get(format!("{role}_token_id")) {
                Some(Value::Array(ids)) => {
                    ids.iter().filter_map(Value::as_u64).for_each(|id| add(file, role, id))
                }
                Some(id) => id.as_u64().into_iter().for_each(|id| add(file, role, id)),
                None => {}
            }
        }
    }
    for (key, id) in &documents.gguf {
        let role = if key.contains("bos") {
            "bos"
        } else if key.contains("padding") {
            "pad"
        } else {
            "eos"
        };
        add(key, role, *id);
    }
    // tokenizer_config.json gives names.
    for role in ["bos", "eos", "pad"] {
        let field = documents.tokenizer.as_ref().and_then(|json| json.get(format!("{role}_token")));
        let name = field.and_then(|field| field.as_str().or_else(|| field.get("content")?.as_str()));
        if let (Some(name), Some(tokenizer)) = (name, tokenizer) {
            let id = tokenizer.id(name).map(|id| u64::from(id.0));
            let (file, role, name) =
                ("tokenizer_config.json".to_owned(), role.to_owned(), Some(shortened(name, 100)));
            found.push(SpecialId { file, role, id, name });
        }
    }
    found
}

/// Compares the entries of `added_tokens_decoder` with the tokenizer's tokens.
pub(super) fn added_tokens(config: Option<&Value>, tokenizer: &Tokenizer) -> AddedTokens {
    let mut added = AddedTokens::default();
    let Some(entries) = config.and_then(|c| c.get("added_tokens_decoder")).and_then(Value::as_object) else {
        return added;
    };
    let entries: BTreeMap<u32, &str> = entries
        .iter()
        .filter_map(|(id, token)| Some((id.parse().ok()?, token.get("content")?.as_str()?)))
        .collect();
    added.named = entries.len() as u64;
    if let (Some((first, _)), Some((last, _))) = (entries.first_key_value(), entries.last_key_value()) {
        added.unnamed = u64::from(last - first) + 1 - added.named;
    }
    for (id, name) in entries {
        let decoded = tokenizer.decode(&[TokenId(id)], false);
        if decoded != name || tokenizer.id(name) != Some(TokenId(id)) {
            let its = tokenizer.id(name).map_or("no token".to_owned(), |id| format!("token {id}"));
            let text = format!(
                "{id} is {name:?} in tokenizer_config.json, but decodes to {decoded:?}; {name:?} is {its}"
            );
            added.differing.push(16, shortened(&text, 300));
        }
    }
    added
}
