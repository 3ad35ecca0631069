//! Finds markers (`</think>`, `<|tool_call_begin|>`) in a text that comes in arbitrary pieces.

/// What comes next in the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Text without any of the markers, and none begins in it.
    Text(String),
    /// The marker with this index in the list that was asked for.
    Marker(usize),
}

/// Text that was received and not yet handed on.
///
/// Which markers matter is asked for at each step: it changes with the state of the parser above.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scanner {
    received: String,
    /// Bytes of `received` that were handed on already.
    done: usize,
}

impl Scanner {
    pub(crate) fn push(&mut self, text: &str) {
        self.received.drain(..self.done);
        self.done = 0;
        self.received.push_str(text);
    }

    /// The next text or marker; `None` until more text comes.
    ///
    /// An end of the text that could be the beginning of a marker is held back.
    pub(crate) fn next(&mut self, markers: &[&str]) -> Option<Next> {
        let rest = self.rest();
        if let Some(index) = markers.iter().position(|marker| rest.starts_with(marker)) {
            self.done += markers[index].len();
            return Some(Next::Marker(index));
        }
        let starts = |at: usize| {
            let tail = &rest[at..];
            markers.iter().any(|marker| tail.starts_with(marker) || marker.starts_with(tail))
        };
        let first_of_a_marker = |character: char| markers.iter().any(|marker| marker.starts_with(character));
        let mut candidates = rest.match_indices(first_of_a_marker).map(|(at, _)| at);
        let end = candidates.find(|&at| starts(at)).unwrap_or(rest.len());
        self.take(end)
    }

    /// What is left when no more text comes: nothing of it is a marker of those last asked for.
    pub(crate) fn finish(&mut self) -> Option<String> {
        match self.take(self.rest().len()) {
            Some(Next::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn rest(&self) -> &str {
        &self.received[self.done..]
    }

    /// Hands on `length` bytes as text; `None` if that is nothing.
    fn take(&mut self, length: usize) -> Option<Next> {
        let text = self.rest()[..length].to_owned();
        self.done += length;
        (!text.is_empty()).then_some(Next::Text(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_that_comes_in_pieces_does_not_leak() {
        let mut scanner = Scanner::default();
        scanner.push("yes <");
        assert_eq!(scanner.next(&["</think>"]), Some(Next::Text("yes ".to_owned())));
        assert_eq!(scanner.next(&["</think>"]), None);
        scanner.push("/thi");
        assert_eq!(scanner.next(&["</think>"]), None);
        scanner.push("nk>no");
        assert_eq!(scanner.next(&["</think>"]), Some(Next::Marker(0)));
        assert_eq!(scanner.next(&["</think>"]), Some(Next::Text("no".to_owned())));
        assert_eq!(scanner.next(&["</think>"]), None);
    }

    #[test]
    fn a_beginning_that_is_no_marker_after_all_is_text() {
        let mut scanner = Scanner::default();
        scanner.push("a </thin");
        assert_eq!(scanner.next(&["</think>"]), Some(Next::Text("a ".to_owned())));
        scanner.push("g </think");
        assert_eq!(scanner.next(&["</think>"]), Some(Next::Text("</thing ".to_owned())));
        assert_eq!(scanner.finish(), Some("</think".to_owned()));
        assert_eq!(scanner.finish(), None);
    }
}
