//! Which pages of the KV cache hold which beginnings of prompts, and which of them may go first.
//!
//! A page's address is its content: the 64 tokens in it and the prefix before it. The address is the tokens themselves, not
//! a hash of them, so two prompts can't be taken for each other.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lucid_checkpoint::TokenId;

use crate::kv_cache::{PAGE_TOKENS, PageId};

/// Names the tokens up to the end of a page. A number is given once and never again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixId(u64);

impl PrefixId {
    /// The beginning of every prompt.
    pub const EMPTY: PrefixId = PrefixId(0);
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Content {
    before: PrefixId,
    tokens: [TokenId; PAGE_TOKENS],
}

#[derive(Debug)]
struct Entry {
    content: Arc<Content>,
    /// When nobody held the page any more; `None` while somebody does.
    idle_since: Option<u64>,
}

/// Content to page, page to content, and the pages that nobody holds in the order in which they may go.
#[derive(Debug)]
pub struct PrefixCache {
    pages: HashMap<Arc<Content>, (PrefixId, PageId)>,
    entries: HashMap<PageId, Entry>,
    idle: BTreeMap<u64, PageId>,
    next_id: u64,
    clock: u64,
}

impl PrefixCache {
    /// An empty cache.
    #[must_use]
    pub fn new() -> PrefixCache {
        PrefixCache {
            pages: HashMap::new(),
            entries: HashMap::new(),
            idle: BTreeMap::new(),
            next_id: PrefixId::EMPTY.0 + 1,
            clock: 0,
        }
    }

    /// The page that holds `tokens` after the prefix `before`, and the prefix that ends with it.
    #[must_use]
    pub fn find(&self, before: PrefixId, tokens: &[TokenId; PAGE_TOKENS]) -> Option<(PrefixId, PageId)> {
        self.pages.get(&Content { before, tokens: *tokens }).copied()
    }

    /// Notes what a page that somebody holds contains; whatever was noted about it before is forgotten.
    ///
    /// No other page may have this content: see [`PrefixCache::find`].
    pub fn insert(&mut self, before: PrefixId, tokens: &[TokenId; PAGE_TOKENS], page: PageId) -> PrefixId {
        self.forget(page);
        let content = Arc::new(Content { before, tokens: *tokens });
        let id = PrefixId(self.next_id);
        self.next_id += 1;
        self.pages.insert(Arc::clone(&content), (id, page));
        self.entries.insert(page, Entry { content, idle_since: None });
        id
    }

    /// Whether a page's content is known.
    #[must_use]
    pub fn contains(&self, page: PageId) -> bool {
        self.entries.contains_key(&page)
    }

    /// Drops what is known about a page. True if nobody held it: it is free now.
    pub fn forget(&mut self, page: PageId) -> bool {
        let Some(entry) = self.entries.remove(&page) else { return false };
        self.pages.remove(&entry.content);
        entry.idle_since.is_some_and(|since| self.idle.remove(&since).is_some())
    }

    /// Nobody holds this page of known content any more. What is parked first is evicted first.
    pub fn park(&mut self, page: PageId) {
        let Some(entry) = self.entries.get_mut(&page) else { return };
        self.clock += 1;
        entry.idle_since = Some(self.clock);
        self.idle.insert(self.clock, page);
    }

    /// Somebody holds a parked page again.
    pub fn take(&mut self, page: PageId) {
        if let Some(since) = self.entries.get_mut(&page).and_then(|entry| entry.idle_since.take()) {
            self.idle.remove(&since);
        }
    }

    /// Pages of known content that nobody holds.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.idle.len()
    }

    /// All pages of known content.
    pub fn pages(&self) -> impl Iterator<Item = PageId> {
        self.entries.keys().copied()
    }

    /// Gives up the page that has been idle longest.
    pub fn evict(&mut self) -> Option<PageId> {
        let (_, &page) = self.idle.first_key_value()?;
        self.forget(page);
        Some(page)
    }

    /// Whether every page's own prefix can still be found, so that no page is held that nobody can ask for.
    #[cfg(test)]
    pub fn is_rooted(&self) -> bool {
        let ids: std::collections::HashSet<PrefixId> = self.pages.values().map(|(id, _)| *id).collect();
        self.pages.keys().all(|content| content.before == PrefixId::EMPTY || ids.contains(&content.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_cache::PagePool;

    fn tokens(first: u32) -> [TokenId; PAGE_TOKENS] {
        std::array::from_fn(|i| TokenId(first + i as u32))
    }

    fn pages(count: usize) -> Vec<PageId> {
        let mut pages = Vec::new();
        assert!(PagePool::new(count * PAGE_TOKENS).extend(&mut pages, count * PAGE_TOKENS));
        pages
    }

    #[test]
    fn the_same_tokens_after_another_prefix_are_another_content() {
        let (mut cache, pages) = (PrefixCache::new(), pages(3));
        let a = cache.insert(PrefixId::EMPTY, &tokens(0), pages[0]);
        let b = cache.insert(a, &tokens(9), pages[1]);
        assert_eq!(cache.find(PrefixId::EMPTY, &tokens(0)), Some((a, pages[0])));
        assert_eq!(cache.find(a, &tokens(9)), Some((b, pages[1])));
        assert_eq!(cache.find(PrefixId::EMPTY, &tokens(9)), None);
        assert_eq!(cache.find(b, &tokens(9)), None);
    }

    #[test]
    fn the_longest_idle_page_goes_first_and_a_held_one_never() {
        let (mut cache, pages) = (PrefixCache::new(), pages(3));
        for (i, &page) in pages.iter().enumerate() {
            cache.insert(PrefixId::EMPTY, &tokens(i as u32), page);
        }
        for page in [2, 0, 1] {
            cache.park(pages[page]);
        }
        cache.take(pages[0]);
        assert_eq!((cache.evict(), cache.evict(), cache.evict()), (Some(pages[2]), Some(pages[1]), None));
        assert_eq!(cache.find(PrefixId::EMPTY, &tokens(2)), None);
        assert!(cache.find(PrefixId::EMPTY, &tokens(0)).is_some());
    }

    #[test]
    fn what_is_forgotten_under_an_old_prefix_is_not_found_under_its_successor() {
        let (mut cache, pages) = (PrefixCache::new(), pages(2));
        let a = cache.insert(PrefixId::EMPTY, &tokens(0), pages[0]);
        cache.insert(a, &tokens(9), pages[1]);
        assert!(!cache.forget(pages[0]), "it was held");
        let again = cache.insert(PrefixId::EMPTY, &tokens(0), pages[0]);
        assert_ne!(again, a);
        assert_eq!(cache.find(again, &tokens(9)), None);
    }
}
