//! The lists of modules that are not quantized: fnmatch patterns (ModelOpt), regular expressions after `re:`
//! (compressed-tensors), plain names (FP8).

use regex::Regex;

/// A list of exclusions, ready to match.
pub(crate) struct Exclusions {
    narrow: Vec<Regex>,
    wide: Vec<Regex>,
    /// Entries that are no valid expression.
    pub(crate) invalid: Vec<String>,
}

impl Exclusions {
    pub(crate) fn new(patterns: &[String]) -> Exclusions {
        let mut list = Exclusions { narrow: Vec::new(), wide: Vec::new(), invalid: Vec::new() };
        for pattern in patterns {
            let (narrow, wide) = match pattern.strip_prefix("re:") {
                Some(expression) => (format!("^(?:{expression})"), expression.to_owned()),
                None => {
                    let canonical = canonical(pattern);
                    // `P*` is meant as "P and everything below", written so in every published list.
                    let (body, open) = match canonical.strip_suffix('*') {
                        Some(body) => (body, true),
                        None => (canonical.as_str(), false),
                    };
                    let body = fnmatch(body.trim_end_matches('.'));
                    let narrow = if open { format!("^{body}(\\..*)?$") } else { format!("^{body}$") };
                    // Old exports are matched as substrings, and a raw wildcard also runs over digits.
                    (narrow, body)
                }
            };
            match (Regex::new(&narrow), Regex::new(&wide)) {
                (Ok(narrow), Ok(wide)) => {
                    list.narrow.push(narrow);
                    list.wide.push(wide);
                }
                _ => list.invalid.push(pattern.clone()),
            }
        }
        list
    }

    /// Every way to read the list excludes the module.
    pub(crate) fn surely(&self, module: &str) -> bool {
        self.narrow.iter().any(|pattern| spellings(module).iter().any(|name| pattern.is_match(name)))
    }

    /// Some way to read the list excludes the module.
    pub(crate) fn perhaps(&self, module: &str) -> bool {
        self.wide.iter().any(|pattern| spellings(module).iter().any(|name| pattern.is_match(name)))
    }
}

fn spellings(module: &str) -> [String; 2] {
    [module.to_owned(), format!("language_model.{module}")]
}

/// `language_model.model.layers…` and `language_model.layers…` as `model.layers…`.
fn canonical(pattern: &str) -> String {
    match pattern.strip_prefix("language_model.") {
        Some(rest) if rest.starts_with("layers.") => format!("model.{rest}"),
        Some(rest) => rest.to_owned(),
        None => pattern.to_owned(),
    }
}

fn fnmatch(pattern: &str) -> String {
    let part = |c: char| match c {
        '*' => ".*".to_owned(),
        '?' => ".".to_owned(),
        c => regex::escape(&c.to_string()),
    };
    pattern.chars().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dialect_is_read() {
        let list = |patterns: &[&str]| {
            Exclusions::new(&patterns.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let modelopt =
            list(&["lm_head", "language_model.model.layers.0.self_attn*", "model.layers.1*", "*.mlp.gate"]);
        assert!(modelopt.surely("model.layers.0.self_attn.o_proj"));
        assert!(modelopt.surely("model.layers.1.mlp.down_proj"));
        assert!(!modelopt.surely("model.layers.12.mlp.down_proj"));
        assert!(modelopt.perhaps("model.layers.12.mlp.down_proj"), "a raw glob runs over digits");
        assert!(!modelopt.perhaps("model.layers.2.mlp.down_proj"));
        let compressed =
            list(&["lm_head", "re:.*self_attn.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "re:(("]);
        assert!(compressed.surely("model.layers.5.self_attn.q_a_proj"));
        assert!(compressed.surely("model.layers.0.mlp.gate_proj"));
        assert!(!compressed.perhaps("model.layers.3.mlp.experts.7.gate_proj"));
        assert_eq!(compressed.invalid, ["re:(("]);
    }
}
