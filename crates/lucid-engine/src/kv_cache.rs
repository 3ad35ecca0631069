//! Book-keeping of the KV cache: fixed pages, handed out, shared and taken back. The values live in the backend.

use lucid_checkpoint::TokenId;

use crate::prefix_cache::{PrefixCache, PrefixId};

/// Tokens a page holds. Attention sums run page by page, so this number is part of the numerics.
pub const PAGE_TOKENS: usize = 64;

/// One page of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageId(u32);

impl PageId {
    /// The page at a place in the backend's buffers.
    #[must_use]
    pub fn at(index: u32) -> PageId {
        PageId(index)
    }

    /// The page's place in the backend's buffers.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// All pages: free ones, ones that sequences hold (perhaps several the same one), and ones that nobody holds but whose
/// content a later prompt may begin with.
#[derive(Debug)]
pub struct PagePool {
    free: Vec<PageId>,
    /// How many sequences hold a page.
    holders: Vec<u32>,
    /// Pages that somebody holds.
    used: usize,
    prefixes: PrefixCache,
}

impl PagePool {
    /// A pool for `tokens` tokens, rounded up to whole pages.
    #[must_use]
    pub fn new(tokens: usize) -> PagePool {
        let total = tokens.div_ceil(PAGE_TOKENS).min(u32::MAX as usize);
        // The lowest page is taken first, so a lightly used cache touches little memory.
        let free = (0..total as u32).rev().map(PageId).collect();
        PagePool { free, holders: vec![0; total], used: 0, prefixes: PrefixCache::new() }
    }

    /// Pages in all.
    #[must_use]
    pub fn total(&self) -> usize {
        self.holders.len()
    }

    /// Pages that sequences hold.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }

    /// Extends `pages` so that it holds `tokens` tokens. Takes nothing and returns false when too few pages can be had.
    #[must_use]
    pub fn extend(&mut self, pages: &mut Vec<PageId>, tokens: usize) -> bool {
        let missing = tokens.div_ceil(PAGE_TOKENS).saturating_sub(pages.len());
        if missing > self.free.len() + self.prefixes.idle() {
            return false;
        }
        for _ in 0..missing {
            // Old prompts are worth more than nothing, so free pages go first.
            let Some(page) = self.free.pop().or_else(|| self.prefixes.evict()) else { return false };
            self.hold(page);
            pages.push(page);
        }
        true
    }

    /// Takes all of `pages` back. Those with a known prompt stay findable until their room is needed.
    pub fn release(&mut self, pages: &mut Vec<PageId>) {
        // Last page first: a page is then never evicted before the pages that only follow it.
        while let Some(page) = pages.pop() {
            self.let_go(page);
        }
    }

    /// Fills the empty `pages` with pages that hold the beginning of `tokens`, whole pages only.
    pub fn find_prefix(&mut self, pages: &mut Vec<PageId>, tokens: &[TokenId]) {
        debug_assert!(pages.is_empty());
        let mut before = PrefixId::EMPTY;
        for tokens in tokens.as_chunks().0 {
            let Some((prefix, page)) = self.prefixes.find(before, tokens) else { return };
            self.hold(page);
            pages.push(page);
            before = prefix;
        }
    }

    /// Lets others find the whole pages of `tokens`, which `pages` begin with.
    ///
    /// Where a page of the same content is known already, the sequence takes that one and lets its own go. Batch invariance
    /// makes them equal to the bit; and whoever holds a page then holds all pages before it, so they are evicted in order.
    pub fn share_prefix(&mut self, pages: &mut [PageId], tokens: &[TokenId]) {
        let mut before = PrefixId::EMPTY;
        for (page, tokens) in pages.iter_mut().zip(tokens.as_chunks().0) {
            before = match self.prefixes.find(before, tokens) {
                Some((prefix, known)) => {
                    if known != *page {
                        self.hold(known);
                        self.let_go(std::mem::replace(page, known));
                    }
                    prefix
                }
                None => self.prefixes.insert(before, tokens, *page),
            };
        }
    }

    /// Nobody shall find these pages any more; who holds them keeps them.
    pub fn forget_prefix(&mut self, pages: &[PageId]) {
        for &page in pages {
            if self.prefixes.forget(page) {
                self.free.push(page);
            }
        }
    }

    /// Nobody shall find anything any more. Who holds pages keeps them.
    pub fn forget_all(&mut self) {
        while let Some(page) = self.prefixes.evict() {
            self.free.push(page);
        }
        let held: Vec<PageId> = self.prefixes.pages().collect();
        self.forget_prefix(&held);
    }

    fn hold(&mut self, page: PageId) {
        let holders = &mut self.holders[page.index()];
        if *holders == 0 {
            self.used += 1;
            self.prefixes.take(page);
        }
        *holders += 1;
    }

    fn let_go(&mut self, page: PageId) {
        let holders = &mut self.holders[page.index()];
        debug_assert!(*holders > 0, "a page was released twice");
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        self.used -= 1;
        if self.prefixes.contains(page) {
            self.prefixes.park(page);
        } else {
            self.free.push(page);
        }
    }

    /// Panics unless every page is free, idle or held, exactly as often as `held` says.
    #[cfg(test)]
    pub fn check(&self, held: impl Iterator<Item = PageId>) {
        let mut holders = vec![0; self.total()];
        held.for_each(|page| holders[page.index()] += 1);
        assert_eq!(
            holders, self.holders,
            "a page has holders that it doesn't know of, or the other way round"
        );
        let held = holders.iter().filter(|&&holders| holders > 0).count();
        assert_eq!(held, self.used);
        let unique: std::collections::HashSet<_> = self.free.iter().collect();
        assert_eq!(unique.len(), self.free.len(), "a page is free twice");
        assert!(self.free.iter().all(|page| holders[page.index()] == 0 && !self.prefixes.contains(*page)));
        assert_eq!(held + self.free.len() + self.prefixes.idle(), self.total(), "a page is lost");
    }

    /// Whether every shared page can be found.
    #[cfg(test)]
    pub fn is_rooted(&self) -> bool {
        self.prefixes.is_rooted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_and_go_whole() {
        let mut pool = PagePool::new(3 * PAGE_TOKENS - 1);
        assert_eq!(pool.total(), 3);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        assert!(pool.extend(&mut a, 1) && a.len() == 1);
        assert!(pool.extend(&mut a, PAGE_TOKENS) && a.len() == 1);
        assert!(pool.extend(&mut a, PAGE_TOKENS + 1) && a.len() == 2);
        assert!(!pool.extend(&mut b, PAGE_TOKENS + 1) && b.is_empty());
        assert!(pool.extend(&mut b, 1));
        assert_eq!(pool.used(), 3);
        let first = a[0];
        pool.release(&mut a);
        assert_eq!((pool.used(), a.len()), (1, 0));
        assert!(pool.extend(&mut b, 2 * PAGE_TOKENS));
        assert_eq!(b[1], first);
    }

    #[test]
    fn a_prefix_is_found_shared_once_and_evicted_from_its_end() {
        let mut pool = PagePool::new(4 * PAGE_TOKENS);
        let prompt: Vec<TokenId> = (0..2 * PAGE_TOKENS as u32 + 5).map(TokenId).collect();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        assert!(pool.extend(&mut a, prompt.len()));
        // Both computed it; the second takes the pages of the first.
        let mut twin = a.split_off(2);
        assert!(pool.extend(&mut twin, 2 * PAGE_TOKENS));
        pool.share_prefix(&mut a, &prompt);
        pool.share_prefix(&mut twin, &prompt);
        assert_eq!((&twin, pool.used()), (&a, 2));
        pool.release(&mut twin);
        pool.release(&mut a);
        assert_eq!(pool.used(), 0);
        pool.find_prefix(&mut b, &prompt);
        assert_eq!(b.len(), 2);
        pool.check(b.iter().copied());
        let first = b[0];
        pool.release(&mut b);
        // Three other pages take the two free ones and the prompt's last.
        assert!(pool.extend(&mut a, 3 * PAGE_TOKENS));
        pool.find_prefix(&mut b, &prompt);
        assert_eq!(b, [first]);
        pool.forget_prefix(&b);
        pool.release(&mut b);
        pool.find_prefix(&mut b, &prompt);
        assert!(b.is_empty());
        pool.check(a.iter().copied());
    }
}
