//! A text with one fact hidden in it.

use crate::knowledge::Haystack;
use crate::statistics::Random;

/// `sentences` sentences with the needle between 10 % and 90 % of them. The secret is fresh: it can't have been learnt.
pub(super) fn hide(
    haystack: &Haystack,
    key: &str,
    sentences: usize,
    random: &mut Random,
) -> (String, String) {
    let secret = format!("{}", 10_000 + random.below(90_000));
    let place = sentences / 10 + random.below(sentences * 8 / 10 + 1);
    let mut text = Vec::with_capacity(sentences + 1);
    for number in 0..sentences {
        if number == place {
            text.push(haystack.needle.replace("{key}", key).replace("{secret}", &secret));
        }
        text.push(sentence(haystack, random));
    }
    (text.join(" "), secret)
}

fn sentence(haystack: &Haystack, random: &mut Random) -> String {
    let mut word = |words: &[String]| random.choose(words).cloned().unwrap_or_default();
    let template = word(&haystack.templates);
    template
        .replace("{animal}", &word(&haystack.animals))
        .replace("{adjective}", &word(&haystack.adjectives))
        .replace("{place}", &word(&haystack.places))
        .replace("{thing}", &word(&haystack.things))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knowledge::ladder;

    #[test]
    fn the_needle_is_there_once_and_fresh() {
        let mut secrets = Vec::new();
        for seed in 0..20 {
            let (text, secret) = hide(&ladder().haystack, "mirror", 66, &mut Random::new(seed));
            assert_eq!(text.matches(&secret).count(), 1);
            assert!(!text.contains('{') && text.split(". ").count() == 67, "{text}");
            secrets.push(secret);
        }
        secrets.dedup();
        assert!(secrets.len() > 15);
    }
}
