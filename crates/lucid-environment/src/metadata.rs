//! The headers of `METADATA`, `PKG-INFO` and `WHEEL`: name and value, folded lines, until the first empty line.

/// Headers in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// Reads headers; the body after the first empty line is not looked at. Lines without a colon are passed over.
    #[must_use]
    pub fn parse(text: &str) -> Headers {
        let mut headers: Vec<(String, String)> = Vec::new();
        for line in text.trim_start_matches('\u{feff}').lines() {
            if line.trim().is_empty() {
                break;
            }
            if line.starts_with([' ', '\t']) {
                if let Some((_, value)) = headers.last_mut() {
                    value.push('\n');
                    value.push_str(line.trim());
                }
            } else if let Some((name, value)) = line.split_once(':') {
                headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
        Headers(headers)
    }

    /// The first value of a header.
    #[must_use]
    pub fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// All values of a header.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// A project's name as PEP 503 compares it: `Flashinfer_Python` is `flashinfer-python`.
#[must_use]
pub fn normalized(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.trim().chars() {
        if matches!(c, '-' | '_' | '.') {
            if !out.ends_with('-') {
                out.push('-');
            }
        } else {
            out.extend(c.to_lowercase());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_end_at_the_body() {
        let headers =
            Headers::parse("Name: vllm\r\nRequires-Dist: torch==2.13.0;\n  extra == 'x'\n\nVersion: 9\n");
        assert_eq!(headers.first("name"), Some("vllm"));
        assert_eq!(headers.first("requires-dist"), Some("torch==2.13.0;\nextra == 'x'"));
        assert_eq!(headers.first("version"), None);
    }

    #[test]
    fn names_compare_as_pep_503_says() {
        for name in ["flashinfer-python", "Flashinfer_Python", "flashinfer.-_python"] {
            assert_eq!(normalized(name), "flashinfer-python");
        }
    }
}
