//! Takes secrets out of text that a report or an archive keeps.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

/// Each pattern's group 1, if it has one, is kept in front of the mark; the rest of the match goes.
static SECRETS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    [
        // Tokens that name their issuer: Hugging Face, OpenAI-like, GitHub, Slack, AWS, Google, NVIDIA, W&B-like hex keys.
        r"\bhf_[A-Za-z0-9]{16,}\b",
        r"\bsk-[A-Za-z0-9_-]{16,}",
        r"\b(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{20,}\b",
        r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
        r"\bAIza[A-Za-z0-9_-]{30,}",
        r"\bnvapi-[A-Za-z0-9_-]{20,}",
        // JSON web tokens.
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
        // `Authorization: Bearer …`, `Basic …`.
        r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}",
        // user:password@ in an address.
        r"(://)[^/\s:@]+:[^/\s@]+@",
        // NAME_TOKEN=value, "api_key": "value", --api-key value, api_key='value'.
        r#"(?i)((?:\b|_|--)(?:api[_-]?keys?|access[_-]?keys?|secret(?:[_-]?(?:access[_-]?)?keys?)?|auth[_-]?tokens?|hf[_-]token|tokens?|passwd|passwords?|credentials?|private[_-]?keys?)["']?(?:\s*[:=]\s*|\s+)["'\[]{0,2})(?-i:[^\s"',;)\]}]{6,})"#,
        // PEM blocks.
        r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
        // What a client asked: engines log prompts at request level.
        r#"(?s)(\bprompts?(?:_text)?["']?\s*[:=]\s*)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"#,
    ]
    .iter()
    .map(|pattern| Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}")))
    .collect()
});

/// Takes tokens, keys, passwords and logged prompts out of a text. Words about tokens (`max_tokens: 4096`, `token ids`) stay: a
/// value goes only if it looks like a secret (six characters or more that are no plain number or word of code).
#[must_use]
pub fn redact(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    for pattern in SECRETS.iter() {
        let replaced = pattern.replace_all(&text, |found: &regex::Captures<'_>| {
            let whole = &found[0];
            let kept = found.get(1).map_or("", |kept| kept.as_str());
            let value = &whole[kept.len()..];
            if kept.is_empty() || is_secret(kept, value) {
                format!("{kept}[redacted]{}", if kept == "://" { "@" } else { "" })
            } else {
                whole.to_owned()
            }
        });
        if let Cow::Owned(replaced) = replaced {
            text = Cow::Owned(replaced);
        }
    }
    text
}

/// Whether the value after `name=` is a secret and no number, path of code or switch.
fn is_secret(name: &str, value: &str) -> bool {
    let plain_name = name.to_ascii_lowercase();
    let about_tokens =
        plain_name.contains("token") && !plain_name.contains("auth") && !plain_name.contains("hf");
    let number = value.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ',' | '_' | '%'));
    // An earlier pattern was here.
    let done = value.starts_with("redacted") || value.starts_with("[redacted");
    if number || done {
        return false;
    }
    // `token: <|im_end|>`, `tokens per second`, `token throughput` are the field's ordinary words.
    if about_tokens {
        let spaced = plain_name.ends_with(char::is_whitespace) && !plain_name.contains([':', '=']);
        let has_digit = value.chars().any(|c| c.is_ascii_digit());
        return !spaced && has_digit && !value.contains(['<', '|', '(', '[']);
    }
    // A sentence about passwords or credentials, not a value.
    let assigned = plain_name.contains([':', '=']) || plain_name.contains("--") || plain_name.contains("://");
    assigned || plain_name.starts_with("bearer") || plain_name.starts_with("basic")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_go() {
        for (text, expected) in [
            ("HF_TOKEN=hf_abcdefghijklmnopqrst1", "HF_TOKEN=[redacted]"),
            ("Authorization: Bearer abc.def-123456", "Authorization: Bearer [redacted]"),
            ("vllm serve M --api-key s3cretkey99 --port 1", "vllm serve M --api-key [redacted] --port 1"),
            ("https://bob:hunter2@example.org/x", "https://[redacted]@example.org/x"),
            ("{\"api_key\": \"abcdef123\"}", "{\"api_key\": \"[redacted]\"}"),
            ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI", "AWS_SECRET_ACCESS_KEY=[redacted]"),
            ("key sk-aaaaaaaaaaaaaaaaaaaa end", "key [redacted] end"),
            ("api_key=['topsecret1'], port=8000", "api_key=['[redacted]'], port=8000"),
            (
                "Received request cmpl-1: prompt: 'my diary', params",
                "Received request cmpl-1: prompt: [redacted], params",
            ),
        ] {
            assert_eq!(redact(text), expected);
        }
    }

    #[test]
    fn the_field_s_words_stay() {
        for text in [
            "max_tokens: 4096, token ids",
            "Avg prompt throughput: 1.5 tokens/s, Avg generation throughput: 12.0 tokens/s",
            "num_prompt_tokens=2048",
            "eos token: <|im_end|> and pad token id 163839",
            "kv_cache_dtype=fp8_e4m3 tokens per block",
            "AssertionError: flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4)",
            "'max_num_batched_tokens': 8192",
        ] {
            assert_eq!(redact(text), text);
        }
    }
}
