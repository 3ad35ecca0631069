//! Takes out of an archive what nobody else should see.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use lucid_findings::redact;
use regex::{Captures, Regex};
use serde_json::Value;

/// Candidates; what parses as an address and is no loopback is one. A version like `12.8.4.1` has `==`, `-`, `+` or a letter
/// before it, or the word "version".
static ADDRESS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?ix) (?P<before> version\s+ | [=<>~!+_-]{1,2} )?
          (?P<address> \b\d{1,3}(?:\.\d{1,3}){3}\b | (?:[0-9a-f]{1,4}:){2,7}(?::?[0-9a-f]{1,4}){1,7}\b )",
    )
    .unwrap_or_else(|error| panic!("{error}"))
});

/// Gives every address the same name throughout the archive, so that lines about one machine stay recognizable.
#[derive(Debug, Default)]
pub(super) struct Anonymous {
    names: HashMap<IpAddr, usize>,
}

impl Anonymous {
    /// Sections in which numbers with dots are addresses. In lists of packages they are versions.
    pub(super) fn has_addresses(section: &str) -> bool {
        matches!(
            section,
            "logs" | "patient" | "deployment" | "serving" | "memory" | "gpu" | "failures" | "notes"
        )
    }

    /// Takes secrets, and addresses if asked, out of every text.
    pub(super) fn redact(&mut self, value: &mut Value, addresses: bool) {
        match value {
            Value::String(text) => {
                let mut clean = redact(text).into_owned();
                if addresses {
                    clean = self.hide_addresses(&clean);
                }
                *text = clean;
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact(item, addresses)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.redact(field, addresses)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn hide_addresses(&mut self, text: &str) -> String {
        ADDRESS
            .replace_all(text, |found: &Captures<'_>| {
                let whole = found[0].to_owned();
                let assigned = found.name("before").is_some_and(|before| !before.as_str().ends_with('='));
                let version = found.name("before").is_some_and(|before| before.as_str().starts_with("=="));
                match found["address"].parse::<IpAddr>() {
                    Ok(address) if !(is_public_knowledge(address) || assigned || version) => {
                        let next = self.names.len() + 1;
                        let number = *self.names.entry(address).or_insert(next);
                        format!(
                            "{}[address {number}]",
                            found.name("before").map_or("", |before| before.as_str())
                        )
                    }
                    _ => whole,
                }
            })
            .into_owned()
    }
}

/// Addresses that say nothing about anybody.
fn is_public_knowledge(address: IpAddr) -> bool {
    address.is_loopback()
        || address.is_unspecified()
        || matches!(address, IpAddr::V4(v4) if v4 == Ipv4Addr::BROADCAST)
        || matches!(address, IpAddr::V6(v6) if v6 == Ipv6Addr::LOCALHOST)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_get_names_and_versions_stay() {
        let mut value = json!({ "lines": [
            "connect to 10.1.2.3:29500 failed, host=10.1.2.3, peer 192.168.7.9",
            "listening on 127.0.0.1:8000 and 0.0.0.0:9000",
            "nvidia-cublas-cu12==12.8.4.1, cuDNN version 9.10.2.21, v1.2.3.4",
            "rank on fd00:12:34::7 up at 12:34:56, HF_TOKEN=hf_abcdefghijklmnopqrst1",
        ]});
        Anonymous::default().redact(&mut value, true);
        assert_eq!(
            value,
            json!({ "lines": [
                "connect to [address 1]:29500 failed, host=[address 1], peer [address 2]",
                "listening on 127.0.0.1:8000 and 0.0.0.0:9000",
                "nvidia-cublas-cu12==12.8.4.1, cuDNN version 9.10.2.21, v1.2.3.4",
                "rank on [address 3] up at 12:34:56, HF_TOKEN=[redacted]",
            ]})
        );
    }

    #[test]
    fn package_lists_keep_their_numbers() {
        let mut value = json!("12.8.4.1");
        Anonymous::default().redact(&mut value, Anonymous::has_addresses("environment"));
        assert_eq!(value, "12.8.4.1");
    }
}
