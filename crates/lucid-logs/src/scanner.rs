//! Finds the known lines among many: literals first, patterns only where a literal stands.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::knowledge::knowledge;

/// What a line may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Entry of [`Knowledge::signatures`](crate::knowledge::Knowledge::signatures).
    Signature(u16),
    /// Entry of [`Knowledge::lines`](crate::knowledge::Knowledge::lines).
    Line(u16),
    /// The first words of a traceback.
    Traceback,
}

struct Index {
    literals: AhoCorasick,
    /// What each literal stands for.
    entries: Vec<Vec<Known>>,
}

static INDEX: LazyLock<Index> = LazyLock::new(|| {
    let knowledge = knowledge();
    let mut literals: Vec<&str> = vec!["Traceback (most recent call last):"];
    let mut entries = vec![vec![Known::Traceback]];
    let signatures = knowledge
        .signatures
        .iter()
        .enumerate()
        .map(|(index, (signature, _))| (Known::Signature(index as u16), &signature.literals));
    let lines = knowledge
        .lines
        .iter()
        .enumerate()
        .map(|(index, (line, _))| (Known::Line(index as u16), &line.literals));
    for (known, wanted) in signatures.chain(lines) {
        for literal in wanted {
            match literals.iter().position(|known| known == literal) {
                Some(at) => entries[at].push(known),
                None => {
                    literals.push(literal);
                    entries.push(vec![known]);
                }
            }
        }
    }
    // Overlapping search needs the standard semantics; the DFA is some megabytes and twice as fast as the NFA.
    let literals = AhoCorasick::builder()
        .match_kind(MatchKind::Standard)
        .kind(Some(AhoCorasickKind::DFA))
        .build(&literals)
        .unwrap_or_else(|error| panic!("literals of the signatures: {error}"));
    Index { literals, entries }
});

/// Finds what a line may be; `found` is emptied first. Patterns are not tried yet.
pub(crate) fn candidates(line: &[u8], found: &mut Vec<Known>) {
    found.clear();
    for hit in INDEX.literals.find_overlapping_iter(line) {
        for known in &INDEX.entries[hit.pattern().as_usize()] {
            if !found.contains(known) {
                found.push(*known);
            }
        }
    }
}
