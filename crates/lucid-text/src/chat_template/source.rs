//! Where a checkpoint keeps its chat template.

use lucid_checkpoint::Files;
use lucid_checkpoint::gguf::{self, Metadata};
use serde_json::{Map, Value};

use crate::Error;

const TEMPLATE_FILE: &str = "chat_template.jinja";
const CONFIG_FILE: &str = "tokenizer_config.json";

/// The template that is used unless the tools have one of their own.
const DEFAULT: &str = "default";

/// Older checkpoints have a second template under this name, for requests with tools.
const TOOL_USE: &str = "tool_use";

/// Variables that Hugging Face hands to every template.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Those of them that GGUF has ids for.
const GGUF_SPECIAL_TOKENS: [(&str, &str); 4] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
];

/// The templates of a checkpoint and what they need to know of it.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) file: String,
    /// Templates by name; one of them is [`DEFAULT`].
    pub(crate) templates: Vec<(String, String)>,
    /// `bos_token` and the like, as strings.
    pub(crate) special_tokens: Map<String, Value>,
}

impl Source {
    /// `None` if the checkpoint has no template.
    pub(crate) fn read(files: &Files) -> Result<Option<Self>, Error> {
        if let Some(metadata) = gguf::metadata(files)? {
            return Self::of_gguf(&metadata);
        }
        let config_file = files.location(CONFIG_FILE);
        let config: Value = match files.find(CONFIG_FILE)? {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                Error::malformed(&config_file, format!("line {}", error.line()), error.to_string())
            })?,
            None => Value::Null,
        };
        let special_tokens = special_tokens(&config);

        if let Some(bytes) = files.find(TEMPLATE_FILE)? {
            let file = files.location(TEMPLATE_FILE);
            let template = std::str::from_utf8(&bytes).map_err(|error| {
                Error::malformed(&file, format!("byte {}", error.valid_up_to()), "not UTF-8")
            })?;
            let templates = vec![(DEFAULT.to_owned(), template.to_owned())];
            return Ok(Some(Source { file, templates, special_tokens }));
        }
        match config.get("chat_template") {
            None | Some(Value::Null) => Ok(None),
            Some(field) => {
                let templates = templates(field)
                    .map_err(|problem| Error::malformed(&config_file, "chat_template", problem))?;
                Ok(Some(Source { file: config_file, templates, special_tokens }))
            }
        }
    }

    /// `tokenizer.chat_template`, and further templates as `tokenizer.chat_template.NAME`.
    fn of_gguf(metadata: &Metadata) -> Result<Option<Self>, Error> {
        const KEY: &str = "tokenizer.chat_template";
        let Some(default) = metadata.string(KEY)? else { return Ok(None) };
        let mut templates = vec![(DEFAULT.to_owned(), default.to_owned())];
        if let Some(tool_use) = metadata.string(&format!("{KEY}.{TOOL_USE}"))? {
            templates.push((TOOL_USE.to_owned(), tool_use.to_owned()));
        }
        let tokens = metadata.strings("tokenizer.ggml.tokens")?.unwrap_or_default();
        let mut special_tokens = Map::new();
        for (name, key) in GGUF_SPECIAL_TOKENS {
            let Some(id) = metadata.integer(key)? else { continue };
            let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
            if let Some(text) = token.and_then(|token| str::from_utf8(token).ok()) {
                special_tokens.insert(name.to_owned(), Value::from(text));
            }
        }
        Ok(Some(Source { file: metadata.location().to_owned(), templates, special_tokens }))
    }

    /// The name of the template for a request.
    pub(crate) fn choose(&self, with_tools: bool) -> &str {
        if with_tools && self.templates.iter().any(|(name, _)| name == TOOL_USE) { TOOL_USE } else { DEFAULT }
    }
}

/// The field is a template, or a list of `{"name": …, "template": …}`.
fn templates(field: &Value) -> Result<Vec<(String, String)>, String> {
    let templates: Vec<(String, String)> = match field {
        Value::String(template) => vec![(DEFAULT.to_owned(), template.clone())],
        Value::Array(list) => list
            .iter()
            .map(|entry| {
                let text = |field: &str| {
                    let text = entry.get(field).and_then(Value::as_str);
                    text.map(ToOwned::to_owned).ok_or_else(|| format!("an entry has no string {field:?}"))
                };
                Ok((text("name")?, text("template")?))
            })
            .collect::<Result<_, String>>()?,
        _ => return Err("neither a string nor a list".to_owned()),
    };
    if templates.iter().all(|(name, _)| name != DEFAULT) {
        return Err(format!("no template is named {DEFAULT:?}"));
    }
    Ok(templates)
}

/// A special token is a string, or an object with `content`.
fn special_tokens(config: &Value) -> Map<String, Value> {
    let token = |name: &&str| {
        let field = config.get(name)?;
        let text = field.as_str().or_else(|| field.get("content")?.as_str())?;
        Some(((*name).to_owned(), Value::from(text)))
    };
    SPECIAL_TOKENS.iter().filter_map(token).collect()
}
