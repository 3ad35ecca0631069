//! Is an answer right? Whatever its wording.

use serde_json::Value;

use crate::knowledge::Judge;
use crate::python::{Case, Judgement, judge_function};

/// A judgement with its reason.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Judged {
    /// Right.
    Right,
    /// Wrong, and why.
    Wrong(String),
    /// Neither: it can't be judged here.
    Unjudged(String),
}

/// Judges `text` for a rung. `expected` is the word, number, JSON object or function name.
#[must_use]
pub(crate) fn judge(kind: Judge, text: &str, expected: &str, cases: &[Case]) -> Judged {
    let wrong = |reason: String| Judged::Wrong(reason);
    match kind {
        Judge::Contains if has_word(text, expected) => Judged::Right,
        Judge::Contains => wrong(format!("\u{201c}{expected}\u{201d} is not in the answer")),
        Judge::Number if numbers(text).any(|number| number == expected) => Judged::Right,
        Judge::Number => wrong(format!("the number {expected} is not in the answer")),
        Judge::UpperCase if !has_word(text, expected) => {
            wrong(format!("\u{201c}{expected}\u{201d} is not in the answer"))
        }
        Judge::UpperCase => match text.chars().find(|c| c.is_lowercase()) {
            Some(_) => wrong("the answer has lower-case letters".to_owned()),
            None => Judged::Right,
        },
        Judge::Json => json(text, expected),
        Judge::Python => match judge_function(code(text), expected, cases) {
            Judgement::Right => Judged::Right,
            Judgement::Wrong(reason) => wrong(reason),
            Judgement::Unjudged(reason) => Judged::Unjudged(reason),
        },
    }
}

/// Whether `word` stands in `text` as a word of its own, in whatever case.
fn has_word(text: &str, word: &str) -> bool {
    let word = word.to_lowercase();
    text.split(|c: char| !c.is_alphanumeric()).any(|part| part.to_lowercase() == word)
}

/// The numbers in a text; `1,234` and `1 234` with a narrow space are 1234.
fn numbers(text: &str) -> impl Iterator<Item = String> {
    let chars: Vec<char> = text.chars().collect();
    let mut joined = String::with_capacity(text.len());
    for (i, &c) in chars.iter().enumerate() {
        let digits_after = chars.iter().skip(i + 1).take_while(|c| c.is_ascii_digit()).count();
        let separates = matches!(c, ',' | '\u{a0}' | '\u{202f}')
            && i > 0
            && chars.get(i - 1).is_some_and(char::is_ascii_digit)
            && digits_after == 3;
        if !separates {
            joined.push(c);
        }
    }
    let parts: Vec<String> = joined
        .split(|c: char| !c.is_ascii_digit())
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect();
    parts.into_iter()
}

/// The first JSON object in the text must have the expected object's fields; more fields are fine.
fn json(text: &str, expected: &str) -> Judged {
    let expected: Value = serde_json::from_str(expected).unwrap_or_default();
    let object = text.match_indices('{').take(20).find_map(|(at, _)| {
        let mut values = serde_json::Deserializer::from_str(text.get(at..)?).into_iter::<Value>();
        values.next()?.ok()
    });
    let Some(object) = object else {
        return Judged::Wrong("there is no JSON object in the answer".to_owned());
    };
    for (name, value) in expected.as_object().into_iter().flatten() {
        // `"31"` is as good as `31`.
        let as_text = value.to_string();
        let found = object.get(name);
        let same = found == Some(value) || found.and_then(Value::as_str).is_some_and(|text| text == as_text);
        if !same {
            return Judged::Wrong(format!("`{name}` is {}, not {value}", found.unwrap_or(&Value::Null)));
        }
    }
    Judged::Right
}

/// The first fenced code block, or the whole text without one.
fn code(text: &str) -> &str {
    let Some((_, after)) = text.split_once("```") else { return text };
    let body = after.split_once('\n').map_or(after, |(_, body)| body);
    body.split_once("```").map_or(body, |(body, _)| body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(kind: Judge, text: &str, expected: &str) -> bool {
        judge(kind, text, expected, &[]) == Judged::Right
    }

    #[test]
    fn wording_does_not_matter() {
        for text in ["Paris", "The capital of France is **Paris**.", "It's paris!", "PARIS."] {
            assert!(right(Judge::Contains, text, "Paris"), "{text}");
        }
        for text in ["", "Parisian", "The capital is Lyon.", "P a r i s"] {
            assert!(!right(Judge::Contains, text, "Paris"), "{text}");
        }
    }

    #[test]
    fn numbers_in_all_spellings() {
        for text in ["47 + 85 = 132.", "The answer is **132**", "= 132,"] {
            assert!(right(Judge::Number, text, "132"), "{text}");
        }
        assert!(right(Judge::Number, "the code is 48,213.", "48213"));
        assert!(!right(Judge::Number, "1324", "132"));
        assert!(!right(Judge::Number, "13 2", "132"));
        assert!(right(Judge::Number, "1, 2, 300", "300"), "a list is not a number");
    }

    #[test]
    fn upper_case() {
        assert!(right(Judge::UpperCase, "THE CAPITAL OF PERU IS LIMA.", "Lima"));
        assert!(!right(Judge::UpperCase, "The capital of Peru is LIMA.", "Lima"));
        assert!(!right(Judge::UpperCase, "ROME", "Lima"));
    }

    #[test]
    fn json_objects() {
        let expected = r#"{"name": "Emma", "age": 31}"#;
        for text in [
            expected,
            "Here:\n```json\n{\"age\":31,\"name\":\"Emma\",\"x\":[1]}\n```",
            "{braces} {\"name\":\"Emma\",\"age\":\"31\"}",
        ] {
            assert!(right(Judge::Json, text, expected), "{text}");
        }
        for text in [
            "{\"name\": \"Emma\"}",
            "{\"name\": \"Emma\", \"age\": 31",
            "name: Emma, age: 31",
            "{\"name\": \"Bob\", \"age\": 31}",
        ] {
            assert!(!right(Judge::Json, text, expected), "{text}");
        }
    }

    #[test]
    fn code_is_taken_from_its_fence_and_run() {
        let cases = [
            Case { arguments: vec![4.into()], expected: true.into() },
            Case { arguments: vec![3.into()], expected: false.into() },
        ];
        let text = "Sure:\n```python\ndef is_even(n):\n    return n % 2 == 0\n```\nDone.";
        assert_eq!(judge(Judge::Python, text, "is_even", &cases), Judged::Right);
        assert!(matches!(judge(Judge::Python, "I can't do that.", "is_even", &cases), Judged::Wrong(_)));
    }
}
