//! What rank 0 tells the others, as words.

use lucid_checkpoint::TokenId;

use crate::cpu::Span;
use crate::kv_cache::PageId;

/// First words of messages: these of orders, those of `link.rs` below.
const CACHE: u32 = 16;
const FORWARD: u32 = 17;
const LOGITS: u32 = 18;
const STOP: u32 = 19;

/// What a following rank is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Order {
    /// Make a cache of so many pages.
    Cache(usize),
    /// Compute a step.
    Forward(Step),
    /// Send the logits of these rows of the last step to rank 0.
    Logits(Vec<usize>),
    /// End.
    Stop,
}

/// The tokens of a step and where they belong.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// Row by row.
    pub tokens: Vec<TokenId>,
    spans: Vec<Place>,
}

/// A span that owns its pages.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    pages: Vec<PageId>,
    position: usize,
    count: usize,
    row: usize,
    prompt: usize,
}

impl Step {
    /// As the model takes them.
    #[must_use]
    pub fn spans(&self) -> Vec<Span<'_>> {
        let span = |place: &Place| {
            let Place { position, count, row, prompt, .. } = *place;
            (position, count, row, prompt)
        };
        let spans = self.spans.iter().map(|place| (place, span(place)));
        spans
            .map(|(place, (position, count, row, prompt))| Span {
                pages: &place.pages,
                position,
                count,
                row,
                prompt,
            })
            .collect()
    }
}

/// [`Order::Cache`].
#[must_use]
pub fn cache(pages: usize) -> Vec<u32> {
    vec![CACHE, pages as u32]
}

/// [`Order::Stop`].
#[must_use]
pub fn stop() -> Vec<u32> {
    vec![STOP]
}

/// [`Order::Logits`].
#[must_use]
pub fn logits(rows: &[usize]) -> Vec<u32> {
    std::iter::once(LOGITS).chain(rows.iter().map(|&row| row as u32)).collect()
}

/// [`Order::Forward`].
#[must_use]
pub fn forward(tokens: &[TokenId], spans: &[Span<'_>]) -> Vec<u32> {
    let mut words = vec![FORWARD, tokens.len() as u32];
    words.extend(tokens.iter().map(|token| token.0));
    for span in spans {
        words.extend(
            [span.position, span.count, span.row, span.prompt, span.pages.len()].map(|word| word as u32),
        );
        words.extend(span.pages.iter().map(|page| page.index() as u32));
    }
    words
}

/// Reads an order; `None` is none.
#[must_use]
pub fn read(words: &[u32]) -> Option<Order> {
    let (&kind, words) = words.split_first()?;
    match (kind, words) {
        (CACHE, &[pages]) => Some(Order::Cache(pages as usize)),
        (STOP, []) => Some(Order::Stop),
        (LOGITS, rows) => Some(Order::Logits(rows.iter().map(|&row| row as usize).collect())),
        (FORWARD, words) => {
            let (&count, words) = words.split_first()?;
            let (tokens, mut words) = words.split_at_checked(count as usize)?;
            let mut spans = Vec::new();
            while let Some((head, rest)) = words.split_first_chunk::<5>() {
                let [position, count, row, prompt, pages] = head.map(|word| word as usize);
                let (pages, rest) = rest.split_at_checked(pages)?;
                let pages = pages.iter().map(|&page| PageId::at(page)).collect();
                spans.push(Place { pages, position, count, row, prompt });
                words = rest;
            }
            let tokens = tokens.iter().map(|&token| TokenId(token)).collect();
            words.is_empty().then_some(Order::Forward(Step { tokens, spans }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn steps_arrive_as_they_were_sent(
            tokens in prop::collection::vec(any::<u32>(), 0..40),
            places in prop::collection::vec(
                (prop::collection::vec(any::<u32>(), 0..9), 0..9_000usize, 0..50usize, 0..50usize, 0..9_000usize), 0..6),
        ) {
            let tokens: Vec<TokenId> = tokens.into_iter().map(TokenId).collect();
            let spans: Vec<Place> = places
                .into_iter()
                .map(|(pages, position, count, row, prompt)| Place {
                    pages: pages.into_iter().map(PageId::at).collect(), position, count, row, prompt,
                })
                .collect();
            let step = Step { tokens, spans };
            let words = forward(&step.tokens, &step.spans());
            prop_assert_eq!(read(&words), Some(Order::Forward(step)));
            // What is cut off is no order.
            prop_assert!(words.len() < 4 || read(&words[..1]).is_none());
        }

        #[test]
        fn any_words_are_read_without_a_panic(words in prop::collection::vec(0..24u32, 0..40)) {
            let _ = read(&words);
        }
    }

    #[test]
    fn the_other_orders_arrive_too() {
        assert_eq!(read(&cache(7)), Some(Order::Cache(7)));
        assert_eq!(read(&logits(&[3, 1])), Some(Order::Logits(vec![3, 1])));
        assert_eq!(read(&stop()), Some(Order::Stop));
        assert_eq!(read(&[CACHE]), None);
        assert_eq!(read(&[FORWARD, 3, 1, 2]), None);
        assert_eq!(read(&[]), None);
    }
}
