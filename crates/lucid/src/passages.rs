//! Texts to score, from a file with a JSON object a line.

use std::path::Path;

use anyhow::{Context, Result, bail};
use lucid_checkpoint::{Files, TokenId};
use lucid_text::{ChatTemplate, Specials, Tokenizer};
use serde::Deserialize;
use serde_json::{Map, Value};

/// One line of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: Option<String>,
    messages: Option<Value>,
    tools: Option<Value>,
    text: Option<String>,
    tokens: Option<Vec<u32>>,
    answer: Option<String>,
    answer_tokens: Option<Vec<u32>>,
}

/// A text as the model sees it.
#[derive(Debug)]
pub struct Passage {
    /// Its name: given, or the line's number.
    pub name: String,
    /// Prompt and answer.
    pub tokens: Vec<TokenId>,
    /// How many of them are the prompt.
    pub prompt: usize,
}

/// Reads the file. Template and tokenizer are the checkpoint's own, and are needed only for what is not given as tokens.
pub fn read(path: &Path, files: &Files) -> Result<Vec<Passage>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut tools = Tools { files, tokenizer: None, template: None };
    let mut passages = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let at = || format!("{}, line {number}", path.display());
        let line: Line = serde_json::from_str(line).with_context(at)?;
        passages.push(tools.passage(line, number).with_context(at)?);
    }
    if passages.is_empty() {
        bail!("{} has no lines: write a JSON object a line, as {{\"text\": \"Hello\"}}", path.display());
    }
    Ok(passages)
}

struct Tools<'a> {
    files: &'a Files,
    tokenizer: Option<Tokenizer>,
    template: Option<ChatTemplate>,
}

impl Tools<'_> {
    fn passage(&mut self, line: Line, number: usize) -> Result<Passage> {
        let ids = |ids: Vec<u32>| ids.into_iter().map(TokenId).collect::<Vec<_>>();
        let mut tokens = match (line.messages, line.text, line.tokens) {
            (Some(messages), None, None) => {
                let text = self.template()?.render(&messages, line.tools.as_ref(), &Map::new(), true)?;
                self.encode(&text)?
            }
            (None, Some(text), None) => self.encode(&text)?,
            (None, None, Some(tokens)) => ids(tokens),
            _ => bail!("exactly one of messages, text and tokens must be there"),
        };
        let prompt = tokens.len();
        match (line.answer, line.answer_tokens) {
            (None, None) => {}
            (Some(text), None) => tokens.extend(self.encode(&text)?),
            (None, Some(answer)) => tokens.extend(ids(answer)),
            _ => bail!("answer and answer_tokens exclude each other"),
        }
        let name = line.name.unwrap_or_else(|| number.to_string());
        Ok(Passage { name, tokens, prompt })
    }

    fn encode(&mut self, text: &str) -> Result<Vec<TokenId>> {
        let tokenizer = match &mut self.tokenizer {
            Some(tokenizer) => tokenizer,
            none => none.insert(Tokenizer::open(self.files)?),
        };
        Ok(tokenizer.encode(text, Specials::Recognize)?)
    }

    fn template(&mut self) -> Result<&ChatTemplate> {
        match &mut self.template {
            Some(template) => Ok(template),
            none => {
                let template = ChatTemplate::open(self.files)?;
                Ok(none.insert(template.context("the checkpoint has no chat template: give text or tokens")?))
            }
        }
    }
}
