//! Text in and out of a model: tokenizers, chat templates, reasoning and tool-call parsers, streaming detokenizer.
//!
//! A request's messages become a prompt through [`ChatTemplate`], the prompt becomes tokens through [`Tokenizer`]; the model's
//! tokens become text through [`Detokenizer`], and the text becomes reasoning, content and tool calls through [`OutputParser`].

mod chat_template;
mod detokenizer;
mod error;
mod output;
mod tokenizer;

pub use chat_template::ChatTemplate;
pub use detokenizer::Detokenizer;
pub use error::Error;
pub use output::{OutputOptions, OutputParser, Parsed, Piece, ToolCall};
pub use tokenizer::{Specials, Tokenizer};
