//! Patterns of paths: `*` within a component, `**` over components.

/// Whether `path` matches `pattern`. Both are split at `/`; `*` stands for any part of one component, `**` for any number of
/// components. No classes, no braces: file names may hold those characters themselves.
#[must_use]
pub fn matches(pattern: &str, path: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    let path: Vec<&str> = path.split('/').collect();
    components_match(&pattern, &path)
}

fn components_match(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern.split_first(), path.split_first()) {
        (None, None) => true,
        (Some((&"**", rest)), _) => {
            components_match(rest, path)
                || path.split_first().is_some_and(|(_, tail)| components_match(pattern, tail))
        }
        (Some((first, rest)), Some((head, tail))) => {
            component_matches(first, head) && components_match(rest, tail)
        }
        _ => false,
    }
}

/// Whether one component matches: greedy with one point to go back to, so that hostile patterns stay linear times short.
#[must_use]
pub fn component_matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            back = Some((p, t));
            p += 1;
        } else if p < pattern.len() && pattern[p] == text[t] {
            p += 1;
            t += 1;
        } else if let Some((star, from)) = back {
            p = star + 1;
            t = from + 1;
            back = Some((star, from + 1));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stay_in_their_component() {
        for (pattern, path, expected) in [
            ("vllm/models/**", "vllm/models/a/b.py", true),
            ("transformers/models/*/modeling_*.py", "transformers/models/llama/modeling_llama.py", true),
            (
                "transformers/models/*/modeling_*.py",
                "transformers/models/llama/deep/modeling_llama.py",
                false,
            ),
            ("**/tests/**", "a/b/tests/c.py", true),
            ("**/tests/**", "a/b/contests/c.py", false),
            ("nomla_debug_tp*.pt", "nomla_debug_tp0.pt", true),
            ("nomla_debug_tp*.pt", "nomla_debug_tp0.npy", false),
            ("a*b*c", "a-b-b-c", true),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} on {path}");
        }
    }
}
