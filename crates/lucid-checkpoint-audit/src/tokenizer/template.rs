//! The chat template, rendered on a short conversation.

use lucid_checkpoint::Files;
use lucid_text::{ChatTemplate, Specials, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

use super::base_name;
use crate::evidence::shortened;

/// What the template does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateFacts {
    /// The file that holds it.
    pub source: String,
    /// The conversation as it renders it, at most 2,000 characters.
    pub rendered: String,
    /// Why it fails on a plain conversation.
    pub problem: Option<String>,
    /// Texts of the conversation that the rendering lost.
    pub lost: Vec<String>,
    /// The token that follows the assistant's answer, with its id: what must end a generation.
    pub turn_end: Option<(String, u64)>,
    /// Markers (`<|…|>`) of the rendering that are no single token; at most 16.
    pub broken_markers: Vec<String>,
}

/// Words that no template writes by itself.
const QUESTION: &str = "qxzquestion";
const ANSWER: &str = "qxzanswer";
const FOLLOW_UP: &str = "qxzfollowup";

/// # Errors
/// There is none, or it can't be compiled.
pub(super) fn gather(files: &Files, tokenizer: Option<&Tokenizer>) -> Result<TemplateFacts, String> {
    let template = ChatTemplate::open(files).map_err(|error| error.to_string())?;
    let template = template.ok_or(
        "there is no chat template: neither chat_template.jinja nor a field in tokenizer_config.json",
    )?;
    let mut facts = TemplateFacts { source: base_name(template.source()), ..TemplateFacts::default() };
    let messages = json!([
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": FOLLOW_UP},
    ]);
    let text = match template.render(&messages, None, &Map::new(), true) {
        Ok(text) => text,
        Err(error) => {
            facts.problem = Some(shortened(&error.to_string(), 400));
            return Ok(facts);
        }
    };
    facts.lost = [QUESTION, ANSWER, FOLLOW_UP]
        .into_iter()
        .filter(|word| !text.contains(word))
        .map(ToOwned::to_owned)
        .collect();
    facts.rendered = shortened(&text, 2000);
    if let Some(tokenizer) = tokenizer {
        facts.turn_end = turn_end(&text, tokenizer);
        facts.broken_markers = markers(&text)
            .filter(|marker| tokenizer.id(marker).is_none())
            .map(|marker| shortened(marker, 60))
            .take(16)
            .collect();
        facts.broken_markers.sort_unstable();
        facts.broken_markers.dedup();
    }
    Ok(facts)
}

/// The first added token after the answer.
fn turn_end(text: &str, tokenizer: &Tokenizer) -> Option<(String, u64)> {
    let (_, after) = text.rsplit_once(ANSWER)?;
    let (between, _) = after.split_once(FOLLOW_UP)?;
    tokenizer.encode(between, Specials::Recognize).ok()?.into_iter().find_map(|id| {
        let name = String::from_utf8_lossy(tokenizer.bytes(id)?).into_owned();
        (tokenizer.id(&name) == Some(id)).then(|| (shortened(&name, 100), u64::from(id.0)))
    })
}

/// `<|name|>`, also in DeepSeek's full-width bars.
fn markers(text: &str) -> impl Iterator<Item = &str> {
    ["<|", "<｜"].into_iter().zip(["|>", "｜>"]).flat_map(move |(open, close)| {
        text.match_indices(open).filter_map(move |(at, _)| {
            let end = at + text[at..].find(close)? + close.len();
            let marker = &text[at..end];
            (marker.chars().count() <= 60 && !marker.contains(char::is_whitespace)).then_some(marker)
        })
    })
}
