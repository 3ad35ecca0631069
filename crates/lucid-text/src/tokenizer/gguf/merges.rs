//! `tokenizer.json` of a DeepSeek or GLM model, from what a GGUF file holds of it: tokens, types and merges. What it does not hold is the
//! pre-tokenizer, of which it has the name, so these stand here.

use lucid_checkpoint::gguf::Metadata;
use serde_json::{Map, Value, json};

use super::{MERGES, Row, TOKENS};
use crate::Error;
use crate::tokenizer::json::token_bytes;

/// Models with one pre-tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// DeepSeek-V3, R1, V3.1 and V3.2.
    DeepSeek,
    /// GLM-4 to GLM-5.2.
    Glm,
}

impl Family {
    /// By the name in `tokenizer.ggml.pre`; `None` for Kimi's.
    pub(super) fn of(pre: &str) -> Option<Family> {
        match pre {
            "deepseek-v3" => Some(Family::DeepSeek),
            "glm4" | "chatglm-bpe" => Some(Family::Glm),
            _ => None,
        }
    }

    /// Each cuts what those before it left over.
    /// Sources: `tokenizer.json` of DeepSeek-V3 and R1; llama.cpp, `src/llama-vocab.cpp` (`LLAMA_VOCAB_PRE_TYPE_CHATGLM4`).
    fn patterns(self) -> &'static [&'static str] {
        match self {
            Family::DeepSeek => &[
                r"\p{N}{1,3}",
                "[一-龥\u{3040}-ゟ゠-ヿ]+",
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
            ],
            Family::Glm => &[
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ],
        }
    }

    /// Whether a piece that is a token is that token, whatever the merges say. GLM's vocabulary is one of tiktoken, which looks first
    /// (and so does the file that transformers' `TikTokenConverter` makes of it); DeepSeek's is not.
    fn looks_up_whole_pieces(self) -> bool {
        self == Family::Glm
    }
}

/// The text of the file.
pub(super) fn tokenizer_json(metadata: &Metadata, family: Family, rows: &[Row<'_>]) -> Result<String, Error> {
    let file = metadata.location();
    let malformed = |field: &str, problem: String| Error::malformed(file, field, problem);
    let ordinary = rows.iter().rposition(|row| matches!(row, Row::Ordinary(_))).map_or(0, |last| last + 1);
    let (mut vocabulary, mut added) = (Map::new(), Vec::new());
    let mut missing: Vec<bool> = vec![true; 256];
    for (id, row) in rows.iter().enumerate() {
        let name = match row {
            Row::Ordinary(token) | Row::Unused(token) => *token,
            Row::Added(token) => token.name.as_str(),
        };
        // Numbers are given by counting, so that up to the last ordinary token none may be left out.
        if id < ordinary && vocabulary.insert(name.to_owned(), json!(id)).is_some() {
            return Err(malformed(&format!("{TOKENS}[{id}]"), format!("another token is {name:?} too")));
        }
        match row {
            Row::Ordinary(token) => {
                if let [byte] = token_bytes(token)[..] {
                    missing[usize::from(byte)] = false;
                }
            }
            Row::Added(token) => added.push(json!({
                "id": id,
                "content": token.name,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": token.special,
            })),
            Row::Unused(_) => {}
        }
    }
    if let Some(byte) = missing.iter().position(|missing| *missing) {
        let problem = format!("no token for the single byte {byte:#04x}; all 256 are needed");
        return Err(malformed(TOKENS, problem));
    }
    let Some(merges) = metadata.strings(MERGES)? else {
        return Err(malformed(MERGES, "missing: the file has no complete tokenizer".to_owned()));
    };
    let merge = |(i, merge): (usize, &[u8])| {
        let pair = str::from_utf8(merge).ok().and_then(|merge| merge.split_once(' '));
        let Some((left, right)) = pair else {
            let problem = "expected two tokens with a space between them".to_owned();
            return Err(malformed(&format!("{MERGES}[{i}]"), problem));
        };
        if let Some(unknown) = [left, right].into_iter().find(|token| !vocabulary.contains_key(*token)) {
            return Err(malformed(&format!("{MERGES}[{i}]"), format!("{unknown:?} is no token")));
        }
        Ok(json!([left, right]))
    };
    let merges: Vec<Value> = merges.into_iter().enumerate().map(merge).collect::<Result<_, _>>()?;
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let splits = family.patterns().iter().map(|pattern| {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
    });
    let cuts: Vec<Value> = splits.chain([byte_level.clone()]).collect();
    let json = json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": family.looks_up_whole_pieces(),
            "vocab": vocabulary,
            "merges": merges,
        },
    });
    Ok(json.to_string())
}
