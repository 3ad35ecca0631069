//! What can be wrong with a grammar.

/// Why there is no guide.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request's grammar does not compile; the text says where it is wrong.
    #[error("{0}")]
    Grammar(String),
    /// The model's vocabulary can't be held to grammars.
    #[error("this model's vocabulary cannot be held to a grammar: {0}")]
    Vocabulary(String),
    /// The vocabulary has no token of that name, which calls of tools begin or end with.
    #[error(
        "this model has no token {0:?}, and calls can only be forced in Kimi's form: use `tool_choice`: \"auto\""
    )]
    NoMarker(&'static str),
}
