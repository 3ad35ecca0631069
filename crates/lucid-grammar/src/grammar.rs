//! From what a request asks for to a guide.

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};
use lucid_checkpoint::TokenId;
use lucid_engine::Guide;
use lucid_text::Tokenizer;
use serde_json::{Value, json};

use crate::guided::{Beginning, Guided};
use crate::tools::{self, Calls};
use crate::{Error, vocabulary};

/// States of a request's lexer, which bound the memory that a grammar can take (`llguidance` says 1 to 2 kB each).
const MAX_LEXER_STATES: usize = 50_000;

/// What an answer is held to.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON of this schema.
    JsonSchema(Value),
    /// Text that a regular expression (of Rust's `regex`, without look-around) matches as a whole.
    Regex(String),
    /// One of these texts; not empty.
    Choice(Vec<String>),
    /// A grammar in `llguidance`'s dialect of Lark.
    Lark(String),
    /// Calls of tools and nothing else.
    Calls(Calls),
}

/// Compiles grammars for one vocabulary. Making it goes through all tokens; can be used from many threads.
pub struct Grammars {
    factory: ParserFactory,
    tokenizer: Tokenizer,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("tokenizer", &self.tokenizer.source()).finish_non_exhaustive()
    }
}

impl Grammars {
    /// For a tokenizer, a model whose logits have `vocab_size` rows, and the tokens that end an answer.
    ///
    /// # Errors
    /// No token ends an answer, or the vocabulary is not one that `llguidance` takes.
    pub fn new(tokenizer: &Tokenizer, vocab_size: usize, eos: &[TokenId]) -> Result<Self, Error> {
        let environment = vocabulary::environment(tokenizer, vocab_size, eos)?;
        // The engine draws every token, also where only one is possible: its distribution can be asked for.
        let capabilities = InferenceCapabilities { ff_tokens: false, ..InferenceCapabilities::default() };
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&environment, capabilities, &slices)
            .map_err(|error| Error::Vocabulary(error.to_string()))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.max_lexer_states = MAX_LEXER_STATES;
        // An error goes to the client, who knows the grammar.
        limits.verbose_errors = false;
        Ok(Grammars { factory, tokenizer: tokenizer.clone() })
    }

    /// Compiles a grammar for one answer.
    ///
    /// # Errors
    /// The grammar is malformed, unsatisfiable, uses what is not supported, or is too large; calls are wanted of a model that does not
    /// write them in Kimi's form.
    pub fn compile(&self, grammar: &Grammar, beginning: Beginning) -> Result<Box<dyn Guide>, Error> {
        let wanted = match grammar {
            Grammar::JsonObject => TopLevelGrammar::from_json_schema(bounded(json!({"type": "object"}))),
            Grammar::JsonSchema(schema) => TopLevelGrammar::from_json_schema(bounded(schema.clone())),
            Grammar::Regex(pattern) => TopLevelGrammar::from_regex(pattern),
            Grammar::Choice(choices) => TopLevelGrammar::from_lark(choice(choices)?),
            Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Grammar::Calls(calls) => TopLevelGrammar::from_lark(tools::lark(calls, &self.tokenizer)?),
        };
        let parser =
            self.factory.create_parser(wanted).map_err(|error| Error::Grammar(format!("{error:#}")))?;
        let mut matcher = Matcher::new(Ok(parser));
        if let Some(problem) = matcher.get_error() {
            return Err(Error::Grammar(problem));
        }
        // What a schema asks for and the grammar would not hold must not be promised.
        if let Some(warning) = matcher.grammar_warnings().into_iter().next() {
            return Err(Error::Grammar(warning));
        }
        Ok(Box::new(Guided::new(matcher, beginning, &self.tokenizer)))
    }
}

/// A schema, with a bound on the whitespace between its parts: a model that writes newlines without end would never come to an end.
/// `x-guidance` is `llguidance`'s own key, and nobody else's to set.
pub(crate) fn bounded(mut schema: Value) -> Value {
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if let Some(object) = schema.as_object_mut() {
        object.insert("x-guidance".to_owned(), json!({"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,64}"}));
    }
    schema
}

fn choice(choices: &[String]) -> Result<String, Error> {
    if choices.is_empty() {
        return Err(Error::Grammar("there is nothing to choose from".to_owned()));
    }
    let choices: Vec<String> = choices.iter().map(|choice| tools::text(choice)).collect();
    Ok(format!("start: {}", choices.join(" | ")))
}
