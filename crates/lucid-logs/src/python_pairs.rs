//! Key and value pairs of a Python dict or call, as engines print their settings.

/// Most pairs taken.
const MOST: usize = 1_000;

/// The pairs of `{'a': 1, 'b': [2]}` or `a=1, b=[2]` (up to the bracket that closes the call, if there is one).
/// Strings lose their quotes; other values stay as printed.
pub(crate) fn pairs(text: &str) -> Vec<(String, String)> {
    let text = text.trim_start().strip_prefix(['{', '(']).unwrap_or(text);
    let mut found = Vec::new();
    let mut depth = 0usize;
    let mut quote: Option<char> = None;
    let mut escaped = false;
    let mut start = 0;
    let mut separator: Option<usize> = None;
    let mut add = |start: usize, separator: Option<usize>, end: usize| {
        let Some(at) = separator else { return };
        let key = text[start..at].trim().trim_matches(['\'', '"']);
        if !key.is_empty() && key.len() <= 80 && found.len() < MOST {
            found.push((key.to_owned(), unquoted(text[at + 1..end].trim()).to_owned()));
        }
    };
    for (at, c) in text.char_indices() {
        if let Some(open) = quote {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if c == open => quote = None,
                _ => {}
            }
            continue;
        }
        match c {
            '\'' | '"' => quote = Some(c),
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' if depth == 0 => {
                add(start, separator, at);
                return found;
            }
            ')' | ']' | '}' | '>' => depth = depth.saturating_sub(1),
            ':' | '=' if depth == 0 && separator.is_none() => separator = Some(at),
            ',' if depth == 0 => {
                add(start, separator, at);
                start = at + 1;
                separator = None;
            }
            _ => {}
        }
    }
    add(start, separator, text.len());
    found
}

fn unquoted(value: &str) -> &str {
    for quote in ['\'', '"'] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote)) {
            return inner;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dicts_and_calls() {
        let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(
            pairs("{'model': '/m, x', 'served_model_name': ['a', 'b'], 'port': 80, 'q': None}"),
            owned(&[("model", "/m, x"), ("served_model_name", "['a', 'b']"), ("port", "80"), ("q", "None")])
        );
        assert_eq!(
            pairs("model_path='/m', tp_size=8, mode=<Mode.X: 2>, cfg=C(a='b)'), last=1.5), tail=2"),
            owned(&[
                ("model_path", "/m"),
                ("tp_size", "8"),
                ("mode", "<Mode.X: 2>"),
                ("cfg", "C(a='b)')"),
                ("last", "1.5")
            ])
        );
        assert!(pairs("no pairs here").is_empty());
        assert_eq!(pairs("{'cut': 'off"), owned(&[("cut", "'off")]));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_taken(text in ".{0,200}") {
            let _ = pairs(&text);
        }
    }
}
