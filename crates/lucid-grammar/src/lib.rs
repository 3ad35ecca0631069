//! Answers that are held to a grammar: a JSON schema, a regular expression, a list of choices, a Lark grammar, or calls of given tools.
//!
//! [`Grammars`] belongs to a tokenizer and is made once; [`Grammars::compile`] turns what a request asks for into a [`Guide`], which
//! the engine's sampler asks before every draw. The grammars themselves are `llguidance`'s.
//!
//! [`Guide`]: lucid_engine::Guide

mod error;
mod grammar;
mod guided;
mod tools;
mod vocabulary;

pub use error::Error;
pub use grammar::{Grammar, Grammars};
pub use guided::Beginning;
pub use tools::{Calls, Function, makes_calls};
