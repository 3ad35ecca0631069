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
    let secret = secret(random);
    let place = sentences / 10 + random.below(sentences * 8 / 10 + 1);
    let mut text = hay(haystack, sentences, random);
    text.insert(place.min(text.len()), needle(haystack, key, &secret));
    (text.join(" "), secret)
}

/// Five digits.
pub(crate) fn secret(random: &mut Random) -> String {
    format!("{}", 10_000 + random.below(90_000))
}

/// The sentence that hides.
pub(crate) fn needle(haystack: &Haystack, key: &str, secret: &str) -> String {
    haystack.needle.replace("{key}", key).replace("{secret}", secret)
}

/// Sentences without a fact; about nine tokens each.
pub(crate) fn hay(haystack: &Haystack, sentences: usize, random: &mut Random) -> Vec<String> {
    (0..sentences).map(|_| sentence(haystack, random)).collect()
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
