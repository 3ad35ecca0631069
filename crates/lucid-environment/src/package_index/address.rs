//! An address of a package index: it may carry a password, which only its own server is sent and nobody is shown.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::Url;

/// An `http` or `https` address. `Display` and `Debug` leave out what may be secret: credentials, query and fragment.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address(Url);

impl Address {
    /// Reads an address; `None` if it is none, or of another scheme.
    pub(super) fn parse(text: &str) -> Option<Address> {
        let url = Url::parse(text.trim()).ok()?;
        (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(Address(url))
    }

    /// Where a link on this page leads; on the same server the credentials go with it, as pip sends them.
    pub(super) fn link(&self, target: &str) -> Option<Address> {
        let mut url = self.0.join(target).ok()?;
        if url.origin() == self.0.origin() && url.username().is_empty() && url.password().is_none() {
            url.set_username(self.0.username()).ok()?;
            url.set_password(self.0.password()).ok()?;
        }
        Address::parse(url.as_str())
    }

    /// A page of the index: `BASE/NAME/`.
    pub(super) fn page(&self, name: &str) -> Option<Address> {
        let mut base = self.clone();
        if !base.0.path().ends_with('/') {
            base.0.set_path(&format!("{}/", self.0.path()));
        }
        base.link(&format!("{name}/"))
    }

    /// What the request line needs: no credentials, no fragment.
    pub(super) fn request(&self) -> String {
        let mut url = self.without_credentials();
        url.set_fragment(None);
        url.into()
    }

    /// The header that carries the credentials.
    pub(super) fn authorization(&self) -> Option<String> {
        let plain = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        if self.0.username().is_empty() && self.0.password().is_none() {
            return None;
        }
        let (user, password) = (plain(self.0.username()), plain(self.0.password().unwrap_or_default()));
        Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
    }

    /// The last part of the path, decoded: a wheel's name.
    pub(super) fn file_name(&self) -> String {
        let last = self.0.path_segments().and_then(|mut parts| parts.next_back()).unwrap_or_default();
        percent_encoding::percent_decode_str(last).decode_utf8_lossy().into_owned()
    }

    /// Whether the server is on this machine.
    pub(super) fn is_loopback(&self) -> bool {
        match self.0.host() {
            Some(url::Host::Domain(name)) => name == "localhost",
            Some(url::Host::Ipv4(address)) => address.is_loopback(),
            Some(url::Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        }
    }

    fn without_credentials(&self) -> Url {
        let mut url = self.0.clone();
        // Both fail only for addresses without a host, which `parse` refuses.
        let _ = (url.set_username(""), url.set_password(None));
        url
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut url = self.without_credentials();
        url.set_query(None);
        url.set_fragment(None);
        f.write_str(url.as_str())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_go_to_their_own_server_alone() {
        let index = Address::parse("https://bob:p%40ss@packages.example.org/simple").unwrap();
        let page = index.page("vllm").unwrap();
        assert_eq!(page.request(), "https://packages.example.org/simple/vllm/");
        assert_eq!(page.authorization().unwrap(), format!("Basic {}", STANDARD.encode("bob:p@ss")));
        let same = page.link("../../files/vllm-1.0%2Bcpu-py3-none-any.whl#sha256=00").unwrap();
        assert!(same.authorization().is_some());
        assert_eq!(same.file_name(), "vllm-1.0+cpu-py3-none-any.whl");
        for other in
            ["https://files.example.org/a.whl", "http://packages.example.org/a.whl", "//example.com/a.whl"]
        {
            assert_eq!(page.link(other).unwrap().authorization(), None, "{other}");
        }
    }

    #[test]
    fn nothing_secret_is_shown() {
        let signed = Address::parse("https://bob:hunter2@example.org/a.whl?signature=s3cret#x=y").unwrap();
        for shown in [format!("{signed}"), format!("{signed:?}"), format!("{:?}", vec![&signed])] {
            assert!(shown.contains("https://example.org/a.whl"), "{shown}");
            assert!(!shown.contains("hunter2") && !shown.contains("s3cret"), "{shown}");
        }
        assert_eq!(signed.request(), "https://example.org/a.whl?signature=s3cret");
    }

    #[test]
    fn other_schemes_are_no_addresses() {
        for text in ["file:///etc/passwd", "ftp://example.org/", "simple/", "", "https://"] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
        let index = Address::parse("https://example.org/simple/").unwrap();
        assert_eq!(index.link("file:///etc/passwd"), None);
    }
}
