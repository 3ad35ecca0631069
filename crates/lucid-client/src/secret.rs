//! API keys: sent, never shown, never stored.

use std::fmt;

/// An API key. `Debug` hides it, nothing serializes it, and [`ApiKey::redact`] takes it out of texts.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// A key as the user gave it; surrounding white space is dropped. `None` for an empty one.
    #[must_use]
    pub fn new(key: &str) -> Option<ApiKey> {
        let key = key.trim();
        (!key.is_empty()).then(|| ApiKey(key.to_owned()))
    }

    /// The key from an environment variable, if it is set and not empty.
    #[must_use]
    pub fn from_env(variable: &str) -> Option<ApiKey> {
        std::env::var(variable).ok().and_then(|key| ApiKey::new(&key))
    }

    /// The value of the `Authorization` header.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// `text` without the key: some servers echo it in their error messages.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        text.replace(&self.0, "[API key]")
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey([hidden])")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_hidden_and_redacted() {
        let key = ApiKey::new(" sk-very-secret\n").unwrap();
        assert_eq!(format!("{key:?}"), "ApiKey([hidden])");
        assert_eq!(
            key.redact("Incorrect API key provided: sk-very-secret."),
            "Incorrect API key provided: [API key]."
        );
        assert_eq!(key.bearer(), "Bearer sk-very-secret");
        assert_eq!(ApiKey::new("  "), None);
    }
}
