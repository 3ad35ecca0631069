//! What can go wrong when asking a server. Each text says what came, from which address.

use std::time::Duration;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The address can't be used.
    #[error("`{given}` is not a server's address: {reason}. Write it as http://host:port")]
    Url {
        /// What was given, without secrets.
        given: String,
        /// Why it was refused.
        reason: String,
    },
    /// Nobody took the connection.
    #[error("{url} can't be reached: {reason}. Is the server running, and is this its address?")]
    Unreachable {
        /// The address.
        url: String,
        /// What the operating system said.
        reason: String,
    },
    /// No answer in time.
    #[error("{url} did not answer within {:.0} s", limit.as_secs_f64())]
    Timeout {
        /// The address.
        url: String,
        /// How long we waited.
        limit: Duration,
    },
    /// The connection ended in the middle, or the bytes aren't HTTP.
    #[error("{url} broke off or did not speak HTTP: {reason}")]
    Broken {
        /// The address.
        url: String,
        /// What happened.
        reason: String,
    },
    /// A status other than 200.
    #[error("{url} answered {status}: {message}")]
    Status {
        /// The address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The server's own message, or the beginning of the body.
        message: String,
        /// The parameter that the server complains about, if it names one.
        param: Option<String>,
    },
    /// The body isn't JSON.
    #[error("{url} answered {what} instead of JSON: {beginning}")]
    NotJson {
        /// The address.
        url: String,
        /// What it looks like: `HTML`, `an empty body`, `text`.
        what: &'static str,
        /// How it begins.
        beginning: String,
    },
    /// JSON of another shape.
    #[error(
        "{url} answered JSON without what an OpenAI-compatible server sends: {reason}; it begins {beginning}"
    )]
    Shape {
        /// The address.
        url: String,
        /// What is missing or wrong.
        reason: String,
        /// How the body begins.
        beginning: String,
    },
    /// The body is longer than we read.
    #[error("{url} answered more than {limit} bytes")]
    TooLarge {
        /// The address.
        url: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The server has no model to ask, or several.
    #[error("{url} {reason}")]
    Model {
        /// The address.
        url: String,
        /// What is known about its models.
        reason: String,
    },
}

impl Error {
    /// Whether nothing answers at that address at all.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Error::Unreachable { .. } | Error::Timeout { .. } | Error::Broken { .. })
    }
}
