//! Why an answer ended.

use lucid_checkpoint::TokenId;
use serde::Serialize;

/// `finish_reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FinishReason {
    /// The model ended, or a stop string or stop token came.
    Stop,
    /// The budget or the context is used up.
    Length,
    /// The model ended after calling tools.
    ToolCalls,
}

/// `stop_reason`: which stop string or token; null for the model's own end and for `length`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum StopReason {
    Text(String),
    Token(TokenId),
}

/// Both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) reason: FinishReason,
    pub(crate) stop: Option<StopReason>,
}
