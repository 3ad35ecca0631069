//! The checkpoint's own chat template: messages into the text of a prompt.
//!
//! Templates are Jinja, written for Python. They run in minijinja with what Hugging Face adds to Jinja2
//! (`transformers/utils/chat_template_utils.py`): its whitespace rules, its `tojson` and `raise_exception`.
//! `strftime_now` is left out: a prompt must not depend on the day.

mod python;
mod source;
mod tojson;

use std::sync::Arc;

use lucid_checkpoint::Files;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};

use crate::Error;
use source::Source;

/// What one rendering may cost: about this many steps, or 64 times as many bytes. A prompt of a million tokens needs a
/// small part of it.
const FUEL: u64 = 8_000_000;

/// A checkpoint's chat template. Cheap to clone; can be used from many threads.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    source: Arc<Source>,
}

impl ChatTemplate {
    /// Reads `chat_template.jinja`, else the field `chat_template` of `tokenizer_config.json`; of a GGUF model, the template
    /// inside. `None` if there is none.
    ///
    /// # Errors
    /// A file that cannot be read, or a template with a syntax error; the error names file and line.
    pub fn open(files: &Files) -> Result<Option<Self>, Error> {
        let Some(source) = Source::read(files)? else { return Ok(None) };
        let mut environment = environment();
        for (name, template) in &source.templates {
            environment
                .add_template_owned(name.clone(), with_generation_blocks_open(template))
                .map_err(|error| Error::Template { file: source.file.clone(), problem: problem(&error) })?;
        }
        Ok(Some(ChatTemplate { environment: Arc::new(environment), source: Arc::new(source) }))
    }

    /// The file that the template was read from.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source.file
    }

    /// The prompt for `messages`: a list of objects with `role` and `content`, as in a chat request.
    ///
    /// `kwargs` are further variables (`chat_template_kwargs` of a request: `thinking`). `add_generation_prompt` makes the
    /// template end with the beginning of the assistant's turn. Without tools, `tools` is none for the template, and an empty
    /// list is an empty list.
    ///
    /// # Errors
    /// [`Error::Refused`] when the template itself refuses the messages, [`Error::Render`] when it fails on them.
    pub fn render(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        kwargs: &Map<String, Value>,
        add_generation_prompt: bool,
    ) -> Result<String, Error> {
        let mut variables = self.source.special_tokens.clone();
        variables.extend(kwargs.iter().map(|(name, value)| (name.clone(), value.clone())));
        // Last, so that a request's kwargs cannot replace them.
        variables.insert("messages".to_owned(), messages.clone());
        variables.insert("tools".to_owned(), tools.cloned().unwrap_or(Value::Null));
        variables.insert("documents".to_owned(), Value::Null);
        variables.insert("add_generation_prompt".to_owned(), Value::Bool(add_generation_prompt));

        let template = self.environment.get_template(self.source.choose(tools.is_some()));
        template.and_then(|template| template.render(Serde(&variables))).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &minijinja::Error) -> Error {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = cause {
            if let Some(raised) = error.downcast_ref::<Raised>() {
                return Error::Refused { message: raised.0.clone() };
            }
            cause = error.source();
        }
        Error::Render { file: self.source.file.clone(), problem: problem(error) }
    }
}

/// Jinja as Hugging Face sets it up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the delimiters are Jinja's own"));
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    // Errors must not carry the conversation.
    environment.set_debug(false);
    environment.set_unknown_method_callback(python::method);
    environment.set_formatter(python::print);
    environment.add_test("sequence", python::is_sequence);
    environment.add_test("iterable", python::is_iterable);
    environment.add_filter("tojson", tojson::tojson);
    environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raised by the template")
            .with_source(Raised(message)))
    });
    environment
}

/// A template called `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Line, kind and detail of an error, and the causes below it.
fn problem(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// `{% generation %} … {% endgeneration %}` marks what the model wrote, for training. It changes nothing in the text, so it
/// becomes a condition that always holds; that keeps the whitespace rules of the tags (`{%-`, `-%}`).
fn with_generation_blocks_open(template: &str) -> String {
    static TAG: std::sync::LazyLock<regex::Regex> = std::sync::LazyLock::new(|| {
        regex::Regex::new(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})").expect("the pattern is a constant")
    });
    TAG.replace_all(template, |tag: &regex::Captures<'_>| {
        let word = if tag.get(2).is_some() { "endif" } else { "if true" };
        format!("{}{word}{}", &tag[1], &tag[3])
    })
    .into_owned()
}
