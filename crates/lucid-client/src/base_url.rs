//! The address of a server, in the forms that people type.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Error;

/// `http://host:port` of a server, without `/v1` and without a trailing slash; a path prefix is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BaseUrl {
    text: String,
    host: String,
}

impl BaseUrl {
    /// Reads `http://host:port`, with or without `/v1`; without a scheme, `http://` is meant.
    ///
    /// # Errors
    /// [`Error::Url`] for anything that isn't an HTTP address, or that carries a user name or password.
    pub fn parse(given: &str) -> Result<BaseUrl, Error> {
        let refuse = |reason: &str| Error::Url { given: without_userinfo(given), reason: reason.to_owned() };
        let trimmed = given.trim();
        let with_scheme =
            if trimmed.contains("://") { trimmed.to_owned() } else { format!("http://{trimmed}") };
        let uri: ureq::http::Uri =
            with_scheme.parse().map_err(|error: ureq::http::uri::InvalidUri| refuse(&error.to_string()))?;
        let scheme = uri.scheme_str().unwrap_or_default();
        if scheme != "http" && scheme != "https" {
            return Err(refuse("the scheme is not http or https"));
        }
        let authority = uri.authority().ok_or_else(|| refuse("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("it carries a user name or password; give the key as an API key instead"));
        }
        if authority.host().is_empty() {
            return Err(refuse("it names no host"));
        }
        if uri.query().is_some() {
            return Err(refuse("it has a query (`?…`); give the server's address only"));
        }
        let path = uri.path().trim_end_matches('/');
        let path = path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/');
        Ok(BaseUrl { text: format!("{scheme}://{authority}{path}"), host: authority.host().to_owned() })
    }

    /// The address of `path` (which begins with `/`) on this server.
    #[must_use]
    pub fn join(&self, path: &str) -> String {
        format!("{}{path}", self.text)
    }

    /// The address as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the server runs on this machine, going by its name: then no proxy is asked.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host == "[::1]" || self.host.starts_with("127.")
    }
}

/// `http://user:password@host` with the part before `@` taken out, so that an error text may show it.
fn without_userinfo(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => {
            format!("{}[hidden]{}", &text[..scheme + 3], &text[at..])
        }
        (None, Some(at)) => format!("[hidden]{}", &text[at..]),
        _ => text.to_owned(),
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for BaseUrl {
    type Error = Error;
    fn try_from(text: String) -> Result<BaseUrl, Error> {
        BaseUrl::parse(&text)
    }
}

impl From<BaseUrl> for String {
    fn from(url: BaseUrl) -> String {
        url.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_people_type() {
        for given in [
            "http://127.0.0.1:8000",
            "http://127.0.0.1:8000/",
            "http://127.0.0.1:8000/v1",
            "http://127.0.0.1:8000/v1/",
            " 127.0.0.1:8000 ",
        ] {
            let url = BaseUrl::parse(given).unwrap();
            assert_eq!(url.join("/v1/models"), "http://127.0.0.1:8000/v1/models", "{given}");
            assert!(url.is_loopback());
        }
        assert_eq!(
            BaseUrl::parse("https://gateway.example/team/kimi/v1").unwrap().join("/health"),
            "https://gateway.example/team/kimi/health"
        );
        assert!(!BaseUrl::parse("https://gateway.example").unwrap().is_loopback());
        assert!(BaseUrl::parse("http://[::1]:8000").unwrap().is_loopback());
    }

    #[test]
    fn refuses_with_a_reason_and_without_the_secret() {
        for given in ["ftp://host", "http://", "", "http://host name", "http://host/v1?key=1"] {
            assert!(matches!(BaseUrl::parse(given), Err(Error::Url { .. })), "{given}");
        }
        let text = BaseUrl::parse("http://admin:hunter2@host:1").unwrap_err().to_string();
        assert!(!text.contains("hunter2"), "{text}");
    }
}
