//! Stop strings: ends a text at the first of several strings, wherever the pieces of it are cut.
//!
//! Text that could be the beginning of a stop string is held back until it is decided, so no part of a stop
//! string is ever sent. Of several stop strings, the one that is complete first wins, and of those that are
//! complete at the same character the longest: that rule does not depend on the cuts.

/// What may be sent after a piece of text came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// No stop string so far; this much is safe to send.
    Open(String),
    /// A stop string is complete: send this, and nothing more.
    Stopped {
        /// The text up to the stop string, or through its end if it is to be included.
        text: String,
        /// Which stop string.
        stop: String,
    },
}

/// Scans one text. After [`Scan::Stopped`] it must not be fed again.
pub(crate) struct StopStrings {
    stops: Vec<String>,
    include: bool,
    held: String,
}

impl StopStrings {
    /// `stops` must not contain an empty string. `include` keeps the stop string itself in the text.
    pub(crate) fn new(stops: Vec<String>, include: bool) -> StopStrings {
        debug_assert!(stops.iter().all(|stop| !stop.is_empty()));
        StopStrings { stops, include, held: String::new() }
    }

    /// Takes the next piece of the text.
    pub(crate) fn push(&mut self, piece: &str) -> Scan {
        if self.stops.is_empty() {
            return Scan::Open(piece.to_owned());
        }
        self.held.push_str(piece);
        let mut text = std::mem::take(&mut self.held);
        let first = self
            .stops
            .iter()
            .filter_map(|stop| text.find(stop.as_str()).map(|start| (start + stop.len(), start, stop)))
            .min_by_key(|&(end, start, _)| (end, start));
        if let Some((end, start, stop)) = first {
            let stop = stop.clone();
            text.truncate(if self.include { end } else { start });
            return Scan::Stopped { text, stop };
        }
        let keep = self.undecided(&text);
        self.held = text.split_off(text.len() - keep);
        Scan::Open(text)
    }

    /// Passes text on that must not stop the answer (`min_tokens` is not reached yet), held text included.
    pub(crate) fn pass(&mut self, piece: &str) -> String {
        let mut text = std::mem::take(&mut self.held);
        text.push_str(piece);
        text
    }

    /// The text is over: what was held back is no stop string.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes of the longest end of `text` that is the beginning of a stop string.
    fn undecided(&self, text: &str) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = text.len().saturating_sub(longest.saturating_sub(1));
        (from..text.len())
            .find(|&at| text.get(at..).is_some_and(|end| self.stops.iter().any(|stop| stop.starts_with(end))))
            .map_or(0, |at| text.len() - at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(pieces: &[&str], stops: &[&str], include: bool) -> (String, Option<String>) {
        let mut scanner = StopStrings::new(stops.iter().map(|s| (*s).to_owned()).collect(), include);
        let mut out = String::new();
        for piece in pieces {
            match scanner.push(piece) {
                Scan::Open(text) => out.push_str(&text),
                Scan::Stopped { text, stop } => {
                    out.push_str(&text);
                    return (out, Some(stop));
                }
            }
        }
        out.push_str(&scanner.finish());
        (out, None)
    }

    #[test]
    fn holds_back_a_beginning_and_gives_it_back() {
        let mut scanner = StopStrings::new(vec!["END".into()], false);
        assert_eq!(scanner.push("a E"), Scan::Open("a ".into()));
        assert_eq!(scanner.push("N"), Scan::Open(String::new()));
        assert_eq!(scanner.push("E"), Scan::Open("EN".into()));
        assert_eq!(scanner.finish(), "E");
    }

    #[test]
    fn a_beginning_inside_a_beginning_is_kept() {
        assert_eq!(run(&["aa", "a", "b c"], &["aab"], false), ("a".into(), Some("aab".into())));
    }

    #[test]
    fn the_stop_string_is_part_of_the_text_if_asked_for() {
        assert_eq!(run(&["one. t", "wo"], &["."], true), ("one.".into(), Some(".".into())));
        assert_eq!(run(&["one. t", "wo"], &["."], false), ("one".into(), Some(".".into())));
    }

    #[test]
    fn the_first_complete_one_wins() {
        assert_eq!(run(&["abcd"], &["abcd", "bc"], false), ("a".into(), Some("bc".into())));
        assert_eq!(run(&["xabc"], &["bc", "abc"], false), ("x".into(), Some("abc".into())));
    }

    #[test]
    fn passed_text_cannot_stop() {
        let mut scanner = StopStrings::new(vec!["ab".into()], false);
        assert_eq!(scanner.pass("ab a"), "ab a");
        assert_eq!(scanner.push("b"), Scan::Open("b".into()));
    }

    /// Character by character, without any buffer: the rule itself.
    fn by_definition(text: &str, stops: &[String]) -> (String, Option<String>) {
        for (at, c) in text.char_indices() {
            let seen = &text[..at + c.len_utf8()];
            let complete =
                stops.iter().filter(|stop| seen.ends_with(stop.as_str())).max_by_key(|stop| stop.len());
            if let Some(stop) = complete {
                return (seen[..seen.len() - stop.len()].to_owned(), Some(stop.clone()));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_text_of_the_definition(
            text in "[abé ]{0,24}",
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let chars: Vec<char> = text.chars().collect();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(chars.len() + 1)).collect();
            at.push(0);
            at.push(chars.len());
            at.sort_unstable();
            let pieces: Vec<String> = at.windows(2).map(|w| chars[w[0]..w[1]].iter().collect()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let names: Vec<&str> = stops.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&pieces, &names, false), by_definition(&text, &stops));
        }
    }
}
