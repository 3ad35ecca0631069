//! What the tokenizer's files, the template and the configs say about each other.

mod ids;
mod template;
mod twins;

use lucid_checkpoint::Files;
use lucid_text::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::evidence::{Capped, shortened};
use crate::listing::Listing;

pub use ids::{AddedTokens, Marker, SpecialId};
pub use template::TemplateFacts;
pub use twins::TwinFacts;

/// What was found of tokenizer, template and special ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenizerFacts {
    /// The file that the tokenizer was read from.
    pub source: Option<String>,
    /// There is no file of one.
    pub absent: bool,
    /// Why it could not be read.
    pub problem: Option<String>,
    /// One more than the largest id.
    pub vocab_size: u64,
    /// `vocab_size` of the config.
    pub config_vocab: Option<u64>,
    /// `tokenizer_class` of `tokenizer_config.json`.
    pub class: Option<String>,
    /// Ids that the configs give to special tokens.
    pub ids: Vec<SpecialId>,
    /// Tokens that parsers and templates rely on.
    pub markers: Vec<Marker>,
    /// `added_tokens_decoder`, compared with the tokenizer.
    pub added: AddedTokens,
    /// The chat template.
    pub template: Option<TemplateFacts>,
    /// Why the template can't be used, or that there is none.
    pub template_problem: Option<String>,
    /// Whether there is a `generation_config.json`.
    pub generation_config: bool,
    /// `tokenizer.json` against `tiktoken.model`, where both are there.
    pub twins: Option<TwinFacts>,
    /// What could not be read; at most 16.
    pub notes: Capped<String>,
}

/// Gathers the facts; nothing that is wrong ends it.
pub(crate) fn gather(files: &Files, listing: &Listing, config: Option<&Value>) -> TokenizerFacts {
    let mut facts = TokenizerFacts::default();
    let tokenizer = match Tokenizer::open(files) {
        Ok(tokenizer) => {
            facts.source = Some(base_name(tokenizer.source()));
            facts.vocab_size = tokenizer.vocab_size() as u64;
            Some(tokenizer)
        }
        Err(error) => {
            facts.absent = matches!(error, lucid_text::Error::Missing { .. });
            facts.problem = Some(shortened(&error.to_string(), 400));
            None
        }
    };
    facts.generation_config = files.is_gguf() || listing.find("generation_config.json").is_some();
    let documents = Documents::read(files, config, &mut facts);
    facts.class = documents.text(&["tokenizer_class"]);
    facts.config_vocab = documents.config_vocab;
    facts.ids = ids::special_ids(&documents, tokenizer.as_ref());
    if let Some(tokenizer) = &tokenizer {
        facts.markers = ids::markers(tokenizer);
        facts.added = ids::added_tokens(documents.tokenizer.as_ref(), tokenizer);
    }
    match template::gather(files, tokenizer.as_ref()) {
        Ok(template) => facts.template = Some(template),
        Err(problem) => facts.template_problem = Some(shortened(&problem, 400)),
    }
    let has = |name: &str| listing.find(name).is_some();
    if !files.is_gguf() && has("tokenizer.json") && has("tiktoken.model") {
        match twins::compare(files) {
            Ok(twins) => facts.twins = Some(twins),
            Err(problem) => facts.notes.push(16, shortened(&problem, 400)),
        }
    }
    facts
}

fn base_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// The small files that speak of special tokens.
pub(crate) struct Documents {
    /// `config.json`, its text part first.
    config: Vec<Value>,
    generation: Option<Value>,
    pub(crate) tokenizer: Option<Value>,
    pub(crate) config_vocab: Option<u64>,
    /// GGUF's own ids: name of the key and id.
    gguf: Vec<(String, u64)>,
}

impl Documents {
    fn read(files: &Files, config: Option<&Value>, facts: &mut TokenizerFacts) -> Documents {
        let mut documents = Documents {
            config: Vec::new(),
            generation: None,
            tokenizer: None,
            config_vocab: None,
            gguf: Vec::new(),
        };
        if files.is_gguf() {
            if let Ok(Some(metadata)) = lucid_checkpoint::gguf::metadata(files) {
                for key in ["bos_token_id", "eos_token_id", "eot_token_id", "padding_token_id"] {
                    let key = format!("tokenizer.ggml.{key}");
                    if let Ok(Some(id)) = metadata.integer(&key) {
                        documents.gguf.push((key, id));
                    }
                }
            }
            return documents;
        }
        let mut json = |name: &str| -> Option<Value> {
            let bytes = files.find(name).ok()??;
            match serde_json::from_slice(&bytes) {
                Ok(value) => Some(value),
                Err(error) => {
                    facts.notes.push(16, format!("{name}: {error}"));
                    None
                }
            }
        };
        documents.generation = json("generation_config.json");
        documents.tokenizer = json("tokenizer_config.json");
        if let Some(config) = config {
            documents.config.extend(config.get("text_config").filter(|text| text.is_object()).cloned());
            documents.config.push(config.clone());
        }
        documents.config_vocab =
            documents.config.iter().find_map(|config| config.get("vocab_size").and_then(Value::as_u64));
        documents
    }

    fn text(&self, names: &[&str]) -> Option<String> {
        let tokenizer = self.tokenizer.as_ref()?;
        names.iter().find_map(|name| tokenizer.get(*name)?.as_str()).map(|text| shortened(text, 100))
    }
}
