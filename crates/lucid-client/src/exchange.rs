//! One request and its answer, as evidence.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;

/// What was sent and what came back. Holds no header that we sent, so no API key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// `GET` or `POST`.
    pub method: String,
    /// The full address.
    pub url: String,
    /// The JSON body that was sent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub request: Option<Value>,
    /// HTTP status, if an answer began.
    pub status: Option<u16>,
    /// `Content-Type` of the answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub content_type: Option<String>,
    /// The body that came, at most the client's limit; bytes that aren't UTF-8 are replaced.
    pub body: String,
    /// Whether the body was longer than the limit.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub truncated: bool,
    /// When the request was sent, in milliseconds since 1970.
    pub sent_unix_ms: u64,
    /// Seconds until the answer's headers were there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first_byte_seconds: Option<f64>,
    /// Seconds until the end of the answer, or of the attempt.
    pub seconds: f64,
    /// What went wrong, if something did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// A call's exchange, and what it meant. The exchange is there also when the call failed.
#[derive(Clone, Debug)]
pub struct Reply<T> {
    /// The evidence.
    pub exchange: Exchange,
    /// The typed answer, or why there is none.
    pub outcome: Result<T, Error>,
}

impl<T> Reply<T> {
    /// Reads the outcome further; an error lands in the exchange too.
    pub(crate) fn and_then<U>(mut self, read: impl FnOnce(&Exchange, T) -> Result<U, Error>) -> Reply<U> {
        let outcome = match self.outcome {
            Ok(value) => read(&self.exchange, value),
            Err(error) => Err(error),
        };
        if let Err(error) = &outcome {
            self.exchange.error = Some(error.to_string());
        }
        Reply { exchange: self.exchange, outcome }
    }
}
