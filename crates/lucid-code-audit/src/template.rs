//! Strings whose constant parts are known: `/tmp/q_tp{rank}.pt`.

/// A part of a [`Template`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Known text.
    Text(String),
    /// Something computed, in the source's words.
    Hole(String),
}

/// A string with holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Template {
    pieces: Vec<Piece>,
}

/// A template stops growing here: `"a" * 10**9` and sums in loops are nobody's file name.
const LONGEST: usize = 512;

impl Template {
    pub(crate) fn text(text: &str) -> Template {
        let mut template = Template::default();
        template.push_text(text);
        template
    }

    pub(crate) fn hole(name: &str) -> Template {
        let mut template = Template::default();
        template.push_hole(name);
        template
    }

    pub(crate) fn push_text(&mut self, text: &str) {
        let room = LONGEST.saturating_sub(self.len());
        let text: String = text.chars().take(room).collect();
        match self.pieces.last_mut() {
            Some(Piece::Text(last)) => last.push_str(&text),
            _ if text.is_empty() => {}
            _ => self.pieces.push(Piece::Text(text)),
        }
    }

    pub(crate) fn push_hole(&mut self, name: &str) {
        if self.len() < LONGEST {
            self.pieces.push(Piece::Hole(name.chars().take(48).collect()));
        }
    }

    pub(crate) fn append(&mut self, other: &Template) {
        for piece in &other.pieces {
            match piece {
                Piece::Text(text) => self.push_text(text),
                Piece::Hole(name) => self.push_hole(name),
            }
        }
    }

    fn len(&self) -> usize {
        self.pieces
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) | Piece::Hole(text) => text.len(),
            })
            .sum()
    }

    /// The whole text, if nothing of it is computed.
    pub(crate) fn constant(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The text before the first hole.
    pub(crate) fn prefix(&self) -> &str {
        match self.pieces.first() {
            Some(Piece::Text(text)) => text,
            _ => "",
        }
    }

    /// What is computed, in the source's words.
    pub(crate) fn holes(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Hole(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        })
    }

    /// All known text, for a look at the words in it.
    pub(crate) fn known(&self) -> String {
        self.pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Text(text) => Some(text.as_str()),
                Piece::Hole(_) => None,
            })
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// As people read it: `/tmp/q_tp{rank}.pt`.
    pub(crate) fn render(&self) -> String {
        self.pieces
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => text.clone(),
                Piece::Hole(name) => format!("{{{name}}}"),
            })
            .collect()
    }

    /// As a pattern of files: `/tmp/q_tp*.pt`.
    pub(crate) fn glob(&self) -> String {
        let mut glob = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => glob.push_str(text),
                Piece::Hole(_) if glob.ends_with('*') => {}
                Piece::Hole(_) => glob.push('*'),
            }
        }
        glob
    }

    /// `"…{}…".format(a, b)` and `"…%s…" % (a, b)`: the marks become what `fill` says for their turn.
    pub(crate) fn fill(&self, percent: bool, mut fill: impl FnMut(usize, &str) -> Template) -> Template {
        let mut filled = Template::default();
        let mut turn = 0;
        for piece in &self.pieces {
            let text = match piece {
                Piece::Hole(name) => {
                    filled.push_hole(name);
                    continue;
                }
                Piece::Text(text) => text,
            };
            let mut rest = text.as_str();
            while let Some(at) = rest.find(if percent { '%' } else { '{' }) {
                filled.push_text(&rest[..at]);
                rest = &rest[at + 1..];
                if percent {
                    if let Some(after) = rest.strip_prefix('%') {
                        filled.push_text("%");
                        rest = after;
                        continue;
                    }
                    let end = rest.find(|c: char| c.is_ascii_alphabetic()).map_or(rest.len(), |end| end + 1);
                    filled.append(&fill(turn, ""));
                    rest = &rest[end.min(rest.len())..];
                } else {
                    if let Some(after) = rest.strip_prefix('{') {
                        filled.push_text("{");
                        rest = after;
                        continue;
                    }
                    let end = rest.find('}').unwrap_or(rest.len());
                    let name = rest[..end].split([':', '!']).next().unwrap_or("");
                    filled.append(&fill(turn, name));
                    rest = rest.get(end + 1..).unwrap_or("");
                }
                turn += 1;
            }
            filled.push_text(rest);
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_filled() {
        let words = |turn: usize, name: &str| {
            Template::hole(&if name.is_empty() { turn.to_string() } else { name.to_owned() })
        };
        assert_eq!(
            Template::text("/tmp/a{}_{rank:02d}.pt").fill(false, words).render(),
            "/tmp/a{0}_{rank}.pt"
        );
        assert_eq!(Template::text("/tmp/%s_%03d%%.pt").fill(true, words).glob(), "/tmp/*_*%.pt");
        assert_eq!(Template::text("{").fill(false, words).render(), "{0}");
        assert_eq!(Template::text("%").fill(true, words).render(), "{0}");
        assert_eq!(Template::text(&"x".repeat(2000)).render().len(), LONGEST);
    }
}
