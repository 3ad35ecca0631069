//! Log-probabilities in their three forms: chat, completions, and of the prompt.

use lucid_checkpoint::TokenId;
use lucid_engine::{Candidate, TokenLogprobs};
use lucid_text::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value};

/// JSON has no infinity; this is what vLLM and OpenAI send in its place.
const IMPOSSIBLE: f32 = -9999.0;

/// How tokens are written.
#[derive(Clone, Copy)]
pub(crate) struct TokenNames<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// As `token_id:N`.
    pub(crate) as_ids: bool,
}

impl TokenNames<'_> {
    /// The token's text; bytes that are no whole character become U+FFFD.
    fn text(self, id: TokenId) -> String {
        String::from_utf8_lossy(self.bytes(id)).into_owned()
    }

    fn name(self, id: TokenId) -> String {
        if self.as_ids { format!("token_id:{id}") } else { self.text(id) }
    }

    /// Empty for a row of the logits that no token has.
    fn bytes(&self, id: TokenId) -> &[u8] {
        self.tokenizer.bytes(id).unwrap_or_default()
    }
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}

/// `choices[].logprobs` of chat.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<ChatEntry>,
}

/// One generated token.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ChatEntry {
    #[serde(flatten)]
    token: ChatCandidate,
    top_logprobs: Vec<ChatCandidate>,
}

#[derive(Clone, Debug, Serialize)]
struct ChatCandidate {
    token: String,
    logprob: f32,
    /// The token's own bytes, also where they are only part of a character.
    bytes: Vec<u8>,
}

impl ChatEntry {
    pub(crate) fn new(entry: &TokenLogprobs, names: TokenNames<'_>) -> ChatEntry {
        let candidate = |candidate: &Candidate| ChatCandidate {
            token: names.name(candidate.id),
            logprob: finite(candidate.logprob),
            bytes: names.bytes(candidate.id).to_vec(),
        };
        ChatEntry { token: candidate(&entry.token), top_logprobs: entry.top.iter().map(candidate).collect() }
    }
}

/// `choices[].logprobs` of completions: parallel lists, one entry a token.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    /// Characters before the token, counted over the texts of the tokens.
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
}

impl CompletionLogprobs {
    /// Adds a token. `entry` is `None` for the first token of an echoed prompt. `offset` moves on by the token's length.
    pub(crate) fn push(
        &mut self,
        id: TokenId,
        entry: Option<&TokenLogprobs>,
        names: TokenNames<'_>,
        offset: &mut usize,
    ) {
        self.text_offset.push(*offset);
        *offset += names.text(id).chars().count();
        self.tokens.push(names.name(id));
        self.token_logprobs.push(entry.map(|entry| finite(entry.token.logprob)));
        self.top_logprobs.push(entry.map(|entry| {
            // Two tokens with the same text share a key (that is the format); `as_ids` tells them apart.
            candidates(entry).map(|c| (names.name(c.id), finite(c.logprob).into())).collect()
        }));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// `prompt_logprobs`: one entry a token of the prompt, the first null.
pub(crate) type PromptLogprobs = Vec<Option<Map<String, Value>>>;

#[derive(Serialize)]
struct PromptCandidate {
    logprob: f32,
    rank: usize,
    decoded_token: String,
}

/// The form of vLLM: `{"<token id>": {logprob, rank, decoded_token}}`, the prompt's own token first.
pub(crate) fn prompt_logprobs(entries: &[Option<TokenLogprobs>], tokenizer: &Tokenizer) -> PromptLogprobs {
    let names = TokenNames { tokenizer, as_ids: false };
    let entry = |entry: &TokenLogprobs| {
        candidates(entry)
            .map(|c| {
                let candidate = PromptCandidate {
                    logprob: finite(c.logprob),
                    rank: c.rank,
                    decoded_token: names.text(c.id),
                };
                (c.id.to_string(), serde_json::to_value(candidate).unwrap_or_default())
            })
            .collect()
    };
    entries.iter().map(|e| e.as_ref().map(entry)).collect()
}

/// The token that stands there, then the likeliest others.
fn candidates(entry: &TokenLogprobs) -> impl Iterator<Item = &Candidate> {
    std::iter::once(&entry.token).chain(entry.top.iter().filter(|c| c.id != entry.token.id))
}
