//! `tokenizer.json` and `tiktoken.model` are two spellings of one tokenizer; engines differ in which they read.

use lucid_checkpoint::{Files, TokenId};
use lucid_text::{Specials, Tokenizer};
use serde::{Deserialize, Serialize};

use crate::evidence::{Capped, shortened};

/// How the two differ.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TwinFacts {
    /// Sizes of `tokenizer.json` and `tiktoken.model`.
    pub sizes: (u64, u64),
    /// Texts that both encoded.
    pub texts: u64,
    /// Texts with different ids; at most 8.
    pub texts_differing: Capped<String>,
    /// Ids that both decoded.
    pub ids: u64,
    /// Ids with different bytes; at most 16.
    pub ids_differing: Capped<String>,
}

/// Words, numbers, code, several scripts, odd whitespace, markers of a chat.
const TEXTS: [&str; 8] = [
    "The quick brown fox can't jump over 1234567 lazy dogs.",
    "def f(x):\n    return {\"a\": [x, 3.14159]}\n",
    "中文测试：模型能不能正确地分词？",
    "Ünïcödé naïve café — “quotes” … €100",
    "Привет, мир! こんにちは 안녕하세요 مرحبا",
    "  leading, trailing  \t tabs\n\n\nand lines \r\n",
    "😀👩‍🚀 emoji 🇩🇪",
    "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>ok<|im_end|>",
];

pub(super) fn compare(files: &Files) -> Result<TwinFacts, String> {
    let json = Tokenizer::open_json(files).map_err(|error| error.to_string())?;
    let ranks = Tokenizer::open_tiktoken(files).map_err(|error| error.to_string())?;
    let (a, b) = (json.vocab_size(), ranks.vocab_size());
    let mut facts = TwinFacts { sizes: (a as u64, b as u64), ..TwinFacts::default() };
    for text in TEXTS {
        if let (Ok(one), Ok(other)) =
            (json.encode(text, Specials::Recognize), ranks.encode(text, Specials::Recognize))
        {
            facts.texts += 1;
            if one != other {
                facts.texts_differing.push(8, shortened(text, 40));
            }
        }
    }
    for id in (0..a.min(b)).filter_map(|id| u32::try_from(id).ok()).map(TokenId) {
        if let (Some(one), Some(other)) = (json.bytes(id), ranks.bytes(id)) {
            facts.ids += 1;
            let reserved = |bytes: &[u8]| bytes.windows(8).any(|word| word == b"reserved");
            // Ids without a name are named as each file likes.
            if one != other && !reserved(one) && !reserved(other) {
                let (one, other) = (String::from_utf8_lossy(one), String::from_utf8_lossy(other));
                facts.ids_differing.push(16, shortened(&format!("{id}: {one:?} and {other:?}"), 120));
            }
        }
    }
    Ok(facts)
}
