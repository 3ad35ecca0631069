//! Byte-pair encoding by rank, as tiktoken defines it.
//!
//! A token's id is its rank. A piece of text starts as single bytes; of all neighbours whose joined bytes are a token, the
//! pair that makes the lowest rank is joined first (the leftmost of equals), until no two neighbours make a token.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use lucid_checkpoint::TokenId;

/// The ranks of a vocabulary.
#[derive(Debug)]
pub(crate) struct BytePairs {
    ranks: HashMap<Box<[u8]>, u32>,
    /// The token of each single byte. In Kimi's vocabulary its rank is not the byte's value.
    single: [u32; 256],
}

/// No node: the end of the list.
const NONE: usize = usize::MAX;

/// A stretch of the piece that is one token so far. It starts at the byte that is its index in the list.
#[derive(Clone, Copy)]
struct Node {
    end: usize,
    previous: usize,
    next: usize,
    rank: u32,
    /// Joined into the node before it.
    gone: bool,
}

impl BytePairs {
    /// `ranks` maps the bytes of every token to its id. A byte that isn't a token by itself is the error.
    pub(crate) fn new(ranks: HashMap<Box<[u8]>, u32>) -> Result<Self, u8> {
        let mut single = [0; 256];
        for byte in 0..=255_u8 {
            single[usize::from(byte)] = *ranks.get([byte].as_slice()).ok_or(byte)?;
        }
        Ok(BytePairs { ranks, single })
    }

    /// Appends the tokens of one piece (one match of the pre-tokenizer) to `tokens`.
    ///
    /// O(n log n) in the bytes of the piece: a heap holds the pairs that can be joined, a linked list what is left.
    pub(crate) fn encode(&self, piece: &[u8], tokens: &mut Vec<TokenId>) {
        if let Some(&rank) = self.ranks.get(piece) {
            tokens.push(TokenId(rank));
            return;
        }
        let mut nodes: Vec<Node> = piece
            .iter()
            .enumerate()
            .map(|(at, &byte)| Node {
                end: at + 1,
                previous: at.checked_sub(1).unwrap_or(NONE),
                next: if at + 1 < piece.len() { at + 1 } else { NONE },
                rank: self.single[usize::from(byte)],
                gone: false,
            })
            .collect();
        // (rank of the joined token, start, end): the smallest is the lowest rank, and of equals the leftmost.
        let mut pairs = BinaryHeap::with_capacity(piece.len());
        for start in 0..piece.len().saturating_sub(1) {
            self.offer(piece, &nodes, start, &mut pairs);
        }
        while let Some(Reverse((rank, start, end))) = pairs.pop() {
            let left = nodes[start];
            // Either half may have been joined with something else since the pair was offered.
            if left.gone || left.next == NONE || nodes[left.next].end != end {
                continue;
            }
            let right = nodes[left.next];
            nodes[left.next].gone = true;
            nodes[start] = Node { end, next: right.next, rank, ..left };
            if right.next != NONE {
                nodes[right.next].previous = start;
                self.offer(piece, &nodes, start, &mut pairs);
            }
            if left.previous != NONE {
                self.offer(piece, &nodes, left.previous, &mut pairs);
            }
        }
        tokens.extend(nodes.iter().filter(|node| !node.gone).map(|node| TokenId(node.rank)));
    }

    /// Puts the pair that begins with the node at `start` on the heap, if joining it makes a token.
    fn offer(
        &self,
        piece: &[u8],
        nodes: &[Node],
        start: usize,
        pairs: &mut BinaryHeap<Reverse<(u32, usize, usize)>>,
    ) {
        let next = nodes[start].next;
        if next == NONE {
            return;
        }
        let end = nodes[next].end;
        if let Some(&rank) = self.ranks.get(&piece[start..end]) {
            pairs.push(Reverse((rank, start, end)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, word for word, in O(n³).
    fn by_definition(ranks: &HashMap<Box<[u8]>, u32>, piece: &[u8]) -> Vec<TokenId> {
        if let Some(&rank) = ranks.get(piece) {
            return vec![TokenId(rank)];
        }
        let mut parts: Vec<Vec<u8>> = piece.iter().map(|&byte| vec![byte]).collect();
        loop {
            let best = (0..parts.len().saturating_sub(1))
                .filter_map(|at| {
                    ranks
                        .get([&parts[at][..], &parts[at + 1][..]].concat().as_slice())
                        .map(|rank| (*rank, at))
                })
                .min();
            let Some((_, at)) = best else { break };
            let right = parts.remove(at + 1);
            parts[at].extend(right);
        }
        parts.iter().map(|part| TokenId(ranks[part.as_slice()])).collect()
    }

    /// All 256 bytes, then `tokens` in the order of their ranks.
    fn vocabulary(tokens: &[Vec<u8>]) -> HashMap<Box<[u8]>, u32> {
        let mut ranks: HashMap<Box<[u8]>, u32> = HashMap::new();
        for token in (0..=255).map(|byte| vec![byte]).chain(tokens.iter().cloned()) {
            let rank = u32::try_from(ranks.len()).unwrap();
            ranks.entry(token.into_boxed_slice()).or_insert(rank);
        }
        ranks
    }

    proptest! {
        #[test]
        fn heap_agrees_with_the_definition(
            tokens in prop::collection::vec(prop::collection::vec(97..101_u8, 2..7), 0..60),
            piece in prop::collection::vec(97..101_u8, 0..60),
        ) {
            let ranks = vocabulary(&tokens);
            let expected = by_definition(&ranks, &piece);
            let mut got = Vec::new();
            BytePairs::new(ranks).unwrap().encode(&piece, &mut got);
            // An empty piece is no token, but the definition has nothing to look up either.
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn a_missing_byte_is_named() {
        let mut ranks = vocabulary(&[]);
        ranks.remove([7].as_slice());
        assert_eq!(BytePairs::new(ranks).unwrap_err(), 7);
    }
}
